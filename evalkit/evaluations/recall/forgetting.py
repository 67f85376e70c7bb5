"""What a recurrence forgets of a fact, and which part of its state brings the answer back when it is restored."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from evalkit.core.contracts import Cache, LanguageModel, Params, Recalls, Trained
from evalkit.core.rows import Row
from evalkit.evaluations.recall import rows as recall_rows
from evalkit.evaluations.recall.planting import planted, planted_pair
from evalkit.inference.reader import Reader
from evalkit.numerics import random_key

SETTLING = 16  # tokens after the fact whose convolutions still see it, in every block
FIRST_CHECK = 64  # tokens after the fact at which the states of a pair are first compared
TINY = float(np.finfo(np.float32).tiny)  # a model of zeros has no difference to divide by
SHAMS = {recall_rows.DRIFT_UNDONE: recall_rows.DRIFT_SHAM, recall_rows.FORGETTING_UNDONE: recall_rows.FORGETTING_SHAM}
PER_OCTAVE = 4  # checkpoints at which the states of a pair are compared


class PairDifference(NamedTuple):
    """How the states of one block differ between two contexts that differ in the fact alone; or sums over pairs."""

    forgetting: np.ndarray
    """The mean δ of each channel `[c]`."""
    share: np.ndarray
    """Each channel's part of the square of the difference at the first checkpoint, `[c]`."""
    difference: np.ndarray
    """The distance between the two states at each checkpoint `[n]`, relative to the distance at the first."""
    drift: np.ndarray
    """How far the mean of both states has moved by each checkpoint `[n]`, relative to the distance at the first."""


@dataclass(frozen=True)
class Forgetting:
    """Contexts of `length` tokens with a fact at their beginning, read once with and once without interventions.

    The states of `pairs` of contexts are compared from 64 tokens after the fact on. In `contexts` contexts of each
    answer, a part of the states is set back to its value at 64 tokens, and the question is asked again. `chunk` tokens
    are in memory at a time.
    """

    length: int
    pairs: int
    contexts: int
    chunk: int

    def forgotten(self, trained: Trained, task: Recalls, params: Params, row: Callable[..., Row]) -> Iterator[Row]:
        """Rows of how fast each channel forgets, and of how far apart the states of a pair are at each checkpoint."""
        row = partial(row, length=self.length)
        for block, sums in self._summed(trained, task, params).items():
            shares = sums.share / max(sums.share.sum(), TINY)
            for channel, (total, share) in enumerate(zip(sums.forgetting, shares, strict=True)):
                extra = {"block": block, "channel": channel, "share": float(share)}
                yield row(metric=recall_rows.FORGETTING, total=total, count=self.pairs, extra=extra)
            extra = {"block": block, "first": FIRST_CHECK}
            for number, distance in enumerate(self.checkpoints()):
                for metric, totals in ((recall_rows.DIFFERENCE, sums.difference), (recall_rows.DRIFT, sums.drift)):
                    yield row(metric=metric, position=distance, total=totals[number], count=self.pairs, extra=extra)

    def restored(self, trained: Trained, task: Recalls, params: Params, row: Callable[..., Row]) -> Iterator[Row]:
        """Rows of accuracy once one cause of the loss is undone, in all blocks or in one block, and with its sham."""
        numbers = np.repeat(np.arange(self.contexts), task.answers)
        facts = np.tile(np.arange(task.answers), self.contexts)
        tokens, answers = planted(task, numbers, np.zeros(len(numbers), int), self.length, facts)
        tokens = np.asarray(tokens)
        blocks = sorted(jax.eval_shape(partial(trained.model.decays, params), tokens[:2, :2]))
        reader = Reader(trained.model, params, answers, task.query, self.chunk, trained.check_interrupt)
        cache = reader.read(tokens[:, :FIRST_CHECK], reader.start(self.length))
        before = jax.tree.map(jnp.copy, cache)
        last = self.length - 1
        octaves = [*(FIRST_CHECK << n for n in range(64) if FIRST_CHECK << n < last), last]
        for start, stop in pairwise(octaves):
            cache = reader.read(tokens[:, start:stop], cache)
            answered = _queried(reader, cache, before, blocks, task.answers)
            trained.progress.describe(self.length, stop, last)
            for (what, block), right in answered.items():
                extra = {"first": FIRST_CHECK, "undone": what, "block": block}
                place = {"length": stop + 1, "position": stop}
                # The facts of one context share all other tokens, so that a context is what is independent.
                total = right.reshape(self.contexts, task.answers).mean(axis=1).sum()
                yield row(metric=recall_rows.RESTORED, total=total, count=self.contexts, extra=extra, **place)

    def checkpoints(self) -> list[int]:
        """The distances from the fact at which states are compared: `FIRST_CHECK`, then four an octave to the end."""
        last = self.length - 1
        steps = np.arange(0, PER_OCTAVE * np.log2(last / FIRST_CHECK) + 1e-9) / PER_OCTAVE
        return sorted({*(round(float(FIRST_CHECK * 2**step)) for step in steps), last})

    def _summed(self, trained: Trained, task: Recalls, params: Params) -> dict[int, PairDifference]:
        """The sums over all pairs, by block."""
        sums: dict[int, PairDifference] = {}
        checkpoints = self.checkpoints()
        for number in range(self.pairs):
            trained.check_interrupt()
            tokens = planted_pair(task, number, self.length)
            for block, (delta, state) in _decays(trained.model, params, tokens).items():
                pair = _pair_difference(np.asarray(delta, np.float64), np.asarray(state, np.float64)[:, checkpoints])
                before = sums.get(block)
                sums[block] = pair if before is None else PairDifference(*map(np.add, before, pair))
            trained.progress.describe(self.length, number + 1, self.pairs)
        return sums


