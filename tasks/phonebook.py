"""Phonebook lookup in text: find a name's number in a book (Jelassi et al. 2024; De et al. 2024, fig. 6c)."""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

import numpy as np

from evalkit.checks import at_least, one_of
from evalkit.tasks.names import FIRST, LAST

DIGITS = 10
EXAMPLES = 2
FEWEST = EXAMPLES + 1
PROBES, CORRECTIONS = 8, 4  # `entries_for` takes means of 8 prompts, and corrects its guess at most 4 times

# {a} and {b} are entries given as examples, {name} is the queried name. The answer follows after a space.
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
    """One prompt and its answer of ten digits.

    `depth` is the place of the answer in the book: 0 is the first entry, 1 the last. `entries` counts the book's.
    `place` counts the characters of the prompt before the entry with the answer; if there are several, the last one.
    """

    prompt: str
    answer: str
    depth: float
    entries: int
    place: int


@dataclass(frozen=True, kw_only=True)
class Phonebook:
    """Books of unique names with numbers of ten digits, and the question for one of the numbers.

    A book has one line for each entry, `First Last: 6123456789`; the first digit is 6 to 9. After the book stand two
    entries again, as examples of the question, and then a third entry's name with a colon, without a space. The same
    (`seed`, entries, index) always gives the same text.

    This is the layout `jelassi`. `question_first` puts the name before the book too; `jrt` repeats the book (Arora et
    al. 2024); `waleffe` asks in words after the book, `waleffe_reversed` before it too (Waleffe et al. 2024, sec.
    3.3.3, with other words). Raises ValueError for an impossible value.

    Options:
      variant: the layout: `jelassi`, `question_first`, `jrt`, `waleffe` or `waleffe_reversed`.
      depth (share of the book): where the answer stands, from 0, the first entry, to 1, the last; null: anywhere.
      seed: the seed of names, numbers and questions.

    >>> lookup = Phonebook().example(entries=4, index=0)
    >>> lookup.prompt.count("\\n"), len(lookup.answer), lookup.prompt[-1]
    (8, 10, ':')
    """

    variant: str = "jelassi"
    depth: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        one_of(self, "variant", tuple(VARIANTS))
        if self.depth is not None and not 0 <= self.depth <= 1:
            raise ValueError(f"depth={self.depth}; allowed: 0 (the first entry) to 1 (the last), or null for anywhere")
        at_least(self, 0, "seed")

    def example(self, entries: int, index: int) -> Lookup:
        """Returns lookup number `index` in books of `entries`; raises ValueError for too few, or more than names."""
        names = len(FIRST) * len(LAST)
        if not FEWEST <= entries <= names:
            raise ValueError(f"entries={entries}; allowed: {FEWEST} to {names} (there are no more names)")
        random = np.random.default_rng([self.seed, entries, index])
        book = _book(random, entries)
        queried = int(random.integers(entries)) if self.depth is None else round(self.depth * (entries - 1))
        others = np.delete(np.arange(entries), queried)
        a, b = (book[i] for i in random.choice(others, EXAMPLES, replace=False))
        prompt = VARIANTS[self.variant].format(book="\n".join(map(str, book)), a=a, b=b, name=book[queried].name)
        return Lookup(prompt, book[queried].number, queried / (entries - 1), entries, prompt.rindex(str(book[queried])))

    def entries_for(self, tokens: int, count: Callable[[str], int]) -> int:
        """Returns how many entries give prompts of about `tokens` tokens on average; `count` counts a text's tokens.

        Raises ValueError if the shortest book is longer.
        """
        shortest, longer = self._mean(FEWEST, count), self._mean(FEWEST + PROBES, count)
        if tokens < shortest:
            raise ValueError(f"length={tokens}; allowed: at least {int(shortest) + 1}, the tokens of {FEWEST} entries")
        # Tokens of an entry, from two sizes; a few corrections make up for the error of this line.
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
    """Draws entries with unique names and independent numbers."""
    names = random.choice(len(FIRST) * len(LAST), entries, replace=False)
    digits = random.integers(0, 10, (entries, DIGITS))
    digits[:, 0] = random.integers(6, 10, entries)
    return [
        Entry(f"{FIRST[name // len(LAST)]} {LAST[name % len(LAST)]}", "".join(map(str, number)))
        for name, number in zip(names, digits, strict=True)
    ]
