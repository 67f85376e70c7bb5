"""Accuracy against length: the model runs chunk by chunk through its cache, so memory does not grow with length."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, PartitionSpec

from evalkit.core import batches as feeds
from evalkit.core import streams
from evalkit.core.contracts import Cache, LanguageModel, Params, Task, Texts, Trained
from evalkit.core.devices import AXIS, copied, mesh_for, split
from evalkit.core.objective import Tally, tally
from evalkit.core.rows import Row
from evalkit.core.statistics import wilson
from evalkit.tasks import Example

LOOK_EVERY = 32


@dataclass(frozen=True)
class Extrapolation:
    """A ladder of lengths, each on its own held-out sequences, the same ones for every model and seed.

    `sequences` at each length, `long_sequences` from `long_from` tokens on. Lengths above `max_length` are marked not
    run (a global cache grows with length). `during` are the lengths looked at while training, with
    `during_sequences` each, at validations whose step is a multiple of `during_every` (null: at all). `chunk` tokens
    of `batch_size` sequences are in memory at a time. `interval`: take no more sequences once the 95% interval of the
    accuracy is no wider than this and holds none of `marks` inside (0.99 takes 381 sequences without an error), looked
    at every 32 sequences; null: take them all. `reset_every`: a control that forgets everything every so many tokens;
    null: never.
    Raises ValueError for a value that cannot be.
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
        for name in ("sequences", "long_sequences", "long_from", "chunk", "batch_size", "during_sequences"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}; allowed: 1 or more")
        for length in (*self.lengths, *self.during):
            if length < 1:
                raise ValueError(f"length {length} in lengths or during; allowed: 1 or more")
        for name in ("max_length", "reset_every", "during_every"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}; allowed: 1 or more, or null")
        if self.interval is not None and not 0 < self.interval < 1:
            raise ValueError(f"interval={self.interval}; allowed: between 0 and 1, or null")

    @property
    def pieces(self) -> int:
        """The lengths that are run."""
        return len([length for length in set(self.lengths) if self._runs(length)])

    def check(self, task: Task | Texts) -> None:
        """Raises ValueError, the task's own, for a length that it cannot have."""
        if feeds.is_text(task):
            raise ValueError("a text has no answer to be right about; give eval=loss_by_position")
        for length in (*filter(self._runs, self.lengths), *self.during):
            streams.check_length(task, length)

    def limits(self, model: LanguageModel) -> list[str]:
        """That everything is forgotten, where it is; what is left out has rows that say so."""
        return [] if self.reset_every is None else [f"every state forgotten every {self.reset_every:,} tokens"]

    def probe(self, trained: Trained) -> Iterator[Row]:
        """Rows of the few lengths looked at while training."""
        if self.during_every is not None and trained.step % self.during_every:
            return
        for length in self.during:
            yield from self._rows(trained, "validation", length, self.during_sequences, None)

    def run(self, trained: Trained) -> Iterator[Row]:
        """Rows of the whole ladder, shortest first; what is left out says why."""
        for length in sorted(set(self.lengths)):
            if not self._runs(length):
                reason = f"longer than eval.max_length={self.max_length}"
                for seed in trained.seeds:
                    yield trained.make_row(
                        metric="accuracy",
                        seed=seed,
                        step=trained.step,
                        split="test",
                        length=length,
                        count=0,
                        extra={"not_run": reason},
                    )
            else:
                sequences = self.sequences if length < self.long_from else self.long_sequences
                enough = None if self.interval is None else self._enough
                yield from self._rows(trained, "test", length, sequences, enough)

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
        example = feeds.held_out_batch(trained.task, stream, done, batch_size, length)
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
    if feeds.is_text(trained.task):
        del totals["exact_match"]  # of a whole window: always 0
        totals["bits_per_byte"] = totals["loss"] / (math.log(2) * trained.task.bytes_per_token())
    extra = None if reset_every is None else {"reset_every": reset_every}
    for metric, total in totals.items():
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


def stream_tally(
    model: LanguageModel,
    params: Params,
    example: Example,
    chunk: int,
    check_interrupt: Callable[[], None] = lambda: None,
) -> Tally:
    """The tally of examples `[b, t]`, `chunk` tokens at a time through the cache; the last chunk is padded.

    Rows are split over the devices. The program does not depend on `t` unless the cache does.
    """
    batch, length = example.tokens.shape
    chunk = min(chunk, length)
    padding = -length % chunk
    # Padding is never scored, and packed text says of it that it is no token.
    empty = Example(0, 0, False, None if example.positions is None else -1)  # type: ignore[arg-type]
    whole = jax.tree.map(lambda x, fill: _padded(x, padding, fill), example, empty)
    mesh = mesh_for(batch)
    params = jax.device_put(params, copied(mesh))
    # Never smaller than a window, so that all lengths of a model with one share a program.
    cache = jax.device_put(model.init_cache(batch, max(length + padding, model.window or 0)), split(mesh))
    total = jax.device_put(Tally(*(jnp.zeros(batch) for _ in Tally._fields)), split(mesh))
    for start in range(0, length, chunk):
        check_interrupt()
        part = jax.tree.map(lambda x, start=start: jax.device_put(x[:, start : start + chunk], split(mesh)), whole)
        scored = bool(whole.mask[:, start : start + chunk].any())
        cache, total = advance(model, mesh, params, part, cache, total, scored)
    return total


def _padded(field: Any, padding: int, fill: int) -> np.ndarray:
    return np.pad(np.asarray(field), ((0, 0), (0, padding)), constant_values=fill)


@partial(jax.jit, static_argnames=("model", "mesh", "scored"), donate_argnames=("cache", "total"))
def advance(
    model: LanguageModel, mesh: Mesh, params: Params, part: Example, cache: Cache, total: Tally, scored: bool
) -> tuple[Cache, Tally]:
    """The cache and the tally after a chunk; where nothing in it is `scored`, no logits are computed."""

    def on_device(params: Params, part: Example, cache: Cache, total: Tally) -> tuple[Cache, Tally]:
        nowhere = None if scored else jnp.zeros((part.tokens.shape[0], 0), jnp.int32)
        logits, cache = model.apply(params, part.tokens, part.positions, cache, nowhere)
        return cache, total + tally(logits, part) if scored else total

    rows = PartitionSpec(AXIS)
    return jax.shard_map(
        on_device, mesh=mesh, in_specs=(PartitionSpec(), rows, rows, rows), out_specs=(rows, rows), check_vma=False
    )(params, part, cache, total)
