"""What the real and the complex gated unit share: arguments, custom gradient, and both passes as Pallas kernels."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from evalkit.kernels.dispatch import Implementation, check_shapes, dispatch
from evalkit.kernels.passes import Gated, GatedGradient, Kernel, Reads
from evalkit.kernels.planes import Planes


class Inputs(NamedTuple):
    """The arguments of a gated unit; `flags [b, t]` are 1 where the state is reset, because kernels read no booleans.

    `per_channel` is the rate, and of a complex unit the angle: as many arrays as x, h0 and the states have planes.
    """

    x: Array
    recurrence: Array
    entry: Array
    per_channel: tuple[Array, ...]
    h0: Array
    flags: Array | None

    @property
    def reset(self) -> Array | None:
        """Where the state is reset, `[b, t, 1]`."""
        return None if self.flags is None else self.flags[..., None] != 0

    def planes(self, values: Array) -> Planes:
        """Returns the real and the imaginary part of `values`, which stand side by side; a real array is one plane."""
        return tuple(jnp.split(values, len(self.per_channel), axis=-1)) if len(self.per_channel) > 1 else (values,)


def merged(planes: Planes) -> Array:
    """Returns the planes side by side."""
    first, *rest = planes
    return jnp.concatenate(planes, axis=-1) if rest else first


def inputs_of(
    x: Array, recurrence: Array, entry: Array, per_channel: Mapping[str, Array], h0: Array | None, reset: Array | None
) -> Inputs:
    """Returns the checked arguments, what is per channel and the state in float32; raises ValueError for a shape."""
    batch, steps, width = x.shape
    channels = width // len(per_channel)
    gates = {"recurrence": (recurrence, (batch, steps, channels)), "entry": (entry, (batch, steps, channels))}
    vectors = {name: (vector, (channels,)) for name, vector in per_channel.items()}
    check_shapes(gates | vectors | {"h0": (h0, (batch, width)), "reset": (reset, (batch, steps))}, "x", x)
    h0 = jnp.zeros((batch, width), jnp.float32) if h0 is None else h0.astype(jnp.float32)
    flags = None if reset is None else reset.astype(jnp.int32)
    return Inputs(x, recurrence, entry, tuple(v.astype(jnp.float32) for v in per_channel.values()), h0, flags)


Unit = Callable[[Inputs, bool, Implementation], tuple[Array, Array]]
"""Returns all states and the last, from the inputs, `unit_reset` and the implementation."""


def unit(states_by_scan: Callable[..., tuple[Array, Array]], gradients_by_scan: Callable[..., Inputs]) -> Unit:
    """Returns a unit with its custom gradient, by a scan of XLA's as given, or by a Pallas kernel."""

    def primal(inputs: Inputs, unit_reset: bool, implementation: Implementation) -> tuple[Array, Array]:
        by_scan, by_kernel = partial(states_by_scan, unit_reset), partial(_states_by_kernel, unit_reset)
        return dispatch(implementation, by_scan, by_kernel, inputs)

    def forward(inputs: Inputs, unit_reset: bool, implementation: Implementation):
        h, last = primal(inputs, unit_reset, implementation)
        return (h, last), (inputs, h)

    def backward(
        unit_reset: bool, implementation: Implementation, kept: tuple[Inputs, Array], cotangents: tuple[Array, Array]
    ) -> tuple[Inputs]:
        by_scan, by_kernel = partial(gradients_by_scan, unit_reset), partial(_gradients_by_kernel, unit_reset)
        return (dispatch(implementation, by_scan, by_kernel, *kept, *cotangents),)

    differentiable = jax.custom_vjp(primal, nondiff_argnums=(1, 2))
    differentiable.defvjp(forward, backward)
    return differentiable


def _states_by_kernel(unit_reset: bool, kernel: Kernel, inputs: Inputs) -> tuple[Array, Array]:
    reads = Reads(_rows(inputs), inputs.planes(inputs.h0), inputs.per_channel)
    dtypes = (inputs.x.dtype,) * len(reads.carry)
    walked = kernel.walk(Gated(kernel.gates, unit_reset), reads, reverse=False, dtypes=dtypes)
    return merged(walked.outputs), merged(walked.carry)


def _gradients_by_kernel(unit_reset: bool, kernel: Kernel, inputs: Inputs, h: Array, dh: Array, dlast: Array) -> Inputs:
    planes, count = inputs.planes, len(inputs.per_channel)
    lagged = tuple(zip(planes(h), planes(inputs.h0), strict=True))
    reads = Reads((*planes(dh), *_rows(inputs)), planes(dlast), inputs.per_channel, lagged)
    steps = GatedGradient(kernel.gates, unit_reset, sums=count)
    dtypes = (*(inputs.x.dtype,) * count, inputs.recurrence.dtype, inputs.entry.dtype)
    walked = kernel.walk(steps, reads, reverse=True, dtypes=dtypes)
    *dx, drecurrence, dentry = walked.outputs
    return Inputs(merged(tuple(dx)), drecurrence, dentry, walked.sums, merged(walked.carry), None)


def _rows(inputs: Inputs) -> tuple[Array, ...]:
    rows = (*inputs.planes(inputs.x), inputs.recurrence, inputs.entry)
    return rows if inputs.flags is None else (*rows, inputs.flags)
