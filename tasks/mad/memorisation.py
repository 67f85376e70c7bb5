"""Memorisation: say the value of a key, by a map that is the same for all sequences (Poli et al. 2024)."""

from dataclasses import dataclass
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Int, Key

from evalkit.checks import at_least
from evalkit.tasks.base import Example, Synthetic


@dataclass(frozen=True, kw_only=True)
class Memorisation(Synthetic):
    """Random keys, each followed by a place token, where its value is the answer; the map is learned, never shown.

    The map from keys to values is drawn once, from `map_seed`, as MAD draws it. With `_` for the place token, an
    example is `b _ d _ b _`. The answer at every `_` is the value of the key before it. MAD's noise among the pairs, 0
    in its benchmark, is left out.

    Options (the defaults are those of MAD's benchmark):
      vocab_size (token ids): the size of the vocabulary: keys, values and the token at the place.
      length (tokens): the length of a training sequence; even.
      map_seed: the seed of the map; another map is another task.

    >>> task = Memorisation()
    >>> task.solve(np.array([56, 255]))[0].tolist()
    [0, 197]
    """

    vocab_size: int = 256
    length: int = 32
    map_seed: int = 12345

    def __post_init__(self) -> None:
        if self.vocab_size < 5:
            raise ValueError(f"vocab_size={self.vocab_size}; allowed: at least 5 (two keys, two values, the place)")
        at_least(self, 0, "map_seed")
        _check_length(self.length)

    @property
    def chance(self) -> float:
        """Returns the accuracy of guessing among the values."""
        return 1.0 / (self.place - self.place // 2)

    @property
    def place(self) -> int:
        """Returns the id of the place token, where a value is the answer."""
        return self.vocab_size - 1

    def sample(self, key: Key[Array, ""], length: int) -> Example:
        _check_length(length)
        values = jnp.asarray(values_of(self.place, self.map_seed))
        keys = jax.random.randint(key, (length // 2,), 0, len(values))
        tokens = jnp.stack([keys, jnp.full_like(keys, self.place)], axis=1).reshape(-1)
        targets = jnp.stack([jnp.zeros_like(keys), values[keys]], axis=1).reshape(-1)
        return Example(tokens, targets, jnp.arange(length) % 2 == 1)

    def solve(self, tokens: Int[np.ndarray, " t"]) -> tuple[np.ndarray, np.ndarray]:
        mask = tokens == self.place
        targets = np.zeros(len(tokens), np.int32)
        targets[mask] = values_of(self.place, self.map_seed)[np.roll(tokens, 1)[mask]]
        return targets, mask

    def symbol(self, token: int) -> str:
        """Returns `k3` for a key, `v3` for a value, `_` for the place where a value is due."""
        if token == self.place:
            return "_"
        return f"k{token}" if token < self.place // 2 else f"v{token - self.place // 2}"


@cache
def values_of(ordinary: int, seed: int) -> Int[np.ndarray, " k"]:
    """Returns the value of each key among `ordinary` keys and values; one generator shuffles both, as in MAD."""
    random = np.random.default_rng(seed)
    keys, values = list(range(ordinary // 2)), list(range(ordinary // 2, ordinary))
    random.shuffle(keys)
    random.shuffle(values)
    value_of = np.zeros(len(keys), np.int32)
    value_of[keys] = values[: len(keys)]
    return value_of


def _check_length(length: int) -> None:
    if length < 2 or length % 2:
        raise ValueError(f"length={length}; allowed: even, at least 2")
