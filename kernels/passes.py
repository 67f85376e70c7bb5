"""What a kernel computes at one step of time; how it walks along time is `kernels.triton` and `kernels.mosaic_*`.

A pass carries one float32 vector along time, `carry ← a · carry + b`. A forward pass carries the state; the pass of a
gradient goes the other way and carries the gradient that reaches the state before the step.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from kernels.gates import Arithmetic, gate_gradients, gates_with_reset, without

Rows = tuple[Array, ...]


@runtime_checkable
class Pass(Protocol):
    """One walk along time, as functions of what a step reads.

    Rows come in their own dtype. `rate`, and `previous`, the state at the step before, are None in passes without them.
    Both functions may repeat arithmetic, which compilers merge.
    """

    @property
    def sums(self) -> int:
        """How many sums over time it keeps."""
        ...

    def coefficients(self, rows: Rows, rate: Array | None) -> tuple[Array, Array]:
        """a and b of `carry ← a · carry + b`."""
        ...

    def outputs(
        self, rows: Rows, rate: Array | None, previous: Array | None, before: Array, after: Array
    ) -> tuple[Rows, Rows]:
        """What the step writes and what it adds to the sums, from the carry before and after it."""
        ...


class Walked(NamedTuple):
    """What a walk gives: arrays `[b, t, d]`, sums over batch and time `[d]`, the carry after the last step `[b, d]`."""

    outputs: tuple[Array, ...]
    sums: tuple[Array, ...]
    carry: Array


@runtime_checkable
class Walk(Protocol):
    """Runs any pass along the whole of time.

    Rows are arrays `[b, t, d]`, or `[b, t]` for an integer a step; `rate [d]` and `carry [b, d]` are float32. `lagged`
    is the states `[b, t, d]` and the one before the first of them `[b, d]`. With `reverse` the walk goes from the last
    step to the first. `dtypes` are those of the outputs. Raises ValueError for what the kernel cannot take.
    """

    def __call__(
        self,
        steps: Pass,
        rows: Rows,
        rate: Array | None,
        lagged: tuple[Array, Array] | None,
        carry: Array,
        *,
        reverse: bool,
        dtypes: tuple[DTypeLike, ...],
    ) -> Walked: ...


class Kernel(NamedTuple):
    """A Pallas kernel: how it walks along time, and how it takes the gates."""

    walk: Walk
    gates: Arithmetic


@dataclass(frozen=True)
class Linear:
    """`h ← a h + x`. Rows: a, x. Writes h."""

    sums: int = 0

    def coefficients(self, rows: Rows, rate: Array | None) -> tuple[Array, Array]:
        a, x = rows
        return a.astype(jnp.float32), x.astype(jnp.float32)

    def outputs(self, rows: Rows, rate: Array | None, previous: Array | None, before: Array, after: Array):
        return (after,), ()


@dataclass(frozen=True)
class LinearGradient:
    """`g = carry + dh`, `carry ← a g`. Rows: a, dh. Writes dx = g, da = g · previous."""

    sums: int = 0

    def coefficients(self, rows: Rows, rate: Array | None) -> tuple[Array, Array]:
        a, dh = rows
        a = a.astype(jnp.float32)
        return a, a * dh.astype(jnp.float32)

    def outputs(self, rows: Rows, rate: Array | None, previous: Array | None, before: Array, after: Array):
        assert previous is not None
        g = before + rows[1].astype(jnp.float32)
        return (g, g * previous.astype(jnp.float32)), ()


@dataclass(frozen=True)
class Gated:
    """The RG-LRU, `h ← a h + scale · i · x`. Rows: x, recurrence, entry and, if there are resets, reset. Writes h."""

    arithmetic: Arithmetic
    unit_reset: bool
    sums: int = 0

    def coefficients(self, rows: Rows, rate: Array | None) -> tuple[Array, Array]:
        assert rate is not None
        x, recurrence, entry, *flags = rows
        reset = flags[0] != 0 if flags else None
        gates = gates_with_reset(self.arithmetic, recurrence, entry, rate, reset, self.unit_reset)
        return without(gates.a, reset), gates.scale * gates.i * x.astype(jnp.float32)

    def outputs(self, rows: Rows, rate: Array | None, previous: Array | None, before: Array, after: Array):
        return (after,), ()


@dataclass(frozen=True)
class GatedGradient:
    """Rows: dh and those of `Gated`. Writes dx, drecurrence, dentry; sums drate."""

    arithmetic: Arithmetic
    unit_reset: bool
    sums: int = 1

    def coefficients(self, rows: Rows, rate: Array | None) -> tuple[Array, Array]:
        dh, *forward = rows
        a, _ = Gated(self.arithmetic, self.unit_reset).coefficients(tuple(forward), rate)
        return a, a * dh.astype(jnp.float32)

    def outputs(self, rows: Rows, rate: Array | None, previous: Array | None, before: Array, after: Array):
        assert rate is not None and previous is not None
        dh, x, recurrence, entry, *flags = rows
        reset = flags[0] != 0 if flags else None
        gates = gates_with_reset(self.arithmetic, recurrence, entry, rate, reset, self.unit_reset)
        g = before + dh.astype(jnp.float32)
        da = g * without(previous.astype(jnp.float32), reset)
        gradients = gate_gradients(gates, x, rate, da, g)
        return (gradients.x, gradients.recurrence, gradients.entry), (gradients.rate,)
