"""Loss by token position, and whether it falls because the context is used (De et al. 2024, figures 5 and 10)."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from evalkit.checkpoints.pretrained import Pretrained
from evalkit.core import batches as feeds
from evalkit.core.contracts import Document, LanguageModel, Task, Texts, Trained
from evalkit.core.devices import bytes_of
from evalkit.core.rows import Row
from evalkit.inference.scoring import Request, Scorer
from evalkit.record import text_rows
from evalkit.tasks.text.tokenizers import Numbers

WINDOWS, PASSAGES, OTHERS = range(3)
TOGETHER = 16  # windows that are read side by side; one alone leaves cores idle
Losses = list[np.ndarray]
Score = Callable[[Sequence[np.ndarray], int], Losses]
"""The losses (nats) of the last so many tokens of each sequence."""


class Held(NamedTuple):
    """A held-out document under a name that tells it from the others; its number draws its places."""

    tokens: np.ndarray
    size: int
    name: str
    number: int


class Subject(NamedTuple):
    """One set of parameters: how its rows are made, and what it loses where."""

    row: Callable[..., Row]
    losses: Score


@dataclass(frozen=True)
class LossByPosition:
    """Held-out documents at length: `windows` of each of `length` tokens from random places, read through the cache.

    Losses are averaged in bins, `bins` an octave. The paired form scores the same passages of `passage` tokens,
    `passages` a document, after each of `contexts` tokens of their own document and nothing before, which is the state
    reset so far back, and after so many that context and passage are as long as a training window together; also with
    all but the nearest `own` tokens of the longest context from another document (null: the training length), and the
    tokens that the longest context helps most (`helped`: their share). `gaps`: a passage is planted so many tokens
    before it comes again. Of more than `documents` documents the longest take part, each in what it is long enough
    for. `chunk` tokens of a sequence are in memory at a time; a sequence's cache takes at most `cache_gib`, or its
    length is halved until it does. Raises ValueError for a value that cannot be.
    """

    kind = "evalkit.reports.text"

    length: int = 32768
    windows: int = 2
    bins: int = 2
    contexts: list[int] = field(default_factory=list)
    own: int | None = None
    passages: int = 16
    passage: int = 64
    helped: float = 0.1
    gaps: list[int] = field(default_factory=list)
    documents: int = 64
    cache_gib: float = 2.0
    chunk: int = 2048

    def __post_init__(self) -> None:
        for name in ("length", "windows", "bins", "passages", "passage", "documents", "chunk"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}; allowed: 1 or more")
        for name in ("contexts", "gaps"):
            for number in getattr(self, name):
                if number < 1:
                    raise ValueError(f"{name}={getattr(self, name)}; allowed: a list of numbers from 1")
        for gap in self.gaps:
            if gap < self.passage:
                raise ValueError(f"gaps={self.gaps}; allowed: at least passage={self.passage}, the repeat's own length")
        if self.own is not None and self.own < 1:
            raise ValueError(f"own={self.own}; allowed: 1 or more, or null")
        if not 0 < self.helped <= 1:
            raise ValueError(f"helped={self.helped}; allowed: above 0, at most 1")
        if not self.cache_gib > 0:
            raise ValueError(f"cache_gib={self.cache_gib}; allowed: above 0")

    @property
    def pieces(self) -> int:
        """The window, each context, that of a training window, the foreign one and each gap."""
        return 1 + len(self.contexts) + 2 * bool(self.contexts) + len(self.gaps)

    def check(self, task: Task | Texts) -> None:
        """Raises ValueError for a task that is no text."""
        if not feeds.is_text(task):
            raise ValueError("loss by position needs a text; give task=books, or eval=extrapolation")

    def probe(self, trained: Trained) -> Iterator[Row]:
        """Nothing: the validation loss is looked at while training anyway."""
        return iter(())

    def longest(self, model: LanguageModel) -> int:
        """`length`, or the largest half, quarter, … of it whose cache of one sequence takes at most `cache_gib`."""
        length = self.length
        while length > 1 and cache_bytes(model, length) > self.cache_gib * 2**30:
            length //= 2
        return length

    def limits(self, model: LanguageModel) -> list[str]:
        """What the evaluation of `model` will not do, known before it starts."""

        def needed(length: int) -> float:
            return cache_bytes(model, length) / 2**30

        allowed, length = f"eval.cache_gib={self.cache_gib:g}", self.longest(model)
        found = []
        if length < self.length:
            cache = f"a sequence's cache would take {needed(self.length):.1f} GiB"
            found.append(f"loss by position to {length:,} of {self.length:,} tokens: {cache} ({allowed})")
        for name, numbers in (("contexts", self.contexts), ("gaps", self.gaps)):
            left = sorted(set(numbers) - set(self._within(model, numbers)))
            if left:
                cache = f"a sequence's cache would take up to {needed(left[-1] + self.passage):.1f} GiB"
                found.append(f"without {name} of {', '.join(map(str, left))} tokens: {cache} ({allowed})")
        return found

    def _within(self, model: LanguageModel, numbers: Sequence[int]) -> list[int]:
        """Those whose sequences have a cache of at most `cache_gib`."""
        most = self.cache_gib * 2**30
        return [number for number in numbers if cache_bytes(model, number + 2 * self.passage) <= most]

    def run(self, trained: Trained) -> Iterator[Row]:
        """Rows of every seed, the windows first."""
        assert feeds.is_text(trained.task)
        numbers = Numbers(trained.task.vocab_size)  # no token stands for a beginning: none did in training
        subjects = [
            Subject(
                partial(trained.make_row, seed=seed, step=trained.step, split="test"),
                partial(
                    score, Pretrained(trained.model, params, numbers, "", "", None), self.chunk, trained.check_interrupt
                ),
            )
            for seed, params in zip(trained.seeds, trained.params, strict=True)
        ]

        def done(tokens: int) -> None:
            trained.progress.describe(tokens, 1, 1)

        yield from self.measure(trained.task.documents(), subjects, trained.model, trained.task.length, done)

    def measure(
        self,
        documents: Sequence[Document],
        subjects: Sequence[Subject],
        model: LanguageModel,
        trained: int | None,
        done: Callable[[int], None],
    ) -> Iterator[Row]:
        """Rows of every subject, parameters of one `model` `trained` at that length, None if that is not known.

        The windows come first; `done` hears of each piece.
        """
        held = self.chosen(documents)
        for subject in subjects:
            yield from self._by_position(held, subject, self.longest(model))
            done(self.length)
        contexts = set(self._within(model, self.contexts))
        if contexts:
            own = self.own or trained or max(contexts)
            if trained is not None and trained > self.passage:
                contexts.add(trained - self.passage)
            yield from self._paired(held, subjects, sorted(contexts), own, done)
        for gap in self._within(model, self.gaps):
            for subject in subjects:
                yield from self._repeated(held, subject, gap)
                done(gap)

    def chosen(self, documents: Sequence[Document]) -> list[Held]:
        """The longest `documents` of them, in their own order, under names without the folders that all share."""
        names = short_names([document.source for document in documents])
        longest = sorted(range(len(documents)), key=lambda number: (-documents[number].size, number))[: self.documents]
        taken = [(number, documents[number]) for number in sorted(longest)]
        return [Held(document.tokens, document.size, names[number], number) for number, document in taken]

    def _by_position(self, documents: Sequence[Held], subject: Subject, length: int) -> Iterator[Row]:
        """Documents and places are those of `self.length`, however much of it is read: all models see the same text."""
        edges = edges_of(length, self.bins)
        windows = []
        for document in documents:
            room = len(document.tokens) - self.length
            if room < 1:
                extra = _left_out(document, self.length + 1)
                yield subject.row(metric=text_rows.LOSS, length=length, count=0, extra=extra)
                continue
            starts = _random(WINDOWS, document.number).integers(0, room, self.windows)
            windows += [(document, document.tokens[start : start + length + 1]) for start in starts]
        together = max(1, TOGETHER // self.windows) * self.windows
        for group in (windows[i : i + together] for i in range(0, len(windows), together)):
            losses = subject.losses([window for _, window in group], length)
            for i in range(0, len(group), self.windows):
                yield from self._binned(subject, group[i][0], losses[i : i + self.windows], edges)

    def _binned(self, subject: Subject, document: Held, found: Losses, edges: Sequence[int]) -> Iterator[Row]:
        for after, until in pairwise(edges):
            yield subject.row(
                metric=text_rows.LOSS,
                length=edges[-1],
                position=until,
                total=sum(float(window[after:until].mean()) for window in found),
                count=self.windows,
                extra=_about(document) | {"after": after},
            )

    def _paired(
        self,
        documents: Sequence[Held],
        subjects: Sequence[Subject],
        contexts: Sequence[int],
        own: int,
        done: Callable[[int], None],
    ) -> Iterator[Row]:
        """The same passages after every context, from every subject; then those whose far context is another's."""
        longest = contexts[-1]
        held = [document for document in documents if len(document.tokens) > longest + self.passage]
        if not held:
            reason = _left_out(max(documents, key=lambda document: len(document.tokens)), longest + self.passage + 1)
            yield subjects[0].row(metric=text_rows.PAIRED, length=longest, count=0, extra=reason)
            return
        places = [self._places(document, longest) for document in held]
        kept: dict[int, list[list[np.ndarray]]] = {context: [] for context in contexts}
        for context in contexts:
            for subject in subjects:
                found = [
                    np.stack(subject.losses(self._passages(document, starts, context), self.passage))
                    for document, starts in zip(held, places, strict=True)
                ]
                kept[context].append(found)
                yield from _each(subject.row, text_rows.PAIRED, context, held, found, {"passage": self.passage})
                done(context)
        if own < longest and len(held) > 1:
            for subject in subjects:
                found = [
                    np.stack(subject.losses(self._foreign(held, places, which, longest, own), self.passage))
                    for which in range(len(held))
                ]
                yield from _each(subject.row, text_rows.FOREIGN, longest, held, found, {"own": own})
                done(longest)
        else:
            why = "one document alone is long enough" if own < longest else f"no context is longer than own={own:,}"
            yield subjects[0].row(metric=text_rows.FOREIGN, length=longest, count=0, extra={"not_run": why})
        short = max((context for context in contexts if context + self.passage <= own), default=contexts[0])
        if short < longest and longest > own:
            rows = [subject.row for subject in subjects]
            yield from self._helped(rows, held, kept[short], kept[longest], short, longest)

    def _helped(
        self,
        rows: Sequence[Callable[..., Row]],
        held: Sequence[Held],
        short: Sequence[Sequence[np.ndarray]],
        long: Sequence[Sequence[np.ndarray]],
        before: int,
        after: int,
    ) -> Iterator[Row]:
        """Of the tokens chosen by the other seeds' losses, where there are others: choosing by one's own flatters."""
        gains = np.stack([np.stack(a) - np.stack(b) for a, b in zip(short, long, strict=True)])  # [seed, document, …]
        for number, row in enumerate(rows):
            others = [other for other in range(len(rows)) if other != number] or [number]
            gain = gains[others].mean(axis=0)
            chosen = gain >= np.quantile(gain, 1 - self.helped)
            extra = {"chosen_by": "itself" if others == [number] else "the other seeds"}
            for metric, context, losses in (
                (text_rows.HELPED_SHORT, before, short),
                (text_rows.HELPED_LONG, after, long),
            ):
                for document, which, found in zip(held, chosen, losses[number], strict=True):
                    if which.any():
                        yield row(
                            metric=metric,
                            position=context,
                            total=float(found[which].sum()),
                            count=int(which.sum()),
                            extra=_about(document) | extra,
                        )

    def _repeated(self, documents: Sequence[Held], subject: Subject, gap: int) -> Iterator[Row]:
        """`P …gap… P` against `Q …gap… P`, with P and Q from elsewhere in the document."""
        needed = gap + 8 * self.passage
        for document in documents:
            if len(document.tokens) < needed:
                continue
            random, size = _random(OTHERS, document.number), self.passage
            pairs = []
            for _ in range(self.passages):
                between = int(random.integers(0, len(document.tokens) - gap))
                planted = _apart(random, document, size, [(between, gap)])
                other = _apart(random, document, size, [(between, gap), (planted, size)])
                p, q = (document.tokens[start : start + size] for start in (planted, other))
                middle = document.tokens[between : between + gap - size]
                pairs.append((np.concatenate([p, middle, p]), np.concatenate([q, middle, p])))
            for which, metric in enumerate((text_rows.REPEATED, text_rows.FRESH)):
                found = subject.losses([pair[which] for pair in pairs], size)
                yield from _each(subject.row, metric, gap, [document], [np.stack(found)], {})

    def _places(self, document: Held, longest: int) -> np.ndarray:
        """Where passages begin that have `longest` tokens before them."""
        return _random(PASSAGES, document.number).integers(longest, len(document.tokens) - self.passage, self.passages)

    def _passages(self, document: Held, starts: np.ndarray, context: int) -> list[np.ndarray]:
        return [document.tokens[start - context : start + self.passage] for start in starts]

    def _foreign(
        self, held: Sequence[Held], places: Sequence[np.ndarray], which: int, longest: int, own: int
    ) -> list[np.ndarray]:
        document, next_one = held[which], (which + 1) % len(held)
        other, found = held[next_one], []
        for start, from_other in zip(places[which], places[next_one], strict=True):
            foreign = other.tokens[from_other - (longest - own) : from_other]
            found.append(np.concatenate([foreign, document.tokens[start - own : start + self.passage]]))
        return found


