"""Scoring: buckets, batches, chunks and shared contexts change no number; what cannot be scored is refused."""

from functools import lru_cache, partial

import numpy as np
import pytest

from evalkit.configuration import catalogue
from evalkit.core.contracts import Pretrained
from evalkit.core.errors import UserError
from evalkit.inference.scoring import Request, _advance, _finish, _near, fit
from support.language_models import logits_of, scorer_of, tiny_pretrained

TOLERANCE = 1e-5


def requests_of(contexts: tuple[int, ...], continuations: tuple[int, ...]) -> list[Request]:
    """Every length of context with every length of continuation, the same context for all of them."""
    rng = np.random.default_rng(0)
    made = []
    for length in contexts:
        context = tuple(map(int, rng.integers(1, 256, length)))
        made += [Request(context, tuple(map(int, rng.integers(1, 256, size)))) for size in continuations]
    return made


def alone(pretrained: Pretrained, request: Request) -> np.ndarray:
    """The log-probability of each token of one continuation, from logits to the end in float64."""
    logits = logits_of(pretrained, (request.context + request.continuation)[:-1])[len(request.context) - 1 :]
    logits -= logits.max(axis=-1, keepdims=True)
    logprobs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    return logprobs[np.arange(len(request.continuation)), list(request.continuation)]


@lru_cache
def expected(model: str) -> tuple[list[Request], list[np.ndarray]]:
    requests = requests_of((1, 20, 41), (1, 1, 5, 5))
    return requests, [alone(tiny_pretrained(model), request) for request in requests]


DEFAULT = (("griffin", True, 16, 128),)
EVERY = (
    *(("griffin", False, 64, 1), ("mqa", True, 64, 4096)),
    *(("griffin", True, 64, size) for size in (1, 128, 4096)),
    ("griffin", False, 16, 128),
    *((model, True, 16, 128) for model in catalogue.options("model") if model != "griffin"),
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "share", "chunk", "tokens_per_batch"),
    [*DEFAULT, *(pytest.param(*case, marks=pytest.mark.exhaustive) for case in EVERY)],
)
def test_scores_are_those_of_one_request_at_a_time(model: str, share: bool, chunk: int, tokens_per_batch: int) -> None:
    requests, want = expected(model)
    settings = {"share_prefixes": share, "tokens_per_batch": tokens_per_batch, "chunk": chunk}
    scores = scorer_of(tiny_pretrained(model), **settings).scores(requests)
    for score, logprobs in zip(scores, want, strict=True):
        np.testing.assert_allclose(score.logprobs, logprobs, atol=TOLERANCE, rtol=0)
        assert score.logprob == pytest.approx(logprobs.sum(), abs=TOLERANCE * len(logprobs))


@pytest.mark.slow
def test_greedy_is_what_the_model_would_write() -> None:
    pretrained = tiny_pretrained("griffin")
    context = (256, 72, 105)
    written: tuple[int, ...] = ()
    for _ in range(4):
        written += (int(logits_of(pretrained, context + written)[-1].argmax()),)
    other = (*written[:-1], (written[-1] + 1) % 256)
    scores = scorer_of(pretrained).scores([Request(context, written), Request(context, other)])
    assert scores[0].is_greedy and not scores[1].is_greedy
    assert scores[1].greedy.tolist() == [True, True, True, False]


