"""Streamed evaluation: chunks change nothing, sequences are counted once, and memory does not grow with length.

Effective lengths of made-up curves whose answers are known.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any
from unittest.mock import Mock

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalkit.configuration import catalogue
from evalkit.configuration import experiment as config
from evalkit.core import streams
from evalkit.core.batches import SyntheticFeed
from evalkit.core.objective import tally
from evalkit.core.statistics import is_narrow
from evalkit.evaluations.extrapolation.effective import KEPT, Tally, effective_length, interval_shown, shown
from evalkit.evaluations.extrapolation.measure import Extrapolation
from evalkit.evaluations.extrapolation.summary import summarise
from evalkit.inference import streaming
from evalkit.inference.streaming import stream_tallies, stream_tally
from evalkit.tasks import Example
from support.evaluated import trained_of
from support.made_up_runs import falls, perfect, run_record
from support.shrunk import applied, experiment, params_of, shrunk

MODELS = catalogue.options("model")
ALL = pytest.mark.exhaustive


def tiny(model: str, task: str = "selective_copying") -> config.Experiment:
    return experiment(model, f"task={task}", "task.length=40")


@lru_cache
def whole(model: str) -> tuple[Example, Any]:
    """Three held-out examples, scored everywhere, and their tally from one pass without a cache."""
    held = tiny(model)
    example = streams.held_out_batch(held.task, streams.TEST, 0, 3, 40)
    example = example._replace(mask=np.ones(example.mask.shape, bool))
    logits = applied(held.model)(params_of(held.model), example.tokens)[0]
    return example, jax.jit(tally)(logits, example)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("chunk", "model"),
    [
        pytest.param(chunk, model, marks=() if model in ("griffin", "kda") and chunk == 7 else ALL)
        for chunk in (7, 32, 1000)
        for model in MODELS
    ],
)
def test_streaming_gives_the_whole_result(chunk: int, model: str) -> None:
    example, expected = whole(model)
    streamed = stream_tally(tiny(model).model, params_of(tiny(model).model), example, chunk)
    for one, other in zip(expected, streamed, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_padding_is_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last chunk is filled up: nothing there is scored, and where there are positions, −1 says that it is nothing.

    No number shows it, since nothing is read after it; so what is read is looked at, and no program is run.
    """
    read: list[Example] = []

    def advance(model, mesh, params, part, cache, total, count, scored, chunk):
        read.append(part)
        return cache, total, total

    monkeypatch.setattr(streaming, "advance", advance)
    tokens = np.ones((2, 10), np.int32)
    positions = np.broadcast_to(np.arange(10, dtype=np.int32) % 6, (2, 10))
    example = Example(tokens, tokens, np.ones((2, 10), bool), positions)
    stream_tally(shrunk("hawk"), {}, example, 4)
    np.testing.assert_array_equal(
        np.concatenate([part.positions for part in read], axis=1), [[0, 1, 2, 3, 4, 5, 0, 1, 2, 3, -1, -1]] * 2
    )
    assert np.concatenate([part.mask for part in read], axis=1).sum(axis=1).tolist() == [10, 10]


def rows_of(experiment: config.Experiment, evaluation: Extrapolation) -> list:
    return list(evaluation.run(trained_of(experiment)))


@pytest.mark.slow
def test_the_batch_size_changes_no_number_and_what_is_too_long_is_said_not_run() -> None:
    settings = {"lengths": [40, 64, 80], "sequences": 5, "long_sequences": 3, "long_from": 64, "max_length": 64}
    one, other = (rows_of(tiny("griffin"), Extrapolation(**settings, chunk=8, batch_size=size)) for size in (2, 5))
    assert [entry["count"] for entry in one] == [5, 5, 5, 3, 3, 3, 0]
    for left, right in zip(one[:-1], other[:-1], strict=True):
        assert left["metric"] == right["metric"]
        assert left["total"] == pytest.approx(right["total"], rel=1e-5)
    assert one[-1]["length"] == 80 and "max_length=64" in one[-1]["extra"]["not_run"]


