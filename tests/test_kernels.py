"""The linear scan and its gradients against float64 NumPy, and the properties that any implementation must have."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kernels import linear_scan

IMPLEMENTATIONS = ("sequential", "associative", "auto")
TOLERANCE = 5e-7


def oracle(x, a, h0, reset, reverse):
    """`h_t = a_t h_{t-1} + x_t` in float64, one step after the other."""
    x, a, h = (np.asarray(value, np.float64) for value in (x, a, h0))
    states = np.zeros_like(x)
    steps = range(x.shape[1])
    for t in reversed(steps) if reverse else steps:
        h = np.where(reset[:, t, None], 0, a[:, t] * h) + x[:, t]
        states[:, t] = h
    return states, h


def oracle_gradients(x, a, h0, reset, reverse, dy, dlast):
    """The adjoint recurrence in float64, written on its own: `g_t = dy_t + a_{t+1} g_{t+1}`."""
    states, _ = oracle(x, a, h0, reset, reverse)
    a64 = np.where(reset[..., None], 0, np.asarray(a, np.float64))
    dx, da = np.zeros_like(states), np.zeros_like(states)
    g = np.asarray(dlast, np.float64)
    order = list(range(x.shape[1]))[:: -1 if reverse else 1]
    for i in reversed(range(len(order))):
        t = order[i]
        g = g + dy[:, t]
        before = np.asarray(h0, np.float64) if i == 0 else states[:, order[i - 1]]
        dx[:, t], da[:, t] = g, np.where(reset[:, t, None], 0, g * before)
        g = g * a64[:, t]
    return dx, da, g


def inputs(steps, width, seed=0, batch=2):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(batch, steps, width)).astype(np.float32)
    a = rng.uniform(0, 1, size=x.shape).astype(np.float32)
    a[..., 0], a[..., -1] = 0.9999, rng.choice([0.0, 1.0], size=x.shape[:2])
    h0 = rng.normal(size=(batch, width)).astype(np.float32)
    return x, a, h0


def resets(kind, batch, steps):
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


def close(actual, expected, tolerance=TOLERANCE):
    scale = max(float(np.abs(expected).max()), 1.0)
    np.testing.assert_allclose(np.asarray(actual, np.float64), expected, atol=tolerance * scale, rtol=0)


SHAPES = [(1, 1), (2, 3), (37, 64), (129, 5), (63, 65)]
RESETS = ("none", "first", "last", "consecutive", "all")


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS[:2])
@pytest.mark.parametrize(("shape", "kind"), list(zip(SHAPES, RESETS, strict=True)) + [((37, 3), k) for k in RESETS])
@pytest.mark.parametrize("reverse", [False, True])
def test_states_and_gradients_match_float64(implementation, shape, kind, reverse):
    x, a, h0 = inputs(*shape)
    reset = resets(kind, *x.shape[:2])
    rng = np.random.default_rng(1)
    dy, dlast = rng.normal(size=x.shape).astype(np.float32), rng.normal(size=h0.shape).astype(np.float32)

    def scan(x, a, h0):
        return linear_scan(x, a, h0, reset=jnp.asarray(reset), reverse=reverse, implementation=implementation)

    (y, last), pullback = jax.vjp(scan, *map(jnp.asarray, (x, a, h0)))
    for actual, expected in zip((y, last), oracle(x, a, h0, reset, reverse), strict=True):
        close(actual, expected)
    expected = oracle_gradients(x, a, h0, reset, reverse, dy, dlast)
    for actual, wanted in zip(pullback((jnp.asarray(dy), jnp.asarray(dlast))), expected, strict=True):
        close(actual, wanted, 2 * TOLERANCE)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_split_scan_is_the_whole_scan(implementation):
    x, a, h0 = map(jnp.asarray, inputs(40, 8))
    y, last = linear_scan(x, a, h0, implementation=implementation)
    first, between = linear_scan(x[:, :13], a[:, :13], h0, implementation=implementation)
    second, end = linear_scan(x[:, 13:], a[:, 13:], between, implementation=implementation)
    np.testing.assert_allclose(jnp.concatenate([first, second], axis=1), y, atol=1e-6)
    np.testing.assert_allclose(end, last, atol=1e-6)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_reverse_is_a_flip(implementation):
    x, a, h0 = map(jnp.asarray, inputs(21, 8))
    y, last = linear_scan(x, a, h0, reverse=True, implementation=implementation)
    flipped, end = linear_scan(x[:, ::-1], a[:, ::-1], h0, implementation=implementation)
    np.testing.assert_allclose(y, flipped[:, ::-1], atol=1e-6)
    np.testing.assert_allclose(last, end, atol=1e-6)


def test_it_is_linear_in_the_inputs_and_the_state():
    x, a, h0 = map(jnp.asarray, inputs(30, 8))
    x2, _, h2 = map(jnp.asarray, inputs(30, 8, seed=5))
    y1, y2 = linear_scan(x, a, h0)[0], linear_scan(x2, a, h2)[0]
    np.testing.assert_allclose(linear_scan(x + 2 * x2, a, h0 + 2 * h2)[0], y1 + 2 * y2, atol=2e-5)


def test_a_reset_is_two_scans():
    x, a, _ = map(jnp.asarray, inputs(20, 8))
    reset = jnp.arange(20)[None].repeat(2, 0) == 7
    whole = linear_scan(x, a, reset=reset)[0]
    parts = [linear_scan(x[:, s], a[:, s])[0] for s in (slice(7), slice(7, None))]
    np.testing.assert_allclose(whole, jnp.concatenate(parts, axis=1), atol=1e-6)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_bfloat16_inputs_accumulate_in_float32(implementation):
    """A sum of 4096 ones is 4096 in float32 and stops at 256 in bfloat16."""
    ones = jnp.ones((1, 4096, 1), jnp.bfloat16)
    y, last = linear_scan(ones, ones, implementation=implementation)
    assert (y.dtype, last.dtype, float(last[0, 0])) == (jnp.bfloat16, jnp.float32, 4096.0)


def test_it_works_under_vmap_and_checkpoint():
    x, a, h0 = map(jnp.asarray, inputs(11, 4))
    stacked = jax.vmap(lambda x: linear_scan(x, a, h0)[0])(jnp.stack([x, 2 * x]))
    np.testing.assert_allclose(stacked[0], linear_scan(x, a, h0)[0], atol=1e-6)
    gradients = [
        jax.grad(lambda x, f=f: f(x).sum())(x)
        for f in (lambda x: linear_scan(x, a, h0)[0], jax.checkpoint(lambda x: linear_scan(x, a, h0)[0]))
    ]
    np.testing.assert_allclose(*gradients, atol=1e-6)


def test_what_cannot_be_is_refused():
    x = jnp.zeros((1, 0, 3))
    with pytest.raises(ValueError, match="at least one step"):
        linear_scan(x, x)
    with pytest.raises(ValueError, match="allowed: auto, sequential, associative"):
        linear_scan(jnp.zeros((1, 2, 3)), jnp.zeros((1, 2, 3)), implementation="fastest")


def test_every_pair_of_implementations_agrees():
    x, a, h0 = map(jnp.asarray, inputs(100, 16))
    for one, other in itertools.pairwise(IMPLEMENTATIONS):
        np.testing.assert_allclose(
            linear_scan(x, a, h0, implementation=one)[0], linear_scan(x, a, h0, implementation=other)[0], atol=1e-5
        )