def _pair_difference(delta: np.ndarray, states: np.ndarray) -> PairDifference:
    """Compares one pair in one block: `delta [2, t, c]` at every token, `states [2, n, c]` at the checkpoints."""
    square = np.square(states[0] - states[1])
    norms = np.sqrt(square.sum(axis=1))
    first = max(float(norms[0]), TINY)
    middle = states.mean(axis=0)
    return PairDifference(
        forgetting=delta[:, SETTLING:].mean(axis=(0, 1)),
        share=square[0] / max(square[0].sum(), TINY),
        difference=norms / first,
        drift=np.linalg.norm(middle - middle[0], axis=1) / first,
    )


def _queried(
    reader: Reader, cache: Cache, before: Cache, blocks: list[int], answers: int
) -> dict[tuple[str, int | None], np.ndarray]:
    """Which contexts are answered right, by the part that was undone and the block; None stands for every block."""
    right: dict[tuple[str, int | None], np.ndarray] = {(recall_rows.NOTHING_UNDONE, None): reader.ask(cache)}
    for what in (recall_rows.DRIFT_UNDONE, recall_rows.FORGETTING_UNDONE):
        for block in [None, *blocks]:
            chosen = blocks if block is None else [block]
            right[what, block] = reader.ask(undone(what, cache, before, chosen, answers))
            right[SHAMS[what], block] = reader.ask(sham(what, cache, before, chosen, answers))
    return right


def undone(what: str, cache: Cache, before: Cache, blocks: Iterable[int], answers: int) -> Cache:
    """Returns `cache` with a part of the states of `blocks` set back to their values in the cache `before`.

    The cache has `answers` rows for each context, one for each fact. The states of these rows have a mean, which
    `drift` restores, and differences from the mean, which `forgetting` restores. A block that decays has its state in
    `h` of its cache, `[b, r]`.
    """
    changed = list(cache)
    for block in blocks:
        now, then = (c[block].h.reshape(-1, answers, c[block].h.shape[-1]) for c in (cache, before))
        shared, parted = (then, now) if what == recall_rows.DRIFT_UNDONE else (now, then)
        restored = shared.mean(axis=1, keepdims=True) + parted - parted.mean(axis=1, keepdims=True)
        changed[block] = cache[block]._replace(h=restored.reshape(cache[block].h.shape))
    return tuple(changed)


def sham(what: str, cache: Cache, before: Cache, blocks: Iterable[int], answers: int) -> Cache:
    """Control: returns `cache` with the states of `blocks` moved as far as `undone` moves them, with random signs.

    A channel has one sign for all facts of a context, so that a mean over facts moves only where `undone` moves it. The
    signs are the same in every call.
    """
    changed = list(undone(what, cache, before, blocks, answers))
    for block in blocks:
        now, put_back = (c[block].h.reshape(-1, answers, c[block].h.shape[-1]) for c in (cache, changed))
        signs = jax.random.rademacher(random_key(block), (len(now), 1, now.shape[-1]), now.dtype)
        moved = now + signs * (put_back - now)
        changed[block] = cache[block]._replace(h=moved.reshape(cache[block].h.shape))
    return tuple(changed)


@partial(jax.jit, static_argnames=("model",))
def _decays(model: LanguageModel, params: Params, tokens: Array) -> dict[int, tuple[Array, Array]]:
    return dict(model.decays(params, tokens))
