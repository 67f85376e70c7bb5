"""The real-gated linear recurrent unit (De et al. 2024, eqs. 1–4 and 6), gates and recurrence in one operation.

Shapes: b batch, t time, d channels. Gates, state and sums are float32 whatever the dtype of `x`.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

from evalkit.kernels.dispatch import Implementation, check, check_shapes, dispatch
from evalkit.kernels.gates import gate_gradients, gates, gates_with_reset, without
from evalkit.kernels.passes import Gated, GatedGradient, Kernel
from evalkit.kernels.sharded import is_split, split_scan
from evalkit.kernels.xla import Scan, adjoint


def rglru(
    x: Float[Array, "b t d"],
    recurrence: Float[Array, "b t d"],
    entry: Float[Array, "b t d"],
    rate: Float[Array, " d"],
    h0: Float[Array, "b d"] | None = None,
    *,
    reset: Bool[Array, "b t"] | None = None,
    unit_reset: bool = False,
    implementation: Implementation = "auto",
) -> tuple[Float[Array, "b t d"], Float[Array, "b d"]]:
    """Returns every state `h [b, t, d]` in the dtype of `x`, and the last one `[b, d]` in float32.

    `h_t = a_t h_{t-1} + sqrt(1 − a_t²) · i_t · x_t`, where `recurrence` and `entry` are the gates r and i before their
    sigmoid, and `log a_t = rate · r_t` (`rate = −c · softplus(−Λ) ≤ 0`). `h0` is the state before the first step (zero
    if None). Where `reset` is True the state before that step counts as zero; with `unit_reset` the root is 1 there as
    well, as in RecurrentGemma. A step whose `recurrence` is `kernels.gates.CLOSED` leaves the state as it is.
    In the gradient, the slope of the root in `a²` is capped at 1000. `implementation` and errors are those of
    `linear_scan`.

    >>> x = jnp.ones((1, 4, 2))
    >>> h, last = rglru(x, recurrence=0 * x, entry=0 * x, rate=jnp.full(2, -0.1))
    >>> h.shape, bool((last == h[:, -1]).all())
    ((1, 4, 2), True)
    """
    check(implementation, x)
    rows, state = x.shape[:2], (x.shape[0], x.shape[2])
    of_gates = {"recurrence": (recurrence, x.shape), "entry": (entry, x.shape), "rate": (rate, x.shape[2:])}
    check_shapes(of_gates | {"h0": (h0, state), "reset": (reset, rows)}, "x", x)
    if h0 is None:
        h0 = jnp.zeros(state, jnp.float32)
    flags = None if reset is None else reset.astype(jnp.int32)
    inputs = Inputs(x, recurrence, entry, rate.astype(jnp.float32), h0.astype(jnp.float32), flags)
    if is_split():
        a, gated = _gated_input(recurrence, entry, x, inputs.rate, flags, unit_reset)
        h, last = split_scan(gated, a, inputs.h0)
        return h.astype(x.dtype), last
    return _rglru(inputs, unit_reset, implementation)


class Inputs(NamedTuple):
    """The arguments of `rglru`; `flags [b, t]` are 1 where the state is reset, because kernels read no booleans."""

    x: Array
    recurrence: Array
    entry: Array
    rate: Array
    h0: Array
    flags: Array | None


def _rglru_primal(inputs: Inputs, unit_reset: bool, implementation: Implementation) -> tuple[Array, Array]:
    by_scan, by_kernel = partial(_states_by_scan, unit_reset), partial(_states_by_kernel, unit_reset)
    return dispatch(implementation, by_scan, by_kernel, inputs)


_rglru = jax.custom_vjp(_rglru_primal, nondiff_argnums=(1, 2))


def _rglru_forward(inputs: Inputs, unit_reset: bool, implementation: Implementation):
    h, last = _rglru_primal(inputs, unit_reset, implementation)
    return (h, last), (inputs, h)


def _rglru_backward(
    unit_reset: bool, implementation: Implementation, kept: tuple[Inputs, Array], cotangents: tuple[Array, Array]
) -> tuple[Inputs]:
    by_scan, by_kernel = partial(_gradients_by_scan, unit_reset), partial(_gradients_by_kernel, unit_reset)
    return (dispatch(implementation, by_scan, by_kernel, *kept, *cotangents),)


_rglru.defvjp(_rglru_forward, _rglru_backward)


def _states_by_scan(unit_reset: bool, scan: Scan, inputs: Inputs) -> tuple[Array, Array]:
    x, recurrence, entry, rate, h0, flags = inputs
    a, gated = _gated_input(recurrence, entry, x, rate, flags, unit_reset)
    (h,) = scan((gated,), (a,), (h0,), reverse=False)
    return h.astype(x.dtype), h[:, -1]


def _gradients_by_scan(unit_reset: bool, scan: Scan, inputs: Inputs, h: Array, dh: Array, dlast: Array) -> Inputs:
    x, recurrence, entry, rate, h0, flags = inputs
    (a, _), pull = jax.vjp(
        lambda *gate_inputs: _gated_input(*gate_inputs, flags, unit_reset), recurrence, entry, x, rate
    )
    given = ((value.astype(jnp.float32),) for value in (a, h, h0, dh, dlast))
    (dgated,), (da,), (dh0,) = adjoint(scan, *given, reverse=False)
    drecurrence, dentry, dx, drate = pull((da, dgated))
    return Inputs(dx, drecurrence, dentry, drate, dh0, None)


def _states_by_kernel(unit_reset: bool, kernel: Kernel, inputs: Inputs) -> tuple[Array, Array]:
    x, recurrence, entry, rate, h0, flags = inputs
    rows = (x, recurrence, entry) if flags is None else (x, recurrence, entry, flags)
    steps = Gated(kernel.gates, unit_reset)
    walked = kernel.walk(steps, rows, (rate,), (), (h0,), reverse=False, dtypes=(x.dtype,))
    return walked.outputs[0], walked.carry[0]


def _gradients_by_kernel(unit_reset: bool, kernel: Kernel, inputs: Inputs, h: Array, dh: Array, dlast: Array) -> Inputs:
    x, recurrence, entry, rate, h0, flags = inputs
    rows = (dh, x, recurrence, entry) if flags is None else (dh, x, recurrence, entry, flags)
    steps = GatedGradient(kernel.gates, unit_reset)
    dtypes = (x.dtype, recurrence.dtype, entry.dtype)
    walked = kernel.walk(steps, rows, (rate,), ((h, h0),), (dlast,), reverse=True, dtypes=dtypes)
    (dx, drecurrence, dentry), (drate,) = walked.outputs, walked.sums
    return Inputs(dx, drecurrence, dentry, drate, walked.carry[0], None)


def gated_input(
    recurrence: Float[Array, "b t d"], entry: Float[Array, "b t d"], x: Float[Array, "b t d"], rate: Float[Array, " d"]
) -> tuple[Float[Array, "b t d"], Float[Array, "b t d"]]:
    """Returns the decay `a` and `sqrt(1 − a²) · i · x` in float32, which `rglru` gives to a linear scan on a CPU.

    The arguments are those of `rglru`. The gradient computes the gates again instead of keeping them.
    """
    return _gated_input(recurrence, entry, x, rate, None, False)


def _gated_input_primal(
    recurrence: Array, entry: Array, x: Array, rate: Array, flags: Array | None, unit_reset: bool
) -> tuple[Array, Array]:
    reset = None if flags is None else flags[..., None] != 0
    opened = gates_with_reset(gates, recurrence, entry, rate[None, None], reset, unit_reset)
    return without(opened.a, reset), opened.scale * opened.i * x.astype(jnp.float32)


_gated_input = jax.custom_vjp(_gated_input_primal, nondiff_argnums=(5,))


def _gated_input_forward(recurrence: Array, entry: Array, x: Array, rate: Array, flags: Array | None, unit_reset: bool):
    return _gated_input_primal(recurrence, entry, x, rate, flags, unit_reset), (recurrence, entry, x, rate, flags)


def _gated_input_backward(unit_reset: bool, kept: tuple, cotangents: tuple[Array, Array]) -> tuple:
    recurrence, entry, x, rate, flags = kept
    da, dgated = cotangents
    reset = None if flags is None else flags[..., None] != 0
    opened = gates_with_reset(gates, recurrence, entry, rate[None, None], reset, unit_reset)
    gradients = gate_gradients(opened, x, rate[None, None], without(da, reset), dgated)
    # Summed over flat rows: on a CPU, XLA's sums are slow over an array whose first axis is 1.
    drate = gradients.rate.reshape(-1, rate.shape[0]).sum(axis=0)
    gradients = (gradients.recurrence, gradients.entry, gradients.x)
    return (*(g.astype(v.dtype) for g, v in zip(gradients, kept, strict=False)), drate, None)


_gated_input.defvjp(_gated_input_forward, _gated_input_backward)
