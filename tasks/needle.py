"""Needles in text: sentences that give secret values, hidden in a long text, and the question for some of them.

The kinds of question are those of RULER (Hsieh et al. 2024, arXiv 2404.06654), in words of our own.
"""

import re
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import NamedTuple

import numpy as np

from evalkit.checks import at_least, one_of
from evalkit.tasks.text import documents

CONSONANTS, VOWELS, SYLLABLES = "bdfgklmnprstvz", "aeiou", 3
INTRO = "Remember every secret {kind} in this text.\n\n"
SENTENCE = "The secret {kind} of {key} is {value}."
QUESTION = "\n\nThe secret {kind} of {key} is"
QUESTIONS = "\n\nThe secret {kind}s of {key} are"
SENTENCES = ("Rain fell on the roof.", "A dog slept by the door.", "The bread was still warm.", "Nobody came in.")
NOISE = " ".join(SENTENCES) + " "
KINDS = {"numbers": "number", "words": "word", "uuids": "code"}
"""The noun for a value in the text, by the setting `value`."""
DIGITS = 7
NOISES = ("noise", "needles")
PROBES, CORRECTIONS = 8, 8  # a length is averaged over 8 prompts, and a guess at a size corrected at most 8 times
WORDS = (len(CONSONANTS) * len(VOWELS)) ** SYLLABLES
MOST = WORDS // 2  # needles and sentences; with fewer than half of the words, `_drawn` soon finds different ones


class Hidden(NamedTuple):
    """One prompt and the values that answer it.

    `depth` is the place of the first answer among the sentences around the needles: 0 is before the first sentence, 1
    after the last. `sentences` is their number. `place` counts the characters before the first needle that answers.
    """

    prompt: str
    answers: tuple[str, ...]
    depth: float
    sentences: int
    place: int


