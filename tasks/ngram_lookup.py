"""N-gram lookup: what followed these letters in the string? (Jelassi et al. 2024, 2402.01032)."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Int, Key

from evalkit.checks import at_least, one_of
from evalkit.tasks.base import Example, Synthetic, letter

KEYS = ("suffix", "prefix")
SPECIAL = 2


@dataclass(frozen=True, kw_only=True)
class NgramLookup(Synthetic):
    """A string of random letters and an n-gram of it; the answer is what follows the n-gram where it first stands.

    With `key=suffix` the n-gram stands after the string, `$ c a d b | a d`, and the answer is `b`. With `key=prefix` it
    stands before, `$ a d | c a d b |`: a model then knows what to wait for, and small states suffice. The n-gram begins
    at a uniformly random place that leaves room for the answer. The paper's token that ends the answer is left out,
    since the length of the answer is fixed.

    `length` counts everything up to the first letter of the answer. The answer is teacher-forced: `tokens` goes on with
    all its letters but the last.

    Options:
      vocab_size (token ids): the size of the vocabulary: letters, and two for the beginning and the bar.
      length (tokens): a training sequence up to its answer.
      ngram (letters): the length of the n-gram that asks.
      answer (letters): the length of the answer.
      key: where the n-gram stands: `suffix` after the string, `prefix` before it.

    >>> task = NgramLookup(length=16, ngram=2, answer=1)
    >>> example = task.sample(jax.random.key(0), 16)
    >>> example.mask.tolist().index(True), task.describe(example.tokens[:1])
    (15, '$')
    """

    vocab_size: int = 28
    length: int = 64
    ngram: int = 3
    answer: int = 3
    key: str = "suffix"

    def __post_init__(self) -> None:
        if self.vocab_size < SPECIAL + 2:
            raise ValueError(f"vocab_size={self.vocab_size}; allowed: at least {SPECIAL + 2} (two letters)")
        at_least(self, 1, "ngram", "answer")
        one_of(self, "key", KEYS)
        self._letters(self.length)

    @property
    def answer_length(self) -> int:
        """Returns the number of tokens after the context: all letters of the answer but the last."""
        return self.answer - 1

    @property
    def scored(self) -> int:
        """Returns the number of scored positions: the letters of the answer."""
        return self.answer

    @property
    def chance(self) -> float:
        """Returns the accuracy of guessing a letter."""
        return 1.0 / self.letters

    @property
    def letters(self) -> int:
        """Returns the number of letters; the beginning and the bar have the next ids."""
        return self.vocab_size - SPECIAL

    def sample(self, key: Key[Array, ""], length: int) -> Example:
        letters = self._letters(length)
        for_string, for_place = jax.random.split(key)
        string = jax.random.randint(for_string, (letters,), 0, self.letters)
        places = letters - self.ngram - self.answer + 1
        chosen = jax.random.randint(for_place, (), 0, places)
        ngram = jax.lax.dynamic_slice_in_dim(string, chosen, self.ngram)
        windows = jnp.stack([string[i : i + places] for i in range(self.ngram)], axis=1)
        first = (windows == ngram[None]).all(axis=1).argmax()
        answer = jax.lax.dynamic_slice_in_dim(string, first + self.ngram, self.answer)
        begin, bar = (jnp.full((1,), self.letters + i, string.dtype) for i in range(SPECIAL))
        parts = [begin, string, bar, ngram] if self.key == "suffix" else [begin, ngram, bar, string, bar]
        tokens = jnp.concatenate([*parts, answer[:-1]])
        mask = jnp.arange(len(tokens)) >= length - 1
        return Example(tokens, jnp.zeros_like(tokens).at[length - 1 :].set(answer), mask)

    def solve(self, tokens: Int[np.ndarray, " t"]) -> tuple[np.ndarray, np.ndarray]:
        length = len(tokens) - self.answer_length
        context = tokens[:length].tolist()
        bar = context.index(self.letters + 1)
        string, ngram = context[1:bar], context[bar + 1 :]
        if self.key == "prefix":
            string, ngram = ngram[:-1], string
        first = next(i for i in range(len(string)) if string[i : i + self.ngram] == ngram)
        targets = np.zeros(len(tokens), np.int32)
        targets[length - 1 :] = string[first + self.ngram : first + self.ngram + self.answer]
        return targets, np.arange(len(tokens)) >= length - 1

    def symbol(self, token: int) -> str:
        """Returns a letter (numbers past z), `$` for the beginning, or a bar."""
        return letter(token) if token < self.letters else "$|"[token - self.letters]

    def _letters(self, length: int) -> int:
        """Returns the number of letters of the string; raises ValueError if an n-gram and its answer do not fit."""
        around = self.ngram + (2 if self.key == "suffix" else 3)
        if length - around < self.ngram + self.answer:
            raise ValueError(
                f"length={length} is too short for ngram={self.ngram}, answer={self.answer}, key={self.key}; "
                f"use a length of at least {around + self.ngram + self.answer}"
            )
        return length - around
