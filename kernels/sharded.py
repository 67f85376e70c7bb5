"""The linear scan over a sequence that is split over several devices, with one custom gradient.

A whole shard is one step of a linear recurrence, with the product of its `a` as decay and its last state from zero as
input. So each shard exchanges two arrays `[b, d]`, whatever the length of the sequence.

Inside `jax.shard_map` over the mesh axis `SEQUENCE`, each device has its own part of time, in order. JAX knows this
while it traces; a mixer then gets what it needs from the other devices by `split_scan` and `across`.
"""

from functools import partial
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Bool, Float

from evalkit.kernels.scan import linear_scan, started

SEQUENCE = "sequence"
"""The mesh axis over which a whole model's time is split."""
Tree = TypeVar("Tree")


def is_split() -> bool:
    """Returns whether the code that is traced now works on one device's part of time."""
    return SEQUENCE in jax.sharding.get_abstract_mesh().manual_axes


def split_scan(
    x: Float[Array, "b t d"],
    a: Float[Array, "b t d"],
    h0: Float[Array, "b d"] | None = None,
    *,
    reset: Bool[Array, "b t"] | None = None,
) -> tuple[Float[Array, "b t d"], Float[Array, "b d"]]:
    """Returns the states of this device's part of time, and the last of all; `h0` is the state before all parts.

    Otherwise as `linear_scan`, but without a custom gradient. It works only where time is split (`is_split`).
    """
    a, h0 = started(x, a, h0, reset)
    h, last = _states(x.astype(h0.dtype), a.astype(h0.dtype), h0, axis=SEQUENCE, reverse=False)
    return h.astype(x.dtype), last


def across(before: Tree, after: Tree) -> tuple[Tree, Tree]:
    """Returns the state before this device's part of time, from the device before it, and the state after all parts.

    `before` is the state before all parts, `after` that after this device's part; their leaves have equal shapes.
    `after` must not depend on `before`. The last inputs of a convolution, for example, do not, if a device has at least
    as many tokens. Where time is not split, both are returned as they are.
    """
    if not is_split():
        return before, after
    devices, here = lax.axis_size(SEQUENCE), lax.axis_index(SEQUENCE)
    following = [(device, device + 1) for device in range(devices - 1)]
    moved = jax.tree.map(lambda x: lax.ppermute(x, SEQUENCE, following), after)
    own = jax.tree.map(lambda first, other: jnp.where(here == 0, first, other.astype(first.dtype)), before, moved)
    return own, jax.tree.map(lambda x: lax.all_gather(x, SEQUENCE)[-1], after)


def sharded_linear_scan(
    x: Float[Array, "b t d"],
    a: Float[Array, "b t d"],
    h0: Float[Array, "b d"] | None = None,
    *,
    mesh: Mesh,
    spec: PartitionSpec,
    reset: Bool[Array, "b t"] | None = None,
    reverse: bool = False,
) -> tuple[Float[Array, "b t d"], Float[Array, "b d"]]:
    """Returns what `linear_scan` does; each device works on its own part of time.

    `spec` is the sharding of `x` and `a`, such as `PartitionSpec("data", "time")`. Its second entry is the one
    mesh axis over which time is sharded, in order. `h` is sharded as `x` is; every device along that axis has
    the last state. For a gated unit, compute the gates first: they are elementwise, so they keep the sharding.
    Each shard is scanned twice, once for its last state and once for all states.
    Raises ValueError if `spec` names no mesh axis for time, and if time does not divide into its shards.

        mesh = jax.make_mesh((8,), ("time",))
        h, last = sharded_linear_scan(x, a, mesh=mesh, spec=PartitionSpec(None, "time"))
    """
    axis = spec[1] if len(spec) > 1 else None
    if not isinstance(axis, str) or axis not in mesh.shape:
        raise ValueError(f"spec={spec} shards time, its second entry, over {axis!r}; allowed: {', '.join(mesh.shape)}")
    steps, shards = x.shape[1], mesh.shape[axis]
    if steps == 0 or steps % shards:
        raise ValueError(
            f"{steps} steps do not divide into the {shards} shards of mesh axis {axis!r}; "
            f"pad time to a multiple of {shards} with a = 1 and x = 0"
        )
    a, h0 = started(x, a, h0, reset)
    h, last = _scan(x.astype(h0.dtype), a.astype(h0.dtype), h0, reverse, mesh, spec)
    return h.astype(x.dtype), last


