"""Accuracy against length: does a model trained on 256 tokens still work on 16,384?"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import jax
import numpy as np

from evalkit.checks import at_least, at_least_or, at_least_or_null, between_or_null, one_of
from evalkit.core import streams
from evalkit.core.batches import feed_of
from evalkit.core.contracts import AnyTask, Evaluation, LanguageModel, Params, Trained
from evalkit.core.objective import Tally
from evalkit.core.rows import Row
from evalkit.core.statistics import LOOK_EVERY, is_narrow
from evalkit.inference.streaming import MOST_ROWS, SHARE, least_rows, rows_at_once, stream_tallies, stream_tally
from evalkit.parallel.layouts.mesh import AUTO
from evalkit.parallel.layouts.sequences import ROWS, SEQUENCE, SHARED, refuse_unsplit, split_tallies
from evalkit.tasks import Example


@dataclass(frozen=True)
class Extrapolation(Evaluation):
    """A ladder of lengths, each on its own held-out sequences, the same ones for every model and seed.

    `interval` ends a length early, once the 95% interval of its accuracy is at most this wide and has none of `marks`
    inside. This is checked every 32 sequences; with the mark 0.99 it takes 381 sequences without an error.
    `reset_every` is a control experiment. Raises ValueError for an invalid value.

    Options:
      lengths (tokens): the lengths to test at.
      sequences (sequences): sequences scored at each length.
      long_sequences (sequences): sequences scored at lengths from `long_from` on.
      long_from (tokens): the shortest length that takes `long_sequences`.
      max_length (tokens): longer lengths are marked as not run, since a global cache grows with length; null: no limit.
      chunk (tokens): tokens of each sequence that are in memory at a time; with `span`, `span` tokens.
      batch_size (sequences): sequences that are in memory at a time; `auto`: 8 on a CPU, up to 256 on an accelerator.
      during (tokens): lengths to test at while training.
      during_sequences (sequences): sequences at each length of `during`.
      during_every (steps): `during` is tested this often, a multiple of `train.eval_every`; null: at every validation.
      interval (accuracy): a length ends early once its 95% interval is at most this wide; null: never.
      marks (accuracy): a length does not end early while one of these is inside its 95% interval.
      reset_every (tokens): a control: every state is reset after so many tokens; null: never.
      span (tokens): accuracy is also reported for each span of this many positions, over the scored ones; null: not.
      devices: `rows` gives each device whole sequences, `sequence` a part of `chunk` tokens of every one.
    """

    kind = "evalkit.evaluations.extrapolation.report"
    spaced_by = "during_every"

    lengths: list[int]
    sequences: int = 256
    long_sequences: int = 64
    long_from: int = 8192
    max_length: int | None = None
    chunk: int = 256
    batch_size: int | str = AUTO
    during: list[int] = field(default_factory=list)
    during_sequences: int = 64
    during_every: int | None = None
    interval: float | None = None
    marks: list[float] = field(default_factory=lambda: [0.95, 0.99])
    reset_every: int | None = None
    span: int | None = None
    devices: str = ROWS

    def __post_init__(self) -> None:
        at_least(self, 1, "sequences", "long_sequences", "long_from", "chunk", "during_sequences")
        at_least_or(self, AUTO, 1, "batch_size")
        for name, lengths in (("lengths", self.lengths), ("during", self.during)):
            if min(lengths, default=1) < 1:
                raise ValueError(f"{name}={list(lengths)}; allowed: lengths of 1 or more")
        at_least_or_null(self, 1, "max_length", "reset_every", "during_every", "span")
        between_or_null(self, 0, 1, "interval")
        one_of(self, "devices", SHARED)
        if self.devices == SEQUENCE and self.span is not None:
            raise ValueError(f"devices=sequence and span={self.span}; spans need devices=rows")

    def _runs(self, length: int) -> bool:
        return self.max_length is None or length <= self.max_length

    @property
    def pieces(self) -> int:
        """The number of lengths that are run."""
        return len([length for length in set(self.lengths) if self._runs(length)])

    def check(self, task: AnyTask) -> None:
        """Raises ValueError for a task without answers, and the task's own for a length that it cannot have."""
        if not self.lengths:
            raise ValueError("eval.lengths=[] measures nothing; give one length or more, such as 'eval.lengths=[256]'")
        feed = feed_of(task)
        for length in (*filter(self._runs, self.lengths), *self.during):
            feed.check_answers(length)

    def check_model(self, model: LanguageModel) -> None:
        """Raises ValueError for a model whose sequences cannot be split over devices, if `devices` asks for it."""
        if self.devices == SEQUENCE:
            refuse_unsplit(model, self.chunk)

    def check_looks(self, eval_every: int) -> None:
        """Raises ValueError for a `during_every` that is no multiple of `eval_every` (steps): looks would be rarer."""
        if self.during and self.during_every is not None and self.during_every % eval_every:
            raise ValueError(
                f"eval.during_every={self.during_every}, but models are validated every train.eval_every={eval_every} "
                f"steps; give a multiple of {eval_every}"
            )

    @property
    def ladder(self) -> list[int]:
        return [*filter(self._runs, self.lengths), *self.during]

    def held(self) -> list[tuple[str, int, int]]:
        """A batch at the longest length that is run, and at the longest that is looked at while training."""
        ladders = {"lengths": [*filter(self._runs, self.lengths)], "during": self.during}
        return [(name, least_rows(self.batch_size), max(lengths)) for name, lengths in ladders.items() if lengths]

    def limits(self, model: LanguageModel) -> list[str]:
        """Says that states are reset, if they are; lengths that are left out have rows that say so."""
        return [] if self.reset_every is None else [f"every state forgotten every {self.reset_every:,} tokens"]

    def probe(self, trained: Trained) -> Iterator[Row]:
        """Rows of the lengths in `during`; validation already has the training length, on more sequences."""
        if self.during_every is not None and (trained.step or 0) % self.during_every:
            return
        for length in (length for length in dict.fromkeys(self.during) if length != trained.train_length):
            yield from self.score(trained, "validation", length, self.during_sequences)

    def run(self, trained: Trained) -> Iterator[Row]:
        """Rows of the whole ladder, shortest first; a length that is left out has a row with the reason."""
        for length in sorted(set(self.lengths)):
            if self._runs(length):
                sequences = self.sequences if length < self.long_from else self.long_sequences
                yield from self.score(trained, "test", length, sequences)
            else:
                extra = {"not_run": f"longer than eval.max_length={self.max_length}"}
                for _, row in trained.each(split="test", length=length):
                    yield row(metric="accuracy", count=0, extra=extra)

    def score(self, trained: Trained, split: str, length: int, sequences: int) -> Iterator[Row]:
        """One row per seed and metric, over the first `sequences` held-out sequences of `split` at `length`.

        On the split `test`, `interval` may end it early; it is checked every 32 sequences whatever the batch size. The
        split `test` also has one row per `span`, whose `position` is the last one in the span, counted from 1.
        """
        extra = {} if self.reset_every is None else {"reset_every": self.reset_every}
        for params, row in trained.each(split=split, length=length):
            spans = _Spans(self.span if split == "test" else None)
            totals, done = self._summed(trained, params, split, length, sequences, spans)
            for metric, total in trained.feed.reported(totals).items():
                yield row(metric=metric, total=total, count=done, extra=extra)
            for first, last, total, count in spans.sums(length + trained.task.answer_length):
                yield row(metric="accuracy", position=last, total=total, count=count, extra={**extra, "first": first})

    def _summed(
        self, trained: Trained, params: Params, split: str, length: int, sequences: int, spans: "_Spans"
    ) -> tuple[dict[str, float], int]:
        """The sum of each metric over the sequences, and how many they are; `spans` gets those of every span."""
        stream = streams.TEST if split == "test" else streams.VALIDATION
        interval = self.interval if split == "test" else None
        totals, done = dict[str, float](), 0
        look = min(MOST_ROWS if interval is None else LOOK_EVERY, 1 << (sequences - 1).bit_length())
        tokens = length + trained.task.answer_length
        scored = self.chunk if trained.feed.scored is None else min(self.chunk, trained.feed.scored)
        # Where devices share the tokens of a sequence, each of them has the cache of every one.
        share = SHARE * (jax.local_device_count() if self.devices == SEQUENCE else 1)
        rows = rows_at_once(
            *(self.batch_size, trained.model, params, tokens, self.chunk, look),
            logits=scored * trained.task.vocab_size,
            share=share,
        )
        while done < sequences:
            trained.check_interrupt()
            example = trained.feed.held_out(stream, done, rows, length)
            if self.reset_every is not None:
                # A model resets its states where positions restart at 0.
                restarting = np.arange(example.tokens.shape[1], dtype=np.int32) % self.reset_every
                example = example._replace(positions=np.broadcast_to(restarting, example.tokens.shape))
            # A last batch that is not full keeps its shape, so that nothing is recompiled; surplus rows do not count.
            left = sequences - done if interval is None else min(sequences - done, LOOK_EVERY - done % LOOK_EVERY)
            used = min(rows, left)
            tally = jax.device_get(self._tally(trained, params, example, spans, used))
            for metric, values in tally.scores().items():
                totals[metric] = totals.get(metric, 0.0) + float(np.asarray(values[:used], np.float64).sum())
            done += used
            enough = done % LOOK_EVERY == 0 and is_narrow(totals["accuracy"], done, interval, self.marks)
            trained.progress.describe(length, done, done if enough else sequences)
            if enough:
                break
        return totals, done

    def _tally(self, trained: Trained, params: Params, example: Example, spans: "_Spans", used: int) -> Tally:
        """The tally of a batch, of which `spans` gets the first `used` sequences."""
        # One chunk for all lengths of the ladder, so that one compiled program reads them all.
        ladder = [length + trained.task.answer_length for length in trained.feed.ladder]
        longest = max([example.tokens.shape[1], *ladder])
        given = trained.model, params, example, min(spans.every or self.chunk, longest), trained.check_interrupt
        if self.devices == SEQUENCE:
            *_, last = split_tallies(*given)
            return last
        if spans.every is None:
            return stream_tally(*given, trained.feed.scored)
        return spans.last_of(stream_tallies(*given, trained.feed.scored), used)


class _Spans:
    """Accuracy in each span of `every` positions, over sequences with a scored position there; None: no spans."""

    def __init__(self, every: int | None):
        self.every = every
        self._sums: dict[int, tuple[float, int]] = {}

    def last_of(self, tallies: Iterator[Tally], used: int) -> Tally:
        """Returns the last of the running tallies, one a span, and counts what the first `used` sequences add."""
        kept, before = list(tallies), np.zeros((2, 1))
        for number, tally in enumerate(kept):
            now = np.stack([tally.correct, tally.scored])[:, :used].astype(np.float64)
            (correct, scored), before = now - before, now
            total, count = self._sums.get(number, (0.0, 0))
            there = scored > 0
            self._sums[number] = total + float((correct[there] / scored[there]).sum()), count + int(there.sum())
        return kept[-1]

    def sums(self, tokens: int) -> Iterator[tuple[int, int, float, int]]:
        """Each span of sequences of so many tokens: its first and last position from 1 on, sum of accuracies, count."""
        for number, (total, count) in self._sums.items():
            if self.every is not None and count:
                yield number * self.every + 1, min((number + 1) * self.every, tokens), total, count