def score(
    held: Pretrained, chunk: int, pause: Callable[[], None], sequences: Sequence[np.ndarray], scored: int
) -> Losses:
    """The loss (nats) of each of the last `scored` tokens of every sequence, read from the first token on, or from the
    one that stands for a beginning if the tokenizer has it. `pause` is called now and then."""
    first = [] if held.tokenizer.bos is None else [held.tokenizer.bos]
    cut = [(first + sequence[:-scored].tolist(), sequence[-scored:].tolist()) for sequence in sequences]
    requests = [Request(tuple(context), tuple(continuation)) for context, continuation in cut]
    losses: dict[int, np.ndarray] = {}
    for index, found in Scorer(held, share_prefixes=False, chunk=chunk).stream(requests):
        pause()
        losses[index] = -found.logprobs
    return [losses[index] for index in range(len(requests))]


def edges_of(length: int, bins: int) -> list[int]:
    """Where bins of positions begin and end: 0, 1, …, `length`, `bins` of them an octave."""
    octaves = np.arange(0, bins * np.log2(length) + 1e-9) / bins
    return sorted({0, *(round(float(2**octave)) for octave in octaves), length})


def cache_bytes(model: LanguageModel, length: int) -> int:
    """Of the cache of one sequence."""
    return bytes_of(jax.eval_shape(lambda: model.init_cache(1, length)))