@pytest.mark.parametrize("model", [pytest.param("hawk", marks=ALL), "griffin"])
def test_memory_does_not_grow_with_length(model: str) -> None:
    """The program that advances by a chunk is given the chunk and the cache, and nothing of either is of the length."""
    from evalkit.core.objective import Tally
    from evalkit.inference.streaming import advance
    from evalkit.parallel.devices import mesh_for

    held = tiny(model)
    params = jax.eval_shape(held.model.init, jax.random.key(0))

    def memory(length: int) -> int:
        example = jax.eval_shape(lambda: streams.held_out_batch(held.task, streams.TEST, 0, 2, 64))
        part = type(example)(*(jax.ShapeDtypeStruct((2, 64), field.dtype) for field in example[:3]))
        cache = jax.eval_shape(lambda: held.model.init_cache(2, length))
        zero = jax.ShapeDtypeStruct((2,), np.float32)
        lowered = advance.lower(held.model, mesh_for(2), params, part, cache, Tally(zero, zero, zero), 1, None, 64)
        analysis = lowered.compile().memory_analysis()
        return analysis.temp_size_in_bytes + analysis.output_size_in_bytes + analysis.argument_size_in_bytes

    assert memory(2**18) == memory(2**12)


@pytest.mark.parametrize(
    ("right", "needed"),
    [(1.0, 384), (0.0, 64), (1 / 15, 128), (0.97, 480), (0.95, 1024), (0.5, 384)],
    ids=["perfect", "never", "chance", "between the marks", "on a mark", "half"],
)
def test_sampling_stops_when_the_interval_is_narrow_and_off_the_marks(right: float, needed: int) -> None:
    """381 sequences without an error put Wilson's interval above 0.99: looked at every 32, that is 384."""
    marks = Extrapolation(lengths=[8]).marks
    assert next((n for n in range(32, 1025, 32) if is_narrow(right * n, n, 0.1, marks)), 1024) == needed


@pytest.mark.slow
def test_longer_lengths_are_looked_at_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """At step 7; nothing is measured."""
    monkeypatch.setattr(Extrapolation, "_summed", lambda *_: ({"loss": 4.0, "accuracy": 1.0, "exact_match": 1.0}, 2))
    trained = trained_of(tiny("hawk", "induction_heads"))
    for every, seen in ((None, [60, 80]), (7, [60, 80]), (2, [])):
        # The training length, 40, is what validation measures.
        evaluation = Extrapolation(lengths=[40], during=[40, 60, 80], during_sequences=2, during_every=every, chunk=20)
        found = list(evaluation.probe(trained))
        assert [entry["length"] for entry in found if entry["metric"] == "accuracy"] == seen
        assert all(entry["split"] == "validation" for entry in found)


@pytest.mark.slow
def test_a_ladder_that_stops_early_has_the_rows_of_a_shorter_one() -> None:
    held = tiny("hawk", "induction_heads")  # untrained: at chance, so soon decided
    settings = {"lengths": [40], "chunk": 40, "batch_size": 24}
    progress = Mock()
    trained = replace(trained_of(held), progress=progress)
    stopped = list(Extrapolation(**settings, sequences=1000, interval=0.2).run(trained))
    (count,) = {entry["count"] for entry in stopped}
    assert count in (32, 64, 96)
    assert _ends(progress) == [(40, count, count)], "the length is done, once"
    progress.reset_mock()
    list(Extrapolation(**settings, sequences=count, interval=0.2).run(trained))
    assert _ends(progress) == [(40, count, count)], "narrow at its last sequence, which is one end, not two"
    shorter = rows_of(held, Extrapolation(**settings, sequences=count))
    assert {entry["count"] for entry in shorter} == {count}, "without an interval all are taken"
    assert [entry["total"] for entry in stopped] == pytest.approx([entry["total"] for entry in shorter])


