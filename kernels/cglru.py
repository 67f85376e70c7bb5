"""The complex-gated linear recurrent unit (De et al. 2024, app. B), gates and recurrence in one operation.

Shapes: b batch, t time, n complex channels, d = 2 n: the real parts of all channels, then their imaginary parts.
Nothing here has a complex dtype, because kernels for accelerators take none. Whatever the inputs' dtype, gates,
products and sums are taken in float32 (float64 for float64 inputs).
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import DTypeLike
from jaxtyping import Bool, Float

IMPLEMENTATIONS = ("auto", "sequential", "associative")
SMALLEST_ROOT = 0.5e-3  # caps the slope of sqrt(1 − |a|²) in |a|² at 1000


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
    implementation: str = "auto",
) -> tuple[Float[Array, "b t d"], Float[Array, "b d"]]:
    """Returns every state `h [b, t, d]` in the dtype of `x`, and the last one `[b, d]` in float32.

    `h_t = a_t h_{t-1} + sqrt(1 − |a_t|²) · i_t · x_t` with `a_t = exp(r_t · (rate + j · angle))`; `recurrence` and
    `entry` are the gates r and i before their sigmoid. For the paper's `a^{c r}`, `a = σ(Λ) e^{jθ}`, `rate` is
    −c · softplus(−Λ) ≤ 0 and `angle` is c · θ, in radians. A step whose `recurrence` is −1e30 leaves the state as it
    is, exactly.

    `h0` is the state before the first step (zero if None). Where `reset` is True the state before that step counts as
    zero; with `unit_reset` the root is 1 there as well. The slope of the root is capped at 1000, so that |a| → 1 gives
    no infinite gradient. The default implementation is associative on a GPU and sequential elsewhere. Raises ValueError
    for an empty time axis, for `d` that is not 2 n, and for an unknown implementation.
    """
    if x.shape[1] == 0:
        raise ValueError(f"cglru needs at least one step; x has shape {x.shape}")
    if x.shape[2] != 2 * recurrence.shape[2]:
        raise ValueError(f"x has {x.shape[2]} channels, the gates {recurrence.shape[2]}; give x twice as many as them")
    if implementation not in IMPLEMENTATIONS:
        raise ValueError(f"implementation={implementation!r}; allowed: {', '.join(IMPLEMENTATIONS)}")
    accumulate = jnp.promote_types(x.dtype, jnp.float32)
    h0 = jnp.zeros((x.shape[0], x.shape[2]), accumulate) if h0 is None else h0.astype(accumulate)
    return _cglru(_Inputs(x, recurrence, entry, rate, angle, h0, reset), unit_reset, implementation)


class _Inputs(NamedTuple):
    """The arrays of one call; `h0` has the dtype that everything is computed in."""

    x: Array
    recurrence: Array
    entry: Array
    rate: Array
    angle: Array
    h0: Array
    reset: Array | None


def _cglru_primal(inputs: _Inputs, unit_reset: bool, implementation: str) -> tuple[Array, Array]:
    return _dispatch(implementation, partial(_states, unit_reset=unit_reset), inputs)


_cglru = jax.custom_vjp(_cglru_primal, nondiff_argnums=(1, 2))


def _cglru_forward(inputs: _Inputs, unit_reset: bool, implementation: str):
    h, last = _cglru_primal(inputs, unit_reset, implementation)
    return (h, last), (inputs, h)


def _cglru_backward(unit_reset: bool, implementation: str, kept: tuple[Any, ...], cotangents: tuple[Array, Array]):
    return (_dispatch(implementation, partial(_gradients, unit_reset=unit_reset), *kept, *cotangents),)


_cglru.defvjp(_cglru_forward, _cglru_backward)


def _dispatch(implementation: str, by_scan: Callable[..., Any], *arrays: Any) -> Any:
    """A whole forward or backward pass on the platform that it is lowered for: a fused kernel goes beside these."""
    sequential, associative = partial(by_scan, _sequential), partial(by_scan, _associative)
    if implementation == "auto":
        return lax.platform_dependent(*arrays, cuda=associative, rocm=associative, default=sequential)
    return (sequential if implementation == "sequential" else associative)(*arrays)


class Planes(NamedTuple):
    """A complex array: its real and its imaginary part."""

    re: Array
    im: Array


@runtime_checkable
class _Scan(Protocol):
    """Every state of `h_t = a_t h_{t-1} + x_t` from `h0`; with `reverse` from the last step to the first."""

    def __call__(self, x: Planes, a: Planes, h0: Planes, *, reverse: bool) -> Planes: ...


def _states(scan: _Scan, inputs: _Inputs, *, unit_reset: bool) -> tuple[Array, Array]:
    gates = _gates(inputs, unit_reset)
    entering = _scaled(gates.scale * gates.i, _split(inputs.x.astype(inputs.h0.dtype)))
    h = _merge(scan(entering, gates.a, _split(inputs.h0), reverse=False))
    return h.astype(inputs.x.dtype), h[:, -1]


def _gradients(scan: _Scan, inputs: _Inputs, h: Array, dh: Array, dlast: Array, *, unit_reset: bool) -> _Inputs:
    """Everything but the inputs and `h` is taken again; `g` is the gradient that reaches each state."""
    x, recurrence, entry, rate, angle, h0, _ = inputs
    gates = _gates(inputs, unit_reset)
    g, dh0 = _adjoint(scan, gates.a, dh.astype(h0.dtype), dlast)
    kept = _times(gates.a, _split(jnp.concatenate([h0[:, None], h[:, :-1].astype(h0.dtype)], axis=1)))
    dscale_i = _inner(g, _split(x.astype(h0.dtype)))
    dlog_magnitude = _inner(g, kept) + dscale_i * gates.i * gates.slope
    dturn = _inner(g, Planes(-kept.im, kept.re))
    dr = dlog_magnitude * rate[None, None] + dturn * angle[None, None]
    return _Inputs(
        x=_merge(_scaled(gates.scale * gates.i, g)).astype(x.dtype),
        recurrence=(dr * gates.r * (1 - gates.r)).astype(recurrence.dtype),
        entry=(dscale_i * gates.scale * gates.i * (1 - gates.i)).astype(entry.dtype),
        rate=(dlog_magnitude * gates.r).sum(axis=(0, 1)).astype(rate.dtype),
        angle=(dturn * gates.r).sum(axis=(0, 1)).astype(angle.dtype),
        h0=_merge(dh0),
        reset=None,
    )


class _Gates(NamedTuple):
    """r, i, a_t, sqrt(1 − |a_t|²) and its slope in log |a_t|."""

    r: Array
    i: Array
    a: Planes
    scale: Array
    slope: Array


def _gates(inputs: _Inputs, unit_reset: bool) -> _Gates:
    dtype: DTypeLike = inputs.h0.dtype
    r, i = jax.nn.sigmoid(inputs.recurrence.astype(dtype)), jax.nn.sigmoid(inputs.entry.astype(dtype))
    log_magnitude, turn = r * inputs.rate[None, None], r * inputs.angle[None, None]
    magnitude = jnp.exp(log_magnitude)
    scale = jnp.sqrt(-jnp.expm1(2 * log_magnitude))  # without cancellation as |a| → 1
    slope = -magnitude * magnitude / jnp.maximum(scale, SMALLEST_ROOT)
    if inputs.reset is not None:
        reset = inputs.reset[..., None]
        magnitude = jnp.where(reset, 0, magnitude)
        if unit_reset:
            scale, slope = jnp.where(reset, 1, scale), jnp.where(reset, 0, slope)
    return _Gates(r, i, Planes(magnitude * jnp.cos(turn), magnitude * jnp.sin(turn)), scale, slope)


def _adjoint(scan: _Scan, a: Planes, dh: Array, dlast: Array) -> tuple[Planes, Planes]:
    """`g_t = dh_t + conj(a_{t+1}) g_{t+1}`, with `dlast` reaching the last state from outside; the gradient of h0."""
    back = Planes(a.re, -a.im)
    shifted = Planes(
        jnp.concatenate([back.re[:, 1:], jnp.ones_like(back.re[:, :1])], axis=1),
        jnp.concatenate([back.im[:, 1:], jnp.zeros_like(back.im[:, :1])], axis=1),
    )
    g = scan(_split(dh), shifted, _split(dlast), reverse=True)
    return g, _times(_at(back, 0), _at(g, 0))


def _sequential(x: Planes, a: Planes, h0: Planes, *, reverse: bool) -> Planes:
    """One step after the other."""

    def step(h: Planes, inputs: tuple[Planes, Planes]) -> tuple[Planes, Planes]:
        x_t, a_t = inputs
        h = _plus(_times(a_t, h), x_t)
        return h, h

    def swap(arrays: Any) -> Any:
        return jax.tree.map(lambda plane: jnp.swapaxes(plane, 0, 1), arrays)

    return swap(lax.scan(step, h0, swap((x, a)), reverse=reverse)[1])


def _associative(x: Planes, a: Planes, h0: Planes, *, reverse: bool) -> Planes:
    """Logarithmic depth: pairs `(a, x)` compose as `(a1 a2, a2 x1 + x2)`."""

    def compose(left: tuple[Planes, Planes], right: tuple[Planes, Planes]) -> tuple[Planes, Planes]:
        (a1, x1), (a2, x2) = left, right
        return _times(a1, a2), _plus(_times(a2, x1), x2)

    first = -1 if reverse else 0
    start = _times(_at(a, first), h0)
    x = Planes(x.re.at[:, first].add(start.re), x.im.at[:, first].add(start.im))
    return lax.associative_scan(compose, (a, x), reverse=reverse, axis=1)[1]


def _split(x: Array) -> Planes:
    n = x.shape[-1] // 2
    return Planes(x[..., :n], x[..., n:])


def _merge(z: Planes) -> Array:
    return jnp.concatenate([z.re, z.im], axis=-1)


def _at(z: Planes, step: int) -> Planes:
    return Planes(z.re[:, step], z.im[:, step])


def _times(a: Planes, b: Planes) -> Planes:
    return Planes(a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re)


def _plus(a: Planes, b: Planes) -> Planes:
    return Planes(a.re + b.re, a.im + b.im)


def _scaled(scale: Array, z: Planes) -> Planes:
    return Planes(scale * z.re, scale * z.im)


def _inner(a: Planes, b: Planes) -> Array:
    """Re(conj(a) b): what a change b is worth where the gradient is a."""
    return a.re * b.re + a.im * b.im
