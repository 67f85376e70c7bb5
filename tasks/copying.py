"""Copying: repeat a string of random letters (Jelassi et al. 2024, 2402.01032)."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Int, Key

from evalkit.tasks.base import Example, Synthetic, letter

SPECIAL = 3
SYMBOLS = "$|."


@dataclass(frozen=True, kw_only=True)
class Copying(Synthetic):
    """A begin token, a string of random letters, a bar, and the string again, which is scored with its end token.

    The layout is the paper's, `$ d b a | d b a .`, without the end token, which is never read: the answer at the bar is
    `d`, and at the last letter the end. A string of n letters makes 2n + 2 tokens, so lengths are even. The paper packs
    strings of different lengths into one context; here a sequence has one, and `train.lengths` draws the lengths.

    Options (the defaults are those of the paper's length generalisation):
      vocab_size (token ids): the size of the vocabulary: letters, and three for beginning, bar and end.
      length (tokens): the length of a training sequence, 2n + 2 for strings of n letters.

    >>> task = Copying(length=8)
    >>> example = task.sample(jax.random.key(0), 8)
    >>> bool((example.tokens[1:4] == example.tokens[5:]).all()), int(example.mask.sum())
    (True, 4)
    """

    vocab_size: int = 29
    length: int = 102

    def __post_init__(self) -> None:
        if self.vocab_size < SPECIAL + 2:
            raise ValueError(f"vocab_size={self.vocab_size}; allowed: at least {SPECIAL + 2} (two letters)")
        self._letters(self.length)

    @property
    def chance(self) -> float:
        """Returns the accuracy of guessing letters: the end, which is always there, is right."""
        count = self._letters(self.length)
        return (count / self.letters + 1) / (count + 1)

    @property
    def letters(self) -> int:
        """Returns the number of letters; beginning, bar and end have the next ids."""
        return self.vocab_size - SPECIAL

    def sample(self, key: Key[Array, ""], length: int) -> Example:
        string = jax.random.randint(key, (self._letters(length),), 0, self.letters)
        begin, bar, end = (jnp.full((1,), self.letters + i, string.dtype) for i in range(SPECIAL))
        whole = jnp.concatenate([begin, string, bar, string, end])
        mask = jnp.arange(length) >= length // 2
        return Example(whole[:-1], jnp.where(mask, whole[1:], 0), mask)

    def solve(self, tokens: Int[np.ndarray, " t"]) -> tuple[np.ndarray, np.ndarray]:
        bar = int(np.flatnonzero(tokens == self.letters + 1)[0])
        targets = np.zeros(len(tokens), np.int32)
        targets[bar:] = [*tokens[1:bar], self.letters + 2]
        return targets, np.arange(len(tokens)) >= bar

    def symbol(self, token: int) -> str:
        """Returns a letter (numbers past z), `$` for the beginning, a bar, or `.` for the end."""
        return letter(token) if token < self.letters else SYMBOLS[token - self.letters]

    def _letters(self, length: int) -> int:
        """Returns the number of letters of the string; raises ValueError for a length that is not 2n + 2."""
        if length < 4 or length % 2:
            raise ValueError(f"length={length}; allowed: even, at least 4 (2n + 2 for n letters)")
        return (length - 2) // 2
