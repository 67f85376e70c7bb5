"""What the kernels' tests compare with: the recurrences and their gradients in float64 NumPy, step after step."""

import jax
import numpy as np

from kernels import mosaic_tpu, triton

SMALL_TRITON = triton.Blocks(channels=32, ahead=4, chunks=3)
SMALL_TPU = mosaic_tpu.Blocks(steps=16, channels=128)
XLA = {"sequential": "sequential", "associative": "associative"}
PALLAS = {
    "triton": "triton_interpret",
    "triton in chunks": triton.kernel(SMALL_TRITON, interpret=True),
    "tpu": "mosaic_tpu_interpret",
    "tpu in small blocks": mosaic_tpu.kernel(SMALL_TPU, interpret=True),
}
ALL = {**XLA, **PALLAS}

RESETS = ("none", "first", "last", "consecutive", "all")
FEW = [(1, 1, "first"), (9, 3, "consecutive"), (63, 65, "last")]
"""Steps, width, resets of the ordinary suite: each edge of a block once."""
MATRIX = [(t, d, kind) for t in (1, 2, 7, 8, 9, 63, 129) for d in (1, 3, 32, 64, 65, 200) for kind in RESETS]
"""Everything, behind `-m kernels`."""
TOLERANCE = {"float32": 5e-7, "bfloat16": 1e-2}


def linear(x, a, h0, reset, reverse=False):
    """`h_t = a_t h_{t-1} + x_t`."""
    x, a, h = (np.asarray(value, np.float64) for value in (x, a, h0))
    states = np.zeros_like(x)
    steps = range(x.shape[1])
    for t in reversed(steps) if reverse else steps:
        h = np.where(reset[:, t, None], 0, a[:, t] * h) + x[:, t]
        states[:, t] = h
    return states, h


def linear_gradients(x, a, h0, reset, dy, dlast, reverse=False):
    """The adjoint recurrence, written on its own: `g_t = dy_t + a_{t+1} g_{t+1}`; gradients of x, a, h0."""
    states, _ = linear(x, a, h0, reset, reverse)
    a = np.where(reset[..., None], 0, np.asarray(a, np.float64))
    dx, da = np.zeros_like(states), np.zeros_like(states)
    g = np.asarray(dlast, np.float64)
    order = list(range(x.shape[1]))[:: -1 if reverse else 1]
    for i in reversed(range(len(order))):
        t = order[i]
        g = g + np.asarray(dy[:, t], np.float64)
        before = np.asarray(h0, np.float64) if i == 0 else states[:, order[i - 1]]
        dx[:, t], da[:, t] = g, np.where(reset[:, t, None], 0, g * before)
        g = g * a[:, t]
    return dx, da, g


def _gates(recurrence, entry, rate):
    """r, i, a and sqrt(1 − a²) as eqs. 1 to 4 and 6 say."""
    r, i = (0.5 + 0.5 * np.tanh(0.5 * np.asarray(value, np.float64)) for value in (recurrence, entry))
    log_a = r * np.asarray(rate, np.float64)
    return r, i, np.exp(log_a), np.sqrt(-np.expm1(2 * log_a))


def gated(x, recurrence, entry, rate, h0, reset, unit_reset):
    """The states of the RG-LRU and the last of them."""
    _, i, a, root = _gates(recurrence, entry, rate)
    scale = np.where(reset[..., None] & unit_reset, 1, root)
    return linear(scale * i * np.asarray(x, np.float64), a, h0, reset)


def gated_gradients(x, recurrence, entry, rate, h0, reset, unit_reset, dy, dlast):
    """Gradients of x, recurrence, entry, rate, h0, the slope of the root capped at 1000 in `a²`."""
    x = np.asarray(x, np.float64)
    r, i, a, root = _gates(recurrence, entry, rate)
    fixed = reset[..., None] & unit_reset
    scale = np.where(fixed, 1, root)
    g, da, dh0 = linear_gradients(scale * i * x, a, h0, reset, dy, dlast)
    dlog_a = a * da - np.where(fixed, 0, g * i * x) * a**2 / np.maximum(root, 0.5e-3)
    drecurrence = dlog_a * np.asarray(rate, np.float64) * r * (1 - r)
    return g * scale * i, drecurrence, g * scale * x * i * (1 - i), (dlog_a * r).sum((0, 1)), dh0


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


def gradients(function, cotangents, *arguments, reset=None):
    """The values of `function` and the gradients of its arguments, in one compiled program.

    `reset` is an argument too, so that all resets of a shape share a program: compiling is what the tests wait for.
    """

    def both(cotangents, reset, *arguments):
        given = {} if reset is None else {"reset": reset}
        values, pull = jax.vjp(lambda *arguments: function(*arguments, **given), *arguments)
        return values, pull(cotangents)

    values, pulled = jax.jit(both)(cotangents, reset, *arguments)
    return *values, *pulled


def all_close(actual, expected, dtype, steps):
    """The states and the last of them within the tolerance; gradients, products of two sums, within twice as much.

    Beyond 64 steps it grows: a channel that forgets nothing keeps the rounding of every step.
    """
    growth = max(1.0, steps / 32) if steps > 64 else 1.0
    for index, (got, wanted) in enumerate(zip(actual, expected, strict=True)):
        close(got, wanted, TOLERANCE[dtype] * growth * (1 if index < 2 else 2))


def close(actual, expected, tolerance):
    """The largest error is within `tolerance` of the largest value (or of 1, where all are small)."""
    actual, scale = np.asarray(actual, np.float64), max(float(np.abs(expected).max()), 1.0)
    np.testing.assert_allclose(actual, expected, atol=tolerance * scale, rtol=0)
