"""What devices that share a mixer or an MLP say to one another: one sum forward and one backward (Shoeybi et al. 2019).

Each device has some of the heads or channels, so what it computes of a residual branch is one term of a sum. `axis` is
the mesh axis of these devices, inside `jax.shard_map`, or None where one device has all: then nothing is said.
"""

from functools import partial

import jax
from jax import Array, lax
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Float

SUM = "sum over devices"
"""The name of such a sum for `jax.checkpoint`: one that is kept is not sent a second time."""


def shared(x: Float[Array, "*n"], axis: str | None) -> Float[Array, "*n"]:
    """Returns `x`, of which every device computes its share; the gradients of all shares are summed."""
    return x if axis is None else _shared(axis, x)


def summed(x: Float[Array, "*n"], axis: str | None) -> Float[Array, "*n"]:
    """Returns the sum of what every device computed; its gradient is every device's."""
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
