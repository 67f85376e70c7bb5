"""Phonebook lookup in tokens: the task of `tasks/phonebook.py` for small models that are trained on it."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Int, Key

from evalkit.checks import at_least
from evalkit.tasks.base import Example, Synthetic, distinct

DIGITS = 10
NEWLINE = 10
FIRST_NAME = 11
EXAMPLES = 2
NAME = 2


@dataclass(frozen=True, kw_only=True)
class PhonebookTokens(Synthetic):
    """A book of names and numbers, two of its entries again as examples, then a name: answer with its number.

    The layout is that of the text (Jelassi et al. 2024), with one token for a digit, two for a name, and no colon. Ids
    0 to 9 are digits, 10 is the newline, and from 11 on are the parts of names. With three digits, letters for parts
    and `/` for the newline, a book of four entries and the question `c a` are
    `b d 4 1 7 / c a 0 9 9 / a a 5 2 0 / d b 3 3 8 / / b d 4 1 7 / d b 3 3 8 / c a`. The answer is `0 9 9`.

    `length` counts everything up to the name at the end. The book has as many entries as fit (eight by default), and
    newlines before it fill the rest. The answer is teacher-forced: `tokens` goes on with all its digits but the last.
    The numbers of the two examples are scored as well, which gives three signals per sequence instead of one.
    A name is an ordered pair of parts, and every name occurs once. Digits are uniform. With 53 parts there are 2,809
    names, enough for 16K tokens.

    Options:
      vocab_size (token ids): the size of the vocabulary: 11, and the number of parts of names.
      length (tokens): a training sequence up to the name at the end; its answer comes after.
      digits (tokens): the length of a number; ten in the text.

    >>> task = PhonebookTokens()
    >>> example = task.sample(jax.random.key(0), task.length)
    >>> len(example.tokens), int(example.mask.sum()), task.entries(64)
    (66, 9, 8)
    """

    vocab_size: int = 64
    length: int = 64
    digits: int = 3

    def __post_init__(self) -> None:
        if self.vocab_size < FIRST_NAME + 2:
            raise ValueError(f"vocab_size={self.vocab_size}; allowed: at least {FIRST_NAME + 2} (two parts of names)")
        at_least(self, 1, "digits")
        self.entries(self.length)

    @property
    def answer_length(self) -> int:
        """Returns the number of tokens after the context: all digits of the answer but the last."""
        return self.digits - 1

    @property
    def scored(self) -> int:
        """Returns the number of scored positions: the digits of two examples and of the answer."""
        return (EXAMPLES + 1) * self.digits

    @property
    def chance(self) -> float:
        """Returns the accuracy of guessing a digit."""
        return 1.0 / DIGITS

    def entries(self, length: int) -> int:
        """Returns the entries of the book in a context of `length`; raises ValueError for too few or too many."""
        entries = (length - self._tail) // self._line
        if entries <= EXAMPLES:
            raise ValueError(
                f"length={length} is too short for digits={self.digits}; "
                f"use a length of at least {self._tail + (EXAMPLES + 1) * self._line}"
            )
        if entries > self._parts**NAME:
            raise ValueError(
                f"length={length} holds {entries} entries, but vocab_size={self.vocab_size} gives "
                f"{self._parts**NAME} names; use a shorter length or a larger vocab_size"
            )
        return entries

    def sample(self, key: Key[Array, ""], length: int) -> Example:
        entries = self.entries(length)
        for_names, for_digits, for_lookups = jax.random.split(key, 3)
        name = distinct(for_names, entries, self._parts**NAME)[:, None]
        number = jax.random.randint(for_digits, (entries, self.digits), 0, DIGITS)
        newline = jnp.full((entries, 1), NEWLINE)
        book = jnp.concatenate(
            [FIRST_NAME + name // self._parts, FIRST_NAME + name % self._parts, number, newline], axis=1
        )
        lookups = book[jax.random.permutation(for_lookups, entries)[: EXAMPLES + 1]].reshape(-1)
        fill = jnp.full((length - self._tail - entries * self._line,), NEWLINE)
        whole = jnp.concatenate([fill, book.reshape(-1), newline[0], lookups])
        mask = self._mask(length)
        tokens = whole[: len(mask)]
        return Example(tokens, jnp.where(mask, whole[1 : len(mask) + 1], 0), jnp.asarray(mask))

    def solve(self, tokens: Int[np.ndarray, " t"]) -> tuple[np.ndarray, np.ndarray]:
        mask = self._mask(len(tokens) - self.answer_length)
        lookups = int(np.flatnonzero(mask)[0]) + 1 - NAME
        book = tokens[: lookups - 1]
        lines = book[len(book) % self._line :].reshape(-1, self._line)
        numbers = {tuple(line[:NAME]): line[NAME:-1] for line in lines.tolist()}
        targets = np.zeros(len(tokens), np.int32)
        for start in range(lookups, len(tokens), self._line):
            name = tuple(tokens[start : start + NAME].tolist())
            answer = start + NAME - 1
            targets[answer : answer + self.digits] = numbers[name]
        return targets, mask

    @property
    def _parts(self) -> int:
        return self.vocab_size - FIRST_NAME

    @property
    def _line(self) -> int:
        """Returns the number of tokens of an entry with its newline."""
        return NAME + self.digits + 1

    @property
    def _tail(self) -> int:
        """Returns the number of tokens after the book: a newline, the examples, the question."""
        return 1 + EXAMPLES * self._line + NAME

    def _mask(self, length: int) -> np.ndarray:
        """Returns where a digit of a lookup is next: at the last part of a name and at all digits but the last."""
        within = np.arange(length + self.answer_length) - (length - self._tail + 1)
        return (within >= 0) & (within % self._line >= NAME - 1) & (within % self._line < NAME - 1 + self.digits)

    def symbol(self, token: int) -> str:
        """Returns a digit, ⏎ for a newline, or a letter for a part of a name (`n52` and on past Z)."""
        if token < DIGITS:
            return str(token)
        if token == NEWLINE:
            return "⏎"
        part = token - FIRST_NAME
        letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
        return letters[part] if part < len(letters) else f"n{part}"
