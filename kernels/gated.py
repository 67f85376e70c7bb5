"""The gated linear recurrent units, gates and recurrence in one operation: the real one and the complex one.

De et al. 2024, eqs. 1–4 and 6, and app. B. Both passes run by XLA's scans or as Pallas kernels. Gates, state
and sums are float32 whatever the dtype of `x`.

Shapes: b batch, t time, d channels; n complex channels, d = 2 n: the real parts of all, then their imaginary parts.
"""

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

from evalkit.kernels.dispatch import Implementation, check, check_shapes, dispatch
from evalkit.kernels.gates import BY_TANH
from evalkit.kernels.passes import Gated, GatedGradient, Kernel, PerChannel, Reads, Rows
from evalkit.kernels.planes import Planes, conjugate, float32, times
from evalkit.kernels.sharded import is_split, split_scan
from evalkit.kernels.xla import Scan, adjoint


class Inputs(NamedTuple):
    """The arguments of a gated unit; `flags [b, t]` are 1 where the state is reset, because kernels read no booleans.

    `per_channel` is the rate and, for a complex unit, the angle: as many arrays as x, h0 and the states have planes.
    """

    x: Array
    recurrence: Array
    input_gate: Array
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
        rows = (*self.planes(self.x), self.recurrence, self.input_gate)
        return rows if self.flags is None else (*rows, self.flags)

    @property
    def whole(self) -> tuple[Rows, PerChannel]:
        """The inputs of `passes.Gated` for all steps at once: every array has three axes."""
        rows = tuple(row if row.ndim == 3 else row[..., None] for row in self.rows)
        return rows, tuple(vector[None, None] for vector in self.per_channel)

    def planes(self, values: Array) -> Planes:
        """Returns the real and the imaginary part of `values`, which stand side by side; a real array is one plane."""
        return tuple(jnp.split(values, len(self.per_channel), axis=-1)) if len(self.per_channel) > 1 else (values,)

    def gradients(self, run: Gated, g: Planes, da: Planes, h0: Planes) -> "Inputs":
        """Returns the gradients of the arguments: from `g` and `da`, see `run.gradients`; `h0` is that of the state."""
        (*x, recurrence, input_gate), per_channel = run.gradients(*self.whole, g, da)
        return Inputs(
            x=merged(tuple(x)).astype(self.x.dtype),
            recurrence=recurrence.astype(self.recurrence.dtype),
            input_gate=input_gate.astype(self.input_gate.dtype),
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
    x: Array,
    recurrence: Array,
    input_gate: Array,
    per_channel: Mapping[str, Array],
    h0: Array | None,
    reset: Array | None,
) -> Inputs:
    """Returns the arguments, with state and per-channel arrays in float32; raises ValueError for a wrong shape."""
    batch, steps, width = x.shape
    channels = width // len(per_channel)
    gates = {"recurrence": (recurrence, (batch, steps, channels)), "input_gate": (input_gate, (batch, steps, channels))}
    vectors = {name: (vector, (channels,)) for name, vector in per_channel.items()}
    check_shapes(gates | vectors | {"h0": (h0, (batch, width)), "reset": (reset, (batch, steps))}, "x", x)
    h0 = jnp.zeros((batch, width), jnp.float32) if h0 is None else h0.astype(jnp.float32)
    flags = None if reset is None else reset.astype(jnp.int32)
    return Inputs(x, recurrence, input_gate, tuple(v.astype(jnp.float32) for v in per_channel.values()), h0, flags)


# Jitted, so that blocks of one kind are traced once, with the implementations of all platforms.
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
    dtypes = (*(inputs.x.dtype,) * count, inputs.recurrence.dtype, inputs.input_gate.dtype)
    walked = kernel.walk(steps, reads, reverse=True, dtypes=dtypes)
    *dx, drecurrence, dinput_gate = walked.outputs
    return Inputs(merged(tuple(dx)), drecurrence, dinput_gate, walked.sums, merged(walked.carry), None)


