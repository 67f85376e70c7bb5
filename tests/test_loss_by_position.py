"""Loss by position: bins that are the mean, chunks that change nothing, passages that stay while the context grows."""

import math
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from shrunk import overrides_of

from evalkit import catalogue, config, text_rows
from evalkit.loss_by_position import LossByPosition, Subject, cache_bytes, edges_of, score
from evalkit.pretrained import Pretrained
from evalkit.protocols import LanguageModel
from evalkit.rows import Row, row, value
from evalkit.text_summary import bits_per_byte, differences, levels, table_of, verdict
from tasks.tokenizers import Numbers

VOCABULARY = 64
MAKE = partial(row, run="r", seed=0, step=1, split="test")


class Held(NamedTuple):
    """A held-out document."""

    tokens: np.ndarray
    size: int
    source: str


@lru_cache
def tiny_pretrained(name: str) -> Pretrained:
    overrides = ["task=induction_heads", f"task.vocab_size={VOCABULARY}", f"model={name}", *overrides_of(name)]
    model = config.experiment(config.compose(overrides)).model
    return Pretrained(model, jax.jit(model.init)(jax.random.key(0)), Numbers(VOCABULARY), "", "", None)


def tokens_of(length: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, VOCABULARY, length).astype(np.int32)


def whole(held: Pretrained, tokens: np.ndarray) -> np.ndarray:
    """The loss of every token but the first, from one pass without a cache, in float64."""
    logits = jax.jit(held.model.apply)(held.params, jnp.asarray(tokens[None, :-1]))[0]
    logits = np.asarray(logits[0], np.float64)
    logits -= logits.max(axis=-1, keepdims=True)
    logprobs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    return -logprobs[np.arange(len(tokens) - 1), tokens[1:]]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["griffin", "hawk", "mqa", "mqa_nope"])
