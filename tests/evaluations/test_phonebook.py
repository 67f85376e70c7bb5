"""Lookup in text: one who looks up has it all right, one who forgets only what is within reach, and nobody by luck."""

from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
import pytest

from evalkit.configuration import experiment as config
from evalkit.core.contracts import Pretrained
from evalkit.core.rows import Row, row, value
from evalkit.evaluations.phonebook.measure import METRICS, Lookup, log_probabilities, question
from evalkit.inference.prefill import prefill, rows_within
from evalkit.tasks.phonebook import VARIANTS, Phonebook
from support.evaluated import checkpoint_of
from support.language_models import Reader, pretrained, unused
from support.shrunk import applied, params_of, shrunk

SETTINGS: dict[str, Any] = {"prompts": 12, "new_tokens": 14, "batch_size": 5, "chunk": 64}


def rows_of(held: Pretrained, book: Phonebook, **settings: Any) -> dict[tuple[int, str, str], Row]:
    lookup = Lookup(**{"lengths": [300, 600], **SETTINGS, **settings})
    rows = lookup.run(checkpoint_of(held, book, partial(row, run="r")))
    return {(entry["length"], entry["metric"], entry["extra"]["answer"]): entry for entry in rows}


@lru_cache
def reader(window: int | None = None) -> Pretrained:
    """One that looks answers up: always the same object, so that all tests share its programs."""
    return pretrained(Reader(window))


def griffin() -> Pretrained:
    model = shrunk("griffin", "task.vocab_size=258")
    return pretrained(model, params_of(model))


class Counted:
    """A tiny griffin that counts the programs it is in."""

    init = parts = decay_mask = decays = states = flops = staticmethod(unused)

    def __init__(self) -> None:
        self.held, self.traced = griffin(), []
        self.window, self.init_cache = self.held.model.window, self.held.model.init_cache
        self.cache_bytes = self.held.model.cache_bytes

    def apply(self, params, tokens, positions=None, cache=None, at=None):
        self.traced.append(tokens.shape)
        return self.held.model.apply(params, tokens, positions, cache, at)


@lru_cache
def untrained() -> tuple[Counted, dict[tuple[int, str, str], Row]]:
    """What a random model has right at 300 and at 1,200 tokens."""
    model = Counted()
    held = pretrained(model, model.held.params)
    return model, rows_of(held, Phonebook(), lengths=[300, 1200], prompts=4, batch_size=4)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_model_that_looks_it_up_has_it_all_right(variant: str) -> None:
    rows = rows_of(reader(), Phonebook(variant=variant), lengths=[700])
    assert {key[1:] for key in rows} == {(metric, "all") for metric in METRICS}
    assert value(rows[700, "exact_match", "all"]) == value(rows[700, "digit_accuracy", "all"]) == 1.0
    # Eleven characters, each of probability 1 / (1 + 257 / e^6).
    assert value(rows[700, "log_probability", "all"]) == pytest.approx(-11 * np.log1p(257 * np.exp(-6)), rel=1e-4)


def test_a_model_that_forgets_has_right_what_is_inside_its_window() -> None:
    rows = rows_of(reader(250), Phonebook(), lengths=[600], prompts=20)
    inside, outside = (rows[600, "exact_match", where] for where in ("inside", "outside"))
    assert value(inside) == 1.0 and value(outside) == 0.0
    assert inside["count"] > 2 < outside["count"] and inside["count"] + outside["count"] == 20
    assert rows[600, "exact_match", "all"]["total"] == inside["count"]
    assert value(rows[600, "log_probability", "outside"]) < -50


def test_the_window_ends_at_the_first_token_of_the_entry() -> None:
    asked = Phonebook().example(8, 0)
    distance = len(asked.prompt) - asked.place
    for window, inside in ((distance - 1, False), (distance, True), (None, False)):
        assert question(reader(window), asked).inside is inside


def test_a_random_model_has_nothing_right() -> None:
    _, rows = untrained()
    assert rows[300, "exact_match", "all"]["total"] == 0
    assert value(rows[300, "digit_accuracy", "all"]) < 0.4
    assert value(rows[300, "log_probability", "all"]) < -11 * np.log(10)