class Counted:
    """How many tokens, and how many rows, the programs were given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.shapes: list[tuple[int, ...]] = []
        self.real = 0
        monkeypatch.setattr("evalkit.inference.scoring._advance", partial(self, _advance))
        monkeypatch.setattr("evalkit.inference.scoring._finish", partial(self, _finish))

    def __call__(self, read, model, mesh, params, cache, tokens, positions, at, targets):
        self.shapes.append((*tokens.shape, at.shape[1]))
        self.real += int((np.asarray(tokens) > 0).sum())
        return read(model, mesh, params, cache, tokens, positions, at, targets)


class Planned(Counted):
    """The same of programs that are not run: every answer is 0, and nothing is compiled."""

    def __call__(self, read, model, mesh, params, cache, tokens, positions, at, targets):
        return super().__call__(self._nothing, model, mesh, params, cache, tokens, positions, at, targets)

    def _nothing(self, model, mesh, params, cache, tokens, positions, at, targets):
        return np.zeros(at.shape), np.zeros(at.shape, bool), cache


def test_choices_of_one_token_cost_one_forward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    for share in (True, False):
        counted = Planned(monkeypatch)
        scorer_of(tiny_pretrained("hawk"), share_prefixes=share).scores(requests_of((20,), (1, 1, 1, 1)))
        assert counted.real == 20


def test_a_shared_context_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Planned(monkeypatch)
    scorer_of(tiny_pretrained("hawk")).scores(requests_of((20,), (6, 6, 6, 6)))
    assert counted.real == 20 + 4 * 5
    counted = Planned(monkeypatch)
    scorer_of(tiny_pretrained("hawk"), share_prefixes=False).scores(requests_of((20,), (6, 6, 6, 6)))
    assert counted.real == 4 * 25


def test_no_logits_are_taken_where_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Planned(monkeypatch)
    scorer_of(tiny_pretrained("hawk"), chunk=16).scores(requests_of((64,), (3,)))
    assert [places for _, _, places in counted.shapes] == [0, 0, 0, 4, 4]


def test_a_row_of_several_chunks_has_room_for_the_answers_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """70 tokens in chunks of at most 64 are two of 40, of which the second has more answers than one of 64 would."""
    counted = Counted(monkeypatch)
    pretrained = tiny_pretrained("hawk")
    (request,) = requests_of((50,), (21,))
    (score,) = scorer_of(pretrained, chunk=64).scores([request])
    np.testing.assert_allclose(score.logprobs, alone(pretrained, request), atol=TOLERANCE)
    assert {length for _, length, _ in counted.shapes} == {40}


def test_there_are_no_more_places_than_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole text is asked at every token: 70 of them, read 24 at a time where logits for more would not fit."""
    counted = Counted(monkeypatch)
    monkeypatch.setattr("evalkit.inference.scoring.LOGITS_AT_A_TIME", 24 * 258)
    pretrained = tiny_pretrained("hawk")
    (request,) = requests_of((1,), (70,))
    (score,) = scorer_of(pretrained).scores([request])
    np.testing.assert_allclose(score.logprobs, alone(pretrained, request), atol=TOLERANCE)
    assert {(length, places) for _, length, places in counted.shapes} == {(24, 24)}


def test_many_lengths_are_few_programs_with_little_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    """100 requests of all lengths from 4 to 53: a new length only where the last is more than an eighth too long."""
    counted = Planned(monkeypatch)
    requests = [request for length in range(1, 51) for request in requests_of((length,), (4, 4))]
    scorer_of(tiny_pretrained("hawk"), share_prefixes=False, tokens_per_batch=64).scores(requests)
    assert {length for _, length, _ in counted.shapes} <= {8, 16, 24, 32, 40, 48, 56}
    assert len(set(counted.shapes)) <= 9


def test_lengths_hold_what_they_are_for() -> None:
    before = 0
    for length in range(5000, 0, -1):
        before = _near(length, before)
        assert length <= before <= max(length + 7, 1.125 * length)


@pytest.mark.parametrize(("request_", "words"), [(Request((), (1,)), "context"), (Request((1,), ()), "continuation")])
def test_an_empty_part_is_refused(request_: Request, words: str) -> None:
    with pytest.raises(UserError, match=f"request 0 has an empty {words}"):
        scorer_of(tiny_pretrained("hawk")).scores([request_])


def test_a_request_that_is_too_long_is_refused() -> None:
    request = Request((256, 1, 2, 3, 4), (5, 6))
    assert fit([request], 6, truncate=False, keep=256) == ([request], 0)
    with pytest.raises(UserError, match=r"request 0 has 6 tokens, more than max_length=5; .* truncate=true"):
        fit([request], 5, truncate=False, keep=256)


def test_truncation_keeps_the_first_token_and_counts() -> None:
    requests = [Request((256, 1, 2, 3, 4), (5, 6)), Request((1, 2, 3, 4), (5, 6)), Request((1,), (2,))]
    fitted, cut = fit(requests, 4, truncate=True, keep=256)
    assert fitted == [Request((256, 3, 4), (5, 6)), Request((2, 3, 4), (5, 6)), Request((1,), (2,))]
    assert cut == 2
    with pytest.raises(UserError, match="continuation of 6 tokens"):
        fit([Request((256, 1), (1, 2, 3, 4, 5, 6))], 5, truncate=True, keep=256)


@pytest.mark.parametrize("name", ["tokens_per_batch", "chunk"])
def test_an_impossible_size_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}=0; allowed: 1 or more"):
        scorer_of(tiny_pretrained("hawk"), **{name: 0})
