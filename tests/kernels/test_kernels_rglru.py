"""The fused RG-LRU and its gradients against float64 NumPy, and the properties that any implementation must have."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evalkit.kernels import gated_input, linear_scan, rglru, triton
from evalkit.kernels.gates import CLOSED, gates, gates_by_exponentials
from support.kernel_oracle import (
    ALL,
    FEW,
    MATRIX,
    PALLAS,
    TOLERANCE,
    all_close,
    close,
    gated,
    gated_gradients,
    gradients,
    resets,
)


def inputs(steps, width, dtype="float32", seed=0, batch=2):
    """x, both gates before their sigmoid (some saturated), rates of a = 1, → 1 and → 0 among them, h0, cotangents."""
    rng = np.random.default_rng(seed)
    x, recurrence, entry, dy = (jnp.asarray(rng.normal(size=(batch, steps, width)), dtype) for _ in range(4))
    recurrence = jnp.where(jnp.asarray(rng.random(x.shape) < 0.1), 40 * recurrence, recurrence)
    rate = jnp.asarray(-np.resize([0.5, 1e-6, 0.0, 8.0, 0.03, 2.0], width), jnp.float32)
    h0, dlast = (jnp.asarray(rng.normal(size=(batch, width)), jnp.float32) for _ in range(2))
    return (x, recurrence, entry, rate, h0), (dy, dlast)


def check(implementation, steps, width, kind, dtype, unit_reset):
    arguments, cotangents = inputs(steps, width, dtype)
    reset = resets(kind, *arguments[0].shape[:2])

    unit = partial(rglru, unit_reset=unit_reset, implementation=implementation)
    actual = gradients(unit, cotangents, *arguments, reset=None if kind == "none" else jnp.asarray(reset))
    exact = [np.asarray(value, np.float64) for value in (*arguments, *cotangents)]
    expected = [
        *gated(*exact[:5], reset, unit_reset),
        *gated_gradients(*exact[:5], reset, unit_reset, *exact[5:]),
    ]
    assert [value.dtype for value in actual[:2]] == [dtype, jnp.float32]
    all_close(actual, expected, dtype)


@pytest.mark.parametrize("implementation", ALL.values(), ids=ALL)
@pytest.mark.parametrize(("steps", "width", "kind"), FEW)
def test_states_and_gradients_match_float64(implementation, steps, width, kind):
    check(implementation, steps, width, kind, "float32", unit_reset=steps == 9)


@pytest.mark.parametrize("implementation", ALL.values(), ids=ALL)
def test_states_and_gradients_in_bfloat16_match_float64(implementation):
    check(implementation, 37, 40, "none", "bfloat16", unit_reset=False)


@pytest.mark.slow
@pytest.mark.kernels
@pytest.mark.parametrize("implementation", ALL.values(), ids=ALL)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("unit_reset", [False, True])
@pytest.mark.parametrize(("steps", "width", "kind"), MATRIX)
def test_the_whole_matrix_matches_float64(implementation, dtype, unit_reset, steps, width, kind):
    check(implementation, steps, width, kind, dtype, unit_reset)


@pytest.mark.parametrize("implementation", ALL.values(), ids=ALL)
def test_a_split_sequence_is_the_whole_one(implementation):
    (x, recurrence, entry, rate, h0), _ = inputs(40, 8)
    whole, last = rglru(x, recurrence, entry, rate, h0, implementation=implementation)
    h, parts = h0, []
    for part in (slice(13), slice(13, None)):
        states, h = rglru(x[:, part], recurrence[:, part], entry[:, part], rate, h, implementation=implementation)
        parts.append(states)
    np.testing.assert_allclose(jnp.concatenate(parts, axis=1), whole, atol=1e-6)
    np.testing.assert_allclose(h, last, atol=1e-6)


@pytest.mark.parametrize("unit_reset", [False, True])
def test_a_reset_is_two_sequences_and_decides_the_first_scale(unit_reset):
    (x, recurrence, entry, rate, _), _ = inputs(20, 8)
    reset = jnp.arange(20)[None].repeat(2, 0) == 7
    whole, _ = rglru(x, recurrence, entry, rate, reset=reset, unit_reset=unit_reset)
    first = jnp.arange(13)[None].repeat(2, 0) == 0
    head, _ = rglru(x[:, :7], recurrence[:, :7], entry[:, :7], rate)
    tail, _ = rglru(x[:, 7:], recurrence[:, 7:], entry[:, 7:], rate, reset=first, unit_reset=unit_reset)
    np.testing.assert_allclose(whole, jnp.concatenate([head, tail], axis=1), atol=1e-6)
    scale = 1.0 if unit_reset else gates(recurrence, entry, rate[None, None]).scale[:, 7]
    np.testing.assert_allclose(whole[:, 7], scale * jax.nn.sigmoid(entry[:, 7]) * x[:, 7], atol=1e-6)


@pytest.mark.parametrize("implementation", PALLAS.values(), ids=PALLAS)
def test_it_is_the_linear_scan_of_the_gated_input(implementation):
    (x, recurrence, entry, rate, h0), _ = inputs(30, 8)
    a, gated = gated_input(recurrence, entry, x, rate)
    for got, wanted in zip(
        rglru(x, recurrence, entry, rate, h0, implementation=implementation),
        linear_scan(gated, a, h0, implementation=implementation),
        strict=True,
    ):
        np.testing.assert_allclose(got, wanted, atol=1e-6)


@pytest.mark.parametrize("implementation", ALL.values(), ids=ALL)
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_a_closed_recurrence_gate_leaves_the_state_and_gives_no_gradient(implementation, dtype):
    (x, recurrence, entry, rate, h0), cotangents = inputs(21, 8, dtype)
    pad = jnp.arange(21)[None, :, None] % 4 == 1
    recurrence = jnp.where(pad, CLOSED, recurrence)
    run = lambda *arguments: rglru(*arguments, implementation=implementation)  # noqa: E731
    h, _, dx, drecurrence, dentry, drate, dh0 = gradients(run, cotangents, x, recurrence, entry, rate, h0)
    close(h[:, 1::4], np.asarray(h[:, :-1:4], np.float64), TOLERANCE[dtype])
    for gradient in (dx, drecurrence, dentry):
        np.testing.assert_array_equal(np.asarray(gradient[:, 1::4], np.float32), 0.0)
    assert all(np.isfinite(np.asarray(value, np.float32)).all() for value in (h, dx, drecurrence, dentry, drate, dh0))


@pytest.mark.parametrize("implementation", ALL.values(), ids=ALL)
def test_padding_alone_leaves_the_state_to_the_last_bit(implementation):
    (x, _, entry, rate, h0), _ = inputs(21, 8)
    h, last = rglru(x, jnp.full_like(x, CLOSED), entry, rate, h0, implementation=implementation)
    np.testing.assert_array_equal(last, h0)
    np.testing.assert_array_equal(h, jnp.broadcast_to(h0[:, None], h.shape))


@pytest.mark.parametrize("blocks", [(16, 2, 1), (64, 8, 2), (32, 4, 5)])
def test_how_a_walk_is_cut_changes_nothing(blocks):
    arguments, cotangents = inputs(40, 24)
    channels, ahead, chunks = blocks
    cut = triton.kernel(triton.Blocks(channels=channels, ahead=ahead, chunks=chunks), interpret=True)
    results = [
        gradients(lambda *a, i=implementation: rglru(*a, implementation=i), cotangents, *arguments)
        for implementation in (cut, "sequential")
    ]
    for one, other in zip(*results, strict=True):
        close(one, np.asarray(other, np.float64), 1e-6)


def test_few_lanes_are_cut_into_chunks_and_many_are_not():
    chunks = [triton._fit(triton.Blocks(), *shape).chunks for shape in ((8, 8192, 4096), (32, 1024, 64), (1, 100, 64))]
    assert chunks == [1, 16, 1]


@pytest.mark.parametrize("arithmetic", [gates, gates_by_exponentials])
def test_the_decay_is_exact_as_a_tends_to_one_and_to_zero(arithmetic):
    rate = -np.logspace(-9, 1, 200)
    opened = jnp.full((200,), 50.0)
    _, _, a, scale = arithmetic(opened, opened, jnp.asarray(rate, jnp.float32))
    np.testing.assert_allclose(a, np.exp(rate), rtol=0, atol=1.5e-7)
    np.testing.assert_allclose(scale, np.sqrt(-np.expm1(2 * rate)), rtol=5e-7)


def test_the_gradient_as_a_tends_to_one_is_bounded():
    wide = jnp.full((1, 1, 1), 50.0)

    def of(recurrence, rate):
        return gated_input(recurrence, wide, jnp.ones((1, 1, 1)), rate)[1].sum()

    for exact in (-1e-12, -1e-6, -1e-2):
        slope = jax.grad(of)(wide * 0, jnp.array([exact]))  # at r = 1/2
        a2 = np.exp(exact)
        expected = -0.25 * exact * a2 / max(np.sqrt(1 - a2), 0.5e-3)
        np.testing.assert_allclose(slope[0, 0, 0], expected, rtol=1e-4)


def test_the_gates_are_those_of_the_paper():
    """Against eqs. 1 to 6 as they stand, by float64 autodiff."""
    keys = jax.random.split(jax.random.key(0), 6)
    z, e, x = (jax.random.normal(key, (2, 5, 7)) for key in keys[:3])
    rate = -jnp.exp(jax.random.normal(keys[3], (7,)))
    ways = [jax.random.normal(key, (2, 5, 7)) for key in keys[4:]]

    def plain(z, e, x, rate):
        log_a = jax.nn.sigmoid(z) * rate[None, None]
        return jnp.exp(log_a), jnp.sqrt(1 - jnp.exp(2 * log_a)) * jax.nn.sigmoid(e) * x

    with jax.enable_x64():
        exact = [jnp.asarray(np.asarray(v), jnp.float64) for v in (z, e, x, rate, *ways)]
        values, pull = jax.vjp(plain, *exact[:4])
        wanted = [*values, *pull(tuple(exact[4:]))]
    values, pull = jax.vjp(gated_input, z, e, x, rate)
    for got, want in zip([*values, *pull(tuple(ways))], wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6)


def test_it_works_under_vmap_and_checkpoint():
    (x, recurrence, entry, rate, h0), _ = inputs(11, 4)
    for implementation in ("auto", "triton_interpret", "mosaic_tpu_interpret"):
        run = lambda x, i=implementation: rglru(x, recurrence, entry, rate, h0, implementation=i)[0]  # noqa: E731
        np.testing.assert_allclose(jax.vmap(run)(jnp.stack([x, 2 * x]))[1], run(2 * x), atol=1e-6)
        plain, remade = (jax.grad(lambda x, f=f: f(x).sum())(x) for f in (run, jax.checkpoint(run)))
        np.testing.assert_allclose(remade, plain, atol=1e-6)


def test_what_cannot_be_is_refused():
    empty, one = jnp.zeros((1, 0, 3)), jnp.zeros((1, 2, 3))
    with pytest.raises(ValueError, match="at least one step"):
        rglru(empty, empty, empty, jnp.zeros(3))
    with pytest.raises(ValueError, match="allowed: auto, sequential, associative, triton"):
        rglru(one, one, one, jnp.zeros(3), implementation="fastest")
    with pytest.raises(ValueError, match="takes float32 and bfloat16, not float16; use implementation='sequential'"):
        rglru(one.astype(jnp.float16), one, one, jnp.zeros(3), implementation="triton")
    with pytest.raises(ValueError, match="interpret"):
        rglru(one, one, one, jnp.zeros(3), implementation="triton")
    with pytest.raises(ValueError, match="interpret"):
        rglru(one, one, one, jnp.zeros(3), implementation="mosaic_tpu")