def test_the_streamed_loss_at_4096_is_the_unstreamed_one(name: str) -> None:
    held, tokens = tiny_pretrained(name), tokens_of(4097)
    for chunk in (512, 1000):
        (found,) = score(held, chunk, lambda: None, [tokens], 4096)
        expected = whole(held, tokens)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(found.mean(), expected.mean(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", catalogue.options("model"))
def test_the_streamed_loss_of_every_model_is_the_unstreamed_one(name: str) -> None:
    held, tokens = tiny_pretrained(name), tokens_of(200)
    (found,) = score(held, 64, lambda: None, [tokens], 199)
    np.testing.assert_allclose(found, whole(held, tokens), atol=1e-5)


@pytest.mark.parametrize("length", [1, 2, 7, 100, 512, 131072])
@pytest.mark.parametrize("bins", [1, 2, 4])
def test_bins_cover_every_position_once(length: int, bins: int) -> None:
    edges = edges_of(length, bins)
    assert edges[0] == 0 and edges[-1] == length and edges == sorted(set(edges))
    assert all(2**power in edges for power in range(int(math.log2(length)) + 1))


class Remembering:
    """In place of a model: a token's loss is how many tokens it has before it in what is read."""

    def __init__(self) -> None:
        self.read: list[np.ndarray] = []

    def __call__(self, sequences: Any, scored: int) -> list[np.ndarray]:
        self.read += list(sequences)
        return [np.arange(len(sequence) - scored, len(sequence), dtype=float) for sequence in sequences]


def rows_of(evaluation: LossByPosition, documents: list[Held], losses: Any) -> list[Row]:
    return list(evaluation._by_position(documents, Subject(MAKE, losses), evaluation.length))


def test_the_bins_of_a_window_sum_to_its_mean() -> None:
    documents = [Held(tokens_of(300, 1), 600, "a/one.txt"), Held(tokens_of(260, 2), 260, "two.txt")]
    held = tiny_pretrained("griffin")
    losses = Remembering()
    evaluation = LossByPosition(length=100, windows=3)
    rows = rows_of(evaluation, documents, losses)
    assert {entry["extra"]["document"] for entry in rows} == {"one.txt", "two.txt"}
    for document in ("one.txt", "two.txt"):
        mine = [entry for entry in rows if entry["extra"]["document"] == document]
        sizes = [(entry["position"] or 0) - entry["extra"]["after"] for entry in mine]
        assert sum(sizes) == 100
        total = sum(size * value(entry) for size, entry in zip(sizes, mine, strict=True))
        assert total / 100 == pytest.approx(np.mean(np.arange(1, 101)))
    scored = rows_of(evaluation, documents[:1], partial(score, held, 64, lambda: None))
    mean = np.mean([whole(held, window).mean() for window in losses.read[:3]])
    sizes = [(entry["position"] or 0) - entry["extra"]["after"] for entry in scored]
    assert sum(size * value(entry) for size, entry in zip(sizes, scored, strict=True)) / 100 == pytest.approx(
        mean, abs=1e-5
    )


def test_a_document_that_is_too_short_is_said() -> None:
    rows = rows_of(LossByPosition(length=100), [Held(tokens_of(100), 100, "short.txt")], Remembering())
    assert [entry["count"] for entry in rows] == [0]
    assert rows[0]["extra"] == {"document": "short.txt", "not_run": "100 tokens, fewer than the 101 of a window"}
    assert table_of(rows, text_rows.LOSS) == {}


def test_the_same_passages_stand_after_every_context() -> None:
    documents = [Held(tokens_of(400, seed), 400, f"{seed}.txt") for seed in range(3)]
    losses, evaluation = Remembering(), LossByPosition(length=64, contexts=[8, 32, 128], passage=4, passages=5)
    for context in evaluation.contexts:
        for number, document in enumerate(documents):
            for at in evaluation._places(number, document, 128):
                losses([document.tokens[at - context : at + 4]], 4)
    passages = [tuple(sequence[-4:]) for sequence in losses.read]
    assert passages[:15] == passages[15:30] == passages[30:]
    assert {len(sequence) for sequence in losses.read[30:]} == {132}


def test_foreign_context_ends_in_the_documents_own() -> None:
    documents = [Held(np.full(400, seed, np.int32), 400, f"{seed}.txt") for seed in range(3)]
    evaluation = LossByPosition(contexts=[8, 64], passage=4, passages=2)
    places = [evaluation._places(number, document, 64) for number, document in enumerate(documents)]
    read = list(evaluation._foreign(documents, places, longest=64, own=8))
    for number, sequence in enumerate(read):
        mine, other = number // 2, (number // 2 + 1) % 3
        np.testing.assert_array_equal(sequence, [other] * 56 + [mine] * 12)


def test_a_planted_repeat_is_the_passage_itself() -> None:
    document = Held(np.arange(500, dtype=np.int32), 500, "a.txt")
    losses = Remembering()
    rows = list(LossByPosition(passage=4, passages=3)._repeated([document], Subject(MAKE, losses), 50))
    assert [entry["metric"] for entry in rows] == [text_rows.REPEATED, text_rows.FRESH]
    for repeated, fresh in zip(losses.read[:3], losses.read[3:], strict=True):
        assert len(repeated) == len(fresh) == 54
        np.testing.assert_array_equal(repeated[:4], repeated[50:])
        np.testing.assert_array_equal(repeated[4:], fresh[4:])
        assert (repeated[:4] != fresh[:4]).any()


def test_a_cache_that_is_too_large_is_known_before() -> None:
    model: LanguageModel = tiny_pretrained("mqa").model
    evaluation = LossByPosition(length=131072, cache_gib=cache_bytes(model, 32768) / 2**30)
    assert evaluation.longest(model) == 32768
    assert evaluation.limits(model)[0].startswith("loss by position to 32,768 of 131,072 tokens")
    for bounded in ("griffin", "hawk"):
        assert evaluation.limits(tiny_pretrained(bounded).model) == []


def test_intervals_count_documents_and_pair_them() -> None:
    """A constant difference is certain however much documents differ; the level of the loss is not."""
    rows = [
        row(
            metric=text_rows.PAIRED, split="test", position=context, seed=seed, total=2 * loss, count=2,
            extra={"document": document, "bytes_per_token": 1.0},
        )
        for document, base in (("a", 1.0), ("b", 2.0), ("c", 6.0))
        for seed in (0, 1)
        for context, loss in ((512, base + seed), (2048, base + seed - 0.25))
    ]  # fmt: skip
    table = table_of(rows, text_rows.PAIRED)
    (difference,) = [found for found in differences(table, table, 512) if found.position == 2048]
    assert (difference.mean, difference.low, difference.high) == pytest.approx((-0.25, -0.25, -0.25))
    assert difference.documents == 3 and verdict(difference) == "improves"
    level = levels(table)[0]
    half = 4.3026527 * np.std([1.5, 2.5, 6.5], ddof=1) / math.sqrt(3)
    assert (level.mean, level.high - level.mean) == pytest.approx((3.5, half))


def test_bits_a_byte_are_each_documents_own() -> None:
    """Two nats a token of two bytes, and four a token of four: one nat a byte in both."""
    rows = [
        MAKE(metric=text_rows.LOSS, position=8, total=3 * nats, count=3, extra={"document": d, "bytes_per_token": nats})
        for d, nats in (("a", 2.0), ("b", 4.0))
    ]
    (found,) = levels(table_of(rows, text_rows.LOSS, bits_per_byte))
    assert found.mean == pytest.approx(1 / math.log(2)) and found.high == pytest.approx(found.low)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"length": 0}, "length=0; allowed: 1 or more"),
        ({"contexts": [0]}, r"contexts=\[0\]; allowed: a list of numbers from 1"),
        ({"gaps": [8]}, r"gaps=\[8\]; allowed: at least passage=64"),
        ({"helped": 0.0}, "helped=0.0; allowed: above 0, at most 1"),
        ({"cache_gib": 0.0}, "cache_gib=0.0; allowed: above 0"),
    ],
)
def test_what_cannot_be_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        LossByPosition(**settings)


def test_it_needs_a_text() -> None:
    with pytest.raises(ValueError, match="give task=books, or eval=extrapolation"):
        LossByPosition().check(config.build_task("induction_heads"))
