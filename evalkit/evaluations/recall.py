"""How far back a fact is recalled from, and what the recurrence forgets on the way (De et al. 2024, sec. 6.2)."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from evalkit.core import streams
from evalkit.core.contracts import Cache, LanguageModel, Params, Recalls, Task, Texts, Trained
from evalkit.core.rows import Row
from evalkit.core.statistics import wilson
from evalkit.evaluations.extrapolation import LOOK_EVERY
from evalkit.inference.reader import Reader
from evalkit.record.recall_rows import (
    DIFFERENCE,
    DRIFT,
    DRIFT_UNDONE,
    FORGETTING,
    FORGETTING_UNDONE,
    NOTHING_UNDONE,
    RECALLED,
    RESTORED,
)

NEAREST = 2  # the fact's answer stands between the fact and the question
TINY = float(np.finfo(np.float32).tiny)
SETTLING = 16  # the tokens after the fact whose convolutions still see it, in every block


class Apart(NamedTuple):
    """Two contexts that differ in the fact alone, in one block; summed over several, the same of them all."""

    forgetting: np.ndarray
    """The mean δ of each channel `[c]`."""
    share: np.ndarray
    """Each channel's part of the square of the difference at `told_at`, `[c]`."""
    difference: np.ndarray
    """Between the states at each checkpoint `[n]`, relative to that at `told_at`."""
    drift: np.ndarray
    """How far what both have in common has moved by each checkpoint `[n]`, relative to the same."""


