"""How far back a fact is recalled from, and what the recurrence forgets on the way (De et al. 2024, sec. 6.2)."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from evalkit.checks import at_least, at_least_or, between_or_null
from evalkit.core.contracts import AnyTask, Evaluation, Params, Recalls, Trained
from evalkit.core.rows import Row
from evalkit.core.statistics import LOOK_EVERY, is_narrow
from evalkit.evaluations.recall.forgetting import FIRST_CHECK, Forgetting
from evalkit.evaluations.recall.planting import planted
from evalkit.evaluations.recall.rows import RECALLED
from evalkit.inference.reader import Reader
from evalkit.inference.streaming import least_rows, rows_at_once
from evalkit.parallel.layouts.mesh import AUTO

NEAREST = 2  # the fact's answer stands between the fact and the question


@dataclass(frozen=True)
class Recall(Evaluation):
    """One fact planted in a long context, and the question for it at growing distances.

    Recall: for each number of tokens `before` the fact, up to `sequences` contexts of `length` tokens are read. At each
    of `distances` that fits, a copy of the cache reads the question, so that the context itself contains no question.
    The `interval` is checked every 32 contexts.

    Forgetting: `pairs` of contexts of `pair_length` tokens differ only in the fact at their beginning. Their states,
    from 64 tokens on, show which channels of a recurrence carry the fact, and how fast these forget it. In `contexts`
    contexts of each answer, a part of the states is set back to its value at 64 tokens, and the question is repeated.

    Raises ValueError for an invalid value.

    Options:
      length (tokens): tokens of the context that each fact is planted in.
      before (tokens): tokens before the fact; one measurement each.
      distances (tokens): tokens from the fact to the question; null: 2, 4, 8, … as far as they fit.
      sequences (contexts): contexts read for each number of `before`, at most.
      interval (accuracy): reading ends once the 95% interval of every distance is at most this wide; null: never early.
      pairs (pairs): pairs of contexts that differ in the fact alone, to see what the state forgets.
      pair_length (tokens): tokens of each context of a pair; a pair is read at once, whatever `chunk` says.
      contexts (contexts): contexts of each answer whose states are restored in part, all of them read together.
      chunk (tokens): tokens of each sequence that are in memory at a time.
      batch_size (sequences): contexts of `length` tokens in memory at a time; `auto`: 8 on a CPU, else up to 256.
    """

    kind = "evalkit.evaluations.recall.report"

    length: int = 17409  # room for 16,384 tokens after 1,024 and the question
    before: list[int] = field(default_factory=lambda: [0, 64, 1024])
    distances: list[int] | None = None
    sequences: int = 128
    interval: float | None = 0.1
    pairs: int = 16
    pair_length: int = 16384
    contexts: int = 4
    chunk: int = 256
    batch_size: int | str = AUTO

    def __post_init__(self) -> None:
        at_least(self, 1, "sequences", "pairs", "contexts", "chunk")
        at_least_or(self, AUTO, 1, "batch_size")
        if not self.before or not all(0 <= before < self.length - NEAREST for before in self.before):
            raise ValueError(f"before={self.before}; allowed: from 0, below length={self.length} less {NEAREST}")
        if self.distances is not None and not (self.distances and min(self.distances) >= NEAREST):
            raise ValueError(f"distances={self.distances}; allowed: numbers from {NEAREST}, or null")
        if not all(self.distances_after(before) for before in self.before):
            raise ValueError(f"distances={self.distances} do not fit into length={self.length}; give a longer length")
        between_or_null(self, 0, 1, "interval")
        if self.pair_length < FIRST_CHECK + 2:
            raise ValueError(f"pair_length={self.pair_length}; allowed: from {FIRST_CHECK + 2}")

    @property
    def pieces(self) -> int:
        """One piece for each number of tokens before the fact, one for the pairs, one for the restored states."""
        return len(self.before) + 2

    def distances_after(self, before: int) -> list[int]:
        """The distances that a context has room for after so many tokens, nearest first."""
        room = self.length - 1 - before
        if self.distances is None:
            return [1 << power for power in range(1, room.bit_length())]
        return [distance for distance in sorted(set(self.distances)) if distance <= room]

    def check(self, task: AnyTask) -> None:
        """Raises ValueError for a task that has no fact to plant."""
        if not isinstance(task, Recalls):
            raise ValueError("recall needs a task that can plant a fact; give task=induction_heads")

    def held(self) -> list[tuple[str, int, int]]:
        """A batch of contexts, and two sequences that differ in one fact."""
        return [("length", least_rows(self.batch_size), self.length), ("pair_length", 2, self.pair_length)]

    def run(self, trained: Trained) -> Iterator[Row]:
        """Rows of every seed: what is recalled, then what is forgotten and restored, where a state decays."""
        assert isinstance(trained.task, Recalls)
        forgetting = Forgetting(self.pair_length, self.pairs, self.contexts, self.chunk)
        for params, row in trained.each(split="test"):
            for before in self.before:
                yield from self._recalled(trained, trained.task, params, row, before)
            if jax.eval_shape(partial(trained.model.decays, params), jnp.zeros((2, 2), jnp.int32)):
                yield from forgetting.forgotten(trained, trained.task, params, row)
                yield from forgetting.restored(trained, trained.task, params, row)

    def _recalled(
        self, trained: Trained, task: Recalls, params: Params, row: Callable[..., Row], before: int
    ) -> Iterator[Row]:
        distances = self.distances_after(before)
        look = self.sequences if self.interval is None else LOOK_EVERY
        rows = rows_at_once(self.batch_size, trained.model, params, self.length, self.chunk, look)
        right, queried = np.zeros((len(distances), task.answers), int), np.zeros(task.answers, int)
        while (done := int(queried.sum())) < self.sequences:
            numbers = np.arange(done, done + rows)  # a last batch that is not full keeps its shape
            tokens, answers = planted(task, numbers, np.full(rows, before), self.length)
            look = self.sequences if self.interval is None else LOOK_EVERY - done % LOOK_EVERY
            used = min(rows, look, self.sequences - done)
            facts = np.asarray(answers)[:used]
            queried += np.bincount(facts, minlength=task.answers)
            for at, hit in enumerate(self._answers(trained, params, tokens, answers, task.query, before)):
                right[at] += np.bincount(facts[hit[:used] > 0], minlength=task.answers)
            done += used
            enough = done % LOOK_EVERY == 0 and self._narrow(right.sum(axis=1), done)
            trained.progress.describe(self.length, done, done if enough else self.sequences)
            if enough:
                break
        for distance, of_each in zip(distances, right, strict=True):
            yield row(
                metric=RECALLED,
                length=before + distance + 1,
                position=distance,
                total=int(of_each.sum()),
                count=int(queried.sum()),
                extra={"before": before, "right": of_each.tolist(), "asked": queried.tolist()},
            )

    def _narrow(self, right: np.ndarray, count: int) -> bool:
        return all(is_narrow(float(total), count, self.interval) for total in right)

    def _answers(
        self, trained: Trained, params: Params, tokens: Array, answers: Array, query: int, before: int
    ) -> Iterator[np.ndarray]:
        """Which answers are right at each distance; the context is read once, and copies of the cache are queried."""
        reader = Reader(trained.model, params, answers, query, self.chunk, trained.check_interrupt)
        cache, read = reader.start(self.length), np.asarray(tokens)
        for start, stop in pairwise([0, *(before + distance for distance in self.distances_after(before))]):
            cache = reader.read(read[:, start:stop], cache)
            yield reader.ask(cache)
