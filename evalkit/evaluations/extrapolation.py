"""Accuracy against length: does a model trained on 256 tokens still work on 16,384?"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import jax.numpy as jnp
import numpy as np
from jax import Array

from evalkit.core import streams
from evalkit.core.batches import feed_of
from evalkit.core.checks import at_least, at_least_or_null, between_or_null
from evalkit.core.contracts import AnyTask, Evaluation, LanguageModel, Params, Trained
from evalkit.core.rows import Row
from evalkit.core.statistics import wilson
from evalkit.inference.streaming import stream_tally

LOOK_EVERY = 32


@dataclass(frozen=True)
class Extrapolation(Evaluation):
    """A ladder of lengths, each on its own held-out sequences, the same ones for every model and seed.

    `sequences` are scored at each length, `long_sequences` from `long_from` tokens on. Lengths above `max_length` are
    marked not run, since a global cache grows with length. `chunk` tokens of `batch_size` sequences are in memory at a
    time. Raises ValueError for a value that cannot be.

    While training: `during_sequences` at each of the lengths `during`, at validations whose step is a multiple of
    `during_every` (null: at all of them).

    `interval` ends a length early: once the 95% interval of the accuracy is no wider and holds none of `marks` inside.
    It is looked at every 32 sequences, and 0.99 takes 381 sequences without an error; null takes them all.
    `reset_every` is a control experiment: every state is forgotten after so many tokens; null: never.
    """

    kind = "evalkit.reports.accuracy"

    lengths: list[int]
    sequences: int = 256
    long_sequences: int = 64
    long_from: int = 8192
    max_length: int | None = None
    chunk: int = 256
    batch_size: int = 8
    during: list[int] = field(default_factory=list)
    during_sequences: int = 64
    during_every: int | None = None
    interval: float | None = None
    marks: list[float] = field(default_factory=lambda: [0.95, 0.99])
    reset_every: int | None = None

    def __post_init__(self) -> None:
        at_least(self, 1, "sequences", "long_sequences", "long_from", "chunk", "batch_size", "during_sequences")
        for length in (*self.lengths, *self.during):
            if length < 1:
                raise ValueError(f"length {length} in lengths or during; allowed: 1 or more")
        at_least_or_null(self, 1, "max_length", "reset_every", "during_every")
        between_or_null(self, 0, 1, "interval")

    @property
    def pieces(self) -> int:
        """The lengths that are run."""
        return len([length for length in set(self.lengths) if self._runs(length)])

    def check(self, task: AnyTask) -> None:
        """Raises ValueError for a task without answers, and the task's own for a length that it cannot have."""
        feed = feed_of(task)
        for length in (*filter(self._runs, self.lengths), *self.during):
            feed.check_answers(length)

    def limits(self, model: LanguageModel) -> list[str]:
        """That everything is forgotten, where it is; what is left out has rows that say so."""
        return [] if self.reset_every is None else [f"every state forgotten every {self.reset_every:,} tokens"]

    def probe(self, trained: Trained) -> Iterator[Row]:
        """Rows of the few lengths looked at while training."""
        if self.during_every is not None and (trained.step or 0) % self.during_every:
            return
        for length in self.during:
            yield from self._rows(trained, "validation", length, self.during_sequences, None)

    def run(self, trained: Trained) -> Iterator[Row]:
        """Rows of the whole ladder, shortest first; what is left out says why."""
        for length in sorted(set(self.lengths)):
            if self._runs(length):
                sequences = self.sequences if length < self.long_from else self.long_sequences
                enough = None if self.interval is None else self._enough
                yield from self._rows(trained, "test", length, sequences, enough)
            else:
                yield from self._left_out(trained, length)

    def _left_out(self, trained: Trained, length: int) -> Iterator[Row]:
        extra = {"not_run": f"longer than eval.max_length={self.max_length}"}
        for seed in trained.seeds:
            yield trained.make_row(
                metric="accuracy", seed=seed, step=trained.step, split="test", length=length, count=0, extra=extra
            )

    def _runs(self, length: int) -> bool:
        return self.max_length is None or length <= self.max_length

    def _enough(self, total: float, count: int) -> bool:
        if self.interval is None:
            return False
        low, high = wilson(min(total, count), count)
        return high - low <= self.interval and not any(low < mark < high for mark in self.marks)

    def _rows(
        self, trained: Trained, split: str, length: int, sequences: int, enough: Callable[[float, int], bool] | None
    ) -> Iterator[Row]:
        for seed, params in zip(trained.seeds, trained.params, strict=True):
            yield from score(
                trained,
                params,
                seed,
                split,
                length,
                sequences,
                chunk=self.chunk,
                batch_size=self.batch_size,
                enough=enough,
                reset_every=self.reset_every,
            )


def score(
    trained: Trained,
    params: Params,
    seed: int,
    split: str,
    length: int,
    sequences: int,
    *,
    chunk: int,
    batch_size: int,
    enough: Callable[[float, int], bool] | None = None,
    reset_every: int | None = None,
) -> Iterator[Row]:
    """One row a metric: the model of one seed on the first `sequences` held-out sequences of `split` at `length`.

    Fewer if `enough(right, sequences so far)`, asked every 32 sequences whatever the batch size.
    """
    stream = streams.TEST if split == "test" else streams.VALIDATION
    totals: dict[str, float] = {}
    done = 0
    while done < sequences:
        trained.check_interrupt()
        example = trained.feed.held_out(stream, done, batch_size, length)
        if reset_every is not None:
            example = example._replace(positions=_restarting(example.tokens.shape, reset_every))
        scores = stream_tally(trained.model, params, example, chunk, trained.check_interrupt).scores()
        # A last batch that is not full keeps its shape, and the program with it; the sequences beyond are left out.
        used = min(batch_size, sequences - done, sequences if enough is None else LOOK_EVERY - done % LOOK_EVERY)
        for metric, values in scores.items():
            totals[metric] = totals.get(metric, 0.0) + float(np.asarray(values[:used], np.float64).sum())
        done += used
        trained.progress.describe(length, done, sequences)
        if enough is not None and done % LOOK_EVERY == 0 and enough(totals["accuracy"], done):
            break
    extra = None if reset_every is None else {"reset_every": reset_every}
    for metric, total in trained.feed.reported(totals).items():
        yield trained.make_row(
            metric=metric,
            seed=seed,
            step=trained.step,
            split=split,
            length=length,
            total=total,
            count=done,
            extra=extra,
        )


def _restarting(shape: tuple[int, ...], every: int) -> Array:
    """Positions that begin anew, and with them every state, every so many tokens."""
    return jnp.broadcast_to(jnp.arange(shape[1]) % every, shape)