@dataclass(frozen=True)
class Recall:
    """One fact planted in a long context, asked for ever later.

    For each number of tokens `before` the fact, up to `sequences` contexts of `length` tokens, each asked at every one
    of `distances` (null: 2, 4, 8, …) that it has room for: a question to a copy of the cache leaves the context
    unasked. No more are taken once the 95% interval of every distance is at most `interval` wide, looked at every 32;
    null: all are.
    `pairs` contexts of `pair_length` that differ in nothing but a fact at their beginning tell which channels of a
    recurrence carry it, by their states `told_at` tokens later, and how fast these forget. In `contexts` of each answer
    the states are put back, in part, to what they were then, and asked again: what restores an answer is what lost it.
    `chunk` tokens of `batch_size` sequences are in memory at a time. Raises ValueError for a value that cannot be.
    """

    kind = "evalkit.reports.recall"

    length: int = 17409
    before: list[int] = field(default_factory=lambda: [0, 64, 1024])
    distances: list[int] | None = None
    sequences: int = 128
    interval: float | None = 0.1
    pairs: int = 16
    pair_length: int = 16384
    told_at: int = 64
    contexts: int = 4
    chunk: int = 256
    batch_size: int = 8

    def __post_init__(self) -> None:
        for name in ("sequences", "pairs", "contexts", "chunk", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}; allowed: 1 or more")
        if not self.before or not all(0 <= before < self.length - NEAREST for before in self.before):
            raise ValueError(f"before={self.before}; allowed: from 0, below length={self.length} less {NEAREST}")
        if self.distances is not None and not (self.distances and min(self.distances) >= NEAREST):
            raise ValueError(f"distances={self.distances}; allowed: numbers from {NEAREST}, or null")
        if not all(self.asked(before) for before in self.before):
            raise ValueError(f"distances={self.distances} do not fit into length={self.length}; give a longer length")
        if self.interval is not None and not 0 < self.interval < 1:
            raise ValueError(f"interval={self.interval}; allowed: between 0 and 1, or null")
        if not SETTLING <= self.told_at < self.pair_length - 1:
            raise ValueError(f"told_at={self.told_at}; allowed: from {SETTLING}, below pair_length={self.pair_length}")

    @property
    def pieces(self) -> int:
        """Each number of tokens before the fact, the pairs, and what is put back."""
        return len(self.before) + 2

    def asked(self, before: int) -> list[int]:
        """The distances that a context has room for after so many tokens, nearest first."""
        room = self.length - 1 - before
        if self.distances is None:
            return [1 << power for power in range(1, room.bit_length())]
        return [distance for distance in sorted(set(self.distances)) if distance <= room]

    def check(self, task: Task | Texts) -> None:
        """Raises ValueError for a task that has no fact to plant."""
        if not isinstance(task, Recalls):
            raise ValueError("recall needs a task that can plant a fact; give task=induction_heads")

    def limits(self, model: LanguageModel) -> list[str]:
        """Nothing."""
        return []

    def probe(self, trained: Trained) -> Iterator[Row]:
        """Nothing: extrapolation is what is looked at while training."""
        return iter(())

    def run(self, trained: Trained) -> Iterator[Row]:
        """Rows of every seed: what is recalled, then what is forgotten."""
        assert isinstance(trained.task, Recalls)
        for seed, params in zip(trained.seeds, trained.params, strict=True):
            for before in self.before:
                yield from self._recalled(trained, trained.task, params, seed, before)
            if jax.eval_shape(partial(trained.model.decays, params), jnp.zeros((2, 2), jnp.int32)):
                yield from self._forgotten(trained, trained.task, params, seed)
                yield from self._restored(trained, trained.task, params, seed)

    def _recalled(self, trained: Trained, task: Recalls, params: Params, seed: int, before: int) -> Iterator[Row]:
        right, asked = np.zeros((len(self.asked(before)), task.answers), int), np.zeros(task.answers, int)
        while (done := int(asked.sum())) < self.sequences:
            numbers = np.arange(done, done + self.batch_size)  # a last batch that is not full keeps its shape
            tokens, answers = planted(task, numbers, np.full(self.batch_size, before), self.length)
            look = self.sequences if self.interval is None else LOOK_EVERY - done % LOOK_EVERY
            used = min(self.batch_size, look, self.sequences - done)
            told = np.asarray(answers)[:used]
            asked += np.bincount(told, minlength=task.answers)
            for at, hit in enumerate(self._answers(trained, params, tokens, answers, task.query, before)):
                right[at] += np.bincount(told[hit[:used] > 0], minlength=task.answers)
            trained.progress.describe(self.length, done + used, self.sequences)
            if (done + used) % LOOK_EVERY == 0 and self._narrow(right.sum(axis=1), done + used):
                break
        for distance, of_each in zip(self.asked(before), right, strict=True):
            yield trained.make_row(
                metric=RECALLED,
                seed=seed,
                step=trained.step,
                split="test",
                length=before + distance + 1,
                position=distance,
                total=int(of_each.sum()),
                count=int(asked.sum()),
                extra={"before": before, "right": of_each.tolist(), "asked": asked.tolist()},
            )

    def _narrow(self, right: np.ndarray, count: int) -> bool:
        if self.interval is None:
            return False
        widths = [high - low for low, high in (wilson(float(total), count) for total in right)]
        return max(widths) <= self.interval

    def _answers(
        self, trained: Trained, params: Params, tokens: Array, answers: Array, query: int, before: int
    ) -> Iterator[np.ndarray]:
        """What is right at each distance: the context is read once, the questions go to copies of the cache."""
        reader = Reader(trained.model, params, answers, query, self.chunk, trained.check_interrupt)
        cache = reader.start(self.length)
        for start, stop in pairwise([0, *(before + distance for distance in self.asked(before))]):
            cache = reader.read(tokens[:, start:stop], cache)
            yield reader.ask(cache)

    def _forgotten(self, trained: Trained, task: Recalls, params: Params, seed: int) -> Iterator[Row]:
        row = partial(trained.make_row, seed=seed, step=trained.step, split="test", length=self.pair_length)
        sums: dict[int, Apart] = {}
        for number in range(self.pairs):
            trained.check_interrupt()
            for block, found in self._pair(trained.model, params, task, number).items():
                before = sums.get(block)
                sums[block] = found if before is None else Apart(*map(np.add, before, found))
            trained.progress.describe(self.pair_length, number + 1, self.pairs)
        for block, apart in sums.items():
            shares = apart.share / max(apart.share.sum(), TINY)
            for channel, (total, share) in enumerate(zip(apart.forgetting, shares, strict=True)):
                extra = {"block": block, "channel": channel, "share": float(share)}
                yield row(metric=FORGETTING, total=total, count=self.pairs, extra=extra)
            extra = {"block": block, "first": self.told_at}
            for at, distance in enumerate(self._checkpoints()):
                for metric, found in ((DIFFERENCE, apart.difference), (DRIFT, apart.drift)):
                    yield row(metric=metric, position=distance, total=found[at], count=self.pairs, extra=extra)

    def _restored(self, trained: Trained, task: Recalls, params: Params, seed: int) -> Iterator[Row]:
        """The same question with one thing undone that may have lost the answer, in every block and in each."""
        numbers = np.repeat(np.arange(self.contexts), task.answers)
        told = np.tile(np.arange(task.answers), self.contexts)
        tokens, answers = planted(task, numbers, np.zeros(len(numbers), int), self.pair_length, told)
        reader = Reader(trained.model, params, answers, task.query, self.chunk, trained.check_interrupt)
        cache = reader.read(tokens[:, : self.told_at], reader.start(self.pair_length))
        before = jax.tree.map(jnp.copy, cache)
        blocks = sorted(trained.model.decays(params, tokens[:2, :2]))
        for start, stop in pairwise([self.told_at, *self._octaves()]):
            cache = reader.read(tokens[:, start:stop], cache)
            found = {(NOTHING_UNDONE, None): reader.ask(cache)}
            for what in (DRIFT_UNDONE, FORGETTING_UNDONE):
                for block in [None, *blocks]:
                    put_back = blocks if block is None else [block]
                    found[what, block] = reader.ask(undone(what, cache, before, put_back, task.answers))
            trained.progress.describe(self.pair_length, stop, self.pair_length - 1)
            for (what, block), right in found.items():
                yield trained.make_row(
                    metric=RESTORED,
                    seed=seed,
                    step=trained.step,
                    split="test",
                    length=stop + 1,
                    position=stop,
                    total=int(right.sum()),
                    count=len(right),
                    extra={"first": self.told_at, "undone": what, "block": block},
                )

    def _octaves(self) -> list[int]:
        """Twice `told_at` and on, and the end of the contexts."""
        last = self.pair_length - 1
        return [*(self.told_at << n for n in range(1, 64) if self.told_at << n < last), last]

    def _checkpoints(self) -> list[int]:
        """The distances from the fact at which states are compared: `told_at`, and four an octave from there."""
        last = self.pair_length - 1
        steps = np.arange(0, 4 * np.log2(last / self.told_at) + 1e-9) / 4
        return sorted({*(round(float(self.told_at * 2**step)) for step in steps), last})

    def _pair(self, model: LanguageModel, params: Params, task: Recalls, number: int) -> dict[int, Apart]:
        """One pair of contexts, by block."""
        numbers = np.array([number, number])
        one = int(np.random.default_rng([number, 1]).integers(task.answers))
        other = (one + 1 + int(np.random.default_rng([number, 2]).integers(task.answers - 1))) % task.answers
        tokens, _ = planted(task, numbers, np.zeros(2, int), self.pair_length, np.array([one, other]))
        at = self._checkpoints()
        result = {}
        for block, (delta, state) in _decays(model, params, tokens).items():
            ordinary = np.asarray(delta, np.float64)[:, SETTLING:].mean(axis=(0, 1))
            states = np.asarray(state, np.float64)[:, at]
            square = np.square(states[0] - states[1])
            norms = np.sqrt(square.sum(axis=1))
            told = max(float(norms[0]), TINY)
            share = square[0] / max(square[0].sum(), TINY)
            middle = states.mean(axis=0)
            result[block] = Apart(ordinary, share, norms / told, np.linalg.norm(middle - middle[0], axis=1) / told)
        return result


