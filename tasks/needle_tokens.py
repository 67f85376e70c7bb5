"""A needle in tokens: one secret number in a long haystack, for small models that are trained on it."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Int, Key

from evalkit.checks import at_least, one_of
from evalkit.tasks.base import Example, Synthetic

HAYSTACKS = ("sentence", "markov")
DIGITS, MARK, ASK, FIRST_WORD = 10, 10, 11, 12
KEY = 2
SENTENCE = 16
"""Words of the sentence that is repeated."""
FOLLOWING = 4
"""How many words may follow each pair of words in a Markov text, at most."""
MOST_WORDS = 1000
"""More words would make the table of pairs too large."""


@dataclass(frozen=True, kw_only=True)
class NeedleTokens(Synthetic):
    """Words that hide a needle: `★`, a key of two words and a number. Then `?` and the key: answer with the number.

    It is the test of a needle in a haystack (RULER's `niah_single`, arXiv 2404.06654) without a text or a tokenizer, at
    sizes on which a model of 250K parameters trains in minutes. The haystack is one fixed sentence, repeated, or a text
    of a fixed Markov chain of order 2, in which up to four words may follow each pair. The needle's words are from the
    same vocabulary, and every place of the needle is equally likely. There are no published results on this task.

    `length` counts everything up to the key at the end. The answer is teacher-forced: `tokens` goes on with all its
    digits but the last. With three digits and letters for words an example is `a b c ★ d b 4 1 7 a b c a ? d b`, and
    the answer is `4 1 7`.

    Options:
      vocab_size (token ids): the size of the vocabulary: 12, and the number of words.
      length (tokens): a training sequence up to the key at its end; its answer comes after.
      haystack: what surrounds the needle: `sentence` or `markov`.
      digits (tokens): the length of a number.

    >>> task = NeedleTokens(length=64)
    >>> example = task.sample(jax.random.key(0), 64)
    >>> len(example.tokens), int(example.mask.sum())
    (70, 7)
    """

    vocab_size: int = 64
    length: int = 256
    haystack: str = "markov"
    digits: int = 7

    def __post_init__(self) -> None:
        one_of(self, "haystack", HAYSTACKS)
        at_least(self, 1, "digits")
        if not FOLLOWING <= self._words <= MOST_WORDS:
            least, most = FIRST_WORD + FOLLOWING, FIRST_WORD + MOST_WORDS
            raise ValueError(f"vocab_size={self.vocab_size}; allowed: {least} to {most:,} (4 to {MOST_WORDS:,} words)")
        self._hay(self.length)

    @property
    def answer_length(self) -> int:
        """Returns the number of tokens after the context: all digits of the answer but the last."""
        return self.digits - 1

    @property
    def scored(self) -> int:
        """Returns the number of scored positions: the digits."""
        return self.digits

    @property
    def chance(self) -> float:
        """Returns the accuracy of guessing a digit."""
        return 1.0 / DIGITS

    def sample(self, key: Key[Array, ""], length: int) -> Example:
        hay = self._hay(length)
        for_hay, for_key, for_number, for_place = jax.random.split(key, 4)
        words = FIRST_WORD + self._text(for_hay, hay)
        name = FIRST_WORD + jax.random.randint(for_key, (KEY,), 0, self._words)
        number = jax.random.randint(for_number, (self.digits,), 0, DIGITS)
        needle = jnp.concatenate([jnp.array([MARK]), name, number])
        place, size = jax.random.randint(for_place, (), 0, hay + 1), len(needle)
        at = jnp.arange(hay + size)
        inside = (at >= place) & (at < place + size)
        around = words[jnp.clip(jnp.where(at < place, at, at - size), 0, max(hay - 1, 0))] if hay else at
        context = jnp.where(inside, needle[jnp.clip(at - place, 0, size - 1)], around)
        tokens = jnp.concatenate([context, jnp.array([ASK]), name, number[:-1]])
        mask = self._mask(length)
        return Example(tokens, jnp.zeros_like(tokens).at[length - 1 :].set(number), jnp.asarray(mask))

    def solve(self, tokens: Int[np.ndarray, " t"]) -> tuple[np.ndarray, np.ndarray]:
        length = len(tokens) - self.answer_length
        begin = int(np.flatnonzero(tokens == MARK)[0]) + 1 + KEY
        targets = np.zeros(len(tokens), np.int32)
        targets[length - 1 :] = tokens[begin : begin + self.digits]
        return targets, self._mask(length)

    def symbol(self, token: int) -> str:
        """Returns a digit, ★ before the needle, ? before the question, or a word's number as `w7`."""
        if token < DIGITS:
            return str(token)
        return {MARK: "★", ASK: "?"}.get(token, f"w{token - FIRST_WORD}")

    @property
    def _words(self) -> int:
        return self.vocab_size - FIRST_WORD

    def _hay(self, length: int) -> int:
        """Returns the words around the needle; raises ValueError for a length without room for needle and question."""
        least = 1 + KEY + self.digits + 1 + KEY
        if length < least:
            raise ValueError(f"length={length} is too short for digits={self.digits}; use a length of at least {least}")
        return length - least

    def _mask(self, length: int) -> np.ndarray:
        return np.arange(length + self.answer_length) >= length - 1

    def _text(self, key: Key[Array, ""], size: int) -> Int[Array, " n"]:
        """Returns `size` words: of the sentence from a random word on, or of the chain after two random words."""
        for_start, for_choices = jax.random.split(key)
        if self.haystack == "sentence":
            start = jax.random.randint(for_start, (), 0, SENTENCE)
            return jnp.asarray(_sentence(self._words))[(start + jnp.arange(size)) % SENTENCE]
        following = jnp.asarray(_chain(self._words))
        first = jax.random.randint(for_start, (2,), 0, self._words)

        def step(pair: Array, choice: Array) -> tuple[Array, Array]:
            word = following[pair[0], pair[1], choice]
            return jnp.stack([pair[1], word]), word

        return jax.lax.scan(step, first, jax.random.randint(for_choices, (size,), 0, FOLLOWING))[1]


@cache
def _sentence(words: int) -> Int[np.ndarray, " n"]:
    """The fixed sentence: the same for every sequence, seed and model of so many words."""
    return np.random.default_rng(0).integers(0, words, SENTENCE).astype(np.int32)


@cache
def _chain(words: int) -> Any:
    """The fixed Markov chain: which words may follow each pair of words, `[words, words, FOLLOWING]`."""
    return np.random.default_rng(1).integers(0, words, (words, words, FOLLOWING), np.int32)
