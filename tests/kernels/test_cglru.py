"""The CG-LRU and its gradients against complex NumPy in float64, and what any implementation of it must be."""

import itertools
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from evalkit.kernels import cglru
from evalkit.kernels.gates import CLOSED, cosine_and_sine
from evalkit.models.mixers.cglru import CGLRU, ComplexRecurrentBlock
from support.implementations import ALL, FEW, often
from support.kernel_oracle import RESETS, STEPS, WIDTH, program, resets

BFLOAT16 = ("sequential",)
UNIT_RESET = dict(zip(ALL, (False, True, True, False, False, True), strict=True))
"""Each way of resetting is compiled with half of the implementations: `-m kernels` has both with all of them."""
TOLERANCE = {jnp.float32: 5e-7, jnp.bfloat16: 1e-2}
EVERYTHING = list(itertools.product((1, 2, 63, 129), (1, 3, 32, 65)))
unit = jax.jit(cglru)


class Given(NamedTuple):
    """The differentiable arguments."""

    x: np.ndarray
    recurrence: np.ndarray
    input_gate: np.ndarray
    rate: np.ndarray
    angle: np.ndarray
    h0: np.ndarray


class Expected(NamedTuple):
    """Results and gradients in float64.

    A sum over batch and time is as exact as its addends, which may cancel: `terms` has their norm in its place.
    """

    h: np.ndarray
    last: np.ndarray
    gradients: Given
    terms: Given


def inputs(steps: int, channels: int, dtype=jnp.float32, seed: int = 0, batch: int = 2) -> Given:
    rng = np.random.default_rng(seed)

    def normal(*shape: int) -> np.ndarray:
        return np.asarray(jnp.asarray(rng.normal(size=shape), dtype))

    return Given(
        x=normal(batch, steps, 2 * channels),
        recurrence=normal(batch, steps, channels),
        input_gate=normal(batch, steps, channels),
        rate=-(10 ** rng.uniform(-1, 0.5, channels)).astype(np.float32),
        angle=rng.uniform(-1, 1, channels).astype(np.float32),
        h0=rng.normal(size=(batch, 2 * channels)).astype(np.float32),
    )


