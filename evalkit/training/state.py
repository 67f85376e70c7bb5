"""What training changes, and what a dispatch of steps says of itself."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import NamedSharding, PartitionSpec
from jax.typing import ArrayLike

from evalkit.core.contracts import Cache, Params

EVALUATED = ("average", "last")
"""Which parameters of a run are evaluated; without an average it is the last ones."""


class TrainState(NamedTuple):
    """Everything that training changes; the leaves of all seeds are stacked on axis 0.

    `average` is that of the parameters, None without `train.average`; `streams` are the states that training sequences
    begin from, None without `train.state_passing`.
    """

    params: Params
    optimizer: Any
    step: Array
    average: Params | None = None
    streams: Cache | None = None

    @property
    def taken(self) -> int:
        """How many steps were taken, the same for every seed."""
        return int(np.asarray(self.step.addressable_data(0))[0])


class Sums(NamedTuple):
    """What one dispatch measured, `[seeds]` each: `loss` and `accuracy` are sums over sequences.

    `first_nonfinite` is the first step whose loss or gradient is not finite, or −1, and `nonfinite_steps` counts such
    steps. Where they are skipped, their sequences are in neither sum.
    """

    loss: Array
    accuracy: Array
    first_nonfinite: Array
    nonfinite_steps: Array

    @classmethod
    def none(cls) -> "Sums":
        """Returns the sums of one seed over no steps."""
        return cls(jnp.zeros(()), jnp.zeros(()), jnp.full((), -1, jnp.int32), jnp.zeros((), jnp.int32))


def params_of(state: TrainState, index: int, evaluated: str) -> Params:
    """The parameters of one seed, whole on this process's devices: the `average` if there is one, or the `last`."""
    kept = state.params if evaluated == "last" or state.average is None else state.average
    return jax.tree.map(_whole, _of_seed(kept, index))


def streams_of(state: TrainState, index: int) -> Cache | None:
    """The states of the streams of one seed, as `params_of` gives its parameters."""
    return jax.tree.map(_whole, _of_seed(state.streams, index))


@jax.jit
def _of_seed(tree: Any, index: ArrayLike) -> Any:
    """The leaves of one seed of many: one program for all of them."""
    return jax.tree.map(lambda leaf: leaf[index], tree)


def _whole(leaf: Array) -> Array:
    """The whole array: on every device if a mesh divides it, and on one device if there are several processes."""
    if isinstance(leaf, jax.Array) and isinstance(leaf.sharding, NamedSharding) and not leaf.is_fully_replicated:
        leaf = jax.device_put(leaf, NamedSharding(leaf.sharding.mesh, PartitionSpec()))
    return leaf.addressable_data(0) if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable else leaf
