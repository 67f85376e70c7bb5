"""The complex-gated linear recurrent unit (De et al. 2024, app. B), gates and recurrence in one operation.

Shapes: b batch, t time, n complex channels, d = 2 n: the real parts of all channels, then their imaginary parts. The
gates, the state and all sums are float32 whatever the dtype of `x`.
"""

from jax import Array
from jaxtyping import Bool, Float

from evalkit.kernels.dispatch import Implementation, check
from evalkit.kernels.gated import inputs_of, unit


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

    >>> import jax.numpy as jnp
    >>> x, gate = jnp.ones((1, 4, 6)), jnp.zeros((1, 4, 3))
    >>> h, last = cglru(x, gate, gate, rate=jnp.full(3, -0.1), angle=jnp.full(3, 0.3))
    >>> h.shape, last.shape
    ((1, 4, 6), (1, 6))
    """
    check(implementation, x)
    if x.shape[2] % 2:
        raise ValueError(f"x has {x.shape[2]} channels; a state needs two, a real and an imaginary one")
    inputs = inputs_of(x, recurrence, entry, {"rate": rate, "angle": angle}, h0, reset)
    return unit(inputs, unit_reset, implementation)
