"""In-context recall: keys and values in pairs, with the same value at every return of a key (Poli et al. 2024)."""

from dataclasses import dataclass, replace
from typing import Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Int, Key

from evalkit.checks import one_of
from evalkit.numerics import GUMBEL
from evalkit.tasks.base import Example, Synthetic

LOSSES = ("all", "answer")


@dataclass(frozen=True, kw_only=True)
class InContextRecall(Synthetic):
    """Pairs of a key and its value, drawn with replacement; a repeated key has its earlier value.

    Each sequence draws new values. With keys a to d and values 1 to 4, an example is `b 3 a 1 b 3 d 1 a 1`, and the
    answers are the `3` after the second `b` and the `1` after the second `a`. The last key is always a repeated one. A
    share of the pairs may be noise, two tokens from a vocabulary of their own.

    `multi_query`, as in MAD's benchmark, asks at every repeated key. Without it, the default of MAD's functions, one
    key is asked for: the sequence ends with a special token and the key.

    Options (the defaults are those of MAD's benchmark):
      vocab_size (token ids): the size of the vocabulary: keys, values, noise and the special token.
      length (tokens): the length of a training sequence; even.
      multi_query: whether all repeated keys are asked for, or only the one at the end.
      noise_vocab_size (token ids): the tokens of the vocabulary that are noise alone.
      frac_noise (share of the pairs): how likely a pair is noise.
      loss: what is scored in training: `all`, the next token at every position, or `answer`. Held-out sequences always
        score the answers alone.

    >>> task = InContextRecall(length=8)
    >>> task.judged.loss, len(task.sample(jax.random.key(0), 8).tokens)
    ('answer', 8)
    """

    vocab_size: int = 16
    length: int = 128
    multi_query: bool = True
    noise_vocab_size: int = 0
    frac_noise: float = 0.0
    loss: str = "all"

    def __post_init__(self) -> None:
        one_of(self, "loss", LOSSES)
        if self.noise_vocab_size < 0 or self.keys < 2:
            raise ValueError(
                f"vocab_size={self.vocab_size} with noise_vocab_size={self.noise_vocab_size} and "
                f"multi_query={self.multi_query} leaves {max(self._ordinary, 0)} tokens for keys and values; "
                "use 0 or more of noise, and leave 4 at least"
            )
        if not 0 <= self.frac_noise < 1:
            raise ValueError(f"frac_noise={self.frac_noise}; allowed: from 0, below 1")
        if self.frac_noise and not self.noise_vocab_size:
            raise ValueError(f"frac_noise={self.frac_noise} needs tokens; give noise_vocab_size=1 or more")
        _check_length(self.length)

    @property
    def judged(self) -> Self:
        """Returns the task of held-out sequences, which scores the answers alone."""
        return replace(self, loss="answer")

    @property
    def scored(self) -> int | None:
        """Returns the number of scored positions: 1, or None where it varies or is about all."""
        return 1 if self.loss == "answer" and not self.multi_query else None

    @property
    def chance(self) -> float:
        """Returns the accuracy of guessing among the values."""
        return 1.0 / (self._ordinary - self.keys)

    @property
    def keys(self) -> int:
        """Returns the number of keys, whose ids are the first; values have the next ones, then noise."""
        return self._ordinary // 2

    @property
    def special(self) -> int:
        """Returns the id of the token before the one key that is asked for; unused with `multi_query`."""
        return self.vocab_size - 1

    def sample(self, key: Key[Array, ""], length: int) -> Example:
        _check_length(length)
        pairs = length // 2 - 1
        for_map, for_keys, for_noise, for_spared, for_tokens, for_probe = jax.random.split(key, 6)
        value_of = jax.random.randint(for_map, (self.keys,), self.keys, self._ordinary)
        chosen = jax.random.randint(for_keys, (pairs,), 0, self.keys)
        noisy = jax.random.bernoulli(for_noise, self.frac_noise, (pairs,))
        noisy &= jnp.arange(pairs) != jax.random.randint(for_spared, (), 0, pairs)
        noise = jax.random.randint(
            for_tokens, (pairs, 2), self._ordinary, self._ordinary + max(self.noise_vocab_size, 1)
        )
        shown = (chosen[:, None] == jnp.arange(self.keys)[None]) & ~noisy[:, None]
        likely = jnp.where(shown.any(axis=0), 0.0, -jnp.inf)
        probe = jax.random.categorical(for_probe, likely, mode=GUMBEL).astype(chosen.dtype)
        body = jnp.where(noisy[:, None], noise, jnp.stack([chosen, value_of[chosen]], axis=1)).reshape(-1)
        end = [probe, value_of[probe]] if self.multi_query else [jnp.asarray(self.special), probe]
        tokens = jnp.concatenate([body, jnp.stack(end)])
        last = jnp.arange(length) == length - 1
        targets = jnp.where(last, value_of[probe], jnp.roll(tokens, -1))
        if self.loss == "all":
            return Example(tokens, targets, ~last if self.multi_query else jnp.ones((length,), bool))
        if not self.multi_query:
            return Example(tokens, jnp.where(last, targets, 0), last)
        returns = ~noisy & (jnp.arange(pairs) > shown.argmax(axis=0)[chosen])
        asked = jnp.append(returns, True)  # the last key always stood before
        mask = jnp.stack([asked, jnp.zeros_like(asked)], axis=1).reshape(-1)
        return Example(tokens, jnp.where(mask, targets, 0), mask)

    def solve(self, tokens: Int[np.ndarray, " t"]) -> tuple[np.ndarray, np.ndarray]:
        length = len(tokens)
        values: dict[int, int] = {}
        answers = np.zeros(length, bool)
        for place in range(0, length if self.multi_query else length - 2, 2):
            key, value = int(tokens[place]), int(tokens[place + 1])
            if key < self.keys:
                answers[place] = key in values
                values[key] = value
        targets = np.append(tokens[1:], 0)
        if not self.multi_query:
            targets[-1] = values[int(tokens[-1])]
            answers = np.arange(length) == length - 1
        if self.loss == "all":
            return targets, (np.arange(length) < length - 1) | (not self.multi_query)
        return np.where(answers, targets, 0), answers

    def symbol(self, token: int) -> str:
        """Returns `k3` for a key, `v3` for a value, a dot for noise, a star for the special token."""
        if token < self.keys:
            return f"k{token}"
        if token < self._ordinary:
            return f"v{token - self.keys}"
        return "★" if token == self.special and not self.multi_query else "·"

    @property
    def _ordinary(self) -> int:
        """Returns the number of keys and values."""
        return self.vocab_size - self.noise_vocab_size - (not self.multi_query)


def _check_length(length: int) -> None:
    if length < 4 or length % 2:
        raise ValueError(f"length={length}; allowed: even, at least 4 (two pairs)")
