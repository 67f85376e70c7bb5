"""The type that every task returns: an example."""

from typing import NamedTuple

from jax import Array
from jaxtyping import Bool, Int


class Example(NamedTuple):
    """One example: `targets[i]` is the right answer at position `i`; it is scored where `mask[i]` is True.

    `positions` is None for one sequence that starts at position 0; packed text sets it.
    """

    tokens: Int[Array, "*b t"]
    targets: Int[Array, "*b t"]
    mask: Bool[Array, "*b t"]
    positions: Int[Array, "*b t"] | None = None
