"""The linear recurrence without a kernel of our own: step after step, or by pairs in logarithmic depth."""

from typing import Protocol, runtime_checkable

import jax.numpy as jnp
from jax import Array, lax


@runtime_checkable
class Scan(Protocol):
    """Every state `[b, t, d]` of `h_t = a_t h_{t-1} + x_t` from `h0 [b, d]`, all in one dtype."""

    def __call__(self, x: Array, a: Array, h0: Array, *, reverse: bool) -> Array: ...


def sequential(x: Array, a: Array, h0: Array, *, reverse: bool) -> Array:
    """One step after the other; `unroll=1`, because on a CPU unrolling costs compile time and run time alike."""

    def step(h, inputs):
        x_t, a_t = inputs
        h = a_t * h + x_t
        return h, h

    time_major = (jnp.swapaxes(x, 0, 1), jnp.swapaxes(a, 0, 1))
    _, h = lax.scan(step, h0, time_major, reverse=reverse)
    return jnp.swapaxes(h, 0, 1)


def associative(x: Array, a: Array, h0: Array, *, reverse: bool) -> Array:
    """Logarithmic depth: pairs `(a, x)` compose as `(a1 a2, a2 x1 + x2)`."""

    def compose(left, right):
        (a1, x1), (a2, x2) = left, right
        return a1 * a2, a2 * x1 + x2

    first = -1 if reverse else 0
    x = x.at[:, first].add(a[:, first] * h0)
    _, h = lax.associative_scan(compose, (a, x), reverse=reverse, axis=1)
    return h


def adjoint(scan: Scan, a: Array, h: Array, h0: Array, dh: Array, dlast: Array, *, reverse: bool) -> tuple[Array, ...]:
    """The gradients of x, a and h0: the same scan run the other way, with `a` moved by one step."""
    # g_t = dh_t + a_{t+1} g_{t+1}; what reaches the last state from outside enters where the reversed scan starts.
    g = scan(dh, shift(a, jnp.ones_like(dlast), not reverse), dlast, reverse=not reverse)
    first = -1 if reverse else 0
    return g, g * shift(h, h0, reverse), a[:, first] * g[:, first]


def shift(values: Array, edge: Array, reverse: bool) -> Array:
    """`values` moved one step later (earlier with `reverse`), `edge [b, d]` filling the gap."""
    if reverse:
        return jnp.concatenate([values[:, 1:], edge[:, None]], axis=1)
    return jnp.concatenate([edge[:, None], values[:, :-1]], axis=1)
