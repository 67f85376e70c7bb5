"""Loss by position: bins that are the mean, chunks that change nothing, passages that stay while the context grows."""

import math
from functools import partial
from typing import Any

import numpy as np
import pytest

from evalkit.configuration import experiment as config
from evalkit.core.contracts import LanguageModel, Pretrained
from evalkit.core.moved import TEXT
from evalkit.core.rows import Header, Record, Row, row, value
from evalkit.evaluations.text import rows as text_rows
from evalkit.evaluations.text.held_out import Subject, longest_of, losses_of, short_names
from evalkit.evaluations.text.measure import LossByPosition, edges_of
from evalkit.evaluations.text.summary import base_context, bits_per_byte, differences, levels, table_of, verdict
from evalkit.tasks.text.corpus import Span
from evalkit.tasks.text.tokenizers import Numbers
from support.shrunk import applied, every_model, params_of, shrunk

VOCABULARY = 64
MAKE = partial(row, run="r", seed=0, step=1, split="test")


def tiny(name: str) -> LanguageModel:
    return shrunk(name, f"task.vocab_size={VOCABULARY}")


def pretrained(name: str) -> Pretrained:
    return Pretrained(tiny(name), params_of(tiny(name)), Numbers(VOCABULARY), "", "", None)


def tokens_of(length: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, VOCABULARY, length).astype(np.int32)


def whole(held: Pretrained, tokens: np.ndarray) -> np.ndarray:
    """The loss of every token but the first, from one pass without a cache, in float64."""
    logits = applied(held.model)(held.params, tokens[None, :-1])[0]
    logits = np.asarray(logits[0], np.float64)
    logits -= logits.max(axis=-1, keepdims=True)
    logprobs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    return -logprobs[np.arange(len(tokens) - 1), tokens[1:]]


@pytest.mark.exhaustive  # the next one is of fewer tokens, in chunks that do not divide them either
@pytest.mark.parametrize("chunk", [512, 1000])
@pytest.mark.parametrize("name", ["griffin", "hawk", "mqa", "mqa_nope"])
def test_the_streamed_loss_at_4096_is_the_unstreamed_one(name: str, chunk: int) -> None:
    held, tokens = pretrained(name), tokens_of(4097)
    (found,) = losses_of(held, chunk, lambda: None, [tokens], 4096)
    expected = whole(held, tokens)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found.mean(), expected.mean(), rtol=0, atol=1e-6)


# Of a bounded cache; one that grows is read in chunks in test_recall.py.
@pytest.mark.slow
@pytest.mark.parametrize("name", every_model(("griffin",)))
def test_the_streamed_loss_of_every_model_is_the_unstreamed_one(name: str) -> None:
    held, sequences = pretrained(name), [tokens_of(200, seed) for seed in range(3)]
    for found, tokens in zip(losses_of(held, 64, lambda: None, sequences, 199), sequences, strict=True):
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


def rows_of(evaluation: LossByPosition, documents: list[Span], losses: Any) -> list[Row]:
    return list(
        evaluation.by_position(longest_of(documents, evaluation.documents), Subject(MAKE, losses), evaluation.length)
    )


@pytest.mark.slow
def test_the_bins_of_a_window_sum_to_its_mean() -> None:
    documents = [Span(tokens_of(300, 1), 600, "a/one.txt"), Span(tokens_of(260, 2), 260, "two.txt")]
    held = pretrained("griffin")
    losses = Remembering()
    evaluation = LossByPosition(length=199, windows=3)
    rows = rows_of(evaluation, documents, losses)
    assert {entry["extra"]["document"] for entry in rows} == {"a/one.txt", "two.txt"}
    for document in ("a/one.txt", "two.txt"):
        mine = [entry for entry in rows if entry["extra"]["document"] == document]
        sizes = [(entry["position"] or 0) - entry["extra"]["after"] for entry in mine]
        assert sum(sizes) == 199
        total = sum(size * value(entry) for size, entry in zip(sizes, mine, strict=True))
        assert total / 199 == pytest.approx(np.mean(np.arange(1, 200)))
    scored = rows_of(evaluation, documents[:1], partial(losses_of, held, 64, lambda: None))
    mean = np.mean([whole(held, window).mean() for window in losses.read[:3]])
    sizes = [(entry["position"] or 0) - entry["extra"]["after"] for entry in scored]
    assert sum(size * value(entry) for size, entry in zip(sizes, scored, strict=True)) / 199 == pytest.approx(
        mean, abs=1e-5
    )


