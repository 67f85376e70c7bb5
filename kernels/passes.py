"""What a kernel computes at one step of time; `kernels.triton` and `kernels.mosaic_*` are the loops over time.

A pass carries one float32 number for each channel along time, `carry ← a · carry + b`, real or complex. A forward pass
carries the state. The pass of a gradient runs backwards and carries the gradient of the state before the step.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from evalkit.kernels.gates import (
    Arithmetic,
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


@runtime_checkable
class Pass(Protocol):
    """One loop over time, as functions of what a step reads.

    Rows have their own dtypes; a complex one is two rows. `previous` is the state of the step before in float32, for a
    pass that is given lagged states. Both functions may repeat arithmetic, because compilers merge it.
    """

    @property
    def sums(self) -> int:
        """The number of sums over time."""
        ...

    def coefficients(self, rows: Rows, per_channel: PerChannel) -> tuple[Planes, Planes]:
        """Returns a and b of `carry ← a · carry + b`."""
        ...

    def outputs(
        self, rows: Rows, per_channel: PerChannel, previous: Planes, before: Planes, after: Planes
    ) -> tuple[Rows, Rows]:
        """Returns what the step writes and what it adds to the sums, from the carry before and after it."""
        ...


class Walked(NamedTuple):
    """Results of a walk: arrays `[b, t, d]`, sums over batch and time `[d]`, the carry after the last step `[b, d]`."""

    outputs: tuple[Array, ...]
    sums: tuple[Array, ...]
    carry: Planes


@runtime_checkable
class Walk(Protocol):
    """Runs any pass over the whole of time.

    Rows are arrays `[b, t, d]`, or `[b, t]` for one integer for each step. `per_channel [d]` and the planes of
    `carry [b, d]` are float32. `lagged` is, plane by plane, the states `[b, t, d]` and the one before them `[b, d]`.
    With `reverse`, time runs from the last step to the first. `dtypes` are those of the outputs. Raises ValueError for
    what the kernel cannot take.
    """

    def __call__(
        self,
        steps: Pass,
        rows: Rows,
        per_channel: PerChannel,
        lagged: Lagged,
        carry: Planes,
        *,
        reverse: bool,
        dtypes: tuple[DTypeLike, ...],
    ) -> Walked: ...


class Kernel(NamedTuple):
    """A Pallas kernel: its loop over time, and its arithmetic of the gates."""

    walk: Walk
    gates: Arithmetic


@dataclass(frozen=True)
class Linear:
    """`h ← a h + x`, real or complex. Rows: a, x. Writes h."""

    sums: int = 0

    def coefficients(self, rows: Rows, per_channel: PerChannel) -> tuple[Planes, Planes]:
        planes = len(rows) // 2
        return float32(rows[:planes]), float32(rows[planes:])

    def outputs(
        self, rows: Rows, per_channel: PerChannel, previous: Planes, before: Planes, after: Planes
    ) -> tuple[Rows, Rows]:
        return after, ()


@dataclass(frozen=True)
class LinearGradient:
    """`g = carry + dh`, `carry ← a g`. Rows: a, dh. Writes dx = g, da = g · previous."""

    sums: int = 0

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
class Gated:
    """The RG-LRU, `h ← a h + scale · i · x`. Rows: x, recurrence, entry and, if there are resets, reset. Writes h."""

    arithmetic: Arithmetic
    unit_reset: bool
    sums: int = 0

    def coefficients(self, rows: Rows, per_channel: PerChannel) -> tuple[Planes, Planes]:
        x, recurrence, entry, *flags = rows
        (rate,) = per_channel
        reset = flags[0] != 0 if flags else None
        gates = gates_with_reset(self.arithmetic, recurrence, entry, rate, reset, self.unit_reset)
        return (without(gates.a, reset),), (gates.scale * gates.i * x.astype(jnp.float32),)

    def outputs(
        self, rows: Rows, per_channel: PerChannel, previous: Planes, before: Planes, after: Planes
    ) -> tuple[Rows, Rows]:
        return after, ()


@dataclass(frozen=True)
class GatedGradient:
    """Rows: dh and those of `Gated`. Writes dx, drecurrence, dentry; sums drate."""

    arithmetic: Arithmetic
    unit_reset: bool
    sums: int = 1

    def coefficients(self, rows: Rows, per_channel: PerChannel) -> tuple[Planes, Planes]:
        dh, *forward = rows
        ((a,), _) = Gated(self.arithmetic, self.unit_reset).coefficients(tuple(forward), per_channel)
        return (a,), (a * dh.astype(jnp.float32),)

    def outputs(
        self, rows: Rows, per_channel: PerChannel, previous: Planes, before: Planes, after: Planes
    ) -> tuple[Rows, Rows]:
        dh, x, recurrence, entry, *flags = rows
        (rate,) = per_channel
        reset = flags[0] != 0 if flags else None
        gates = gates_with_reset(self.arithmetic, recurrence, entry, rate, reset, self.unit_reset)
        g = before[0] + dh.astype(jnp.float32)
        da = g * without(previous[0], reset)
        gradients = gate_gradients(gates, x, rate, da, g)
        return (gradients.x, gradients.recurrence, gradients.entry), (gradients.rate,)


@dataclass(frozen=True)
class ComplexGated:
    """The CG-LRU, `h ← a h + scale · i · x`. Rows: x (two planes), recurrence, entry and, if there are resets, reset.

    Per channel: rate, angle. Writes h (two planes).
    """

    arithmetic: Arithmetic
    unit_reset: bool
    sums: int = 0

    def coefficients(self, rows: Rows, per_channel: PerChannel) -> tuple[Planes, Planes]:
        x_re, x_im, recurrence, entry, *flags = rows
        rate, angle = per_channel
        reset = flags[0] != 0 if flags else None
        gates = gates_with_reset(self.arithmetic, recurrence, entry, rate, reset, self.unit_reset)
        return turned(gates, angle, reset), scaled(gates.scale * gates.i, float32((x_re, x_im)))

    def outputs(
        self, rows: Rows, per_channel: PerChannel, previous: Planes, before: Planes, after: Planes
    ) -> tuple[Rows, Rows]:
        return after, ()


@dataclass(frozen=True)
class ComplexGatedGradient:
    """`g = carry + dh`, `carry ← conj(a) g`. Rows: dh (two planes) and those of `ComplexGated`.

    Writes dx (two planes), drecurrence, dentry; sums drate, dangle.
    """

    arithmetic: Arithmetic
    unit_reset: bool
    sums: int = 2

    def coefficients(self, rows: Rows, per_channel: PerChannel) -> tuple[Planes, Planes]:
        dh, forward = rows[:2], rows[2:]
        a, _ = ComplexGated(self.arithmetic, self.unit_reset).coefficients(forward, per_channel)
        return conjugate(a), times(conjugate(a), float32(dh))

    def outputs(
        self, rows: Rows, per_channel: PerChannel, previous: Planes, before: Planes, after: Planes
    ) -> tuple[Rows, Rows]:
        dh_re, dh_im, x_re, x_im, recurrence, entry, *flags = rows
        rate, angle = per_channel
        reset = flags[0] != 0 if flags else None
        gates = gates_with_reset(self.arithmetic, recurrence, entry, rate, reset, self.unit_reset)
        g = plus(before, float32((dh_re, dh_im)))
        dlog_a = times(after, conjugate(previous))  # the carry is already conj(a) g
        gradients = complex_gate_gradients(gates, float32((x_re, x_im)), rate, angle, dlog_a, g)
        return (*gradients.x, gradients.recurrence, gradients.entry), (gradients.rate, gradients.angle)
