"""The real-gated linear recurrent unit (De et al. 2024, eqs. 1–4 and 6), gates and recurrence in one operation.

Shapes: b batch, t time, d channels. Gates, state and sums are float32 whatever the dtype of `x`.
"""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

from evalkit.kernels.dispatch import Implementation, check
from evalkit.kernels.gated import Inputs, inputs_of, unit
from evalkit.kernels.gates import BY_TANH
from evalkit.kernels.passes import Gated
from evalkit.kernels.sharded import is_split, split_scan


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
        a, entering = _gated_input(inputs, unit_reset)
        h, last = split_scan(entering, a, inputs.h0)
        return h.astype(x.dtype), last
    return unit(inputs, unit_reset, implementation)


def gated_input(
    recurrence: Float[Array, "b t d"], entry: Float[Array, "b t d"], x: Float[Array, "b t d"], rate: Float[Array, " d"]
) -> tuple[Float[Array, "b t d"], Float[Array, "b t d"]]:
    """Returns the decay `a` and `sqrt(1 − a²) · i · x` in float32, which `rglru` gives to a linear scan on a CPU.

    The arguments are those of `rglru`. The gradient computes the gates again instead of keeping them.
    """
    return _gated_input(inputs_of(x, recurrence, entry, {"rate": rate}, None, None), False)


def _gated_input_primal(inputs: Inputs, unit_reset: bool) -> tuple[Array, Array]:
    (a,), (entering,) = Gated(BY_TANH, unit_reset).coefficients(*inputs.whole)
    return a, entering


_gated_input = jax.custom_vjp(_gated_input_primal, nondiff_argnums=(1,))


def _backward(unit_reset: bool, inputs: Inputs, cotangents: tuple[Array, Array]) -> tuple[Inputs]:
    da, dentering = cotangents
    return (inputs.gradients(Gated(BY_TANH, unit_reset), (dentering,), (da,), (jnp.zeros_like(inputs.h0),)),)


_gated_input.defvjp(lambda inputs, unit_reset: (_gated_input_primal(inputs, unit_reset), inputs), _backward)
