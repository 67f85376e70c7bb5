"""What tasks share: the type that every task returns, defaults of synthetic ones, and drawing without replacement."""

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Int, Key


class Example(NamedTuple):
    """One example: `targets[i]` is the right answer at position `i`; it is scored where `mask[i]` is True.

    `positions` is None for one sequence that starts at position 0; packed text sets it.
    """

    tokens: Int[Array, "*b t"]
    targets: Int[Array, "*b t"]
    mask: Bool[Array, "*b t"]
    positions: Int[Array, "*b t"] | None = None


class Synthetic:
    """Defaults that most synthetic tasks share; a task overrides those that do not fit it.

    No answer tokens follow the context, any number of positions may be scored, and `describe` shows tokens as symbols
    with spaces between.
    """

    answer_length: ClassVar[int] = 0
    scored: ClassVar[int | None] = None
    version: ClassVar[int] = 1

    def sample(self, key: Key[Array, ""], length: int) -> Example:
        """Draws one example with a context of static `length`; jittable. Raises ValueError for an impossible length."""
        raise NotImplementedError

    def solve(self, tokens: Int[np.ndarray, " t"]) -> tuple[np.ndarray, np.ndarray]:
        """Returns `(targets, mask)` of `tokens [t]`, by the rule in plain NumPy."""
        raise NotImplementedError

    def describe(self, tokens: Int[np.ndarray, " t"]) -> str:
        """Returns `tokens` as text, each as its `symbol`."""
        return " ".join(self.symbol(int(token)) for token in tokens)

    def symbol(self, token: int) -> str:
        """Returns one token as text."""
        raise NotImplementedError


def letter(token: int) -> str:
    """Returns a token as text: the first 26 are letters, the others numbers.

    >>> letter(0), letter(26)
    ('a', '26')
    """
    return chr(ord("a") + token) if token < 26 else str(token)


def distinct(key: Key[Array, ""], count: int, of: int) -> Int[Array, " count"]:
    """Draws `count` different numbers below `of` in random order, all such sequences equally likely."""
    # Floyd's sampling (Bentley & Floyd 1987), because shuffling all numbers would take longer than the model's step.
    for_draws, for_order = jax.random.split(key)
    ends = of - count + jnp.arange(count)
    draws = jax.random.randint(for_draws, (count,), 0, ends + 1)

    def choose(index: Array, chosen: Array) -> Array:
        taken = (chosen == draws[index]).any()
        return chosen.at[index].set(jnp.where(taken, ends[index], draws[index]))

    chosen = jax.lax.fori_loop(0, count, choose, jnp.full((count,), -1))
    return jax.random.permutation(for_order, chosen)