def _scan_primal(x: Array, a: Array, h0: Array, reverse: bool, mesh: Mesh, spec: PartitionSpec) -> tuple[Array, Array]:
    whole, state = _layouts(spec)
    local = partial(_states, axis=spec[1], reverse=reverse)
    return _on_each(local, mesh, (whole, whole, state), (whole, state))(x, a, h0)


_scan = jax.custom_vjp(_scan_primal, nondiff_argnums=(3, 4, 5))


def _scan_forward(x: Array, a: Array, h0: Array, reverse: bool, mesh: Mesh, spec: PartitionSpec):
    h, last = _scan_primal(x, a, h0, reverse, mesh, spec)
    return (h, last), (a, h0, h)


def _scan_backward(reverse: bool, mesh: Mesh, spec: PartitionSpec, kept: tuple[Array, ...], cotangents: tuple):
    whole, state = _layouts(spec)
    local = partial(_gradients, axis=spec[1], reverse=reverse)
    return _on_each(local, mesh, (whole, state, whole, whole, state), (whole, whole, state))(*kept, *cotangents)


_scan.defvjp(_scan_forward, _scan_backward)


def _layouts(spec: PartitionSpec) -> tuple[PartitionSpec, PartitionSpec]:
    """Returns the shardings of `[b, t, d]` and of `[b, d]`."""
    return spec, PartitionSpec(spec[0], *spec[2:])


def _on_each(local, mesh: Mesh, inputs: tuple[PartitionSpec, ...], outputs: tuple[PartitionSpec, ...]):
    # The check would require every kernel to declare how its results vary over the mesh. It serves automatic
    # differentiation, which never sees the inside, because the custom gradient is around it.
    return jax.shard_map(local, mesh=mesh, in_specs=inputs, out_specs=outputs, check_vma=False)


def _states(x: Array, a: Array, h0: Array, *, axis: str, reverse: bool) -> tuple[Array, Array]:
    """Returns this shard's states and the last state of all, from its part of `x` and `a` and the state before all."""
    _, adds = linear_scan(x, a, reverse=reverse)
    # A product over one shard may underflow to 0, which is right then; one over all shards is never formed.
    adds, lets_through = (lax.all_gather(value, axis, axis=1) for value in (adds, jnp.prod(a, axis=1)))
    after_each, last = linear_scan(adds, lets_through, h0, reverse=reverse)
    edge = h0[:, None]
    parts = [after_each[:, 1:], edge] if reverse else [edge, after_each[:, :-1]]
    before = lax.dynamic_index_in_dim(jnp.concatenate(parts, axis=1), lax.axis_index(axis), axis=1, keepdims=False)
    return linear_scan(x, a, before, reverse=reverse)[0], last


def _gradients(
    a: Array, h0: Array, h: Array, dh: Array, dlast: Array, *, axis: str, reverse: bool
) -> tuple[Array, Array, Array]:
    """Returns the gradients, by the same scan in the other direction: it carries the gradient of the previous state."""
    before, dh0 = _states(a * dh, a, dlast, axis=axis, reverse=not reverse)
    g = dh + _shift(before, dlast, axis, not reverse)
    return g, g * _shift(h, h0, axis, reverse), dh0


def _shift(values: Array, edge: Array, axis: str, reverse: bool) -> Array:
    """Returns `values` moved one step later (earlier with `reverse`) along all shards; `edge [b, d]` fills the gap."""
    shards, here = lax.axis_size(axis), lax.axis_index(axis)
    later = [(shard, shard + 1) for shard in range(shards - 1)]
    if reverse:
        following = lax.ppermute(values[:, :1], axis, [(to, source) for source, to in later])
        return jnp.concatenate([values[:, 1:], jnp.where(here == shards - 1, edge[:, None], following)], axis=1)
    previous = lax.ppermute(values[:, -1:], axis, later)
    return jnp.concatenate([jnp.where(here == 0, edge[:, None], previous), values[:, :-1]], axis=1)
