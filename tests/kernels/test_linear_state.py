"""The recurrence of a matrix against float64 NumPy and others' own arrays, and the properties that each form has."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evalkit.bench.training import product_flops
from evalkit.kernels import linear_state
from evalkit.kernels.matrix.linear_state import Given, check
from support import matrix_oracle
from support.kernel_oracle import gradients
from support.matrix_oracle import Arguments

GOLDEN = Path(__file__).parents[1] / "golden" / "fla_recurrences.npz"
STEPS, HEADS, KEYS, VALUES = 1024, 2, 8, 5
TOLERANCE = 2e-6
# Which decay, and whether something is erased. The decay: none, a head's, or a key channel's.
FORMS = {
    "linear attention": ((), False),
    "mamba2": ((HEADS,), False),
    "gla": ((HEADS, KEYS), False),
    "deltanet": ((), True),
    "gated deltanet": ((HEADS,), True),
    "kda": ((HEADS, KEYS), True),
}
DATA = ("ordinary", "resets", "strong decays", "one key")
IMPLEMENTATIONS = ("sequential", "chunked")
SEQUENCES = ("q", "k", "v", "log_decay", "beta", "write")
# A decay of a head and of each channel, and erasing; the loop has fewer paths. Others' own arrays are of every form.
OFTEN = [("chunked", "mamba2"), ("chunked", "kda"), ("sequential", "kda")]
CASES = [
    pytest.param(way, form, marks=() if (way, form) in OFTEN else pytest.mark.exhaustive)
    for way in IMPLEMENTATIONS
    for form in FORMS
]


def inputs(form: str, data: str = "ordinary", batch: int = 2, steps: int = STEPS, seed: int = 0):
    """Arguments, and where the state is reset; keys are unit vectors, beta is up to 2."""
    rng = np.random.default_rng(seed)
    decay, erases = FORMS[form]

    def draw(*shape: int) -> np.ndarray:
        return rng.normal(size=(batch, steps, *shape)).astype(np.float32)

    q, k, v = draw(HEADS, KEYS), draw(HEADS, KEYS), draw(HEADS, VALUES)
    if data == "one key":
        k[:] = k[:, :1]
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    h0 = draw(HEADS, KEYS, VALUES)[:, 0]
    log_decay = -(draw(*decay) ** 2) / 4 if decay else None
    if data == "strong decays" and decay:
        log_decay = rng.choice(
            np.float32([-np.inf, -90, -20, -1e-3, 0]), p=[0.05, 0.1, 0.1, 0.7, 0.05], size=log_decay.shape
        )
    beta = rng.uniform(0, 2, size=(batch, steps, HEADS)).astype(np.float32) if erases else None
    write = rng.uniform(0, 1, size=(batch, steps, HEADS)).astype(np.float32)
    reset = np.zeros((batch, steps), bool)
    if data == "resets":
        reset = rng.uniform(size=reset.shape) < 0.04
        reset[0, [0, 31, 32, 33, -1]] = True
    return Arguments(q, k, v, h0, log_decay, beta, write), reset


def as_array(one):
    return jnp.asarray(one) if isinstance(one, np.ndarray) else one


def called(q, k, v, h0, log_decay, beta, write, **settings):
    named = {"log_decay": log_decay, "beta": beta, "write": write, **settings}
    return linear_state(*jax.tree.map(jnp.asarray, (q, k, v, h0)), **jax.tree.map(as_array, named))


def run(way, given, reset):
    """`o`, the last state and all gradients, and the cotangents: one program for all data of a form."""
    rng = np.random.default_rng(9)
    cotangents = [rng.normal(size=one.shape).astype(np.float32) for one in (given.v, given.h0)]
    return gradients(called, tuple(cotangents), *given, reset=reset, implementation=way), cotangents


def agree(actual, expected, tolerance=TOLERANCE):
    for got, wanted in zip(actual, expected, strict=True):
        assert (got is None) == (wanted is None)
        if wanted is not None:
            assert got.shape == wanted.shape
            np.testing.assert_allclose(got, wanted, rtol=0, atol=tolerance * np.abs(wanted).max())


@pytest.mark.slow
@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize(("way", "form"), CASES)
def test_values_and_gradients_match_float64(way: str, form: str, data: str) -> None:
    given, reset = inputs(form, data)
    actual, cotangents = run(way, given, reset)
    # Equal keys make the system of a chunk as ill-conditioned as it gets.
    tolerance = 2 * TOLERANCE if data == "one key" else TOLERANCE
    expected = [*matrix_oracle.values(given, reset), *matrix_oracle.gradients(given, reset, *cotangents)]
    agree(actual, expected, tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["gated deltanet", pytest.param("linear attention", marks=pytest.mark.exhaustive)])
def test_segments_of_time_change_nothing(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given, reset = inputs(form, "resets", steps=300)  # four segments of three chunks; the last is not full
    monkeypatch.setattr("evalkit.kernels.matrix.chunks.SEGMENT", given.q.size // 4)
    actual, cotangents = run("chunked", given, reset)
    agree(actual, [*matrix_oracle.values(given, reset), *matrix_oracle.gradients(given, reset, *cotangents)])


def test_groups_of_sequences_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    given, reset = inputs("kda", "resets", batch=5, steps=70)  # three groups, the last one not full
    monkeypatch.setattr("evalkit.kernels.matrix.loop.SMALL", 2 * given.h0[0].size)
    actual, cotangents = run("auto", given, reset)
    agree(actual, [*matrix_oracle.values(given, reset), *matrix_oracle.gradients(given, reset, *cotangents)])


def test_the_oracle_s_gradient_is_that_of_its_values() -> None:
    given, reset = inputs("kda", steps=6)
    given, reset = Arguments(*(np.asarray(one, np.float64) for one in given)), reset | (np.arange(6) == 3)
    rng = np.random.default_rng(1)
    cotangents = [rng.normal(size=given.v.shape), rng.normal(size=given.h0.shape)]
    found = matrix_oracle.gradients(given, reset, *cotangents)
    along = [rng.normal(size=one.shape) for one in given]

    def loss(step: float) -> float:
        moved = Arguments(*(one + step * way for one, way in zip(given, along, strict=True)))
        return sum((a * b).sum() for a, b in zip(matrix_oracle.values(moved, reset), cotangents, strict=True))

    slope = (loss(1e-6) - loss(-1e-6)) / 2e-6
    assert sum((a * b).sum() for a, b in zip(found, along, strict=True)) == pytest.approx(slope, rel=1e-7)


@pytest.mark.parametrize("way", IMPLEMENTATIONS)
def test_others_own_recurrences_are_the_same(way: str) -> None:
    with np.load(GOLDEN) as kept:
        held = {name: kept[name] for name in kept.files}
    named = {name.removeprefix("in_"): one.astype(np.float32) for name, one in held.items() if name.startswith("in_")}
    beta, head, channel = (named[name] for name in ("beta", "g", "gk"))
    settings = {
        "gated_delta_rule": {"log_decay": head, "beta": beta, "write": beta},
        "kda": {"log_decay": channel, "beta": beta, "write": beta},
        "gla": {"log_decay": channel},
        "delta_rule": {"beta": beta, "write": beta},
        "simple_gla": {"log_decay": head},
    }
    q = named["q"] / np.sqrt(named["q"].shape[-1])  # inside, in theirs

    @jax.jit
    def every(settings):
        arrays = [jnp.asarray(one) for one in (q, named["k"], named["v"], named["h0"])]
        return {name: linear_state(*arrays, **each, implementation=way, chunk=16) for name, each in settings.items()}

    for name, (o, state) in jax.device_get(every(settings)).items():
        expected = held[f"{name}_o"].swapaxes(1, 2) if name == "delta_rule" else held[f"{name}_o"]
        np.testing.assert_allclose(o, expected, rtol=0, atol=1e-5, err_msg=name)
        np.testing.assert_allclose(state, held[f"{name}_state"], rtol=0, atol=1e-5, err_msg=name)


def general(length: int, seed: int = 0) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Arrays of a transition `Diag(α) − a bᵀ`, and where the state is reset."""
    rng = np.random.default_rng(seed)
    draw = {name: rng.normal(size=(2, length, HEADS, KEYS)) for name in ("q", "k", "read", "along")}
    draw["v"], draw["h0"] = rng.normal(size=(2, length, HEADS, VALUES)), rng.normal(size=(2, HEADS, KEYS, VALUES))
    draw["read"] /= np.linalg.norm(draw["read"], axis=-1, keepdims=True)
    draw["along"] = draw["read"] * rng.uniform(size=draw["along"].shape)
    draw["log_decay"] = -0.6 * rng.uniform(size=draw["q"].shape)
    reset = rng.uniform(size=(2, length)) < 0.1
    reset[0, [0, -1]] = True
    return draw, reset


