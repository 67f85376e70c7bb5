"""What the kernels' tests compare with: the recurrences and their gradients in float64 NumPy, step after step."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import numpy as np

RESETS = ("none", "first", "last", "consecutive", "all")
STEPS, WIDTH = 63, 33
"""The shape of the ordinary suite: time and width end within a block of every implementation.

All properties are tested at this shape, because every other one costs each implementation a program of its own.
"""
MATRIX = [(t, d) for t in (1, 2, 7, 8, 9, 63, 129) for d in (1, 3, 32, 64, 65, 200)]
"""Steps and widths of everything, behind `-m kernels`."""
TOLERANCE = {"float32": 5e-7, "bfloat16": 1e-2}
AS_USED = {"xla_backend_optimization_level": 3, "xla_llvm_disable_expensive_passes": False}
"""The compiler's own defaults: what tests turn off to compile faster also turns off fused multiply-adds."""


class Sum(NamedTuple):
    """A sum is as exact as its addends, which may cancel: `size` is what it would be if none of them did."""

    value: np.ndarray
    size: np.ndarray


def linear(x, a, h0, reset, reverse=False):
    """Every state of `h_t = a_t h_{t-1} + x_t`, and the last."""
    pairs = zip(_walk(x, a, h0, reset, reverse), _walk(np.abs(x), a, np.abs(h0), reset, reverse), strict=True)
    states, last = (Sum(*pair) for pair in pairs)
    return states, last


def _walk(x, a, h0, reset, reverse):
    x, a, h = (np.asarray(value, np.float64) for value in (x, a, h0))
    states = np.zeros_like(x)
    steps = range(x.shape[1])
    for t in reversed(steps) if reverse else steps:
        h = np.where(reset[:, t, None], 0, a[:, t] * h) + x[:, t]
        states[:, t] = h
    return states, h


def linear_gradients(x, a, h0, reset, dy, dlast, reverse=False):
    """The adjoint recurrence, written on its own: `g_t = dy_t + a_{t+1} g_{t+1}`; gradients of x, a, h0."""
    given = [np.asarray(value, np.float64) for value in (x, h0, dy, dlast)]
    pairs = zip(_walk_back(*given, a, reset, reverse), _walk_back(*map(np.abs, given), a, reset, reverse), strict=True)
    dx, da, dh0 = (Sum(*pair) for pair in pairs)
    return dx, da, dh0


def _walk_back(x, h0, dy, dlast, a, reset, reverse):
    states, _ = _walk(x, a, h0, reset, reverse)
    a = np.where(reset[..., None], 0, np.asarray(a, np.float64))
    dx, da, g = np.zeros_like(states), np.zeros_like(states), dlast
    order = list(range(x.shape[1]))[:: -1 if reverse else 1]
    for i in reversed(range(len(order))):
        t = order[i]
        g = g + dy[:, t]
        before = h0 if i == 0 else states[:, order[i - 1]]
        dx[:, t], da[:, t] = g, np.where(reset[:, t, None], 0, g * before)
        g = g * a[:, t]
    return dx, da, g


def _gates(recurrence, input_gate, rate):
    """r, i, a and sqrt(1 − a²) as eqs. 1 to 4 and 6 say."""
    r, i = (0.5 + 0.5 * np.tanh(0.5 * np.asarray(value, np.float64)) for value in (recurrence, input_gate))
    log_a = r * np.asarray(rate, np.float64)
    return r, i, np.exp(log_a), np.sqrt(-np.expm1(2 * log_a))


def gated(x, recurrence, input_gate, rate, h0, reset, unit_reset):
    """The states of the RG-LRU and the last of them."""
    _, i, a, root = _gates(recurrence, input_gate, rate)
    scale = np.where(reset[..., None] & unit_reset, 1, root)
    return linear(scale * i * np.asarray(x, np.float64), a, h0, reset)


def gated_gradients(x, recurrence, input_gate, rate, h0, reset, unit_reset, dy, dlast):
    """Gradients of x, recurrence, input_gate, rate, h0, the slope of the root capped at 1000 in `a²`."""
    x, rate = np.asarray(x, np.float64), np.asarray(rate, np.float64)
    r, i, a, root = _gates(recurrence, input_gate, rate)
    fixed = reset[..., None] & unit_reset
    scale = np.where(fixed, 1, root)
    g, da, dh0 = linear_gradients(scale * i * x, a, h0, reset, dy, dlast)
    slope = np.where(fixed, 0, i * x * a**2 / np.maximum(root, 0.5e-3))
    dlog_a = Sum(a * da.value - g.value * slope, a * da.size + g.size * np.abs(slope))
    dx, drecurrence, dentry = (
        Sum(one.value * factor, one.size * np.abs(factor))
        for one, factor in ((g, scale * i), (dlog_a, rate * r * (1 - r)), (g, scale * x * i * (1 - i)))
    )
    drate = Sum((dlog_a.value * r).sum((0, 1)), (dlog_a.size * r).sum((0, 1)))
    return dx, drecurrence, dentry, drate, dh0


def resets(kind, batch, steps):
    """Where the state is reset `[b, t]`."""
    reset = np.zeros((batch, steps), bool)
    if kind == "first":
        reset[:, 0] = True
    elif kind == "last":
        reset[:, -1] = True
    elif kind == "consecutive":
        reset[0, steps // 2 : steps // 2 + 2] = True
    elif kind == "all":
        reset[:] = True
    return reset


@lru_cache
def program(function: Callable[..., Any], as_used: bool, **settings: Any) -> Callable[..., Any]:
    """`(cotangents, reset, *arguments)` to the values of `function` and the gradients of its arguments, compiled.

    `reset` is an argument, and the function is made once, so that tests of one shape share one program: compiling is
    what they wait for.
    """

    def both(cotangents, reset, *arguments):
        given = settings if reset is None else {**settings, "reset": reset}
        values, pull = jax.vjp(lambda *arguments: function(*arguments, **given), *arguments)
        return values, pull(cotangents)

    return jax.jit(both, compiler_options=AS_USED if as_used else None)


def gradients(function, cotangents, *arguments, reset=None, **settings):
    """The values of `function` with its `settings` and the gradients of its arguments, as NumPy, in one program."""
    as_used = arguments[0].dtype == np.float32  # the digits of bfloat16 do not show fused multiply-adds
    values, pulled = jax.device_get(program(function, as_used, **settings)(cotangents, reset, *arguments))
    return *values, *pulled


def all_close(actual, expected, dtype):
    """The states, the last of them and every gradient within the tolerance."""
    for got, wanted in zip(actual, expected, strict=True):
        assert error(got, wanted) <= TOLERANCE[dtype]


def error(actual, expected):
    """The largest error of a `Sum`, relative to its largest size, or to 1 where all are small."""
    actual = np.asarray(actual, np.float64)
    assert actual.shape == expected.value.shape  # which a difference would broadcast
    return float(np.abs(actual - expected.value).max() / max(expected.size.max(), 1.0))


def close(actual, expected, tolerance):
    """The largest error is within `tolerance` of the largest value, or of 1 where all are small."""
    scale = max(float(np.abs(expected).max()), 1.0)
    np.testing.assert_allclose(np.asarray(actual, np.float64), expected, atol=tolerance * scale, rtol=0)
