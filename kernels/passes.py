"""What a kernel computes at one step of time; `kernels.triton` and `kernels.mosaic_*` are the loops over time.

A pass carries one float32 number for each channel along time, `carry ← a · carry + b`, real or complex. A forward pass
carries the state. The pass of a gradient runs backwards and carries the gradient of the state before the step.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from evalkit.kernels.gates import (
    Arithmetic,
    Gates,
    complex_gate_gradients,
    gate_gradients,
    gates_with_reset,
    turned,
    without,
)
from evalkit.kernels.planes import Planes, conjugate, float32, plus, scaled, times

Rows = tuple[Array, ...]
PerChannel = tuple[Array, ...]
Lagged = tuple[tuple[Array, Array], ...]


class Pass:
    """One loop over time, as functions of what a step reads.

    Rows have their own dtypes; a complex one is two rows. `previous` is the state of the step before in float32, for a
    pass that is given lagged states. Both functions may repeat arithmetic, because compilers merge it.
    """

    sums: int = 0
    """The number of sums over time."""

    def coefficients(self, rows: Rows, per_channel: PerChannel) -> tuple[Planes, Planes]:
        """Returns a and b of `carry ← a · carry + b`."""
        raise NotImplementedError

    def outputs(
        self, rows: Rows, per_channel: PerChannel, previous: Planes, before: Planes, after: Planes
    ) -> tuple[Rows, Rows]:
        """Returns what the step writes and what it adds to the sums, from the carry before and after it.

        A forward pass writes the carry, which is the state.
        """
        return after, ()


class Walked(NamedTuple):
    """Results of a walk: arrays `[b, t, d]`, sums over batch and time `[d]`, the carry after the last step `[b, d]`."""

    outputs: tuple[Array, ...]
    sums: tuple[Array, ...]
    carry: Planes


class Reads(NamedTuple):
    """What a walk reads.

    Rows are arrays `[b, t, d]`, or `[b, t]` for one integer for each step. `per_channel [d]` and the planes of
    `carry [b, d]` are float32. `lagged` is, plane by plane, the states `[b, t, d]` and the one before them `[b, d]`.
    """

    rows: Rows
    carry: Planes
    per_channel: PerChannel = ()
    lagged: Lagged = ()


Walk = Callable[..., Walked]
"""Runs any pass over the whole of time, `walk(run, reads, reverse=…, dtypes=…)`, with `reverse` from the last step on.

`dtypes` are those of the outputs. Raises ValueError for what the kernel cannot take.
"""


class Kernel(NamedTuple):
    """A Pallas kernel: its loop over time, and its arithmetic of the gates."""

    walk: Walk
    arithmetic: Arithmetic


@dataclass(frozen=True)
class Linear(Pass):
    """`h ← a h + x`, real or complex. Rows: a, x. Writes h."""

    def coefficients(self, rows: Rows, per_channel: PerChannel) -> tuple[Planes, Planes]:
        planes = len(rows) // 2
        return float32(rows[:planes]), float32(rows[planes:])


@dataclass(frozen=True)
class LinearGradient(Pass):
    """`g = carry + dh`, `carry ← a g`. Rows: a, dh. Writes dx = g, da = g · previous."""

    def coefficients(self, rows: Rows, per_channel: PerChannel) -> tuple[Planes, Planes]:
        a, dh = rows
        a = a.astype(jnp.float32)
        return (a,), (a * dh.astype(jnp.float32),)

    def outputs(
        self, rows: Rows, per_channel: PerChannel, previous: Planes, before: Planes, after: Planes
    ) -> tuple[Rows, Rows]:
        g = before[0] + rows[1].astype(jnp.float32)
        return (g, g * previous[0]), ()


@dataclass(frozen=True)
class Gated(Pass):
    """The RG-LRU, or with complex planes the CG-LRU: `h ← a h + scale · i · x`.

    Rows: x, recurrence, input_gate and, if there are resets, reset. Per channel: rate, and if complex angle. Writes h.
    """

    arithmetic: Arithmetic
    unit_reset: bool

    def coefficients(self, rows: Rows, per_channel: PerChannel) -> tuple[Planes, Planes]:
        gates, x, reset = self.opened(rows, per_channel)
        a = (without(gates.a, reset),) if len(x) == 1 else turned(gates, per_channel[1], reset)
        return a, scaled(gates.scale * gates.i, x)

    def opened(self, rows: Rows, per_channel: PerChannel) -> tuple[Gates, Planes, Array | None]:
        """Returns the gates, x in float32, and where the state is reset."""
        planes = len(per_channel)
        recurrence, input_gate, *flags = rows[planes:]
        reset = flags[0] != 0 if flags else None
        gates = gates_with_reset(self.arithmetic, recurrence, input_gate, per_channel[0], reset, self.unit_reset)
        return gates, float32(rows[:planes]), reset

    def gradients(self, rows: Rows, per_channel: PerChannel, g: Planes, da: Planes) -> tuple[Rows, Rows]:
        """Returns the gradients of x and both gates, and those of the per-channel arrays, not yet summed.

        `g` is the gradient of `scale · i · x`; `da` that of the decay, or with complex planes of its logarithm.
        """
        gates, x, reset = self.opened(rows, per_channel)
        if len(x) == 1:
            return gate_gradients(self.arithmetic, gates, x[0], per_channel[0], without(da[0], reset), g[0])
        return complex_gate_gradients(self.arithmetic, gates, x, per_channel[0], per_channel[1], da, g)


@dataclass(frozen=True)
class GatedGradient(Gated):
    """`g = carry + dh`, `carry ← conj(a) g`. Rows: dh and those of `Gated`.

    Writes dx, drecurrence, dinput_gate; sums the gradients of the per-channel arrays.
    """

    sums: int

    def coefficients(self, rows: Rows, per_channel: PerChannel) -> tuple[Planes, Planes]:
        dh, forward = rows[: self.sums], rows[self.sums :]
        a, _ = super().coefficients(forward, per_channel)
        return conjugate(a), times(conjugate(a), float32(dh))

    def outputs(
        self, rows: Rows, per_channel: PerChannel, previous: Planes, before: Planes, after: Planes
    ) -> tuple[Rows, Rows]:
        g = plus(before, float32(rows[: self.sums]))
        # With complex planes da is that of the logarithm, conj(a) g conj(previous); the carry is already conj(a) g.
        da = times(g if len(g) == 1 else after, conjugate(previous))
        return self.gradients(rows[self.sums :], per_channel, g, da)
