"""The linear scan and its gradients against float64 NumPy, and the properties that any implementation must have."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evalkit.kernels import linear_scan
from support.kernel_oracle import (
    ALL,
    FEW,
    MATRIX,
    TOLERANCE,
    all_close,
    close,
    gradients,
    linear,
    linear_gradients,
    resets,
)

IMPLEMENTATIONS = {"auto": "auto", **ALL}


def inputs(steps, width, seed=0, batch=2, dtype="float32"):
    """x, a of which some are 0 and some 1, h0."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(batch, steps, width))
    a = rng.uniform(0, 1, size=x.shape)
    a[..., 0], a[..., -1] = 0.9999, rng.choice([0.0, 1.0], size=x.shape[:2])
    return jnp.asarray(x, dtype), jnp.asarray(a, dtype), jnp.asarray(rng.normal(size=(batch, width)), jnp.float32)


def check(implementation, steps, width, kind, dtype, reverse):
    x, a, h0 = inputs(steps, width, dtype=dtype)
    dy, _, dlast = inputs(steps, width, seed=1, dtype=dtype)
    reset = resets(kind, *x.shape[:2])

    scan = partial(linear_scan, reverse=reverse, implementation=implementation)
    actual = gradients(scan, (dy, dlast), x, a, h0, reset=jnp.asarray(reset))
    exact = [np.asarray(value, np.float64) for value in (x, a, h0, dy, dlast)]
    expected = [*linear(*exact[:3], reset, reverse), *linear_gradients(*exact[:3], reset, *exact[3:], reverse)]
    all_close(actual, expected, dtype)


@pytest.mark.parametrize("implementation", ALL.values(), ids=ALL)
@pytest.mark.parametrize(("steps", "width", "kind"), FEW)
@pytest.mark.parametrize("reverse", [False, True])
def test_states_and_gradients_match_float64(implementation, steps, width, kind, reverse):
    check(implementation, steps, width, kind, "float32", reverse)


@pytest.mark.parametrize("implementation", ALL.values(), ids=ALL)
def test_states_and_gradients_in_bfloat16_match_float64(implementation):
    check(implementation, 37, 40, "none", "bfloat16", reverse=False)


@pytest.mark.slow
@pytest.mark.kernels
@pytest.mark.parametrize("implementation", ALL.values(), ids=ALL)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("steps", "width", "kind"), MATRIX)
def test_the_whole_matrix_matches_float64(implementation, dtype, reverse, steps, width, kind):
    check(implementation, steps, width, kind, dtype, reverse)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS.values(), ids=IMPLEMENTATIONS)
def test_a_split_scan_is_the_whole_scan(implementation):
    x, a, h0 = inputs(40, 8)
    y, last = linear_scan(x, a, h0, implementation=implementation)
    first, between = linear_scan(x[:, :13], a[:, :13], h0, implementation=implementation)
    second, end = linear_scan(x[:, 13:], a[:, 13:], between, implementation=implementation)
    np.testing.assert_allclose(jnp.concatenate([first, second], axis=1), y, atol=1e-6)
    np.testing.assert_allclose(end, last, atol=1e-6)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS.values(), ids=IMPLEMENTATIONS)
def test_reverse_is_a_flip(implementation):
    x, a, h0 = inputs(21, 8)
    y, last = linear_scan(x, a, h0, reverse=True, implementation=implementation)
    flipped, end = linear_scan(x[:, ::-1], a[:, ::-1], h0, implementation=implementation)
    np.testing.assert_allclose(y, flipped[:, ::-1], atol=1e-6)
    np.testing.assert_allclose(last, end, atol=1e-6)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS.values(), ids=IMPLEMENTATIONS)
def test_it_is_linear_in_the_inputs_and_the_state(implementation):
    x, a, h0 = inputs(30, 8)
    x2, _, h2 = inputs(30, 8, seed=5)
    scan = partial(linear_scan, implementation=implementation)
    y1, y2 = scan(x, a, h0)[0], scan(x2, a, h2)[0]
    close(scan(x + 2 * x2, a, h0 + 2 * h2)[0], np.asarray(y1 + 2 * y2, np.float64), 1e-6)


def test_a_reset_is_two_scans():
    x, a, _ = inputs(20, 8)
    reset = jnp.arange(20)[None].repeat(2, 0) == 7
    whole = linear_scan(x, a, reset=reset)[0]
    parts = [linear_scan(x[:, s], a[:, s])[0] for s in (slice(7), slice(7, None))]
    np.testing.assert_allclose(whole, jnp.concatenate(parts, axis=1), atol=1e-6)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS.values(), ids=IMPLEMENTATIONS)
def test_bfloat16_inputs_accumulate_in_float32(implementation):
    """A sum of 512 ones is 512 in float32 and stops at 256 in bfloat16."""
    ones = jnp.ones((1, 512, 1), jnp.bfloat16)
    y, last = linear_scan(ones, ones, implementation=implementation)
    assert (y.dtype, last.dtype, float(last[0, 0])) == (jnp.bfloat16, jnp.float32, 512.0)


def test_it_works_under_vmap_and_checkpoint():
    x, a, h0 = inputs(11, 4)
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
    with pytest.raises(ValueError, match="allowed: auto, sequential, associative, triton"):
        linear_scan(jnp.zeros((1, 2, 3)), jnp.zeros((1, 2, 3)), implementation="fastest")
