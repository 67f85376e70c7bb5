"""The loss of the same passages after more or less context, after another document's, and of what comes again."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from evalkit.core.rows import Row
from evalkit.evaluations.text import rows as text_rows
from evalkit.evaluations.text.held_out import Document, Subject, drawn, longest_among, rows_of

PLACES, OTHERS = 1, 2  # the keys for random places; windows have the key 0
HELPED = 0.1
"""The tokens that the longest context helps most, as a share of all (LongPPL, Fang et al. 2024)."""


@dataclass(frozen=True)
class Passages:
    """`count` passages of `size` tokens at random places of each document; `done` gets a finished piece's length."""

    count: int
    size: int
    done: Callable[[int], None]

    def paired(
        self, documents: Sequence[Document], subjects: Sequence[Subject], contexts: Sequence[int], own: int, room: int
    ) -> Iterator[Row]:
        """The same passages after every context, from every subject; then the control experiments of the longest.

        `contexts` are lengths in increasing order, and `own` is how many tokens before a passage stay its document's.
        Documents and places leave `room` tokens before a passage, whatever is read of it: all models see the same text.
        """
        longest = contexts[-1]
        enough = [document for document in documents if len(document.tokens) > room + self.size]
        if not enough:
            reason = longest_among(documents).too_short(room + self.size + 1)
            yield subjects[0].row(metric=text_rows.PAIRED, length=longest, count=0, extra=reason)
            return
        places = [
            drawn(PLACES, document.number).integers(room, len(document.tokens) - self.size, self.count)
            for document in enough
        ]
        losses: dict[int, list[list[np.ndarray]]] = {context: [] for context in contexts}
        for context in contexts:
            for subject in subjects:
                own_losses = []
                for document, starts in zip(enough, places, strict=True):
                    passages = [document.tokens[start - context : start + self.size] for start in starts]
                    own_losses.append(np.stack(subject.losses(passages, self.size)))
                losses[context].append(own_losses)
                yield from rows_of(subject.row, text_rows.PAIRED, context, enough, own_losses, {"passage": self.size})
                self.done(context)
        yield from self._foreign(enough, subjects, places, longest, own)
        short = max((context for context in contexts if context + self.size <= own), default=contexts[0])
        if short < longest and longest > own:
            rows = [subject.row for subject in subjects]
            yield from self._helped(rows, enough, losses[short], losses[longest], short, longest)

    def repeated(self, documents: Sequence[Document], subject: Subject, gap: int) -> Iterator[Row]:
        """`P …gap… P` against `Q …gap… P`, with P and Q from elsewhere in the document."""
        needed = gap + 8 * self.size
        enough = [document for document in documents if len(document.tokens) >= needed]
        if not enough:
            reason = longest_among(documents).too_short(needed)
            yield subject.row(metric=text_rows.REPEATED, length=gap, count=0, extra=reason)
        for document in enough:
            random = drawn(OTHERS, document.number)
            pairs = [self._repeat(random, document, gap) for _ in range(self.count)]
            for which, metric in enumerate((text_rows.REPEATED, text_rows.FRESH)):
                losses = subject.losses([pair[which] for pair in pairs], self.size)
                yield from rows_of(subject.row, metric, gap, [document], [np.stack(losses)], {})

    def _foreign(
        self,
        documents: Sequence[Document],
        subjects: Sequence[Subject],
        places: Sequence[np.ndarray],
        longest: int,
        own: int,
    ) -> Iterator[Row]:
        """The same passages after the longest context, all but its nearest `own` tokens from the next document."""
        if own >= longest or len(documents) == 1:
            why = "one document alone is long enough" if own < longest else f"no context is longer than own={own:,}"
            yield subjects[0].row(metric=text_rows.FOREIGN, length=longest, count=0, extra={"not_run": why})
            return
        for subject in subjects:
            losses = []
            for which, document in enumerate(documents):
                following = (which + 1) % len(documents)
                passages = []
                for start, from_other in zip(places[which], places[following], strict=True):
                    foreign = documents[following].tokens[from_other - (longest - own) : from_other]
                    passages.append(np.concatenate([foreign, document.tokens[start - own : start + self.size]]))
                losses.append(np.stack(subject.losses(passages, self.size)))
            yield from rows_of(subject.row, text_rows.FOREIGN, longest, documents, losses, {"own": own})
            self.done(longest)

    def _helped(
        self,
        rows: Sequence[Callable[..., Row]],
        documents: Sequence[Document],
        short: Sequence[Sequence[np.ndarray]],
        long: Sequence[Sequence[np.ndarray]],
        before: int,
        after: int,
    ) -> Iterator[Row]:
        """The tokens that the longer context helps most, chosen by other seeds' losses: one's own would flatter."""
        gains = np.stack([np.stack(a) - np.stack(b) for a, b in zip(short, long, strict=True)])  # [seed, document, …]
        for number, row in enumerate(rows):
            others = [other for other in range(len(rows)) if other != number] or [number]
            gain = gains[others].mean(axis=0)
            chosen = gain >= np.quantile(gain, 1 - HELPED)
            extra = {"chosen_by": "itself" if others == [number] else "the other seeds"}
            both = ((text_rows.HELPED_SHORT, before, short), (text_rows.HELPED_LONG, after, long))
            for metric, context, losses in both:
                for document, which, own in zip(documents, chosen, losses[number], strict=True):
                    if which.any():
                        total, about = float(own[which].sum()), document.about() | extra
                        yield row(metric=metric, position=context, total=total, count=int(which.sum()), extra=about)

    def _repeat(self, random: np.random.Generator, document: Document, gap: int) -> tuple[np.ndarray, np.ndarray]:
        """A passage that comes again after `gap` tokens, and the same with another passage in its first place."""
        between = int(random.integers(0, len(document.tokens) - gap))
        planted = _apart(random, document, self.size, [(between, gap)])
        other = _apart(random, document, self.size, [(between, gap), (planted, self.size)])
        p, q = (document.tokens[start : start + self.size] for start in (planted, other))
        middle = document.tokens[between : between + gap - self.size]
        return np.concatenate([p, middle, p]), np.concatenate([q, middle, p])


def _apart(random: np.random.Generator, document: Document, size: int, taken: Sequence[tuple[int, int]]) -> int:
    """A place for `size` tokens that touches none of those `taken`, each a beginning and a length."""
    while True:
        start = int(random.integers(0, len(document.tokens) - size))
        if all(start + size <= begin or start >= begin + length for begin, length in taken):
            return start
