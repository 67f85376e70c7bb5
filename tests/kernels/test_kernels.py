"""The linear scan and its gradients against float64 NumPy, and the properties that any implementation must have."""

import inspect
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evalkit.kernels import cglru, linear_scan, rglru, selective_scan
from support.implementations import ALL, FEW, often, quick
from support.kernel_oracle import (
    MATRIX,
    RESETS,
    STEPS,
    TOLERANCE,
    WIDTH,
    all_close,
    close,
    gradients,
    linear,
    linear_gradients,
    resets,
)

IMPLEMENTATIONS = {"auto": "auto", **ALL}
# Triton's kernel takes one step here, and many with the complex unit; with the slow tests also with the RG-LRU.
OFTEN = tuple(name for name in FEW if name != "triton in chunks")
SMALL = ("associative", "tpu in small blocks")
BFLOAT16 = ("associative",)


def inputs(steps, width, seed=0, batch=2, dtype=jnp.float32):
    """x, a of which some are 0 and some 1, h0."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(batch, steps, width))
    a = rng.uniform(0, 1, size=x.shape)
    a[..., 0], a[..., -1] = 0.9999, rng.choice([0.0, 1.0], size=x.shape[:2])
    return x.astype(dtype), a.astype(dtype), rng.normal(size=(batch, width)).astype(np.float32)


def run(implementation, x, a, h0, reset=None, reverse=False):
    """States, the last of them, and gradients: all tests of a shape, a dtype and a direction by one program."""
    dy, _, dlast = inputs(*x.shape[1:], seed=1, dtype=x.dtype)
    if reset is None and x.dtype == np.float32:
        reset = np.zeros(x.shape[:2], bool)
    return gradients(linear_scan, (dy, dlast), x, a, h0, reset=reset, implementation=implementation, reverse=reverse)


def check(implementation, steps, width, kind, dtype, reverse):
    x, a, h0 = inputs(steps, width, dtype=jnp.dtype(dtype))
    dy, _, dlast = inputs(steps, width, seed=1, dtype=jnp.dtype(dtype))
    reset = resets(kind, *x.shape[:2])
    exact = [np.asarray(value, np.float64) for value in (x, a, h0, dy, dlast)]
    expected = [*linear(*exact[:3], reset, reverse), *linear_gradients(*exact[:3], reset, *exact[3:], reverse)]
    all_close(run(implementation, x, a, h0, None if kind == "none" else reset, reverse), expected, dtype)


DIRECTIONS = [
    *((False, name) for name in OFTEN),
    *((True, name) for name in SMALL),
    *(pytest.param(reverse, "triton in chunks", marks=pytest.mark.exhaustive) for reverse in (False, True)),
]


@pytest.mark.slow
@pytest.mark.parametrize("kind", RESETS)
@pytest.mark.parametrize(("reverse", "name"), DIRECTIONS)
def test_states_and_gradients_match_float64(name, kind, reverse):
    check(ALL[name], STEPS, WIDTH, kind, "float32", reverse)


@pytest.mark.parametrize("name", often(("triton in chunks",)))
def test_one_step_of_one_channel_matches_float64(name):
    check(ALL[name], 1, 1, "first", "float32", reverse=False)


@pytest.mark.parametrize("name", quick(BFLOAT16))
def test_states_and_gradients_in_bfloat16_match_float64(name):
    check(ALL[name], STEPS, WIDTH, "none", "bfloat16", reverse=False)


@pytest.mark.slow
@pytest.mark.kernels
@pytest.mark.parametrize("implementation", ALL.values(), ids=ALL)
@pytest.mark.parametrize(("steps", "width"), MATRIX)
def test_the_whole_matrix_matches_float64(implementation, steps, width, subtests):
    for kind, dtype, reverse in itertools.product(RESETS, TOLERANCE, (False, True)):
        with subtests.test(kind=kind, dtype=dtype, reverse=reverse):
            check(implementation, steps, width, kind, dtype, reverse)


@pytest.mark.parametrize("name", quick(OFTEN, IMPLEMENTATIONS))
def test_a_split_scan_is_the_whole_scan(name):
    """The parts are followed by steps of a = 1 and x = 0, which leave the state as it is."""
    x, a, h = inputs(STEPS, WIDTH)
    y, last, *_ = run(IMPLEMENTATIONS[name], x, a, h)
    parts = []
    for part in (slice(13), slice(13, None)):
        length = len(range(STEPS)[part])
        rest = (0, 0), (0, STEPS - length), (0, 0)
        padded = np.pad(x[:, part], rest), np.pad(a[:, part], rest, constant_values=1)
        states, h, *_ = run(IMPLEMENTATIONS[name], *padded, h)
        parts.append(states[:, :length])
    np.testing.assert_allclose(np.concatenate(parts, axis=1), y, atol=1e-6)
    np.testing.assert_allclose(h, last, atol=1e-6)


@pytest.mark.parametrize("name", quick(SMALL, IMPLEMENTATIONS))
def test_reverse_is_a_flip(name):
    x, a, h0 = inputs(STEPS, WIDTH)
    y, last, *_ = run(IMPLEMENTATIONS[name], x, a, h0, reverse=True)
    flipped, end, *_ = run(IMPLEMENTATIONS[name], x[:, ::-1], a[:, ::-1], h0)
    np.testing.assert_allclose(y, flipped[:, ::-1], atol=1e-6)
    np.testing.assert_allclose(last, end, atol=1e-6)


@pytest.mark.parametrize("name", quick(OFTEN, IMPLEMENTATIONS))
def test_it_is_linear_in_the_inputs_and_the_state(name):
    x, a, h0 = inputs(STEPS, WIDTH)
    x2, _, h2 = inputs(STEPS, WIDTH, seed=5)
    y1, y2, y3 = (
        run(IMPLEMENTATIONS[name], values, a, state)[0]
        for values, state in ((x, h0), (x2, h2), (x + 2 * x2, h0 + 2 * h2))
    )
    close(y3, np.asarray(y1 + 2 * y2, np.float64), 1e-6)


def test_a_reset_is_two_scans():
    x, a, _ = inputs(20, 8)
    at = np.arange(20)[None].repeat(2, 0)
    scan = jax.jit(lambda x, a, reset: linear_scan(x, a, reset=reset)[0])
    whole = scan(x, a, at == 10)
    parts = [scan(x[:, s], a[:, s], at[:, :10] < 0) for s in (slice(10), slice(10, None))]
    np.testing.assert_allclose(whole, np.concatenate(parts, axis=1), atol=1e-6)


@pytest.mark.parametrize("name", quick(BFLOAT16, IMPLEMENTATIONS))
def test_bfloat16_inputs_accumulate_in_float32(name):
    """The state counts to 512 by ones in float32; in bfloat16 it stops at 256."""
    ones = np.ones((2, STEPS, WIDTH), jnp.bfloat16)
    y, last, *_ = run(IMPLEMENTATIONS[name], ones, ones, np.full((2, WIDTH), 512 - STEPS, np.float32))
    assert (y.dtype, last.dtype) == (jnp.bfloat16, np.float32)
    np.testing.assert_array_equal(last, 512)


def test_it_works_under_vmap_and_checkpoint():
    x, a, h0 = map(jnp.asarray, inputs(11, 4))

    def both(x):
        value, pull = jax.vjp(jax.checkpoint(lambda x: linear_scan(x, a, h0)[0]), x)
        return value, *pull(jnp.ones_like(x))

    def plain(x):
        value, pull = jax.vjp(lambda x: linear_scan(x, a, h0)[0], x)
        return value, *pull(jnp.ones_like(x))

    stacked, alone = jax.jit(jax.vmap(both))(jnp.stack([x, 2 * x])), jax.jit(plain)
    for i, one in enumerate((x, 2 * x)):
        for got, wanted in zip(stacked, alone(one), strict=True):
            np.testing.assert_allclose(got[i], wanted, atol=1e-6)


def test_what_cannot_be_is_refused():
    x = jnp.zeros((1, 0, 3))
    with pytest.raises(ValueError, match="at least one step"):
        linear_scan(x, x)
    with pytest.raises(ValueError, match="allowed: auto, sequential, associative, triton"):
        linear_scan(jnp.zeros((1, 2, 3)), jnp.zeros((1, 2, 3)), implementation="fastest")


ROW, GATE, STATES = (2, 3, 4), (2, 3, 2), (2, 3, 5)
SHAPES = {
    linear_scan: {"x": ROW, "a": ROW, "h0": (2, 4), "reset": (2, 3)},
    rglru: {"x": ROW, "recurrence": ROW, "input_gate": ROW, "rate": (4,), "h0": (2, 4), "reset": (2, 3)},
    cglru: {
        "x": ROW,
        "recurrence": GATE,
        "input_gate": GATE,
        "rate": (2,),
        "angle": (2,),
        "h0": (2, 4),
        "reset": (2, 3),
    },
    selective_scan: {
        **{"u": ROW, "delta": ROW, "rate": (4, 5), "into": STATES, "out": STATES},
        **{"h0": (2, 4, 5), "reset": (2, 3)},
    },
}


@pytest.mark.parametrize(
    ("operation", "name"),
    [(operation, name) for operation, shapes in SHAPES.items() for name in shapes],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_nothing_is_broadcast(operation, name):
    """An axis of 1 would go through unseen, and a kernel would read beyond its end."""
    shapes = SHAPES[operation]
    plain = inspect.unwrap(operation)  # without the type checker of the tests, as a user has it
    given = {of: jnp.zeros(shape, bool if of == "reset" else jnp.float32) for of, shape in shapes.items()}
    plain(**given)
    for axis in range(len(shapes[name])):
        one = (*shapes[name][:axis], 1, *shapes[name][axis + 1 :])
        with pytest.raises(ValueError) as refused:
            plain(**given | {name: given[name][tuple(slice(length) for length in one)]})
        assert any(words in str(refused.value) for words in ("it must be (", "a state needs two"))
