"""The complex-gated linear recurrent unit (De et al. 2024, app. B), gates and recurrence in one operation.

Shapes: b batch, t time, n complex channels, d = 2 n: the real parts of all channels, then their imaginary parts. The
gates, the state and all sums are float32 whatever the dtype of `x`.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

from evalkit.kernels.dispatch import Implementation, check, check_shapes, dispatch
from evalkit.kernels.gates import Gates, complex_gate_gradients, gates, gates_with_reset, turned
from evalkit.kernels.passes import ComplexGated, ComplexGatedGradient, Kernel
from evalkit.kernels.planes import Planes, conjugate, float32, scaled, times
from evalkit.kernels.xla import Scan, adjoint


def cglru(
    x: Float[Array, "b t d"],
    recurrence: Float[Array, "b t n"],
    entry: Float[Array, "b t n"],
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
    `entry` are the gates r and i before their sigmoid. For the paper's `a^{c r}`, `a = σ(Λ) e^{jθ}`, `rate` is
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
    states = x.shape[2] // 2
    rows, state, gate = x.shape[:2], (x.shape[0], x.shape[2]), (*x.shape[:2], states)
    of_gates = {"recurrence": (recurrence, gate), "entry": (entry, gate)}
    of_channels = {"rate": (rate, (states,)), "angle": (angle, (states,))}
    check_shapes(of_gates | of_channels | {"h0": (h0, state), "reset": (reset, rows)}, "x", x)
    if h0 is None:
        h0 = jnp.zeros(state, jnp.float32)
    flags = None if reset is None else reset.astype(jnp.int32)
    rate, angle, h0 = (value.astype(jnp.float32) for value in (rate, angle, h0))
    return _cglru(Inputs(x, recurrence, entry, rate, angle, h0, flags), unit_reset, implementation)


class Inputs(NamedTuple):
    """The arguments of `cglru`; `flags [b, t]` are 1 where the state is reset, because kernels read no booleans."""

    x: Array
    recurrence: Array
    entry: Array
    rate: Array
    angle: Array
    h0: Array
    flags: Array | None


def _cglru_primal(inputs: Inputs, unit_reset: bool, implementation: Implementation) -> tuple[Array, Array]:
    by_scan, by_kernel = partial(_states_by_scan, unit_reset), partial(_states_by_kernel, unit_reset)
    return dispatch(implementation, by_scan, by_kernel, inputs)


_cglru = jax.custom_vjp(_cglru_primal, nondiff_argnums=(1, 2))


def _cglru_forward(inputs: Inputs, unit_reset: bool, implementation: Implementation):
    h, last = _cglru_primal(inputs, unit_reset, implementation)
    return (h, last), (inputs, h)


def _cglru_backward(
    unit_reset: bool, implementation: Implementation, kept: tuple[Inputs, Array], cotangents: tuple[Array, Array]
) -> tuple[Inputs]:
    by_scan, by_kernel = partial(_gradients_by_scan, unit_reset), partial(_gradients_by_kernel, unit_reset)
    return (dispatch(implementation, by_scan, by_kernel, *kept, *cotangents),)


_cglru.defvjp(_cglru_forward, _cglru_backward)


def _states_by_scan(unit_reset: bool, scan: Scan, inputs: Inputs) -> tuple[Array, Array]:
    opened, a = _opened(inputs, unit_reset)
    entering = scaled(opened.scale * opened.i, float32(_split(inputs.x)))
    h = _merge(scan(entering, a, _split(inputs.h0), reverse=False))
    return h.astype(inputs.x.dtype), h[:, -1]


def _gradients_by_scan(unit_reset: bool, scan: Scan, inputs: Inputs, h: Array, dh: Array, dlast: Array) -> Inputs:
    x, recurrence, entry, rate, angle, h0, _ = inputs
    opened, a = _opened(inputs, unit_reset)
    given = (float32(_split(value)) for value in (h, h0, dh, dlast))
    g, da, dh0 = adjoint(scan, a, *given, reverse=False)
    dlog_a = times(conjugate(a), da)
    gradients = complex_gate_gradients(opened, float32(_split(x)), rate[None, None], angle[None, None], dlog_a, g)
    return Inputs(
        x=_merge(gradients.x).astype(x.dtype),
        recurrence=gradients.recurrence.astype(recurrence.dtype),
        entry=gradients.entry.astype(entry.dtype),
        rate=gradients.rate.sum(axis=(0, 1)),
        angle=gradients.angle.sum(axis=(0, 1)),
        h0=_merge(dh0),
        flags=None,
    )


def _opened(inputs: Inputs, unit_reset: bool) -> tuple[Gates, Planes]:
    """Returns the gates and the complex decay of every step."""
    _, recurrence, entry, rate, angle, _, flags = inputs
    reset = None if flags is None else flags[..., None] != 0
    opened = gates_with_reset(gates, recurrence, entry, rate[None, None], reset, unit_reset)
    return opened, turned(opened, angle[None, None], reset)


def _states_by_kernel(unit_reset: bool, kernel: Kernel, inputs: Inputs) -> tuple[Array, Array]:
    x, _, _, rate, angle, h0, _ = inputs
    steps = ComplexGated(kernel.gates, unit_reset)
    walked = kernel.walk(steps, _rows(inputs), (rate, angle), (), _split(h0), reverse=False, dtypes=(x.dtype, x.dtype))
    return _merge(walked.outputs), _merge(walked.carry)


def _gradients_by_kernel(unit_reset: bool, kernel: Kernel, inputs: Inputs, h: Array, dh: Array, dlast: Array) -> Inputs:
    x, recurrence, entry, rate, angle, h0, _ = inputs
    steps = ComplexGatedGradient(kernel.gates, unit_reset)
    rows, lagged = (*_split(dh), *_rows(inputs)), tuple(zip(_split(h), _split(h0), strict=True))
    dtypes = (x.dtype, x.dtype, recurrence.dtype, entry.dtype)
    walked = kernel.walk(steps, rows, (rate, angle), lagged, _split(dlast), reverse=True, dtypes=dtypes)
    (*dx, drecurrence, dentry), (drate, dangle) = walked.outputs, walked.sums
    return Inputs(_merge(tuple(dx)), drecurrence, dentry, drate, dangle, _merge(walked.carry), None)


def _rows(inputs: Inputs) -> tuple[Array, ...]:
    rows = (*_split(inputs.x), inputs.recurrence, inputs.entry)
    return rows if inputs.flags is None else (*rows, inputs.flags)


def _split(x: Array) -> Planes:
    n = x.shape[-1] // 2
    return x[..., :n], x[..., n:]


def _merge(z: Planes) -> Array:
    return jnp.concatenate(z, axis=-1)