def undone(what: str, cache: Cache, before: Cache, blocks: Iterable[int], answers: int) -> Cache:
    """A cache with the states of `blocks` put back to how they were in the cache `before`, in part.

    Its rows are contexts, each with one fact after the other of `answers`: put back is what all facts' states of a
    context have in common (`drift`), or what parts them (`forgetting`). The state of a block that decays is `h` of its
    cache, `[b, r]`.
    """
    changed = list(cache)
    for block in blocks:
        now, then = (c[block].h.reshape(-1, answers, c[block].h.shape[-1]) for c in (cache, before))
        shared, parted = (then, now) if what == DRIFT_UNDONE else (now, then)
        put_back = shared.mean(axis=1, keepdims=True) + parted - parted.mean(axis=1, keepdims=True)
        changed[block] = cache[block]._replace(h=put_back.reshape(cache[block].h.shape))
    return tuple(changed)


def planted(
    task: Recalls, numbers: np.ndarray, places: np.ndarray, length: int, answers: np.ndarray | None = None
) -> tuple[Array, Array]:
    """Contexts `[b, length]` of those numbers, the fact at `places`, and their `answers` (drawn where not given)."""
    stream = jax.random.fold_in(jax.random.fold_in(jax.random.key(0), streams.RECALL), length)
    keys = jax.vmap(lambda number: jax.random.fold_in(stream, number))(jnp.asarray(numbers))
    chosen = jnp.asarray(
        [np.random.default_rng([int(number), 0]).integers(task.answers) for number in numbers]
        if answers is None
        else answers
    )
    return _plant(task, length, keys, jnp.asarray(places), chosen), chosen


@partial(jax.jit, static_argnames=("task", "length"))
def _plant(task: Recalls, length: int, keys: Array, places: Array, answers: Array) -> Array:
    return jax.vmap(lambda key, place, answer: task.plant(key, length, place, answer))(keys, places, answers)


@partial(jax.jit, static_argnames=("model",))
def _decays(model: LanguageModel, params: Params, tokens: Array) -> dict[int, tuple[Array, Array]]:
    return dict(model.decays(params, tokens))
