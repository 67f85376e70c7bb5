"""The gated units, real and complex: their arguments, and both passes by XLA's scans or as Pallas kernels."""

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from evalkit.kernels.dispatch import Implementation, check_shapes, dispatch
from evalkit.kernels.gates import BY_TANH
from evalkit.kernels.passes import Gated, GatedGradient, Kernel, PerChannel, Reads, Rows
from evalkit.kernels.planes import Planes, conjugate, float32, times
from evalkit.kernels.xla import Scan, adjoint


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
    def plain(self) -> Array | None:
        """x, if it is real and no state is reset."""
        return self.x if len(self.per_channel) == 1 and self.flags is None else None

    @property
    def rows(self) -> Rows:
        """The rows of `passes.Gated`."""
        rows = (*self.planes(self.x), self.recurrence, self.entry)
        return rows if self.flags is None else (*rows, self.flags)

    @property
    def whole(self) -> tuple[Rows, PerChannel]:
        """What `passes.Gated` reads of all steps at once: every array has three axes."""
        rows = tuple(row if row.ndim == 3 else row[..., None] for row in self.rows)
        return rows, tuple(vector[None, None] for vector in self.per_channel)

    def planes(self, values: Array) -> Planes:
        """Returns the real and the imaginary part of `values`, which stand side by side; a real array is one plane."""
        return tuple(jnp.split(values, len(self.per_channel), axis=-1)) if len(self.per_channel) > 1 else (values,)

    def gradients(self, run: Gated, g: Planes, da: Planes, h0: Planes) -> "Inputs":
        """Returns the gradients of the arguments from those that `run.gradients` takes, and from that of `h0`."""
        (*x, recurrence, entry), per_channel = run.gradients(*self.whole, g, da)
        return Inputs(
            x=merged(tuple(x)).astype(self.x.dtype),
            recurrence=recurrence.astype(self.recurrence.dtype),
            entry=entry.astype(self.entry.dtype),
            # Summed over flat rows: on a CPU, XLA's sums are slow over an array whose first axis is 1.
            per_channel=tuple(vector.reshape(-1, vector.shape[-1]).sum(axis=0) for vector in per_channel),
            h0=merged(h0),
            flags=None,
        )


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


# Blocks of one kind are traced once, and with them each platform's way.
@partial(jax.jit, static_argnames=("unit_reset", "implementation"))
def _primal(inputs: Inputs, unit_reset: bool, implementation: Implementation) -> tuple[Array, Array]:
    by_scan, by_kernel = partial(_states_by_scan, unit_reset), partial(_states_by_kernel, unit_reset)
    return dispatch(implementation, by_scan, by_kernel, inputs, plain=inputs.plain)


unit = jax.custom_vjp(_primal, nondiff_argnums=(1, 2))
"""Returns all states and the last one of `inputs`; the gradient computes the gates again instead of keeping them."""


def _forward(inputs: Inputs, unit_reset: bool, implementation: Implementation):
    h, last = _primal(inputs, unit_reset, implementation)
    return (h, last), (inputs, h)


@partial(jax.jit, static_argnums=(0, 1))
def _backward(
    unit_reset: bool, implementation: Implementation, kept: tuple[Inputs, Array], cotangents: tuple[Array, Array]
) -> tuple[Inputs]:
    by_scan, by_kernel = partial(_gradients_by_scan, unit_reset), partial(_gradients_by_kernel, unit_reset)
    return (dispatch(implementation, by_scan, by_kernel, *kept, *cotangents, plain=kept[0].plain),)


unit.defvjp(_forward, _backward)


def _states_by_scan(unit_reset: bool, scan: Scan, inputs: Inputs) -> tuple[Array, Array]:
    a, entering = Gated(BY_TANH, unit_reset).coefficients(*inputs.whole)
    h = merged(scan(entering, a, inputs.planes(inputs.h0), reverse=False))
    return h.astype(inputs.x.dtype), h[:, -1]


def _gradients_by_scan(unit_reset: bool, scan: Scan, inputs: Inputs, h: Array, dh: Array, dlast: Array) -> Inputs:
    run = Gated(BY_TANH, unit_reset)
    a, _ = run.coefficients(*inputs.whole)
    wide = (float32(inputs.planes(value)) for value in (h, inputs.h0, dh, dlast))
    g, da, dh0 = adjoint(scan, a, *wide, reverse=False)
    return inputs.gradients(run, g, da if len(a) == 1 else times(conjugate(a), da), dh0)


def _states_by_kernel(unit_reset: bool, kernel: Kernel, inputs: Inputs) -> tuple[Array, Array]:
    reads = Reads(inputs.rows, inputs.planes(inputs.h0), inputs.per_channel)
    dtypes = (inputs.x.dtype,) * len(reads.carry)
    walked = kernel.walk(Gated(kernel.arithmetic, unit_reset), reads, reverse=False, dtypes=dtypes)
    return merged(walked.outputs), merged(walked.carry)


def _gradients_by_kernel(unit_reset: bool, kernel: Kernel, inputs: Inputs, h: Array, dh: Array, dlast: Array) -> Inputs:
    planes, count = inputs.planes, len(inputs.per_channel)
    lagged = tuple(zip(planes(h), planes(inputs.h0), strict=True))
    reads = Reads((*planes(dh), *inputs.rows), planes(dlast), inputs.per_channel, lagged)
    steps = GatedGradient(kernel.arithmetic, unit_reset, sums=count)
    dtypes = (*(inputs.x.dtype,) * count, inputs.recurrence.dtype, inputs.entry.dtype)
    walked = kernel.walk(steps, reads, reverse=True, dtypes=dtypes)
    *dx, drecurrence, dentry = walked.outputs
    return Inputs(merged(tuple(dx)), drecurrence, dentry, walked.sums, merged(walked.carry), None)