def cotangents(given: Given, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    dh = np.asarray(jnp.asarray(rng.normal(size=given.x.shape), given.x.dtype))
    return dh, rng.normal(size=given.h0.shape).astype(np.float32)


def complex_of(x: np.ndarray) -> np.ndarray:
    n = x.shape[-1] // 2
    return x[..., :n] + 1j * x[..., n:]


def real_of(z: np.ndarray) -> np.ndarray:
    return np.concatenate([z.real, z.imag], axis=-1)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def gates(given: Given, reset: np.ndarray, unit_reset: bool) -> tuple[np.ndarray, ...]:
    """a_t, the input's scale, and the scale's slope in log |a_t| with the root's capped at 1000."""
    log_magnitude = sigmoid(given.recurrence) * given.rate
    a = np.where(reset[..., None], 0, np.exp(log_magnitude + 1j * sigmoid(given.recurrence) * given.angle))
    scale = np.sqrt(-np.expm1(2 * log_magnitude))
    slope = -np.exp(2 * log_magnitude) * 2 * np.minimum(1000, 1 / np.maximum(2 * scale, 1e-300))
    if unit_reset:
        scale, slope = np.where(reset[..., None], 1, scale), np.where(reset[..., None], 0, slope)
    return a, scale, slope


def states(given: Given, reset: np.ndarray, unit_reset: bool) -> np.ndarray:
    """h_0 and every state after it, complex, one step after the other (De et al. 2024, app. B)."""
    a, scale, _ = gates(given, reset, unit_reset)
    h = [complex_of(given.h0)]
    for t in range(given.x.shape[1]):
        h.append(a[:, t] * h[-1] + (scale * sigmoid(given.input_gate) * complex_of(given.x))[:, t])
    return np.stack(h, axis=1)


def oracle(given: Given, reset: np.ndarray, unit_reset: bool, dh: np.ndarray, dlast: np.ndarray) -> Expected:
    """Values and the adjoint recurrence `g_t = dh_t + conj(a_{t+1}) g_{t+1}`."""
    given, (dh, dlast) = Given(*(np.float64(value) for value in given)), (np.float64(dh), np.float64(dlast))
    a, scale, slope = gates(given, reset, unit_reset)
    h = states(given, reset, unit_reset)
    r, i, x = sigmoid(given.recurrence), sigmoid(given.input_gate), complex_of(given.x)
    g = np.zeros_like(x)
    arriving = complex_of(dlast)
    for t in reversed(range(x.shape[1])):
        g[:, t] = complex_of(dh)[:, t] + arriving
        arriving = np.conj(a[:, t]) * g[:, t]
    da_over_a = np.conj(g) * a * h[:, :-1]
    dinput = (np.conj(g) * x).real
    dlog_magnitude, dturn = da_over_a.real + dinput * i * slope, -da_over_a.imag
    gradients = Given(
        x=real_of(scale * i * g),
        recurrence=(dlog_magnitude * given.rate + dturn * given.angle) * r * (1 - r),
        input_gate=dinput * scale * i * (1 - i),
        rate=(dlog_magnitude * r).sum(axis=(0, 1)),
        angle=(dturn * r).sum(axis=(0, 1)),
        h0=real_of(arriving),
    )
    sizes = np.hypot(np.abs(da_over_a), dinput * i * slope), np.abs(da_over_a)
    rate, angle = (np.sqrt(((size * r) ** 2).sum(axis=(0, 1))) for size in sizes)
    terms = gradients._replace(rate=rate, angle=angle)
    return Expected(real_of(h[:, 1:]), real_of(h[:, -1]), gradients, terms)


def run(given: Given, reset: np.ndarray | None, cotangents: tuple[np.ndarray, np.ndarray], name: str):
    """Values and gradients by the implementation of that name, all tests of a shape and dtype by one program."""
    both = program(cglru, False, implementation=ALL[name], unit_reset=UNIT_RESET[name])
    values, gradients = jax.device_get(both(cotangents, reset, *given))
    return values, Given(*gradients)


def close(actual, expected: np.ndarray, tolerance: float, size: np.ndarray | None = None) -> None:
    """Within `tolerance` of the largest value that is expected, or of the largest of `size`."""
    scale = max(*(float(np.abs(value).max()) for value in (expected, expected if size is None else size)), 1.0)
    np.testing.assert_allclose(np.asarray(actual, np.float64), expected, atol=tolerance * scale, rtol=0)


def check_against_float64(got, given: Given, reset: np.ndarray, dtype, unit_reset: bool) -> None:
    ((h, last), gradients), (dh, dlast) = got, cotangents(given)
    expected = oracle(given, reset, unit_reset, dh, dlast)
    assert (h.dtype, last.dtype) == (dtype, jnp.float32)
    close(h, expected.h, TOLERANCE[dtype])
    close(last, expected.last, TOLERANCE[dtype])
    for name, gradient in gradients._asdict().items():
        wanted, size = getattr(expected.gradients, name), getattr(expected.terms, name)
        close(gradient, wanted, TOLERANCE[dtype] * (2 if name in ("rate", "angle") else 1), size)


@pytest.mark.parametrize("kind", RESETS)
@pytest.mark.parametrize("name", often(FEW))
def test_values_and_gradients_match_float64(name: str, kind: str) -> None:
    given, reset = inputs(STEPS, WIDTH), resets(kind, 2, STEPS)
    check_against_float64(run(given, reset, cotangents(given), name), given, reset, jnp.float32, UNIT_RESET[name])


@pytest.mark.parametrize("name", often(("triton in chunks",)))
def test_one_step_of_one_channel_matches_float64(name: str) -> None:
    given, reset = inputs(1, 1), resets("first", 2, 1)
    check_against_float64(run(given, reset, cotangents(given), name), given, reset, jnp.float32, UNIT_RESET[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", often(BFLOAT16))
def test_bfloat16_is_as_close_as_its_digits(name: str) -> None:
    given = inputs(STEPS, WIDTH, jnp.bfloat16)
    got = run(given, None, cotangents(given), name)
    check_against_float64(got, given, resets("none", 2, STEPS), jnp.bfloat16, False)


@pytest.mark.kernels
@pytest.mark.slow
@pytest.mark.parametrize("implementation", ALL.values(), ids=ALL)
@pytest.mark.parametrize(("steps", "channels"), EVERYTHING)
def test_every_shape_matches_float64(steps: int, channels: int, implementation, subtests) -> None:
    for kind, dtype, unit_reset in itertools.product(RESETS, TOLERANCE, (False, True)):
        given, reset = inputs(steps, channels, dtype), resets(kind, 2, steps)
        both = program(cglru, False, implementation=implementation, unit_reset=unit_reset)
        with subtests.test(kind=kind, dtype=dtype, unit_reset=unit_reset):
            values, gradients = both(cotangents(given), reset, *given)
            check_against_float64((values, Given(*gradients)), given, reset, dtype, unit_reset)


@pytest.mark.parametrize("unit_reset", [False, True])
def test_the_gradients_of_the_oracle_are_its_slopes(unit_reset: bool) -> None:
    """By central differences of the values, in every argument: the adjoint above is not wrong in the same way twice."""
    dh, dlast = (np.float64(value) for value in cotangents(inputs(5, 2)))
    given = Given(*(np.float64(value) for value in inputs(5, 2)))
    reset = resets("consecutive", 2, 5)

    def loss(given: Given) -> float:
        h = states(given, reset, unit_reset)
        return float((real_of(h[:, 1:]) * dh).sum() + (real_of(h[:, -1]) * dlast).sum())

    gradients = oracle(given, reset, unit_reset, dh, dlast).gradients
    for name, gradient in gradients._asdict().items():
        for index in np.ndindex(gradient.shape):
            step = np.zeros_like(gradient)
            step[index] = 1e-6
            up, down = (given._replace(**{name: getattr(given, name) + side * step}) for side in (1, -1))
            np.testing.assert_allclose(gradient[index], (loss(up) - loss(down)) / 2e-6, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", FEW)
def test_a_split_run_is_the_whole_run(name: str) -> None:
    """The parts are followed by pads, which leave the state as it is."""
    given, ways, reset = inputs(STEPS, WIDTH), cotangents(inputs(STEPS, WIDTH)), resets("none", 2, STEPS)
    (h, last), _ = run(given, reset, ways, name)
    parts, state = [], given.h0
    for part in (slice(13), slice(13, 14), slice(14, None)):
        length = len(range(STEPS)[part])

        def padded(values: np.ndarray, pad: float, part=part, length=length) -> np.ndarray:
            return np.pad(values[:, part], ((0, 0), (0, STEPS - length), (0, 0)), constant_values=pad)

        rows = padded(given.x, 0), padded(given.recurrence, CLOSED), padded(given.input_gate, 0)
        (now, state), _ = run(Given(*rows, given.rate, given.angle, state), reset, ways, name)
        parts.append(now[:, :length])
    np.testing.assert_allclose(np.concatenate(parts, axis=1), h, atol=1e-6)
    np.testing.assert_allclose(state, last, atol=1e-6)


def test_it_is_linear_in_the_inputs_and_the_state() -> None:
    one, other = (inputs(20, 8, seed=seed) for seed in (0, 5))

    def of(x, h0):
        return unit(x, *one[1:5], h0)[0]

    mixed = of(one.x + 2 * other.x, one.h0 + 2 * other.h0)
    np.testing.assert_allclose(mixed, of(one.x, one.h0) + 2 * of(other.x, other.h0), atol=1e-5)


def test_multiplying_the_inputs_by_j_multiplies_the_states_by_j() -> None:
    """Linear over the complex numbers, not only over the real ones."""
    x, *rest, h0 = inputs(20, 8)

    def turned(z):
        return real_of(1j * complex_of(np.asarray(z)))

    np.testing.assert_allclose(unit(turned(x), *rest, turned(h0))[0], turned(unit(x, *rest, h0)[0]), atol=1e-6)


def test_a_reset_is_two_runs() -> None:
    x, recurrence, input_gate, rate, angle, h0 = inputs(20, 8)
    whole, last = unit(x, recurrence, input_gate, rate, angle, h0, reset=np.arange(20)[None].repeat(2, 0) == 10)
    halves = [[rows[:, part] for rows in (x, recurrence, input_gate)] for part in (slice(10), slice(10, None))]
    first, _ = unit(*halves[0], rate, angle, h0)
    second, end = unit(*halves[1], rate, angle, np.zeros_like(h0))
    np.testing.assert_allclose(whole, np.concatenate([first, second], axis=1), atol=1e-6)
    np.testing.assert_allclose(last, end, atol=1e-6)


def test_without_an_angle_both_parts_are_real_units_of_their_own() -> None:
    """The scan of the RG-LRU's own kernel, on the gates of eqs. 1 to 4."""
    from evalkit.kernels import linear_scan

    x, recurrence, input_gate, rate, _, h0 = inputs(20, 8)
    log_a = np.tile(sigmoid(recurrence) * rate, 2)
    entering = np.sqrt(-np.expm1(2 * log_a)) * np.tile(sigmoid(input_gate), 2) * x
    for got, wanted in zip(
        unit(x, recurrence, input_gate, rate, np.zeros_like(rate), h0),
        jax.jit(linear_scan)(entering, np.exp(log_a), h0),
        strict=True,
    ):
        np.testing.assert_allclose(got, wanted, atol=1e-6)


@pytest.mark.parametrize("name", FEW)
def test_as_the_decay_tends_to_one_nothing_breaks_and_the_gradient_is_bounded(name: str) -> None:
    """|a| = 1 − 1e-12 … 1 − 1e-2 and 1 itself; the slope of the root is the capped one of the oracle."""
    given = inputs(STEPS, WIDTH)._replace(rate=-np.float32([0, *np.logspace(-12, -2, WIDTH - 1)]))
    reset, (dh, dlast) = resets("none", 2, STEPS), cotangents(given)
    (h, last), gradients = run(given, reset, (dh, dlast), name)
    expected = oracle(given, reset, False, dh, dlast)
    # A state that does not decay keeps every rounding of its 63 turns.
    for got, wanted in ((h, expected.h), (last, expected.last)):
        close(got, wanted, 2e-6)
    for got, wanted, size in zip(gradients, expected.gradients, expected.terms, strict=True):
        close(got, wanted, 2e-6, size)


@pytest.mark.parametrize("name", FEW)
def test_a_closed_recurrence_gate_leaves_the_state_exactly_as_it_is(name: str) -> None:
    given = inputs(STEPS, WIDTH)
    given = given._replace(recurrence=np.full_like(given.recurrence, CLOSED))
    (h, last), gradients = run(given, resets("none", 2, STEPS), cotangents(given), name)
    np.testing.assert_array_equal(h, np.repeat(given.h0[:, None], STEPS, axis=1))
    np.testing.assert_array_equal(last, given.h0)
    for argument in ("x", "recurrence", "input_gate", "rate", "angle"):
        np.testing.assert_array_equal(getattr(gradients, argument), 0)


def test_it_works_under_vmap_and_checkpoint() -> None:
    x, *rest = map(jnp.asarray, inputs(11, 4))

    def both(wrapped, x):
        def loss(x):
            h = cglru(x, *rest)[0]
            return (h**2).sum(), h

        return jax.grad(wrapped(loss), has_aux=True)(x)

    stacked = jax.jit(jax.vmap(partial(both, jax.checkpoint)))(jnp.stack([x, 2 * x]))
    alone = jax.jit(partial(both, lambda loss: loss))
    for i, one in enumerate((x, 2 * x)):
        gradient, h = alone(one)
        np.testing.assert_allclose(stacked[1][i], h, atol=1e-6)
        close(stacked[0][i], np.asarray(gradient), 1e-6)


def test_cosine_and_sine_match_float64() -> None:
    turn = np.float32(np.concatenate([np.linspace(-20, 20, 40_001), np.linspace(-1e4, 1e4, 40_001)]))
    for got, wanted in zip(cosine_and_sine(jnp.asarray(turn)), (np.cos, np.sin), strict=True):
        np.testing.assert_allclose(got, wanted(np.float64(turn)), atol=2.5e-7, rtol=0)


def test_a_gpu_without_a_kernel_is_left_no_loop_over_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    jax.clear_caches()  # of what was traced for a CPU alone
    given = jax.tree.map(jnp.asarray, inputs(64, 8, jnp.bfloat16))

    def loss(given):
        return cglru(*given)[0].astype(jnp.float32).sum()

    program = jax.jit(jax.grad(loss)).trace(given).lower(lowering_platforms=("rocm",)).as_text()
    assert "custom_call" not in program and "stablehlo.while" not in program


def test_what_cannot_be_is_refused() -> None:
    given = Given(*map(jnp.asarray, inputs(3, 4)))
    with pytest.raises(ValueError, match="at least one step"):
        cglru(given.x[:, :0], given.recurrence[:, :0], given.input_gate[:, :0], given.rate, given.angle)
    with pytest.raises(ValueError, match="x has 7 channels; a state needs two"):
        cglru(given.x[..., :7], *given[1:5])
    with pytest.raises(ValueError, match="allowed: auto, sequential, associative"):
        cglru(*given, implementation="fastest")
    with pytest.raises(ValueError, match="takes float32 and bfloat16, not float16; use implementation='sequential'"):
        cglru(given.x.astype(jnp.float16), *given[1:], implementation="triton")


def test_decay_and_angle_start_where_they_are_said_to() -> None:
    unit = CGLRU(8192, 256, rngs=nnx.Rngs(0), angle_range=(0.1, 0.3))
    magnitude, turn = np.asarray(jax.nn.sigmoid(unit.decay[...])) ** 8, 8 * np.asarray(unit.angle[...])
    assert 0.9 <= magnitude.min() < 0.902 and 0.997 < magnitude.max() <= 0.9991
    assert 0.1 <= turn.min() < 0.102 and 0.298 < turn.max() <= 0.3001


def test_a_gate_sees_both_parts_of_the_channels_of_its_block_and_no_others() -> None:
    unit = CGLRU(12, 3, rngs=nnx.Rngs(0))  # 6 complex channels in blocks of 2
    x = jax.random.normal(jax.random.key(0), (1, 1, 12))

    def of(x):
        return jnp.concatenate(unit._before_sigmoid(x), axis=-1)[0, 0]

    seen = np.asarray(jax.jit(jax.jacobian(of))(x))[:, 0, 0] != 0
    block = np.arange(12) % 6 // 2
    np.testing.assert_array_equal(seen, block[:, None] == block[None])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"gate_blocks": 4}, "gate_blocks=4 does not divide the 6 complex channels of width 12; use a divisor of 6"),
        ({"decay_range": (0.9, 1.0)}, "decay_range=\\(0.9, 1.0\\); allowed: 0 < low < high < 1"),
        ({"angle_range": (1.0, 0.0)}, "angle_range=\\(1.0, 0.0\\); allowed: low <= high"),
        ({"implementation": "fastest"}, "implementation='fastest'; allowed: auto, sequential, associative"),
    ],
)
def test_an_impossible_unit_is_refused(settings: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ComplexRecurrentBlock(16, width_rnn=12, rngs=nnx.Rngs(0), **{"gate_blocks": 3, **settings})


def test_a_block_runs_the_implementation_that_it_is_told_to() -> None:
    x = jnp.zeros((1, 8, 16))
    for implementation, loops in (("sequential", True), ("associative", False)):
        block = ComplexRecurrentBlock(16, width_rnn=12, gate_blocks=3, rngs=nnx.Rngs(0), implementation=implementation)
        graph, state = nnx.split(block)
        program = jax.jit(lambda state, x, graph=graph: nnx.merge(graph, state)(x, None, None)[0]).lower(state, x)
        assert ("stablehlo.while" in program.as_text()) is loops