def test_a_document_that_is_too_short_is_said() -> None:
    rows = rows_of(LossByPosition(length=100), [Span(tokens_of(100), 100, "in/short.txt")], Remembering())
    assert [entry["count"] for entry in rows] == [0]
    assert rows[0]["extra"] == {"document": "short.txt", "not_run": "100 tokens, fewer than the 101 of a window"}
    assert table_of(rows, text_rows.LOSS) == {}


def measured(documents: list[Span], losses: Any, trained: int | None = 32, **settings: Any) -> list[Row]:
    evaluation = LossByPosition(**{"length": 64, "passage": 4, "passages": 5, **settings})
    subjects = [Subject(MAKE, losses)]
    return list(evaluation.measure(documents, subjects, tiny("griffin"), trained, lambda _: None))


def test_the_same_passages_stand_after_every_context() -> None:
    """Also after as many tokens as make a training window of context and passage: 28 and 4 of 32."""
    documents = [Span(tokens_of(400, seed), 400, f"{seed}.txt") for seed in range(3)]
    losses = Remembering()
    rows = measured(documents, losses, contexts=[8, 32, 128])
    read = losses.read[2 * 3 :]  # after two windows a document
    assert [len(sequence) - 4 for sequence in read[: 4 * 15]] == [8] * 15 + [28] * 15 + [32] * 15 + [128] * 15
    passages = [tuple(sequence[-4:]) for sequence in read[:60]]
    assert passages[:15] == passages[15:30] == passages[30:45] == passages[45:]
    paired = [entry for entry in rows if entry["metric"] == text_rows.PAIRED]
    assert [(entry["position"], entry["extra"]["passage"]) for entry in paired[::3]] == [
        (8, 4),
        (28, 4),
        (32, 4),
        (128, 4),
    ]
    assert base_context(Record(Header("r", "books", "m", TEXT, train_length=32), rows)) == 28


def test_foreign_context_ends_in_the_documents_own() -> None:
    documents = [Span(np.full(400, seed, np.int32), 400, f"{seed}.txt") for seed in range(3)]
    losses = Remembering()
    rows = measured(documents, losses, contexts=[8, 64], passages=2)
    foreign = [sequence for sequence in losses.read if len(sequence) == 68 and len(set(sequence.tolist())) > 1]
    assert len(foreign) == 6
    for number, sequence in enumerate(foreign):
        mine, other = number // 2, (number // 2 + 1) % 3
        np.testing.assert_array_equal(sequence, [other] * 32 + [mine] * 36)
    assert {entry["extra"]["own"] for entry in rows if entry["metric"] == text_rows.FOREIGN} == {32}


@pytest.mark.parametrize(
    ("count", "trained", "words"),
    [(1, 32, "one document alone is long enough"), (3, 64, "no context is longer than own=64")],
)
def test_a_control_that_cannot_be_says_so(count: int, trained: int, words: str) -> None:
    documents = [Span(tokens_of(400, seed), 400, f"{seed}.txt") for seed in range(count)]
    rows = measured(documents, Remembering(), trained, contexts=[8, 64])
    assert [entry["extra"] for entry in rows if entry["metric"] == text_rows.FOREIGN] == [{"not_run": words}]


@pytest.mark.parametrize("length", [100, 500])
def test_a_planted_repeat_is_the_passage_itself_and_stands_nowhere_else(length: int) -> None:
    document = Span(np.arange(length, dtype=np.int32), length, "a.txt")
    losses = Remembering()
    rows = measured([document], losses, passages=20, gaps=[50])
    assert [entry["metric"] for entry in rows[-2:]] == [text_rows.REPEATED, text_rows.FRESH]
    for repeated, fresh in zip(losses.read[-40:-20], losses.read[-20:], strict=True):
        assert len(repeated) == len(fresh) == 54
        np.testing.assert_array_equal(repeated[:4], repeated[50:])
        np.testing.assert_array_equal(repeated[4:], fresh[4:])
        assert len(set(fresh.tolist())) == 54, "the passage, or what stands in its place, is in the text between"


def test_a_gap_for_which_every_document_is_too_short_says_so() -> None:
    documents = [Span(tokens_of(length, length), length, f"{length}.txt") for length in (70, 60)]
    rows = measured(documents, Remembering(), gaps=[50])
    (repeated,) = (entry for entry in rows if entry["metric"] in (text_rows.REPEATED, text_rows.FRESH))
    assert (repeated["length"], repeated["count"]) == (50, 0)
    assert repeated["extra"] == {"document": "70.txt", "not_run": "70 tokens, fewer than the 82 of a window"}