@dataclass(frozen=True, kw_only=True)
class Needle:
    """Sentences that give secret values, hidden in other text, and the question for some of them.

    A prompt is an introduction, the text, and the beginning of the answer: `The secret number of valoki is`. Keys are
    made-up words. With several `values` or `queries`, the answer is all values that are asked for. The same (`seed`,
    sentences, index) always gives the same prompt. Raises ValueError for an impossible value.

    RULER's tasks are: single 1, the defaults; single 2, a `haystack` of your own; single 3, the same with
    `value=uuids`; multi-key 1, `keys=4`; multi-key 2 and 3, `haystack=needles`, and for 3 also `key=uuids value=uuids`;
    multi-value, `values=4`; multi-query, `queries=4`.

    Options:
      haystack: what hides the needles: `noise`, four sentences repeated; `needles`, other needles; or texts: a
        file, a folder or a pattern, as in `task=books`.
      key: the form of keys: `words` or `uuids`.
      value: the form of values: `numbers` of seven digits, `words` or `uuids`.
      keys (keys): how many keys have needles, those that are asked for included.
      values (values): how many values each key has; all of them are asked for.
      queries (keys): how many keys are asked for.
      depth (share of the text): the place of all answers together, from 0 to 1; null: a random place for each.
      seed: the seed of keys, values and places.

    >>> hidden = Needle().example(sentences=20, index=0)
    >>> hidden.prompt.count(hidden.answers[0]), len(hidden.answers[0]), hidden.prompt.splitlines()[-1].split()[-1]
    (1, 7, 'is')
    """

    haystack: str = "noise"
    key: str = "words"
    value: str = "numbers"
    keys: int = 1
    values: int = 1
    queries: int = 1
    depth: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        one_of(self, "key", ("words", "uuids"))
        one_of(self, "value", tuple(KINDS))
        at_least(self, 1, "keys", "values", "queries")
        at_least(self, 0, "seed")
        needles = max(self.keys, self.queries) * self.values
        if needles >= MOST:
            raise ValueError(
                f"keys={self.keys}, values={self.values}, queries={self.queries} are {needles:,} needles; "
                f"allowed: below {MOST:,} in all"
            )
        if self.depth is not None and not 0 <= self.depth <= 1:
            raise ValueError(f"depth={self.depth}; allowed: 0 (the beginning) to 1 (the end), or null for anywhere")

    def example(self, sentences: int, index: int) -> Hidden:
        """Returns prompt number `index` with `sentences` around the needles; raises ValueError for too few or many."""
        if not 1 <= sentences <= self._most:
            raise ValueError(f"sentences={sentences}; allowed: 1 to {self._most:,}, or there would be no more words")
        random = np.random.default_rng([self.seed, sentences, index])
        answers = self.queries * self.values
        asked, others = max(self.keys, self.queries), sentences if self.haystack == "needles" else 0
        keys = self._drawn(random, self.key, asked + others)
        values = self._drawn(random, self.value, asked * self.values + others)
        around = self._around(index, keys[asked:], values[asked * self.values :], sentences)
        keys, values = keys[:asked], values[: asked * self.values]
        # The needles of the keys that are asked for come first.
        places = random.integers(0, sentences + 1, len(values)).tolist()
        if self.depth is not None:
            places[:answers] = [round(self.depth * sentences)] * answers
        owners = [key for key in keys for _ in range(self.values)]
        needles = [self._sentence(key, value) for key, value in zip(owners, values, strict=True)]
        body = _among(around, needles, places)
        prompt = INTRO.format(kind=self._kind) + body + self._question(keys[: self.queries])
        place = min(prompt.index(needle) for needle in needles[:answers])
        return Hidden(prompt, tuple(values[:answers]), places[0] / sentences, sentences, place)

    def sentences_for(self, tokens: int, count: Callable[[str], int]) -> int:
        """Returns how many sentences give prompts of about `tokens` tokens on average; `count` counts a text's tokens.

        Raises ValueError if the shortest prompt is longer.
        """

        def mean(size: int) -> float:
            return fmean(count(self.example(size, index).prompt) for index in range(PROBES))

        size, shortest = 1, mean(1)
        if tokens < shortest:
            raise ValueError(f"length={tokens}; allowed: at least {int(shortest) + 1}, the tokens of one sentence")
        has, rate = shortest, (mean(1 + PROBES) - shortest) / PROBES
        for _ in range(CORRECTIONS):
            other = min(max(1, size + round((tokens - has) / rate)), self._most)
            if other == size:
                break
            size, has = other, mean(other)
            if size > 1:  # the first sentences of a book are not typical of the rest
                rate = (has - shortest) / (size - 1)
        return size

    @property
    def _most(self) -> int:
        """Returns the largest possible number of sentences around the needles."""
        return MOST - max(self.keys, self.queries) * self.values

    @property
    def _kind(self) -> str:
        return KINDS[self.value]

    def _sentence(self, key: str, value: str) -> str:
        return SENTENCE.format(kind=self._kind, key=key, value=value)

    def _question(self, keys: Sequence[str]) -> str:
        named = keys[0] if len(keys) == 1 else f"{', '.join(keys[:-1])} and {keys[-1]}"
        question = QUESTION if len(keys) * self.values == 1 else QUESTIONS
        return question.format(kind=self._kind, key=named)

    def _around(self, index: int, keys: Sequence[str], values: Sequence[str], sentences: int) -> list[str]:
        """Returns the sentences around the needles; with `haystack=needles`, needles of these `keys` and `values`."""
        if self.haystack == "needles":
            return [self._sentence(key, value) for key, value in zip(keys, values, strict=True)]
        whole = SENTENCES if self.haystack == "noise" else self._text
        # A prompt's place in a book depends on `seed` and `index` only: a longer one has the same text and more.
        first = 0 if self.haystack == "noise" else int(np.random.default_rng([self.seed, index]).integers(len(whole)))
        return [whole[(first + i) % len(whole)] for i in range(sentences)]

    @cached_property
    def _text(self) -> list[str]:
        """The sentences of the haystack's texts; raises ValueError for texts that cannot be read, or are empty."""
        try:
            texts = [document.text for document in documents.read(self.haystack)]
        except ValueError as error:
            raise ValueError(
                f"haystack={self.haystack!r} is none of {', '.join(NOISES)}, and as texts: {error}"
            ) from error
        found = [" ".join(sentence.split()) for text in texts for sentence in re.split(r"(?<=[.!?])\s+", text)]
        if not any(found):
            raise ValueError(f"haystack={self.haystack!r} has no text; give other texts")
        return [sentence for sentence in found if sentence]

    def _drawn(self, random: np.random.Generator, kind: str, count: int) -> list[str]:
        """Draws `count` different keys or values."""
        drawn: dict[str, None] = {}
        while len(drawn) < count:
            drawn[_one(random, kind)] = None
        return list(drawn)


def word(number: int) -> str:
    """The made-up word with this number: a consonant and a vowel by turns.

    >>> word(0), word(1)
    ('bababa', 'bebaba')
    """
    syllables = len(CONSONANTS) * len(VOWELS)
    digits = [number // syllables**place % syllables for place in range(SYLLABLES)]
    return "".join(CONSONANTS[digit // len(VOWELS)] + VOWELS[digit % len(VOWELS)] for digit in digits)


def _one(random: np.random.Generator, kind: str) -> str:
    if kind == "words":
        return word(int(random.integers(WORDS)))
    if kind == "uuids":
        return str(uuid.UUID(bytes=random.bytes(16), version=4))
    return str(random.integers(10 ** (DIGITS - 1), 10**DIGITS))


def _among(around: Sequence[str], needles: Sequence[str], places: Sequence[int]) -> str:
    """Joins the sentences, with each needle before the sentence at its place."""
    at: dict[int, list[str]] = {}
    for needle, place in zip(needles, places, strict=True):
        at.setdefault(place, []).append(needle)
    parts = [part for place in range(len(around) + 1) for part in (*at.get(place, ()), *around[place : place + 1])]
    return " ".join(parts)