def short_names(sources: Sequence[str]) -> list[str]:
    """Each source without the folders that all of them share."""
    parts = [Path(source).parts for source in sources]
    shared = 0
    while all(len(each) > shared + 1 for each in parts) and len({each[shared] for each in parts}) == 1:
        shared += 1
    return ["/".join(each[shared:]) for each in parts]


def _apart(random: np.random.Generator, document: Held, size: int, taken: Sequence[tuple[int, int]]) -> int:
    """A place for `size` tokens that touches none of those `taken`, each a beginning and a length."""
    while True:
        start = int(random.integers(0, len(document.tokens) - size))
        if all(start + size <= begin or start >= begin + length for begin, length in taken):
            return start


def _random(purpose: int, document: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=[purpose, document]))


def _each(
    row: Callable[..., Row],
    metric: str,
    position: int,
    documents: Sequence[Held],
    losses: Sequence[np.ndarray],
    extra: dict[str, object],
) -> Iterator[Row]:
    """A row a document of its passages' losses `[passages, tokens]`."""
    for document, found in zip(documents, losses, strict=True):
        yield row(
            metric=metric,
            position=position,
            total=float(found.mean(axis=1).sum()),
            count=len(found),
            extra=_about(document) | extra,
        )


def _about(document: Held) -> dict[str, object]:
    return {"document": document.name, "bytes_per_token": document.size / len(document.tokens)}


def _left_out(document: Held, needed: int) -> dict[str, object]:
    reason = f"{len(document.tokens):,} tokens, fewer than the {needed:,} of a window"
    return {"document": document.name, "not_run": reason}