@pytest.mark.slow
def test_the_log_probability_is_that_of_the_whole_text() -> None:
    """Against one pass over prompt and answer together, row by row, the softmax in float64."""
    held, prompts = griffin(), [[256, *b"Ann Lee: 61\n"], [256, *b"x:"], [256, *b"Joe"]]
    answers = [list(b" 712"), list(b" 7"), list(b" 64321")]
    read = prefill(held, prompts, rows=4, size=32, chunk=8)
    logs = log_probabilities(held, read, answers, 6)
    assert logs.shape == (3,)
    for prompt, answer, log in zip(prompts, answers, logs, strict=True):
        padded = np.zeros((1, 20), np.int32)
        padded[0, : len(prompt) + len(answer)] = [*prompt, *answer]
        logits = np.asarray(applied(held.model)(held.params, padded)[0][0], np.float64)
        normed = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
        wanted = sum(normed[len(prompt) - 1 + i, token] for i, token in enumerate(answer))
        assert log == pytest.approx(wanted, abs=2e-4)


def test_the_batch_and_the_chunk_change_no_number() -> None:
    one, other = (
        rows_of(reader(250), Phonebook(), lengths=[600], prompts=6, batch_size=batch, chunk=chunk)
        for batch, chunk in ((5, 64), (1, 1000))
    )
    assert one.keys() == other.keys()
    for key, entry in one.items():
        assert entry["count"] == other[key]["count"] and entry["extra"] == other[key]["extra"]
        assert entry["total"] == pytest.approx(other[key]["total"], rel=1e-5)


def test_lengths_are_those_of_the_prompts_and_the_first_token_counts() -> None:
    for (length, *_), entry in rows_of(reader(), Phonebook()).items():
        assert abs(entry["extra"]["prompt_tokens"] - length) < 20
        assert entry["extra"]["entries"] == Phonebook().entries_for(length, lambda text: len(text) + 1)


def test_memory_does_not_grow_with_length() -> None:
    """The programs that serve 300 tokens serve 1,200: each is given the chunk and a cache of one size."""
    model, _ = untrained()
    assert sorted(model.traced) == [(4, 1), (4, 10), (4, 64), (4, 64)]  # decode, score, read with pads and without


def test_what_is_done_is_not_done_again() -> None:
    lookup = Lookup(lengths=[450, 300], **SETTINGS)
    trained = checkpoint_of(reader(), Phonebook(), partial(row, run="r"))
    rows = list(lookup.run(trained))
    assert [entry["length"] for entry in rows] == [300] * 3 + [450] * 3
    assert [lookup.kept(rows[:count]) for count in range(7)] == [0, 0, 0, 3, 3, 3, 6]
    assert list(lookup.run(replace(trained, kept=rows[:3]))) == rows[3:]
    assert list(lookup.run(replace(trained, kept=rows))) == []


def test_fewer_prompts_at_a_time_where_caches_are_large() -> None:
    """The reader's cache has 4 bytes a token; Griffin's stops at its window."""
    assert [rows_within(reader(), 8, size, 2**-10) for size in (64, 2**15, 2**17, 2**20)] == [8, 4, 1, 1]
    three = 3 * reader().model.cache_bytes(1, 4096) / 2**30  # GiB
    assert [rows_within(reader(), rows, 4096, three) for rows in (6, 7, 20)] == [3, 1, 2]
    assert rows_within(griffin(), 8, 4096, 2**-10) == rows_within(griffin(), 8, 2**20, 2**-10)
    with pytest.raises(ValueError, match="cache_gib=0; allowed: above 0"):
        Lookup([600], cache_gib=0)


def test_it_needs_a_phonebook_in_text() -> None:
    with pytest.raises(ValueError, match="a lookup needs a phonebook in text; give task=phonebook checkpoint=FOLDER"):
        Lookup([600]).check(config.build_task("phonebook"))
    Lookup([600]).check(Phonebook())
