"""Palindromes: give a string back, its last letter first (Kimi Team 2025, arXiv 2510.26692, sec. 5.1)."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Int, Key

from evalkit.tasks.base import Example, Synthetic, letter


@dataclass(frozen=True, kw_only=True)
class Palindrome(Synthetic):
    """A random string, a bar, and the string in reverse, of which every letter is scored.

    The layout is `d b a | a b`, without the last letter, which is never read: the answer at the bar is `a`, at the end
    `d`. So a string of n letters makes 2n tokens. Unlike in a copy, the letter that was read last is answered first.
    Published strings have 128 to 1,024 letters; the size of the alphabet is ours.

    Options:
      vocab_size (token ids): the size of the vocabulary: letters, and the bar.
      length (tokens): the length of a training sequence, 2n for strings of n letters.

    >>> task = Palindrome(length=6)
    >>> task.solve(np.array([3, 1, 0, 26, 0, 1]))[0].tolist()  # d b a | a b
    [0, 0, 0, 0, 1, 3]
    """

    vocab_size: int = 27
    length: int = 256

    def __post_init__(self) -> None:
        if self.vocab_size < 3:
            raise ValueError(f"vocab_size={self.vocab_size}; allowed: at least 3 (two letters and the bar)")
        _letters(self.length)

    @property
    def chance(self) -> float:
        """Returns the accuracy of guessing a letter."""
        return 1.0 / self.bar

    @property
    def bar(self) -> int:
        """Returns the id of the bar, and so the number of letters."""
        return self.vocab_size - 1

    def sample(self, key: Key[Array, ""], length: int) -> Example:
        string = jax.random.randint(key, (_letters(length),), 0, self.bar)
        back = string[::-1]
        tokens = jnp.concatenate([string, jnp.full((1,), self.bar, string.dtype), back[:-1]])
        return Example(tokens, jnp.concatenate([jnp.zeros_like(string), back]), jnp.arange(length) >= length // 2)

    def solve(self, tokens: Int[np.ndarray, " t"]) -> tuple[np.ndarray, np.ndarray]:
        bar = int(np.flatnonzero(tokens == self.bar)[0])
        targets = np.zeros(len(tokens), np.int32)
        targets[bar:] = tokens[:bar][::-1]
        return targets, np.arange(len(tokens)) >= bar

    def symbol(self, token: int) -> str:
        """Returns a letter (numbers past z), or a bar."""
        return "|" if token == self.bar else letter(token)


def _letters(length: int) -> int:
    """Returns the number of letters of the string; raises ValueError for a length that is not 2n."""
    if length < 2 or length % 2:
        raise ValueError(f"length={length}; allowed: even, at least 2 (2n for n letters)")
    return length // 2
