"""The fused RG-LRU and its gradients against float64 NumPy, and the properties that any implementation must have."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evalkit.kernels import gated_input, linear_scan, rglru, triton
from evalkit.kernels.gates import BY_EXPONENTIALS, BY_TANH, CLOSED, PLAIN, by_exponentials
from support.implementations import ALL, FEW, PALLAS, often, quick
from support.kernel_oracle import (
    MATRIX,
    RESETS,
    STEPS,
    TOLERANCE,
    WIDTH,
    all_close,
    close,
    gated,
    gated_gradients,
    gradients,
    resets,
)

UNIT_RESET = dict(zip(ALL, (False, True, True, False, False, True), strict=True))
"""Each way of resetting is compiled with half of the implementations: `-m kernels` has both with all of them."""
# By default Triton's kernel takes one step here, and many with the complex unit; with the slow tests in bfloat16.
OFTEN = tuple(name for name in FEW if name != "triton in chunks")
BFLOAT16 = ("associative", "triton in chunks")


def inputs(steps, width, dtype="float32", seed=0, batch=2):
    """x, both gates before their sigmoid (some saturated), rates of a = 1, → 1 and → 0 among them, h0, cotangents."""
    rng = np.random.default_rng(seed)
    x, recurrence, input_gate, dy = (rng.normal(size=(batch, steps, width)).astype(dtype) for _ in range(4))
    recurrence = np.where(rng.random(x.shape) < 0.1, 40 * recurrence, recurrence).astype(dtype)
    rate = -np.resize([0.5, 1e-6, 0.0, 8.0, 0.03, 2.0], width).astype(np.float32)
    h0, dlast = (rng.normal(size=(batch, width)).astype(np.float32) for _ in range(2))
    return (x, recurrence, input_gate, rate, h0), (dy, dlast)


def without_resets(arguments):
    """None of them is set; in float32 they are an array, so that the program is the one that takes resets."""
    return np.zeros(arguments[0].shape[:2], bool) if arguments[0].dtype == np.float32 else None


def run(name, arguments, cotangents, reset=None):
    """Values and gradients by the implementation of that name, all tests of a shape and dtype by one program."""
    reset = without_resets(arguments) if reset is None else reset
    settings = {"implementation": ALL[name], "unit_reset": UNIT_RESET[name]}
    return gradients(rglru, cotangents, *arguments, reset=reset, **settings)


def compare(actual, arguments, cotangents, reset, unit_reset):
    dtype = str(arguments[0].dtype)
    exact = [np.asarray(value, np.float64) for value in (*arguments, *cotangents)]
    expected = [
        *gated(*exact[:5], reset, unit_reset),
        *gated_gradients(*exact[:5], reset, unit_reset, *exact[5:]),
    ]
    assert [str(value.dtype) for value in actual[:2]] == [dtype, "float32"]
    all_close(actual, expected, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("kind", RESETS)
@pytest.mark.parametrize("name", often(OFTEN))
def test_states_and_gradients_match_float64(name, kind):
    arguments, cotangents = inputs(STEPS, WIDTH)
    reset = resets(kind, 2, STEPS)
    compare(run(name, arguments, cotangents, reset), arguments, cotangents, reset, UNIT_RESET[name])


@pytest.mark.parametrize("name", often(("triton in chunks",)))
def test_one_step_of_one_channel_matches_float64(name):
    arguments, cotangents = inputs(1, 1)
    reset = resets("first", 2, 1)
    compare(run(name, arguments, cotangents, reset), arguments, cotangents, reset, UNIT_RESET[name])


@pytest.mark.parametrize("name", quick(BFLOAT16))
def test_states_and_gradients_in_bfloat16_match_float64(name):
    arguments, cotangents = inputs(STEPS, WIDTH, jnp.bfloat16)
    compare(run(name, arguments, cotangents), arguments, cotangents, resets("none", 2, STEPS), False)


@pytest.mark.slow
@pytest.mark.kernels
@pytest.mark.parametrize("implementation", ALL.values(), ids=ALL)
@pytest.mark.parametrize(("steps", "width"), MATRIX)
def test_the_whole_matrix_matches_float64(implementation, steps, width, subtests):
    for kind, dtype, unit_reset in itertools.product(RESETS, TOLERANCE, (False, True)):
        arguments, cotangents = inputs(steps, width, jnp.dtype(dtype))
        reset, settings = resets(kind, 2, steps), {"implementation": implementation, "unit_reset": unit_reset}
        given = None if kind == "none" else reset
        with subtests.test(kind=kind, dtype=dtype, unit_reset=unit_reset):
            actual = gradients(rglru, cotangents, *arguments, reset=given, **settings)
            compare(actual, arguments, cotangents, reset, unit_reset)


@pytest.mark.parametrize("name", quick(OFTEN))
def test_a_split_sequence_is_the_whole_one(name):
    """The parts are followed by pads, which leave the state as it is."""
    (x, recurrence, input_gate, rate, h), cotangents = inputs(STEPS, WIDTH)
    whole, last, *_ = run(name, (x, recurrence, input_gate, rate, h), cotangents)
    parts = []
    for part in (slice(13), slice(13, None)):
        length = len(range(STEPS)[part])

        def padded(values, pad, part=part, length=length):
            return np.pad(values[:, part], ((0, 0), (0, STEPS - length), (0, 0)), constant_values=pad)

        arguments = padded(x, 0), padded(recurrence, CLOSED), padded(input_gate, 0), rate, h
        states, h, *_ = run(name, arguments, cotangents)
        parts.append(states[:, :length])
    np.testing.assert_allclose(np.concatenate(parts, axis=1), whole, atol=1e-6)
    np.testing.assert_allclose(h, last, atol=1e-6)


@pytest.mark.parametrize("unit_reset", [False, True])
def test_a_reset_is_two_sequences_and_decides_the_first_scale(unit_reset):
    (x, recurrence, input_gate, rate, _), _ = inputs(20, 8)
    at = np.arange(20)[None].repeat(2, 0)
    unit = jax.jit(partial(rglru, unit_reset=unit_reset))
    whole, _ = unit(x, recurrence, input_gate, rate, reset=at == 10)
    head, _ = unit(x[:, :10], recurrence[:, :10], input_gate[:, :10], rate, reset=at[:, :10] < 0)
    tail, _ = unit(x[:, 10:], recurrence[:, 10:], input_gate[:, 10:], rate, reset=at[:, :10] == 0)
    np.testing.assert_allclose(whole, np.concatenate([head, tail], axis=1), atol=1e-6)
    scale = (
        1.0 if unit_reset else np.asarray(jax.jit(BY_TANH.gates)(recurrence, input_gate, rate[None, None]).scale)[:, 10]
    )
    np.testing.assert_allclose(whole[:, 10], scale / (1 + np.exp(-input_gate[:, 10])) * x[:, 10], atol=1e-6)


@pytest.mark.parametrize("name", often(("tpu in small blocks",), PALLAS))
def test_it_is_the_linear_scan_of_the_gated_input(name):
    arguments, cotangents = inputs(STEPS, WIDTH)
    x, recurrence, input_gate, rate, h0 = arguments
    a, gated = jax.jit(gated_input)(recurrence, input_gate, x, rate)
    got = run(name, arguments, cotangents)[:2]
    for one, other in zip(got, linear_scan(gated, a, jnp.asarray(h0), implementation=PALLAS[name]), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


CLOSABLE = [
    *(("float32", name) for name in OFTEN),
    *(pytest.param("float32", name, marks=pytest.mark.exhaustive) for name in ALL if name not in OFTEN),
    *(("bfloat16", name) for name in BFLOAT16),
]


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "name"), CLOSABLE)
def test_a_closed_recurrence_gate_leaves_the_state_and_gives_no_gradient(dtype, name):
    (x, recurrence, input_gate, rate, h0), cotangents = inputs(STEPS, WIDTH, jnp.dtype(dtype))
    recurrence[:, 1::4] = CLOSED
    h, _, dx, drecurrence, dinput_gate, drate, dh0 = run(name, (x, recurrence, input_gate, rate, h0), cotangents)
    close(h[:, 1::4], np.asarray(h[:, :-1:4], np.float64), TOLERANCE[dtype])
    for gradient in (dx, drecurrence, dinput_gate):
        np.testing.assert_array_equal(np.asarray(gradient[:, 1::4], np.float32), 0.0)
    assert all(
        np.isfinite(np.asarray(value, np.float32)).all() for value in (h, dx, drecurrence, dinput_gate, drate, dh0)
    )


@pytest.mark.parametrize("name", quick(OFTEN))
def test_padding_alone_leaves_the_state_to_the_last_bit(name):
    (x, _, input_gate, rate, h0), cotangents = inputs(STEPS, WIDTH)
    h, last, *_ = run(name, (x, np.full_like(x, CLOSED), input_gate, rate, h0), cotangents)
    np.testing.assert_array_equal(last, h0)
    np.testing.assert_array_equal(h, np.broadcast_to(h0[:, None], h.shape))


@pytest.mark.exhaustive
@pytest.mark.parametrize("blocks", [(16, 2, 1), (64, 8, 2), (32, 4, 5)])
def test_how_a_walk_is_cut_changes_nothing(blocks):
    """In every run: both cuts that are in `ALL` match float64."""
    arguments, cotangents = inputs(40, 24)
    channels, ahead, chunks = blocks
    cut = triton.kernel(triton.Blocks(channels=channels, ahead=ahead, chunks=chunks), interpret=True)
    results = [gradients(rglru, cotangents, *arguments, implementation=one) for one in (cut, "sequential")]
    for one, other in zip(*results, strict=True):
        close(one, np.asarray(other, np.float64), 1e-6)


def test_few_lanes_are_cut_into_chunks_and_many_are_not():
    chunks = [triton._fit(triton.Blocks(), *shape).chunks for shape in ((8, 8192, 4096), (32, 1024, 64), (1, 100, 64))]
    assert chunks == [1, 16, 1]


def inexact(function, error):
    """`function` of a vector, its results too large and too small by turns: what PTX allows `ex2.approx` and others."""

    def call(*arguments):
        result = function(*arguments)
        return result * (1 + error * (-1.0) ** jnp.arange(result.size))

    return call


ON_A_GPU = PLAIN._replace(
    exp2=inexact(PLAIN.exp2, 2**-22),
    reciprocal=inexact(PLAIN.reciprocal, 2**-23),
    root=inexact(PLAIN.root, 2**-23),
)
ARITHMETICS = {"tanh": BY_TANH, "exponentials": BY_EXPONENTIALS, "on a GPU": by_exponentials(ON_A_GPU)}


@pytest.mark.parametrize("arithmetic", ARITHMETICS.values(), ids=ARITHMETICS)
def test_the_decay_is_exact_as_a_tends_to_one_and_to_zero(arithmetic):
    rate = -np.logspace(-9, 1, 200)
    opened = jnp.full((200,), 50.0)
    _, _, a, scale = arithmetic.gates(opened, opened, jnp.asarray(rate, jnp.float32))
    np.testing.assert_allclose(a, np.exp(rate), rtol=0, atol=1.5e-7)
    np.testing.assert_allclose(scale, np.sqrt(-np.expm1(2 * rate)), rtol=5e-7)


def test_the_gradient_as_a_tends_to_one_is_bounded():
    wide = jnp.full((1, 1, 1), 50.0)

    def of(recurrence, rate):
        return gated_input(recurrence, wide, jnp.ones((1, 1, 1)), rate)[1].sum()

    gradient = jax.jit(jax.grad(of))
    for exact in (-1e-12, -1e-6, -1e-2):
        slope = gradient(wide * 0, np.float32([exact]))  # at r = 1/2
        a2 = np.exp(exact)
        expected = -0.25 * exact * a2 / max(np.sqrt(1 - a2), 0.5e-3)
        np.testing.assert_allclose(slope[0, 0, 0], expected, rtol=1e-4)


def test_the_gates_are_those_of_the_paper():
    """Against eqs. 1 to 6 as they stand, by float64 autodiff."""
    rng = np.random.default_rng(0)
    z, e, x, *ways = (rng.normal(size=(2, 5, 7)).astype(np.float32) for _ in range(5))
    rate = -np.exp(rng.normal(size=7)).astype(np.float32)

    def plain(z, e, x, rate):
        log_a = jax.nn.sigmoid(z) * rate[None, None]
        return jnp.exp(log_a), jnp.sqrt(1 - jnp.exp(2 * log_a)) * jax.nn.sigmoid(e) * x

    def both(function, ways, *given):
        values, pull = jax.vjp(function, *given)
        return *values, *pull(tuple(ways))

    with jax.enable_x64():
        exact = [np.float64(value) for value in (z, e, x, rate)]
        wanted = jax.jit(partial(both, plain))(list(map(np.float64, ways)), *exact)
    got = jax.jit(partial(both, gated_input))(ways, z, e, x, rate)
    for one, want in zip(got, wanted, strict=True):
        np.testing.assert_allclose(one, want, rtol=2e-5, atol=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", often(("sequential", "tpu in small blocks")))
def test_it_works_under_vmap_and_checkpoint(name):
    (x, *rest), cotangents = jax.tree.map(jnp.asarray, inputs(STEPS, WIDTH))
    reset = jnp.asarray(resets("none", 2, STEPS))

    @jax.checkpoint
    def unit(x):
        return rglru(x, *rest, reset=reset, implementation=ALL[name], unit_reset=UNIT_RESET[name])

    def both(x):
        values, pull = jax.vjp(unit, x)
        return *values, *pull(cotangents)

    stacked = jax.jit(jax.vmap(both))(jnp.stack([x, -x]))
    for i, sign in enumerate((1, -1)):
        plain = run(name, (sign * x, *rest), cotangents)[:3]
        for one, other in zip(stacked, plain, strict=True):
            close(one[i], other, 1e-6)


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