def _ends(progress: Mock) -> list[tuple[int, ...]]:
    """The calls by which a length is told to be done."""
    return [call.args for call in progress.describe.call_args_list if call.args[1] == call.args[2]]


@pytest.mark.slow
# That attention sees no other document either, tests/models/test_models.py holds.
@pytest.mark.parametrize("model", ["hawk", *(pytest.param(name, marks=ALL) for name in ("griffin", "mqa"))])
def test_a_state_that_is_reset_sees_the_last_segment_alone(model: str) -> None:
    held = tiny(model, "induction_heads")
    evaluation = Extrapolation(lengths=[48], sequences=3, batch_size=3, chunk=7, reset_every=16)
    (row_of_loss,) = [entry for entry in rows_of(held, evaluation) if entry["metric"] == "loss"]
    example = streams.held_out_batch(held.task, streams.TEST, 0, 3, 48)
    last = type(example)(*(np.asarray(field)[:, 32:] for field in example[:3]))
    logits = applied(held.model)(params_of(held.model), last.tokens)[0]
    alone = jax.jit(tally)(logits, last).scores()["loss"]
    assert row_of_loss["total"] == pytest.approx(float(alone.sum()), rel=1e-4)
    assert row_of_loss["extra"] == {"reset_every": 16}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"lengths": [0]}, r"lengths=\[0\]; allowed: lengths of 1 or more"),
        ({"lengths": [4], "chunk": 0}, "chunk=0; allowed: 1 or more"),
        ({"lengths": [4], "max_length": 0}, "max_length=0"),
        ({"lengths": [4], "reset_every": 0}, "reset_every=0; allowed: 1 or more, or null"),
        ({"lengths": [4], "interval": 1.0}, "interval=1.0; allowed: between 0 and 1, or null"),
    ],
)
def test_an_impossible_ladder_is_refused(settings: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Extrapolation(**settings)


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param("induction_heads", marks=ALL), "selective_copying"])
def test_held_out_sequences_are_the_same_whichever_lengths_share_their_program(name: str) -> None:
    task = tiny("hawk", name).task
    together = SyntheticFeed(task, [40, 64, 24])
    for length in (24, 40, 64, 48):
        for one, other in zip(
            together.held_out(streams.TEST, 3, 2, length)[:3],
            streams.held_out_batch(task, streams.TEST, 3, 2, length)[:3],
            strict=True,
        ):
            np.testing.assert_array_equal(one, other)


