"""How much of the past still moves a prediction (Buitrago Ruiz & Gu 2025, arXiv 2507.02782)."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from evalkit.checks import at_least, at_least_or
from evalkit.core import streams
from evalkit.core.batches import feed_of
from evalkit.core.contracts import AnyTask, Evaluation, Params, Pretrained, Trained
from evalkit.core.rows import Row
from evalkit.evaluations.remembrance import CHANGED, STATE_NORM
from evalkit.inference.prefill import Prefilled, bucket, placed, prefill
from evalkit.inference.streaming import least_rows, rows_at_once
from evalkit.parallel.layouts.mesh import AUTO


@dataclass(frozen=True)
class Remembrance(Evaluation):
    """Compares the prediction after a whole held-out sequence with the one after its last tokens alone.

    Each sequence is read up to its last scored position: once whole, and for each of `kept_tokens` that many of its
    last tokens alone, if more were read. The total variation between both predictions, ½ Σ |p − q|, is the effect of
    the tokens left out: effective remembrance. For a model that uses only near tokens it is 0 from a few tokens on; for
    one that its state misleads, it grows with the sequence. The norm of each block's state at that position is measured
    too, where the state has a fixed size.

    Raises ValueError for an invalid value.

    Options:
      lengths (tokens): lengths of the sequences; one measurement each.
      kept_tokens (tokens): how many of the last tokens are read alone; null: 1, 2, 4, … below the length.
      sequences (sequences): held-out sequences of each length.
      chunk (tokens): tokens of each sequence that are in memory at a time.
      batch_size (sequences): sequences that are in memory at a time; `auto`: 8 on a CPU, up to 256 on an accelerator.
    """

    kind = "evalkit.evaluations.remembrance.report"

    lengths: list[int]
    kept_tokens: list[int] | None = None
    sequences: int = 64
    chunk: int = 256
    batch_size: int | str = AUTO

    def __post_init__(self) -> None:
        at_least(self, 1, "sequences", "chunk")
        at_least_or(self, AUTO, 1, "batch_size")
        if not self.lengths or min(self.lengths) < 1:
            raise ValueError(f"lengths={list(self.lengths)}; allowed: one length or more, each at least 1")
        if self.kept_tokens is not None and not (self.kept_tokens and min(self.kept_tokens) >= 1):
            raise ValueError(f"kept_tokens={self.kept_tokens}; allowed: numbers from 1, or null")

        for length in self.lengths:
            if not self.suffixes(length):
                raise ValueError(f"lengths={list(self.lengths)}: of {length} tokens nothing shorter is read; give more")

    @property
    def pieces(self) -> int:
        """The number of lengths."""
        return len(set(self.lengths))

    @property
    def ladder(self) -> list[int]:
        """The lengths."""
        return list(self.lengths)

    def check(self, task: AnyTask) -> None:
        """Raises the task's own ValueError for a length that it cannot have."""
        for length in self.lengths:
            feed_of(task).check_answers(length)

    def held(self) -> list[tuple[str, int, int]]:
        """A batch at the longest length."""
        return [("lengths", min(self.sequences, least_rows(self.batch_size)), max(self.lengths))]

    def suffixes(self, length: int) -> list[int]:
        """How many of the last tokens of a sequence of `length` are read alone, the fewest first."""
        if self.kept_tokens is None:
            return [1 << power for power in range((length - 1).bit_length())]
        return [kept for kept in sorted(set(self.kept_tokens)) if kept < length]

    def run(self, trained: Trained) -> Iterator[Row]:
        """Rows of every seed and length, the shortest length first."""
        for index, (params, row) in enumerate(trained.each(split="test")):
            pretrained = trained.pretrained(index)
            for length in sorted(set(self.lengths)):
                yield from self._measured(trained, pretrained, params, partial(row, length=length), length)

    def _measured(
        self, trained: Trained, pretrained: Pretrained, params: Params, row: Callable[..., Row], length: int
    ) -> Iterator[Row]:
        tokens = length + trained.task.answer_length
        rows = min(self.sequences, rows_at_once(self.batch_size, trained.model, params, tokens, self.chunk, 256))
        size, pretrained = bucket(tokens), placed(pretrained, rows)
        changed, compared, norms = dict[int, float](), Counter[int](), dict[int, float]()
        for first in range(0, self.sequences, rows):
            example = trained.feed.held_out(streams.TEST, first, rows, length)
            ends = _last_scored(np.asarray(example.mask))[: self.sequences - first]
            read = [row[: end + 1].tolist() for row, end in zip(np.asarray(example.tokens), ends, strict=False)]

            def after(parts: list[list[int]]) -> Prefilled:
                trained.check_interrupt()
                return prefill(pretrained, parts, rows=rows, size=size, chunk=min(self.chunk, size))

            whole = after(read)
            for block, norm in _norms(trained, whole, len(read)).items():
                norms[block] = norms.get(block, 0.0) + norm
            for kept in self.suffixes(length):
                is_shorter = np.array([len(tokens) > kept for tokens in read])  # else nothing is left out
                if is_shorter.any():
                    part = after([tokens[-kept:] for tokens in read])
                    distance = _total_variation(part.logits[: len(read)], whole.logits[: len(read)])
                    changed[kept] = changed.get(kept, 0.0) + float(distance[is_shorter].sum())
                    compared[kept] += int(is_shorter.sum())
            trained.progress.describe(length, first + len(read), self.sequences)
        for kept, total in changed.items():
            yield row(metric=CHANGED, position=kept, total=total, count=compared[kept])
        for block, total in norms.items():
            yield row(metric=STATE_NORM, total=total, count=self.sequences, extra={"block": block})


def _last_scored(mask: np.ndarray) -> np.ndarray:
    """The last scored position of each row."""
    return mask.shape[1] - 1 - np.argmax(mask[:, ::-1], axis=1)


def _total_variation(p: Float[jax.Array, "b v"], q: Float[jax.Array, "b v"]) -> np.ndarray:
    """½ Σ |softmax(p) − softmax(q)| of each row, in float64."""
    one, other = (np.asarray(jax.nn.softmax(jnp.asarray(x, jnp.float32), axis=-1), np.float64) for x in (p, q))
    return 0.5 * np.abs(one - other).sum(axis=-1)


def _norms(trained: Trained, read: Prefilled, count: int) -> dict[int, float]:
    """The sum of the norms of the first `count` states, for each block whose state has a fixed size."""
    states = {block: np.asarray(state, np.float64)[:count] for block, state in trained.model.states(read.cache).items()}
    return {
        block: float(np.linalg.norm(state.reshape(count, -1), axis=1).sum()) for block, state in sorted(states.items())
    }
