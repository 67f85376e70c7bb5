"""Mixers and MLPs shared by several devices, with one sum forward and one backward (Shoeybi et al. 2019).

Each device has some of the heads or channels, so its output of a residual branch is one term of a sum. `axis` is the
mesh axis of these devices, inside `jax.shard_map`, or None where one device has all: then there is no communication.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
from flax import nnx
from jax import Array, lax
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Float

SUM = "sum over devices"
"""The name of such a sum for `jax.checkpoint`: a sum that is kept is not communicated a second time."""

TERM, ONCE = "term", "once"


class Division(NamedTuple):
    """How devices share the parameters of a mixer or an MLP, and what they cannot cut.

    `axes` gives each parameter, by its dotted name, the axis along which it is cut. `TERM`: every device has all of it,
    and its gradient on a device is one term of a sum. `ONCE`: the same, for a bias that the sum of outputs must have
    once, so that each device adds an equal part of it. `units` counts, by name, what must not be cut, such as heads.
    """

    axes: Mapping[str, int | str]
    units: Mapping[str, int]


@runtime_checkable
class Divided(Protocol):
    """Optional: a mixer that says how the devices of a mesh's model axis share it; others are refused there."""

    def division(self) -> Division:
        """Returns the rules of its parameters; raises ValueError if a part of it has none."""
        ...


def into(*maps: str) -> dict[str, int | str]:
    """Returns the rules of linear maps, or convolutions, that each device computes for its own channels."""
    return {f"{name}.{part}": axis for name in maps for part, axis in (("kernel", 1), ("bias", 0))}


def out_of(*maps: str) -> dict[str, int | str]:
    """Returns the rules of linear maps out of the channels of each device, whose results are summed."""
    return {f"{name}.{part}": how for name in maps for part, how in (("kernel", 0), ("bias", ONCE))}


def axes_of(part: Any, place: str, devices: int) -> dict[str, int | str]:
    """Returns the rules of a mixer or an MLP at `place` in the model; raises ValueError as `Divided` does.

    Raises ValueError also for units or axes that `devices` does not divide, and for parameters without a rule.
    """
    if not isinstance(part, Divided):
        raise ValueError(f"no rule divides {place} ({type(part).__name__}) over the model axis; give model: 1")
    axes, units = part.division()
    for name, count in units.items():
        if count % devices:
            raise ValueError(f"model: {devices} does not divide the {count} {name} of {place}; give a divisor of it")
    rules = {}
    for path, leaf in nnx.to_flat_state(nnx.state(part, nnx.Param)):
        name = ".".join(map(str, path))
        how: Any = axes.get(name)
        if how is None or (isinstance(how, int) and leaf.shape[how] % devices):
            raise ValueError(f"no rule divides {place}.{name} over {devices} devices of the model axis; give model: 1")
        rules[f"{place}.{name}"] = how
    return rules


def shared(x: Float[Array, "*n"], axis: str | None) -> Float[Array, "*n"]:
    """Returns `x`, which every device has whole and uses for its share; the gradients of all shares are summed."""
    return x if axis is None else _shared(axis, x)


def summed(x: Float[Array, "*n"], axis: str | None) -> Float[Array, "*n"]:
    """Returns the sum of `x` over devices; every device receives the gradient of the sum."""
    return x if axis is None else checkpoint_name(_summed(axis, x), SUM)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _shared(axis: str, x: Array) -> Array:
    return x


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _summed(axis: str, x: Array) -> Array:
    return lax.psum(x, axis)


# Written out: without `check_vma`, which kernels do not support, JAX takes a sum for its own transpose.
_shared.defvjp(lambda axis, x: (x, None), lambda axis, _, dy: (lax.psum(dy, axis),))
_summed.defvjp(lambda axis, x: (lax.psum(x, axis), None), lambda axis, _, dy: (dy,))
