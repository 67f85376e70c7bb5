"""The real-gated linear recurrent unit (De et al. 2024, eqs. 1–4 and 6), gates and recurrence in one operation.

Shapes: b batch, t time, d channels. Gates, state and sums are float32 whatever the dtype of `x`.
"""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

from evalkit.kernels.dispatch import Implementation, check
from evalkit.kernels.gated import Inputs, inputs_of, unit
from evalkit.kernels.gates import gate_gradients, gates, gates_with_reset, without
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
    inputs = inputs_of(x, recurrence, entry, {"rate": rate}, h0, reset)
    if is_split():
        a, gated = _gated_input(*_of_gates(inputs), inputs.flags, unit_reset)
        h, last = split_scan(gated, a, inputs.h0)
        return h.astype(x.dtype), last
    return _rglru(inputs, unit_reset, implementation)


def _states_by_scan(unit_reset: bool, scan: Scan, inputs: Inputs) -> tuple[Array, Array]:
    a, gated = _gated_input(*_of_gates(inputs), inputs.flags, unit_reset)
    (h,) = scan((gated,), (a,), (inputs.h0,), reverse=False)
    return h.astype(inputs.x.dtype), h[:, -1]


def _gradients_by_scan(unit_reset: bool, scan: Scan, inputs: Inputs, h: Array, dh: Array, dlast: Array) -> Inputs:
    (a, _), pull = jax.vjp(lambda *of_gates: _gated_input(*of_gates, inputs.flags, unit_reset), *_of_gates(inputs))
    wide = ((value.astype(jnp.float32),) for value in (a, h, inputs.h0, dh, dlast))
    (dgated,), (da,), (dh0,) = adjoint(scan, *wide, reverse=False)
    drecurrence, dentry, dx, drate = pull((da, dgated))
    return Inputs(dx, drecurrence, dentry, (drate,), dh0, None)


def _of_gates(inputs: Inputs) -> tuple[Array, Array, Array, Array]:
    """Returns the arguments of `gated_input`."""
    (rate,) = inputs.per_channel
    return inputs.recurrence, inputs.entry, inputs.x, rate


_rglru = unit(_states_by_scan, _gradients_by_scan)


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
