"""The diagonal linear recurrence `h_t = a_t h_{t-1} + x_t` (De et al. 2024, eq. 4), with one custom gradient.

Shapes: b batch, t time, d channels. Whatever the inputs' dtype, products and sums are taken in float32 (float64 for
float64 inputs); `h` comes back in the dtype of `x`, the last state in the accumulation dtype.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float

IMPLEMENTATIONS = ("auto", "sequential", "associative")


def linear_scan(
    x: Float[Array, "b t d"],
    a: Float[Array, "b t d"],
    h0: Float[Array, "b d"] | None = None,
    *,
    reset: Bool[Array, "b t"] | None = None,
    reverse: bool = False,
    implementation: str = "auto",
) -> tuple[Float[Array, "b t d"], Float[Array, "b d"]]:
    """Returns every state `h [b, t, d]` and the last one `[b, d]` of `h_t = a_t h_{t-1} + x_t`.

    `h0` is the state before the first step (zero if None). Where `reset` is True the state before that step counts as
    zero. With `reverse` time runs from the last step to the first, and the last state is the one at step 0. The default
    implementation is sequential on a CPU and a TPU, and associative on a GPU, where a step of a sequential loop costs a
    kernel launch. Raises ValueError for an empty time axis or an unknown implementation.
    """
    if x.shape[1] == 0:
        raise ValueError(f"linear_scan needs at least one step; x has shape {x.shape}")
    if implementation not in IMPLEMENTATIONS:
        raise ValueError(f"implementation={implementation!r}; allowed: {', '.join(IMPLEMENTATIONS)}")
    accumulate = jnp.float64 if x.dtype == jnp.float64 else jnp.float32
    if reset is not None:
        a = jnp.where(reset[..., None], jnp.zeros((), a.dtype), a)
    if h0 is None:
        h0 = jnp.zeros((x.shape[0], x.shape[2]), accumulate)
    h, last = _scan(x.astype(accumulate), a.astype(accumulate), h0.astype(accumulate), reverse, implementation)
    return h.astype(x.dtype), last


def _scan_primal(x: Array, a: Array, h0: Array, reverse: bool, implementation: str) -> tuple[Array, Array]:
    h = _states(x, a, h0, reverse, implementation)
    return h, h[:, 0 if reverse else -1]


_scan = jax.custom_vjp(_scan_primal, nondiff_argnums=(3, 4))


def _scan_forward(x: Array, a: Array, h0: Array, reverse: bool, implementation: str):
    h, last = _scan_primal(x, a, h0, reverse, implementation)
    return (h, last), (a, h0, h)


def _scan_backward(reverse: bool, implementation: str, residuals: tuple[Array, ...], cotangents: tuple[Array, ...]):
    """The gradient of a linear scan is the same scan run the other way with `a` moved by one step."""
    a, h0, h = residuals
    dh, dlast = cotangents
    # g_t = dh_t + a_{t+1} g_{t+1}; what reaches the last state from outside enters where the reversed scan starts.
    g = _states(dh, _shift(a, jnp.ones_like(dlast), not reverse), dlast, not reverse, implementation)
    previous = _shift(h, h0, reverse)
    first = -1 if reverse else 0
    return g, g * previous, a[:, first] * g[:, first]


_scan.defvjp(_scan_forward, _scan_backward)


def _shift(values: Array, edge: Array, reverse: bool) -> Array:
    """`values` moved one step later (earlier with `reverse`), `edge [b, d]` filling the gap."""
    if reverse:
        return jnp.concatenate([values[:, 1:], edge[:, None]], axis=1)
    return jnp.concatenate([edge[:, None], values[:, :-1]], axis=1)


def _states(x: Array, a: Array, h0: Array, reverse: bool, implementation: str) -> Array:
    sequential = partial(_sequential, reverse=reverse)
    associative = partial(_associative, reverse=reverse)
    if implementation == "auto":
        return lax.platform_dependent(x, a, h0, cuda=associative, rocm=associative, default=sequential)
    return (sequential if implementation == "sequential" else associative)(x, a, h0)


def _sequential(x: Array, a: Array, h0: Array, *, reverse: bool) -> Array:
    """One step after the other; `unroll=1`, because on a CPU unrolling costs compile time and run time alike."""

    def step(h, inputs):
        x_t, a_t = inputs
        h = a_t * h + x_t
        return h, h

    time_major = (jnp.swapaxes(x, 0, 1), jnp.swapaxes(a, 0, 1))
    _, h = lax.scan(step, h0, time_major, reverse=reverse)
    return jnp.swapaxes(h, 0, 1)


def _associative(x: Array, a: Array, h0: Array, *, reverse: bool) -> Array:
    """Logarithmic depth: pairs `(a, x)` compose as `(a1 a2, a2 x1 + x2)`."""

    def compose(left, right):
        (a1, x1), (a2, x2) = left, right
        return a1 * a2, a2 * x1 + x2

    first = -1 if reverse else 0
    x = x.at[:, first].add(a[:, first] * h0)
    _, h = lax.associative_scan(compose, (a, x), reverse=reverse, axis=1)
    return h