@pytest.mark.slow
def test_chunks_that_share_a_call_give_what_they_give_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven chunks, three a call: the last call is not full. Logits at the scored positions alone change nothing."""
    held = tiny("hawk")
    example = held.feed.held_out(streams.TEST, 0, 2, 40)
    given = held.model, params_of(held.model), example, 8
    wanted = list(stream_tallies(*given))
    monkeypatch.setattr(streaming, "CHUNKS", {"cpu": 3})
    scored = held.feed.scored
    for tallies in (list(stream_tallies(*given)), list(stream_tallies(*given, scored=scored))):
        for one, other in zip(tallies, wanted, strict=True):
            jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), one, other)
    last = jax.device_get(stream_tally(*given, scored=1))  # fewer than there are: no position is lost
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), last, wanted[-1])


LENGTHS = (64, 256, 512, 1024, 2048)
TRAINED = 256
COUNT = 10_000


def ladder(*accuracies: float, count: int = COUNT) -> dict[int, Tally]:
    return {length: Tally(accuracy * count, count) for length, accuracy in zip(LENGTHS, accuracies, strict=True)}


@pytest.mark.parametrize(
    ("accuracies", "length"),
    [
        ((1.0, 1.0, 0.9, 0.5, 0.1), 512),  # monotone
        ((1.0, 1.0, 0.5, 1.0, 1.0), 256),  # not monotone: what comes back is not counted
        ((0.1, 1.0, 1.0, 1.0, 0.2), 1024),  # below the training length nothing counts
        ((1.0, 1.0, 1.0, 1.0, 1.0), 2048),  # beyond the ladder
        ((0.5, 0.6, 0.51, 0.5, 0.1), 512),  # 85% of 0.6 is 0.51
        ((0.0, 0.0, 0.0, 0.0, 0.0), None),  # below chance
        ((0.1, 0.11, 0.11, 0.11, 0.11), None),  # 85% of it would be below chance
    ],
)
def test_curves_with_known_answers(accuracies: Sequence[float], length: int | None) -> None:
    effective = effective_length([ladder(*accuracies)], TRAINED, 0.85, chance=0.1)
    assert effective["length"] == length and effective["longest"] == 2048


def test_what_is_beyond_the_ladder_is_shown_as_at_least() -> None:
    beyond = effective_length([ladder(1, 1, 1, 1, 1)], TRAINED, 0.85)
    within = effective_length([ladder(1, 1, 1, 0.1, 0.1)], TRAINED, 0.85)
    assert (shown(beyond), interval_shown(beyond)) == ("≥ 2,048", "≥ 2,048 – ≥ 2,048")
    assert (shown(within), interval_shown(within)) == ("512", "512 – 512")
    assert shown(effective_length([], TRAINED, 0.85)) == "–" == interval_shown(effective_length([], None, 0.85))


def test_without_an_evaluation_at_the_training_length_there_is_none() -> None:
    assert effective_length([ladder(1, 1, 1, 1, 1)], 128, 0.85)["length"] is None


def test_the_training_length_alone_says_nothing_of_others() -> None:
    assert effective_length([{64: Tally(8, 8), TRAINED: Tally(8, 8)}], TRAINED, 0.85)["length"] is None


def test_few_sequences_and_seeds_that_differ_make_the_interval_wider() -> None:
    sure = effective_length([ladder(1, 1, 0.95, 0.2, 0.1)], TRAINED, 0.85)
    few = effective_length([ladder(1, 1, 0.95, 0.2, 0.1, count=8)], TRAINED, 0.85)
    assert (sure["low"], sure["high"]) == (512, 512) and few["low"] == TRAINED
    seeds = [ladder(1, 1, 1, 1, 1), ladder(1, 1, 1, 1, 1), ladder(1, 1, 0.1, 0.1, 0.1)]
    apart = effective_length(seeds, TRAINED, 0.85)
    assert (apart["length"], apart["low"], apart["high"]) == (2048, 256, 2048)


CURVES = st.lists(st.tuples(*[st.integers(0, 64)] * len(LENGTHS)), min_size=1, max_size=4)


@given(curves=CURVES, chance=st.sampled_from([0.0, 0.1, 0.5]))
def test_laws_of_every_curve(curves: list[tuple[int, ...]], chance: float) -> None:
    ladders = [ladder(*(right / 64 for right in curve), count=64) for curve in curves]
    more, less = (effective_length(ladders, TRAINED, kept, chance) for kept in sorted(KEPT))
    for at in (more, less):
        if at["length"] is not None and at["low"] is not None and at["high"] is not None:
            assert TRAINED <= at["low"] <= at["length"] <= at["high"] <= LENGTHS[-1]
            assert at["length"] in LENGTHS
    if more["length"] is not None and less["length"] is not None:
        assert less["length"] <= more["length"]
    assert effective_length(ladders[::-1], TRAINED, 0.85, chance)["length"] == more["length"]
    rising = [{**one, 512: one[256], 1024: one[256], 2048: one[256]} for one in ladders]
    assert effective_length(rising, TRAINED, 0.99, chance)["length"] in (None, 2048)


def test_results_have_it_of_each_seed_and_of_all() -> None:
    summary = summarise(run_record(seeds=(0, 1), test=falls))
    assert [seed["effective_length"]["0.85"]["length"] for seed in summary["seeds"]] == [256, 256]
    assert summary["aggregate"]["effective_length"]["0.99"]["length"] == 256
    assert summarise(run_record(test=perfect))["aggregate"]["effective_length"]["0.85"]["length"] == 1024