def written_out(arrays: dict[str, np.ndarray], reset: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`S_t = S_{t-1} (Diag(α) − a bᵀ) + v kᵀ` in float64, `S` as there `[v, k]`; the state comes back `[k, v]`."""
    s, read = arrays["h0"].swapaxes(-1, -2), []
    for t in range(reset.shape[1]):
        q, k, a, b, v, g = (arrays[name][:, t] for name in ("q", "k", "read", "along", "v", "log_decay"))
        s = np.where(reset[:, t, None, None, None], 0, s)
        taken = np.einsum("bhvk,bhk->bhv", s, a)
        s = s * np.exp(g)[:, :, None] - taken[..., None] * b[:, :, None] + v[..., None] * k[:, :, None]
        read.append(np.einsum("bhvk,bhk->bhv", s, q))
    return np.stack(read, axis=1), s.swapaxes(-1, -2)


@pytest.mark.parametrize("way", IMPLEMENTATIONS)
def test_what_is_erased_along_another_key_matches_float64(way: str) -> None:
    """Values, and the slope of a weighted sum of them along a random direction, by differences in float64."""
    arrays, reset = general(75)
    rng = np.random.default_rng(5)
    weights = [rng.normal(size=arrays[name].shape) for name in ("v", "h0")]
    ways = {name: rng.normal(size=one.shape) for name, one in arrays.items()}

    def called(arrays):
        q, k, v, h0 = (arrays[name] for name in ("q", "k", "v", "h0"))
        erased = (arrays["read"], arrays["along"])
        return linear_state(
            q,
            k,
            v,
            h0,
            log_decay=arrays["log_decay"],
            erased=erased,
            reset=jnp.asarray(reset),
            implementation=way,
            chunk=16,
        )

    def loss(arrays):
        return sum((one * weight).sum() for one, weight in zip(called(arrays), weights, strict=True))

    single = {name: jnp.float32(one) for name, one in arrays.items()}
    found, slopes = jax.jit(lambda arrays: (called(arrays), jax.grad(loss)(arrays)))(single)
    agree(found, written_out(arrays, reset))

    def moved(by: float) -> float:
        there = {name: one + by * ways[name] for name, one in arrays.items()}
        return sum((one * weight).sum() for one, weight in zip(written_out(there, reset), weights, strict=True))

    along = sum((np.asarray(slopes[name], np.float64) * one).sum() for name, one in ways.items())
    size = sum(np.abs(np.asarray(slopes[name]) * one).sum() for name, one in ways.items())
    assert abs(along - (moved(1e-6) - moved(-1e-6)) / 2e-6) < 1e-6 * size


@pytest.mark.parametrize("way", IMPLEMENTATIONS)
def test_others_general_delta_rule_is_the_same(way: str) -> None:
    """flash-linear-attention 0.6.0, `dplr_recurrence`, in float32: its `b` is minus ours."""
    with np.load(GOLDEN.with_name("mixers.npz")) as kept:
        held = {name: kept[f"rwkv7.dplr.{name}"] for name in ("q", "k", "v", "a", "b", "g", "h0", "o", "state")}
    q, k, v, a, b, g = (jnp.asarray(held[name].swapaxes(1, 2)) for name in ("q", "k", "v", "a", "b", "g"))
    q = q / np.sqrt(q.shape[-1])  # inside, in theirs
    o, state = linear_state(q, k, v, jnp.asarray(held["h0"]), log_decay=g, erased=(a, -b), implementation=way, chunk=8)
    agree([o, state], [held["o"].swapaxes(1, 2), held["state"]], 1e-5)


def test_any_split_that_carries_the_state_is_the_whole() -> None:
    given, reset = inputs("kda", "resets", steps=64)
    whole = matrix_oracle.values(given, reset)
    call = jax.jit(called, static_argnames=("implementation", "chunk"))
    state, read, at = given.h0, [], 0
    # One at a time, a part that no chunk divides, and one that is shorter than a chunk.
    parts = [(1, "auto"), (19, "chunked"), (1, "sequential"), (35, "sequential"), (3, "chunked"), *[(1, "auto")] * 5]
    for size, way in parts:
        part = given._replace(h0=state, **{name: getattr(given, name)[:, at : at + size] for name in SEQUENCES})
        o, state = call(*part, reset=reset[:, at : at + size], implementation=way, chunk=8)
        read, at = [*read, o], at + size
    assert at == 64
    agree([np.concatenate(read, axis=1), state], whole)


@pytest.mark.slow  # by the program of the comparison with float64
def test_steps_that_write_and_erase_nothing_leave_no_trace() -> None:
    given, reset = inputs("kda", "resets")
    kept = np.sort(np.random.default_rng(2).permutation(STEPS)[: STEPS // 2])
    padded = given._replace(**{name: 0 * getattr(given, name) for name in ("log_decay", "beta", "write")})
    for name in ("log_decay", "beta", "write"):
        getattr(padded, name)[:, kept] = getattr(given, name)[:, kept]
    blank = reset & np.isin(np.arange(STEPS), kept)
    (o, state, *_), _ = run("chunked", padded, blank)
    alone = given._replace(**{name: getattr(given, name)[:, kept] for name in SEQUENCES})
    agree([o[:, kept], state], matrix_oracle.values(alone, reset[:, kept]))


@pytest.mark.slow  # as above
def test_a_row_does_not_depend_on_the_others_of_its_batch() -> None:
    (given, reset), (other, _) = inputs("kda", "resets"), inputs("kda", seed=5)
    mixed = Arguments(*(np.concatenate([a[:1], b[1:]]) for a, b in zip(given, other, strict=True)))
    (o, state, *_), _ = run("chunked", given, reset)
    (alone, last, *_), _ = run("chunked", mixed, reset)
    np.testing.assert_array_equal(o[0], alone[0])
    np.testing.assert_array_equal(state[0], last[0])


@pytest.mark.parametrize("way", IMPLEMENTATIONS)
def test_it_maps_over_seeds_and_is_exact_in_float64(way: str) -> None:
    given, reset = inputs("kda", "strong decays", batch=3, steps=19)
    with jax.enable_x64(True):
        exact = Arguments(*(jnp.asarray(one, jnp.float64)[:, None] for one in given))

        def one(given: Arguments, reset):
            return called(*given, reset=reset, implementation=way, chunk=8)

        def loss(given: Arguments, reset):
            return sum(jnp.sin(part).sum() for part in one(given, reset))

        (o, state), found = jax.jit(lambda *given: (jax.vmap(one)(*given), jax.vmap(jax.grad(loss))(*given)))(
            exact, reset[:, None]
        )
        assert o.dtype == state.dtype == jnp.float64
    agree([o[:, 0], state[:, 0]], matrix_oracle.values(given, reset), tolerance=1e-13)
    expected = matrix_oracle.gradients(given, reset, np.cos(o[:, 0]), np.cos(state[:, 0]))
    agree([one[:, 0] for one in found], expected, tolerance=1e-12)


@pytest.mark.parametrize(
    ("form", "small", "looped"),
    [
        ("kda", 80, True),
        ("gla", 80, True),
        ("gla", 79, False),
        ("gated deltanet", 80, False),
        ("linear attention", 80, False),
    ],
)
def test_on_a_cpu_the_loop_takes_small_states_whose_channels_decay(
    form: str, small: int, looped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evalkit.kernels.matrix.loop.SMALL", small)
    given, reset = inputs(form, batch=1, steps=64)
    assert given.h0.size == 80
    given, reset = jax.tree.map(jnp.asarray, (given, reset))

    def program(way: str) -> int:
        call = jax.jit(lambda *given: called(*given, reset=reset, implementation=way))
        return call.lower(*given).compile().as_text().count("while(")

    loops = {way: program(way) for way in ("auto", *IMPLEMENTATIONS)}
    assert loops["sequential"] != loops["chunked"]
    assert loops["auto"] == loops["sequential" if looped else "chunked"]


def test_values_keep_their_dtype_and_sums_are_float32() -> None:
    q = jnp.zeros((1, 4, 1, 2), jnp.bfloat16)
    o, state = jax.eval_shape(linear_state, q, q, q)
    assert (o.dtype, state.dtype) == (jnp.bfloat16, jnp.float32)


@pytest.mark.parametrize("way", ["auto", *IMPLEMENTATIONS])
def test_one_step_is_no_loop_and_work_grows_with_the_length(way: str) -> None:
    def program(steps: int):
        given, reset = inputs("kda", batch=1, steps=steps)
        return jax.make_jaxpr(lambda *given: called(*given, reset=reset, implementation=way))(*given)

    assert "scan" not in str(program(1)) and "scan" in str(program(64))
    assert product_flops(program(4096)) == 16 * product_flops(program(256))


def test_no_product_has_more_axes_than_xla_takes_on_a_cpu() -> None:
    """JAX 0.10.2 ends the process, without an error, at a product of eight axes."""
    given, reset = inputs("kda", "resets", batch=1, steps=256)

    def loss(*given):
        return called(*given, reset=reset, implementation="chunked", chunk=256)[0].sum()

    program = str(jax.make_jaxpr(jax.grad(loss, argnums=range(7)))(*given))
    axes = [shape.count(",") + 1 for shape in re.findall(r"f32\[([\d,]+)\] = dot_general", program)]
    assert len(axes) > 20 and max(axes) < 8


@pytest.mark.slow
@pytest.mark.parametrize("form", ["deltanet", "kda"])
def test_a_state_that_is_carried_over_65536_tokens_stays_finite(form: str) -> None:
    call = jax.jit(called)
    state, largest = np.zeros((1, HEADS, KEYS, VALUES), np.float32), 0.0
    for part in range(16):
        given, _ = inputs(form, batch=1, steps=4096, seed=part)
        given = given._replace(h0=state, beta=np.full_like(given.beta, 2.0))  # nothing is forgotten, all is turned
        o, state = call(*given)
        assert np.isfinite(o).all()
        largest = max(largest, float(np.abs(state).max()))
    # A reflection keeps lengths, so the state grows no faster than a random walk of its writes.
    assert 0 < largest < 5 * np.sqrt(65536)


@pytest.mark.slow
def test_so_does_one_that_is_erased_along_another_key() -> None:
    call = jax.jit(linear_state)
    state, largest = jnp.zeros((2, HEADS, KEYS, VALUES)), 0.0
    for part in range(16):
        arrays, _ = general(4096, seed=part)
        q, k, v, a, b, g = (jnp.float32(arrays[name]) for name in ("q", "k", "v", "read", "along", "log_decay"))
        o, state = call(q, k, v, state, log_decay=g, erased=(a, b))
        assert np.isfinite(o).all()
        largest = max(largest, float(jnp.abs(state).max()))
    assert 0 < largest < 100  # it decays, too


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"q": (2, 3, 4)}, "q has shape (2, 3, 4)"),
        ({"q": (1, 0, 2, 4)}, "at least one step"),
        ({"k": (1, 3, 2, 5)}, "k has shape (1, 3, 2, 5); with q (1, 3, 2, 4) it must be (1, 3, 2, 4)"),
        ({"v": (1, 4, 2, 6)}, "v has shape (1, 4, 2, 6)"),
        ({"h0": (1, 2, 6, 4)}, "it must be (1, 2, 4, 6)"),
        ({"log_decay": (1, 3, 2, 6)}, "it must be (1, 3, 2) or (1, 3, 2, 4)"),
        ({"beta": (1, 3, 2, 1)}, "beta has shape"),
        ({"write": (1, 3)}, "write has shape"),
        ({"read": (1, 3, 2, 5)}, "read has shape"),
        ({"along": (1, 3, 2)}, "along has shape"),
        ({"beta": (1, 3, 2), "read": (1, 3, 2, 4)}, "beta and erased are two ways to erase; give one of them"),
        ({"reset": (3,)}, "reset has shape (3,); with q (1, 3, 2, 4) it must be (1, 3)"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(changes: dict[str, tuple[int, ...]], words: str) -> None:
    shapes = {"q": (1, 3, 2, 4), "k": (1, 3, 2, 4), "v": (1, 3, 2, 6), **changes}
    with pytest.raises(ValueError) as refused:
        check(Given(**{name: jnp.zeros(shape) for name, shape in shapes.items()}))
    assert words in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"implementation": "fast"}, "implementation='fast'; allowed: auto, sequential, chunked"),
        ({"chunk": 24}, "chunk=24; allowed: a power of two from 2 to 256"),
        ({"chunk": 1}, "chunk=1; allowed"),
        ({"chunk": 512}, "chunk=512; allowed"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict, words: str) -> None:
    q = jnp.zeros((1, 3, 2, 4))
    with pytest.raises(ValueError, match=f"^{words}"):
        linear_state(q, q, q, **settings)
