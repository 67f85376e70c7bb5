"""How likely a model finds continuations of contexts: few compiled programs, each distinct context read once."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import groupby
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh
from jaxtyping import Bool, Float, Int

from evalkit.checks import at_least
from evalkit.core.contracts import Cache, LanguageModel, Params
from evalkit.core.errors import UserError
from evalkit.inference.prefill import empty_cache
from evalkit.parallel.devices import by_rows, copied, in_parts, mesh_sharing, microbatch, split, together

# Lengths and cache rooms are multiples of `MULTIPLE`, and lengths may be `SPARE` too long: few programs serve many.
MULTIPLE, SPARE = 8, 1 / 8
LOGITS_AT_A_TIME = 2**28  # numbers: 1 GiB of float32
CACHE_AT_A_TIME = 2**30  # bytes

Tokens = tuple[int, ...]


class Request(NamedTuple):
    """`continuation` is scored after `context`; neither is empty."""

    context: Tokens
    continuation: Tokens


class Score(NamedTuple):
    """Of each token of a continuation: its log-probability in nats, and whether it was the likeliest of all."""

    logprobs: Float[np.ndarray, " n"]
    greedy: Bool[np.ndarray, " n"]

    @property
    def logprob(self) -> float:
        """The log-probability of the continuation."""
        return float(self.logprobs.sum())

    @property
    def is_greedy(self) -> bool:
        """Whether greedy decoding writes the continuation."""
        return bool(self.greedy.all())


class Question(NamedTuple):
    """At `place` of a row the next token should be `target`, which is token `index` of that request's continuation."""

    place: int
    target: int
    request: int
    index: int


class Row(NamedTuple):
    """Tokens that are read once, and the questions along them, in order of place."""

    tokens: Tokens
    questions: list[Question]


class Batch(NamedTuple):
    """Rows that are read together: `members` are their indices among all rows; the rest gives the program's shapes.

    A batch has `size` rows, the last ones dummies; at most `chunk` tokens and `places` answers of each row are computed
    at a time; the cache has room for `room` tokens, 0 for no cache.
    """

    members: list[int]
    rows: list[Row]
    size: int
    chunk: int
    places: int
    room: int


class Group(NamedTuple):
    """A row, and the rows that continue it; `requests` are the indices of all requests that they answer."""

    requests: list[int]
    stem: Row
    branches: list[Row]