def rglru(
    x: Float[Array, "b t d"],
    recurrence: Float[Array, "b t d"],
    input_gate: Float[Array, "b t d"],
    rate: Float[Array, " d"],
    h0: Float[Array, "b d"] | None = None,
    *,
    reset: Bool[Array, "b t"] | None = None,
    unit_reset: bool = False,
    implementation: Implementation = "auto",
) -> tuple[Float[Array, "b t d"], Float[Array, "b d"]]:
    """Returns every state `h [b, t, d]` in the dtype of `x`, and the last one `[b, d]` in float32.

    `h_t = a_t h_{t-1} + sqrt(1 − a_t²) · i_t · x_t`, where `recurrence` and `input_gate` are the gates r and i before
    their sigmoid, and `log a_t = rate · r_t` (`rate = −c · softplus(−Λ) ≤ 0`). `h0` is the state before the first step
    (zero if None). Where `reset` is True the state before that step counts as zero; with `unit_reset` the root is 1
    there as well, as in RecurrentGemma. A step whose `recurrence` is `kernels.gates.CLOSED` leaves the state as it is.
    In the gradient, the slope of the root in `a²` is capped at 1000. `implementation` and errors are those of
    `linear_scan`; where devices share the time of a sequence, `split_scan` computes it whatever `implementation` says.

    >>> x = jnp.ones((1, 4, 2))
    >>> h, last = rglru(x, recurrence=0 * x, input_gate=0 * x, rate=jnp.full(2, -0.1))
    >>> h.shape, bool((last == h[:, -1]).all())
    ((1, 4, 2), True)
    """
    check(implementation, x)
    inputs = inputs_of(x, recurrence, input_gate, {"rate": rate}, h0, reset)
    if is_split():
        a, entering = _gated_input(inputs, unit_reset)
        h, last = split_scan(entering, a, inputs.h0)
        return h.astype(x.dtype), last
    return unit(inputs, unit_reset, implementation)


def cglru(
    x: Float[Array, "b t d"],
    recurrence: Float[Array, "b t n"],
    input_gate: Float[Array, "b t n"],
    rate: Float[Array, " n"],
    angle: Float[Array, " n"],
    h0: Float[Array, "b d"] | None = None,
    *,
    reset: Bool[Array, "b t"] | None = None,
    unit_reset: bool = False,
    implementation: Implementation = "auto",
) -> tuple[Float[Array, "b t d"], Float[Array, "b d"]]:
    """Returns every state `h [b, t, d]` in the dtype of `x`, and the last one `[b, d]` in float32.

    `h_t = a_t h_{t-1} + sqrt(1 − |a_t|²) · i_t · x_t` with `a_t = exp(r_t · (rate + j · angle))`; `recurrence` and
    `input_gate` are the gates r and i before their sigmoid. For the paper's `a^{c r}`, `a = σ(Λ) e^{jθ}`, `rate` is
    −c · softplus(−Λ) ≤ 0 and `angle` is c · θ, in radians. A step whose `recurrence` is `kernels.gates.CLOSED` leaves
    the state as it is, exactly.

    `h0` is the state before the first step (zero if None). Where `reset` is True the state before that step counts as
    zero; with `unit_reset` the root is 1 there as well. In the gradient, the slope of the root in `|a|²` is capped at
    1000. `implementation` and errors are those of `linear_scan`; `d` is 2 n.

    >>> x, gate = jnp.ones((1, 4, 6)), jnp.zeros((1, 4, 3))
    >>> h, last = cglru(x, gate, gate, rate=jnp.full(3, -0.1), angle=jnp.full(3, 0.3))
    >>> h.shape, last.shape
    ((1, 4, 6), (1, 6))
    """
    check(implementation, x)
    if x.shape[2] % 2:
        raise ValueError(f"x has {x.shape[2]} channels; a state needs two, a real and an imaginary one")
    inputs = inputs_of(x, recurrence, input_gate, {"rate": rate, "angle": angle}, h0, reset)
    return unit(inputs, unit_reset, implementation)


def gated_input(
    recurrence: Float[Array, "b t d"],
    input_gate: Float[Array, "b t d"],
    x: Float[Array, "b t d"],
    rate: Float[Array, " d"],
) -> tuple[Float[Array, "b t d"], Float[Array, "b t d"]]:
    """Returns the decay `a` and `sqrt(1 − a²) · i · x` in float32, which `rglru` gives to a linear scan on a CPU.

    The arguments are those of `rglru`. The gradient computes the gates again instead of keeping them.
    """
    return _gated_input(inputs_of(x, recurrence, input_gate, {"rate": rate}, None, None), False)


def _gated_input_primal(inputs: Inputs, unit_reset: bool) -> tuple[Array, Array]:
    (a,), (entering,) = Gated(BY_TANH, unit_reset).coefficients(*inputs.whole)
    return a, entering


_gated_input = jax.custom_vjp(_gated_input_primal, nondiff_argnums=(1,))


def _gated_input_backward(unit_reset: bool, inputs: Inputs, cotangents: tuple[Array, Array]) -> tuple[Inputs]:
    da, dentering = cotangents
    return (inputs.gradients(Gated(BY_TANH, unit_reset), (dentering,), (da,), (jnp.zeros_like(inputs.h0),)),)


_gated_input.defvjp(lambda inputs, unit_reset: (_gated_input_primal(inputs, unit_reset), inputs), _gated_input_backward)
