"""Phonebook lookup in text: find a name's number in a book of them (Jelassi et al. 2024; De et al. 2024, fig. 6c)."""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

import numpy as np

from evalkit.tasks.names import FIRST, LAST

DIGITS = 10
EXAMPLES = 2
FEWEST = EXAMPLES + 1
PROBES, CORRECTIONS = 8, 4

# {a} and {b} are the entries given as examples, {name} is asked for. The answer follows after a space.
VARIANTS = {
    "jelassi": "{book}\n\n{a}\n{b}\n\n{name}:",
    "question_first": "{name}:\n\n{book}\n\n{a}\n{b}\n\n{name}:",
    "jrt": "{book}\n\n{book}\n\n{a}\n{b}\n\n{name}:",
    "waleffe": (
        "{book}\n\n"
        "What is the phone number for {a.name}?\nAnswer: {a.number}\n\n"
        "What is the phone number for {b.name}?\nAnswer: {b.number}\n\n"
        "What is the phone number for {name}?\nAnswer:"
    ),
    "waleffe_reversed": (
        "A phone book with entries such as\n{a}\n{b}\nfollows. Remember the phone number for {name}.\n\n"
        "{book}\n\n"
        "What is the phone number for {name}?\nAnswer:"
    ),
}


class Entry(NamedTuple):
    """One line of the book."""

    name: str
    number: str

    def __str__(self) -> str:
        return f"{self.name}: {self.number}"


class Lookup(NamedTuple):
    """One prompt and its answer, ten digits.

    `depth` is where in the book the answer stands: 0 the first entry, 1 the last. `entries` are those of the book.
    `place` counts the characters of the prompt before the entry that answers, the last one if there are several.
    """

    prompt: str
    answer: str
    depth: float
    entries: int
    place: int


@dataclass(frozen=True, kw_only=True)
class Phonebook:
    """Books of unique names, each with ten digits, and the question for one of them.

    A book is a line an entry, `First Last: 6123456789`; the first digit is 6 to 9. Then two entries again, as examples
    of what is asked, then a third entry's name and a colon, without a space. Names stand at most once in a book.
    The same (`seed`, entries, index) always gives the same text.

    `variant`: `jelassi` is the layout above; `question_first` puts the name before the book too; `jrt` gives the book
    twice (Arora et al. 2024); `waleffe` asks in words after the book, `waleffe_reversed` before it too (after Waleffe
    et al. 2024, sec. 3.3.3, in words of our own).
    `depth`: where the answer stands, from 0 (first entry) to 1 (last); None for anywhere, uniformly.
    Raises ValueError for a value that cannot be.
    """

    variant: str = "jelassi"
    depth: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.variant not in VARIANTS:
            raise ValueError(f"variant={self.variant!r}; allowed: {', '.join(VARIANTS)}")
        if self.depth is not None and not 0 <= self.depth <= 1:
            raise ValueError(f"depth={self.depth}; allowed: 0 (the first entry) to 1 (the last), or null for anywhere")
        if self.seed < 0:
            raise ValueError(f"seed={self.seed}; allowed: 0 or more")

    def example(self, entries: int, index: int) -> Lookup:
        """Lookup number `index` in books of `entries`; raises ValueError for too few, or more than there are names."""
        names = len(FIRST) * len(LAST)
        if not FEWEST <= entries <= names:
            raise ValueError(f"entries={entries}; allowed: {FEWEST} to {names} (there are no more names)")
        random = np.random.default_rng([self.seed, entries, index])
        book = _book(random, entries)
        asked = int(random.integers(entries)) if self.depth is None else round(self.depth * (entries - 1))
        others = np.delete(np.arange(entries), asked)
        a, b = (book[i] for i in random.choice(others, EXAMPLES, replace=False))
        prompt = VARIANTS[self.variant].format(book="\n".join(map(str, book)), a=a, b=b, name=book[asked].name)
        return Lookup(prompt, book[asked].number, asked / (entries - 1), entries, prompt.rindex(str(book[asked])))

    def entries_for(self, tokens: int, count: Callable[[str], int]) -> int:
        """How many entries give prompts of about `tokens` tokens, by the mean of a few; `count` gives those of a text.

        Raises ValueError if the shortest book is longer.
        """
        shortest, longer = self._mean(FEWEST, count), self._mean(FEWEST + PROBES, count)
        if tokens < shortest:
            raise ValueError(f"length={tokens}; allowed: at least {int(shortest) + 1}, the tokens of {FEWEST} entries")
        rate = (longer - shortest) / PROBES
        entries = FEWEST + int((tokens - shortest) / rate)
        for _ in range(CORRECTIONS):
            missing = round((tokens - self._mean(entries, count)) / rate)
            entries = max(FEWEST, entries + missing)
            if not missing:
                break
        return entries

    def _mean(self, entries: int, count: Callable[[str], int]) -> float:
        return fmean(count(self.example(entries, index).prompt) for index in range(PROBES))


def _book(random: np.random.Generator, entries: int) -> list[Entry]:
    """Names without repetition, numbers independent."""
    names = random.choice(len(FIRST) * len(LAST), entries, replace=False)
    digits = random.integers(0, 10, (entries, DIGITS))
    digits[:, 0] = random.integers(6, 10, entries)
    return [
        Entry(f"{FIRST[name // len(LAST)]} {LAST[name % len(LAST)]}", "".join(map(str, number)))
        for name, number in zip(names, digits, strict=True)
    ]