def test_documents_of_one_name_are_told_apart() -> None:
    assert short_names(["/x/held/emma/1.txt", "/x/held/dracula/1.txt"]) == ["emma/1.txt", "dracula/1.txt"]
    assert short_names(["/x/emma.txt"]) == ["emma.txt"]
    assert short_names(["idlelib/config.py", "logging/config.py"]) == ["idlelib/config.py", "logging/config.py"]
    documents = [Span(tokens_of(100, seed), 100, f"/x/{seed}/a.txt") for seed in range(2)]
    assert (
        len({entry["extra"]["document"] for entry in rows_of(LossByPosition(length=64), documents, Remembering())}) == 2
    )


def test_of_many_documents_the_longest_take_part_and_their_places_stay() -> None:
    documents = [Span(tokens_of(100 + 10 * seed, seed), 100 + 10 * seed, f"{seed}.txt") for seed in range(6)]
    some = LossByPosition(length=64, documents=2)
    assert [document.name for document in longest_of(documents[::-1], some.documents)] == ["5.txt", "4.txt"]
    few, many = Remembering(), Remembering()
    rows_of(some, documents, few)
    rows_of(LossByPosition(length=64), documents, many)
    np.testing.assert_array_equal(few.read, many.read[-4:])


def test_a_model_with_less_room_reads_the_beginning_of_the_same_windows() -> None:
    model = tiny("mqa")
    documents = [Span(tokens_of(length, 1), length, f"{length}.txt") for length in (600, 300)]
    whole_windows, beginnings = Remembering(), Remembering()
    for losses, gib in ((whole_windows, 2.0), (beginnings, model.cache_bytes(1, 256) / 2**30)):
        evaluation = LossByPosition(length=512, cache_gib=gib)
        list(evaluation.measure(documents, [Subject(MAKE, losses)], model, 32, lambda _: None))
    assert [len(window) for window in beginnings.read] == [257, 257]
    for short, long in zip(beginnings.read, whole_windows.read, strict=True):
        np.testing.assert_array_equal(short, long[:257])


def test_what_a_model_can_read_moves_no_passage() -> None:
    """Neither its cache nor its training window, which is one more context."""
    model, documents = tiny("mqa"), [Span(tokens_of(700, seed), 700, f"{seed}.txt") for seed in range(2)]
    ends = []
    for gib, trained in ((2.0, 32), (2.0, 512), (model.cache_bytes(1, 64) / 2**30, 32)):
        losses = Remembering()
        evaluation = LossByPosition(length=64, contexts=[8, 256], passage=8, cache_gib=gib)
        list(evaluation.measure(documents, [Subject(MAKE, losses)], model, trained, lambda _: None))
        ends.append({tuple(read[-8:]) for read in losses.read if len(read) == 16})
    assert len(ends[0]) > 16 and ends[0] == ends[1] == ends[2]


def test_a_cache_that_is_too_large_is_known_before() -> None:
    model = tiny("mqa")
    evaluation = LossByPosition(length=131072, cache_gib=model.cache_bytes(1, 32768) / 2**30)
    assert evaluation.longest(model) == 32768
    assert evaluation.limits(model)[0].startswith("loss by position to 32,768 of 131,072 tokens")
    for bounded in ("griffin", "hawk"):
        assert evaluation.limits(tiny(bounded)) == []
    far = LossByPosition(length=64, contexts=[8, 65536], gaps=[64, 131072], cache_gib=evaluation.cache_gib)
    assert [line.partition(":")[0] for line in far.limits(model)] == [
        "without contexts of 65536 tokens",
        "without gaps of 131072 tokens",
    ]
    documents = [Span(tokens_of(500, seed), 500, f"{seed}.txt") for seed in range(2)]
    rows = list(far.measure(documents, [Subject(MAKE, Remembering())], model, 32, lambda _: None))
    assert {entry["position"] for entry in rows if entry["metric"] == text_rows.PAIRED} == {8}


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
        ({"own": 0}, "own=0; allowed: 1 or more, or null"),
        ({"documents": 0}, "documents=0; allowed: 1 or more"),
        ({"cache_gib": 0.0}, "cache_gib=0.0; allowed: above 0"),
    ],
)
def test_what_cannot_be_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        LossByPosition(**settings)


def test_it_needs_a_text() -> None:
    with pytest.raises(ValueError, match="give task=books, or eval=extrapolation"):
        LossByPosition().check(config.build_task("induction_heads"))
