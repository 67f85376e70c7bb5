"""Selective copying: repeat the data tokens in order and ignore the noise between them (De et al. 2024, sec. 6.2)."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Int, Key

from evalkit.checks import at_least, one_of
from evalkit.tasks.base import Example, Synthetic, letter

LAYOUTS = ("markers", "mad", "lm")
NOISE = 0


@dataclass(frozen=True, kw_only=True)
class SelectiveCopying(Synthetic):
    """`data_tokens` tokens at random places of a context of noise; after it, the answers are these tokens in order.

    In a vocabulary of 16, id 0 is noise, 1 to 14 are data, 15 is the marker. With length 8, three data tokens, `.` for
    noise and M for the marker, an example is `. c . a . . c .  M M M`. The answers at the markers are `c a c`.

    `length` is the context; `tokens` has `length + data_tokens` entries, and only the answers are scored (app. H).
    With `length_includes_answer` the context is `length - data_tokens`, and `tokens` has `length` entries.

    Options (the defaults are the paper's, and where it does not say, the layout of S4 and Mamba):
      vocab_size (token ids): the size of the vocabulary, noise and marker included.
      length (tokens): the context of a training sequence; the answers come after it.
      data_tokens (tokens): how many tokens are to be repeated.
      layout: the input at the answers: `markers`, a marker each; `mad`, one marker, then noise; `lm`, one, then the
        answers so far.
      length_includes_answer: whether `length` counts the answers too, as in MAD.

    >>> task = SelectiveCopying(length=8, data_tokens=3)
    >>> example = task.sample(jax.random.key(0), 8)
    >>> example.tokens[8:].tolist(), int(example.mask.sum())
    ([15, 15, 15], 3)
    """

    vocab_size: int = 16
    length: int = 1024
    data_tokens: int = 16
    layout: str = "markers"
    length_includes_answer: bool = False

    def __post_init__(self) -> None:
        if self.vocab_size < 4:
            raise ValueError(f"vocab_size={self.vocab_size}; allowed: at least 4 (noise, two data tokens, marker)")
        at_least(self, 1, "data_tokens")
        one_of(self, "layout", LAYOUTS)
        self._context(self.length)

    @property
    def answer_length(self) -> int:
        """Returns the number of entries of `tokens` beyond `length`."""
        return 0 if self.length_includes_answer else self.data_tokens

    @property
    def scored(self) -> int:
        """Returns the number of scored positions: the answers."""
        return self.data_tokens

    @property
    def chance(self) -> float:
        """Returns the accuracy of guessing among the data tokens."""
        return 1.0 / (self.vocab_size - 2)

    @property
    def marker(self) -> int:
        """Returns the id that asks for an answer."""
        return self.vocab_size - 1

    def sample(self, key: Key[Array, ""], length: int) -> Example:
        context = self._context(length)
        for_places, for_data = jax.random.split(key)
        # The places of the n largest of independent uniforms are a uniformly random set of n places.
        _, places = jax.lax.top_k(jax.random.uniform(for_places, (context,)), self.data_tokens)
        data = jax.random.randint(for_data, (self.data_tokens,), 1, self.marker)
        noisy = jnp.full((context,), NOISE).at[jnp.sort(places)].set(data)
        tokens = jnp.concatenate([noisy, self._answer_inputs(data)])
        targets = jnp.concatenate([jnp.zeros((context,), data.dtype), data])
        return Example(tokens, targets, jnp.arange(len(tokens)) >= context)

    def ordinary(self, key: Key[Array, ""], length: int) -> Int[Array, " t"]:
        """Returns `length` tokens of noise."""
        return jnp.full((length,), NOISE)

    def solve(self, tokens: Int[np.ndarray, " t"]) -> tuple[np.ndarray, np.ndarray]:
        context = len(tokens) - self.data_tokens
        targets = np.zeros(len(tokens), np.int32)
        targets[context:] = [token for token in tokens[:context] if token != NOISE]
        return targets, np.arange(len(tokens)) >= context

    def symbol(self, token: int) -> str:
        """Returns a dot for noise, a letter for data (numbers past z), a bar for the marker."""
        if token == NOISE:
            return "·"
        if token == self.marker:
            return "▮"
        return letter(token - 1) if token <= 26 else str(token)

    def _answer_inputs(self, data: Int[Array, " n"]) -> Int[Array, " n"]:
        if self.layout == "markers":
            return jnp.full_like(data, self.marker)
        rest = data[:-1] if self.layout == "lm" else jnp.full_like(data[:-1], NOISE)
        return jnp.concatenate([jnp.full((1,), self.marker, data.dtype), rest])

    def _context(self, length: int) -> int:
        context = length - self.data_tokens if self.length_includes_answer else length
        if context < self.data_tokens:
            raise ValueError(
                f"data_tokens={self.data_tokens} do not fit in a context of {context}; "
                f"use at most {max(context, 0)} data tokens or a longer length"
            )
        return context
