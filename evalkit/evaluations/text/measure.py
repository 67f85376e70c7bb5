"""Loss by token position, and whether it falls because the context is used (De et al. 2024, figures 5 and 10)."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise

import numpy as np

from evalkit.checks import above, at_least, at_least_or_null, one_of
from evalkit.core.batches import feed_of
from evalkit.core.contracts import AnyTask, Evaluation, LanguageModel, Trained
from evalkit.core.rows import Row
from evalkit.evaluations.look import Given, Look, settings_in
from evalkit.evaluations.text import rows as text_rows
from evalkit.evaluations.text.held_out import (
    Document,
    Subject,
    drawn,
    longest_among,
    longest_of,
    losses_of,
    split_losses_of,
)
from evalkit.evaluations.text.passages import Passages
from evalkit.parallel.layouts.sequences import ROWS, SEQUENCE, SHARED, refuse_unsplit
from evalkit.tasks.text.corpus import Span

DURING = "eval.during"
WINDOWS = 0  # the key for the random places of windows; `passages` has the keys for passages
TOGETHER = 16  # windows that are read side by side; one alone leaves cores idle


@dataclass(frozen=True)
class LossByPosition(Evaluation):
    """The loss on long held-out documents, read through the cache: does a model use tokens that are far back?

    Windows lie at random places. A passage is scored after each of `contexts` tokens of its document with nothing
    before them, as if the state were reset there, and in a window of the training length. In a control experiment, all
    but the nearest `own` tokens of the longest context are another document's. Raises ValueError for an invalid value.

    Options:
      length (tokens): tokens of a window; halved until a sequence's cache fits into `cache_gib`.
      windows (windows): windows of each document.
      bins (per octave): ranges of positions in each octave over which losses are averaged.
      contexts (tokens): tokens of context before a passage; one measurement each.
      own (tokens): in the control, the tokens before a passage that stay its document's; null: the training length.
      passages (passages): passages of each document.
      passage (tokens): tokens of a passage.
      gaps (tokens): tokens from a planted passage to its repetition; one measurement each.
      documents (documents): at most so many documents are read, the longest ones; each only where it is long enough.
      cache_gib (GiB): the size of a sequence's cache, at most.
      chunk (tokens): tokens of a sequence that are in memory at a time.
      devices: `rows` gives each device whole sequences, `sequence` a part of `chunk` tokens of every one.
      during: the same while training, with other settings, such as `{every: 400, documents: 8}`; `every` is a
        multiple of `train.eval_every`; `{}`: never.
    """

    kind = "evalkit.evaluations.text.report"

    length: int = 32768
    windows: int = 2
    bins: int = 2
    contexts: list[int] = field(default_factory=list)
    own: int | None = None
    passages: int = 16
    passage: int = 64
    gaps: list[int] = field(default_factory=list)
    documents: int = 64
    cache_gib: float = 2.0
    chunk: int = 2048
    devices: str = ROWS
    during: Given = field(default_factory=dict)

    def __post_init__(self) -> None:
        at_least(self, 1, "length", "windows", "bins", "passages", "passage", "documents", "chunk")
        for name in ("contexts", "gaps"):
            if any(number < 1 for number in getattr(self, name)):
                raise ValueError(f"{name}={getattr(self, name)}; allowed: a list of numbers from 1")
        if min(self.gaps, default=self.passage) < self.passage:
            raise ValueError(f"gaps={self.gaps}; allowed: at least passage={self.passage}, the repeat's own length")
        at_least_or_null(self, 1, "own")
        above(self, 0, "cache_gib")
        one_of(self, "devices", SHARED)
        self._looked()

    @property
    def pieces(self) -> int:
        """One piece for the windows, for each context, for that of a training window, for the control and each gap."""
        return 1 + len(self.contexts) + 2 * bool(self.contexts) + len(self.gaps)

    def check(self, task: AnyTask) -> None:
        """Raises ValueError for a task that is no text."""
        feed_of(task).check_documents()

    def check_model(self, model: LanguageModel) -> None:
        """Raises ValueError for a model whose sequences cannot be split over devices, if `devices` asks for it."""
        if self.devices == SEQUENCE:
            refuse_unsplit(model, self.chunk)
        if (look := self._looked()) is not None:
            look.evaluation.check_model(model)

    def _looked(self) -> Look | None:
        """The evaluation that `during` asks for, or None; raises ValueError for invalid settings."""
        if not self.during:
            return None
        (own,) = settings_in(DURING, self.during, LossByPosition)
        return Look.of(DURING, self.during, replace(self, **own, during={}))

    def check_looks(self, eval_every: int) -> None:
        """Raises ValueError if `during` is due at steps without a validation; one comes every `eval_every` steps."""
        if (look := self._looked()) is not None:
            look.check_looks(eval_every)

    def probe(self, trained: Trained) -> Iterator[Row]:
        """The rows of `during` where they are due."""
        if (look := self._looked()) is not None:
            yield from look.probe(trained)

    def limits(self, model: LanguageModel) -> list[str]:
        """What does not fit into `cache_gib`."""
        allowed, length = f"eval.cache_gib={self.cache_gib:g}", self.longest(model)
        omitted = []
        if length < self.length:
            cache = f"a sequence's cache would take {_gib(model, self.length):.1f} GiB"
            omitted.append(f"loss by position to {length:,} of {self.length:,} tokens: {cache} ({allowed})")
        for name, numbers in (("contexts", self.contexts), ("gaps", self.gaps)):
            left = sorted(set(numbers) - set(self._within(model, numbers)))
            if left:
                cache = f"a sequence's cache would take up to {_gib(model, left[-1] + self.passage):.1f} GiB"
                omitted.append(f"without {name} of {', '.join(map(str, left))} tokens: {cache} ({allowed})")
        return omitted

    def run(self, trained: Trained) -> Iterator[Row]:
        """Rows of every seed, the windows first."""
        losses = split_losses_of if self.devices == SEQUENCE else losses_of
        subjects = [
            Subject(row, partial(losses, trained.pretrained(index), self.chunk, trained.check_interrupt))
            for index, (_, row) in enumerate(trained.each(split="test"))
        ]
        done = partial(trained.progress.describe, done=1, of=1)
        yield from self.measure(trained.feed.documents(), subjects, trained.model, trained.train_length, done)

    def measure(
        self,
        documents: Sequence[Span],
        subjects: Sequence[Subject],
        model: LanguageModel,
        train_length: int | None,
        done: Callable[[int], None],
    ) -> Iterator[Row]:
        """Rows of every subject, each parameters of `model`; `done` gets the length of each finished piece."""
        taken = longest_of(documents, self.documents)
        for subject in subjects:
            yield from self.by_position(taken, subject, self.longest(model))
            done(self.length)
        passages = Passages(self.passages, self.passage, done)
        contexts = self._within(model, self.contexts)
        if contexts:
            room = self._room(taken)
            for context in sorted(context for context in set(contexts) if context > room):
                extra = longest_among(taken).too_short(context + self.passage + 1)
                yield subjects[0].row(metric=text_rows.PAIRED, length=context, count=0, extra=extra)
            read = {context for context in contexts if context <= room}
            own = self.own or train_length or max(read)
            if train_length is not None and 0 < train_length - self.passage <= room:
                read.add(train_length - self.passage)
            yield from passages.paired(taken, subjects, sorted(read), own, room)
        for gap in self._within(model, self.gaps):
            for subject in subjects:
                yield from passages.repeated(taken, subject, gap)
                done(gap)

    def _room(self, documents: Sequence[Document]) -> int:
        """The tokens before each passage: of `contexts` the longest that a document has, whatever a model can read."""
        longest = max(len(document.tokens) for document in documents)
        return max((one for one in self.contexts if one + self.passage < longest), default=max(self.contexts))

    def longest(self, model: LanguageModel) -> int:
        """`length`, or the largest half, quarter, … of it whose cache of one sequence takes at most `cache_gib`."""
        length = self.length
        while length > 1 and _gib(model, length) > self.cache_gib:
            length //= 2
        return length

    def _within(self, model: LanguageModel, numbers: Sequence[int]) -> list[int]:
        return [number for number in numbers if _gib(model, number + 2 * self.passage) <= self.cache_gib]

    def by_position(self, documents: Sequence[Document], subject: Subject, length: int) -> Iterator[Row]:
        """Rows of the windows' first `length` tokens.

        Documents and places are those of `self.length`, however much is read: all models see the same text.
        """
        edges = edges_of(length, self.bins)
        windows = []
        for document in documents:
            room = len(document.tokens) - self.length
            if room < 1:
                extra = document.too_short(self.length + 1)
                yield subject.row(metric=text_rows.LOSS, length=length, count=0, extra=extra)
                continue
            starts = drawn(WINDOWS, document.number).integers(0, room, self.windows)
            windows += [(document, document.tokens[start : start + length + 1]) for start in starts]
        together = max(1, TOGETHER // self.windows) * self.windows
        for group in (windows[i : i + together] for i in range(0, len(windows), together)):
            losses = subject.losses([window for _, window in group], length)
            for i in range(0, len(group), self.windows):
                document, own = group[i][0], losses[i : i + self.windows]
                for after, until in pairwise(edges):
                    yield subject.row(
                        metric=text_rows.LOSS,
                        length=length,
                        position=until,
                        total=sum(float(window[after:until].mean()) for window in own),
                        count=len(own),
                        extra=document.about() | {"after": after},
                    )


def _gib(model: LanguageModel, length: int) -> float:
    """The cache of one sequence of `length` tokens (GiB)."""
    return model.cache_bytes(1, length) / 2**30


def edges_of(length: int, bins: int) -> list[int]:
    """Where bins of positions begin and end: 0, 1, …, `length`, `bins` of them an octave."""
    octaves = np.arange(0, bins * np.log2(length) + 1e-9) / bins
    return sorted({0, *(round(float(2**octave)) for octave in octaves), length})
