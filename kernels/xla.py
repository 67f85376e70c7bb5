"""The linear recurrence by XLA alone: step by step, or by pairs in logarithmic depth.

Numbers are real or complex: every argument is one of `kernels.planes`.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array, lax

from evalkit.kernels.planes import ONE, Planes, conjugate, plus, times

Scan = Callable[..., Planes]
"""Computes every state `[b, t, d]` of `h_t = a_t h_{t-1} + x_t`, as `scan(x, a, h0, reverse=…)`, all in one dtype."""


def sequential(x: Planes, a: Planes, h0: Planes, *, reverse: bool) -> Planes:
    """Scans step by step."""
    # Not unrolled: on a CPU that costs compile time and run time.

    def step(h: Planes, inputs: tuple[Planes, Planes]) -> tuple[Planes, Planes]:
        x_t, a_t = inputs
        h = plus(times(a_t, h), x_t)
        return h, h

    time_major = jax.tree.map(lambda plane: jnp.swapaxes(plane, 0, 1), (x, a))
    _, h = lax.scan(step, h0, time_major, reverse=reverse)
    return tuple(jnp.swapaxes(plane, 0, 1) for plane in h)


def associative(x: Planes, a: Planes, h0: Planes, *, reverse: bool) -> Planes:
    """Scans in logarithmic depth: pairs `(a, x)` compose as `(a1 a2, a2 x1 + x2)`."""

    def compose(left: tuple[Planes, Planes], right: tuple[Planes, Planes]) -> tuple[Planes, Planes]:
        (a1, x1), (a2, x2) = left, right
        return times(a1, a2), plus(times(a2, x1), x2)

    first = -1 if reverse else 0
    # The state before the first step enters through the first input.
    start = times(_at(a, first), h0)
    x = tuple(plane.at[:, first].add(edge) for plane, edge in zip(x, start, strict=True))
    _, h = lax.associative_scan(compose, (a, x), reverse=reverse, axis=1)
    return h


def adjoint(
    scan: Scan, a: Planes, h: Planes, h0: Planes, dh: Planes, dlast: Planes, *, reverse: bool
) -> tuple[Planes, Planes, Planes]:
    """Returns the gradients of x, a and h0: the same scan in the other direction, with `conj(a)` moved by one step."""
    # g_t = dh_t + conj(a_{t+1}) g_{t+1}, starting from the gradient of the last state, `dlast`.
    back = conjugate(a)
    one = tuple(jnp.full_like(edge, value) for edge, value in zip(dlast, ONE, strict=False))
    g = scan(dh, _shifted(back, one, not reverse), dlast, reverse=not reverse)
    first = -1 if reverse else 0
    return g, times(g, conjugate(_shifted(h, h0, reverse))), times(_at(back, first), _at(g, first))


def shift(values: Array, edge: Array, reverse: bool) -> Array:
    """Returns `values` moved one step later (earlier with `reverse`), with `edge [b, d]` in the gap."""
    if reverse:
        return jnp.concatenate([values[:, 1:], edge[:, None]], axis=1)
    return jnp.concatenate([edge[:, None], values[:, :-1]], axis=1)


def _shifted(values: Planes, edge: Planes, reverse: bool) -> Planes:
    return tuple(shift(plane, gap, reverse) for plane, gap in zip(values, edge, strict=True))


def _at(z: Planes, step: int) -> Planes:
    return tuple(plane[:, step] for plane in z)