@dataclass(frozen=True)
class Scorer:
    """Scores requests on one set of parameters of a model whose vocabulary has `vocab_size` tokens.

    `share_prefixes`: a context that several continuations follow is read once and its state reused for each; without
    it, once for each distinct `context + continuation[:-1]`. A batch has `tokens_per_batch` tokens whatever their
    length; rows longer than `chunk` are read through the cache, `chunk` tokens at a time, so that memory does not grow
    with length. Float32 products are true float32. Raises ValueError for sizes below 1.
    """

    model: LanguageModel
    params: Params
    vocab_size: int
    share_prefixes: bool = True
    tokens_per_batch: int = 8192
    chunk: int = 2048

    def __post_init__(self) -> None:
        at_least(self, 1, "tokens_per_batch", "chunk")

    def scores(self, requests: Sequence[Request]) -> list[Score]:
        """The score of each request; raises UserError for an empty context or continuation."""
        by_request = dict(self.stream(requests))
        return [by_request[index] for index in range(len(requests))]

    def stream(self, requests: Sequence[Request]) -> Iterator[tuple[int, Score]]:
        """Each request's index and score as soon as it is known; raises as `scores`."""
        for number, request in enumerate(requests):
            for name, tokens in zip(Request._fields, request, strict=True):
                if not tokens:
                    raise UserError(f"request {number} has an empty {name}; give at least one token of it")
        sizes = [len(request.continuation) for request in requests]
        scores = [Score(np.zeros(size, np.float64), np.zeros(size, bool)) for size in sizes]
        for group in self._answered(_groups(requests, self.share_prefixes), scores):
            for index in group.requests:
                yield index, scores[index]

    def _answered(self, groups: Sequence[Group], scores: Sequence[Score]) -> Iterator[Group]:
        """The groups as their answers are written into `scores`: those of one row, then those with branches."""
        single = [group for group in groups if not group.branches]
        for batch in self._cut([group.stem for group in single], lambda length, chunk: length if length > chunk else 0):
            self._read_stems(batch, scores, continues=False)
            yield from (single[member] for member in batch.members)
        branched = [group for group in groups if group.branches]
        longest = max((len(row.tokens) for group in branched for row in group.branches), default=0)
        for batch in self._cut([group.stem for group in branched], lambda length, chunk: rounded(length + longest)):
            part = [branched[member] for member in batch.members]
            self._read_branches(part, self._read_stems(batch, scores, continues=True), batch.room, scores)
            yield from part

    def _read_stems(self, batch: Batch, scores: Sequence[Score], *, continues: bool) -> Cache | None:
        """As `_read`, from the beginning of each row."""
        cache = empty_cache(self.model, self._mesh, batch.size, batch.room) if batch.room else None
        return self._read(batch, cache, np.zeros(batch.size, np.int32), scores, continues=continues)

    def _read_branches(self, groups: Sequence[Group], cache: Cache, room: int, scores: Sequence[Score]) -> None:
        """Reads what continues each stem, from the state after it: row i of `cache` is after stem i."""
        rows = [row for group in groups for row in group.branches]
        parents = np.asarray([parent for parent, group in enumerate(groups) for _ in group.branches], np.int32)
        starts = np.asarray([len(group.stem.tokens) for group in groups], np.int32)[parents]
        for batch in self._cut(rows, lambda length, chunk: room):
            dummies = (0, batch.size - len(batch.members))
            tiled = _take(cache, np.pad(parents[batch.members], dummies))
            tiled = jax.device_put(tiled, split(self._mesh))
            self._read(batch, tiled, np.pad(starts[batch.members], dummies), scores, continues=False)

    def _cut(self, rows: Sequence[Row], room_of: Callable[[int, int], int]) -> Iterator[Batch]:
        """Batches of `rows` by answers and length; `room_of(length, chunk)`: what the cache must hold, 0 for none.

        The longest come first, so that a program too large for memory shows at once. A batch has the length of the one
        before it unless that is more than an eighth too long, so that few programs serve all with little padding.
        """

        def answers(index: int) -> int:
            return _power_of_four(len(rows[index].questions))

        order = sorted(range(len(rows)), key=lambda index: (answers(index), len(rows[index].tokens)), reverse=True)
        for most, same in groupby(order, key=answers):
            left, length = list(same), 0
            while left:
                length = _near(len(rows[left[0]].tokens), length)
                # Pieces of one size: the last of full ones would be padding for the most part.
                chunk = rounded(-(-length // -(-length // self._longest(most))))
                room = room_of(length, chunk)
                size = self._size(chunk, min(most, chunk), room, len(left))
                members, left = left[:size], left[size:]
                chosen = [rows[member] for member in members]
                yield Batch(members, chosen, size, chunk, _places(chosen, chunk), room)

    def _longest(self, answers: int) -> int:
        """Tokens of a row that are read together: fewer where each may be an answer and the vocabulary is large."""
        fitting = max(MULTIPLE, LOGITS_AT_A_TIME // self.vocab_size)
        return self.chunk if answers <= fitting else min(self.chunk, fitting)

    def _size(self, chunk: int, places: int, room: int, rows: int) -> int:
        """Rows of a batch: no more than there are or than fit, a power of two times the devices."""
        fitting = [self.tokens_per_batch // chunk, LOGITS_AT_A_TIME // (places * self.vocab_size)]
        if room:
            fitting.append(CACHE_AT_A_TIME // max(1, self.model.cache_bytes(1, room)))
        devices = self._mesh.size
        most = max(1, min(fitting) // devices)
        return devices * min(1 << (most.bit_length() - 1), 1 << (-(-rows // devices) - 1).bit_length())

    def _read(
        self, batch: Batch, cache: Cache | None, starts: np.ndarray, scores: Sequence[Score], *, continues: bool
    ) -> Cache | None:
        """Reads a batch, row i from position `starts[i]` on, into `scores`; returns the cache if it `continues`."""
        length = max(len(row.tokens) for row in batch.rows)
        for first in range(0, length, batch.chunk):
            read = _advance if continues or first + batch.chunk < length else _finish
            tokens, positions = _tokens(batch, starts, first)
            questions, at, targets = _questions(batch, first)
            # Positions are needed only where later tokens could see padding: with a cache, and padding in the chunk.
            where = positions if batch.room and (positions < 0).any() else None
            arrays = jax.device_put((tokens, where, at, targets), split(self._mesh))
            with jax.default_matmul_precision("highest"):
                logprobs, greedy, cache = read(self.model, self._mesh, self._placed, cache, *arrays)
            if not questions:
                continue
            logprobs, greedy = np.asarray(logprobs), np.asarray(greedy)
            for (row, slot), question in questions:
                score = scores[question.request]
                score.logprobs[question.index], score.greedy[question.index] = logprobs[row, slot], greedy[row, slot]
        return cache

    @cached_property
    def _mesh(self) -> Mesh:
        return mesh_sharing(self.params, jax.local_device_count())

    @cached_property
    def _placed(self) -> Params:
        return jax.device_put(self.params, copied(self._mesh))


def rounded(length: int) -> int:
    """`length`, or up to 7 more."""
    return -(-length // MULTIPLE) * MULTIPLE


def _near(length: int, before: int) -> int:
    """The length of a program for `length` tokens: that of the one `before`, if it wastes little."""
    return before if length <= before <= length * (1 + SPARE) else rounded(length)


def fit(requests: Sequence[Request], max_length: int, *, truncate: bool, keep: int | None) -> tuple[list[Request], int]:
    """Cuts what the model reads of each request, all but its last token, to `max_length`; counts the requests cut.

    A context loses tokens on its left, except a first token `keep` (the one that begins every text). Raises UserError
    for a request that is longer, unless `truncate`, and for a continuation that is longer by itself.
    """
    fitted, cut = [], 0
    for number, (context, continuation) in enumerate(requests):
        excess = len(context) + len(continuation) - 1 - max_length
        if excess <= 0:
            fitted.append(Request(context, continuation))
            continue
        if not truncate:
            raise UserError(
                f"request {number} has {max_length + excess} tokens, more than max_length={max_length}; "
                "give a larger max_length, or truncate=true to cut contexts on the left"
            )
        if len(context) <= excess:
            raise UserError(
                f"request {number} has a continuation of {len(continuation)} tokens, too many for "
                f"max_length={max_length}; give a larger one"
            )
        kept = context[:1] if context[0] == keep else ()
        fitted.append(Request(kept + context[len(kept) + excess :], continuation))
        cut += 1
    return fitted, cut


def _groups(requests: Sequence[Request], share_prefixes: bool) -> list[Group]:
    """The groups to read; with `share_prefixes`, a context that several rows share becomes a stem with branches."""
    if not share_prefixes:
        return _rows_apart(requests, range(len(requests)))
    followers = defaultdict[Tokens, list[int]](list)
    for index, request in enumerate(requests):
        followers[request.context].append(index)
    groups = []
    for context, indices in followers.items():
        apart = _rows_apart(requests, indices)
        groups += apart if len(apart) == 1 else [_group(context, requests, indices)]
    return groups


def _rows_apart(requests: Sequence[Request], indices: Sequence[int]) -> list[Group]:
    """A row for each distinct input: choices of one token after the same context share one row."""
    rows = defaultdict[Tokens, list[Question]](list)
    for number in indices:
        context, continuation = requests[number]
        first = len(context) - 1
        questions = (Question(first + index, target, number, index) for index, target in enumerate(continuation))
        rows[context + continuation[:-1]].extend(questions)
    return [
        Group(sorted({question.request for question in questions}), Row(tokens, sorted(questions)), [])
        for tokens, questions in rows.items()
    ]


def _group(context: Tokens, requests: Sequence[Request], indices: Sequence[int]) -> Group:
    """One stem, the context, which answers for every first token, and a branch for each distinct rest."""
    stem, rests = [], defaultdict[Tokens, list[Question]](list)
    for number in indices:
        first, *rest = requests[number].continuation
        stem.append(Question(len(context) - 1, first, number, 0))
        if rest:
            questions = (Question(index, target, number, index + 1) for index, target in enumerate(rest))
            rests[first, *rest[:-1]].extend(questions)
    branches = [Row(tokens, sorted(questions)) for tokens, questions in rests.items()]
    return Group(list(indices), Row(context, stem), branches)


def _places(rows: Sequence[Row], chunk: int) -> int:
    """Room for the answers in any chunk of any row, no more than the chunk has tokens unless they share some."""
    counts = (groupby(row.questions, key=lambda question: question.place // chunk) for row in rows)
    most = max(len(list(same)) for in_chunks in counts for _, same in in_chunks)
    return min(_power_of_four(most), max(most, chunk))


def _power_of_four(count: int) -> int:
    """`count` rounded up to a power of four: few sizes, since each is a program of its own."""
    return 4 ** (((count - 1).bit_length() + 1) // 2)


def _tokens(batch: Batch, starts: np.ndarray, first: int) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and positions `[size, chunk]` of the chunk that begins at `first`; position −1 after a row's end."""
    tokens = np.zeros((batch.size, batch.chunk), np.int32)
    positions = np.full_like(tokens, -1)
    for number, row in enumerate(batch.rows):
        piece = row.tokens[first : first + batch.chunk]
        tokens[number, : len(piece)] = piece
        positions[number, : len(piece)] = starts[number] + first + np.arange(len(piece))
    return tokens, positions


def _questions(batch: Batch, first: int) -> tuple[list[tuple[tuple[int, int], Question]], np.ndarray, np.ndarray]:
    """The questions in the chunk that begins at `first`, each with its (row, slot), and their places and targets.

    Places and targets are `[size, slots]`, with no slots where there is no question.
    """
    questions = []
    for number, row in enumerate(batch.rows):
        low = bisect_left(row.questions, first, key=lambda question: question.place)
        high = bisect_left(row.questions, first + batch.chunk, key=lambda question: question.place)
        questions += [((number, slot), question) for slot, question in enumerate(row.questions[low:high])]
    at = np.zeros((batch.size, batch.places if questions else 0), np.int32)
    targets = np.zeros_like(at)
    for where, question in questions:
        at[where], targets[where] = question.place - first, question.target
    return questions, at, targets


def _read_rows(
    model: LanguageModel,
    mesh: Mesh,
    params: Params,
    cache: Cache | None,
    tokens: Int[Array, "b t"],
    positions: Int[Array, "b t"] | None,
    at: Int[Array, "b n"],
    targets: Int[Array, "b n"],
    *,
    keep: bool,
) -> tuple[Float[Array, "b n"], Bool[Array, "b n"], Cache | None]:
    """The log-probabilities of `targets` after the tokens `at [b, n]`, whether each is the likeliest, and the cache.

    The cache is None unless there is one to `keep`.
    """

    def read(
        params: Params, cache: Cache | None, tokens: Array, positions: Array | None, at: Array, targets: Array
    ) -> tuple[Array, Array, Cache | None]:
        logits, cache = model.apply(params, tokens, positions, cache, at)
        logits = logits.astype(jnp.float32)
        chosen = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
        logprobs = chosen - jax.nn.logsumexp(logits, axis=-1)
        return logprobs, jnp.argmax(logits, axis=-1) == targets, cache if keep else None

    def on_device(params: Params, *rows: Any) -> tuple[Array, Array, Cache | None]:
        count = tokens.shape[0] // mesh.size
        size = microbatch(None, count, tokens.shape[1])
        if size == count:
            return read(params, *rows)
        return together(jax.lax.map(lambda part: read(params, *part), in_parts(rows, size)))

    return by_rows(on_device, mesh, params, cache, tokens, positions, at, targets)


_advance = jax.jit(partial(_read_rows, keep=True), static_argnames=("model", "mesh"), donate_argnames=("cache",))
# The last chunk returns no cache, since nothing follows: sorting the padding out of it costs as much as the rest.
_finish = jax.jit(partial(_read_rows, keep=False), static_argnames=("model", "mesh"))


@jax.jit
def _take(cache: Cache, rows: Int[Array, " b"]) -> Cache:
    return jax.tree.map(lambda leaf: leaf[rows], cache)
