"""Mixers of a matrix state, minGRU, the short convolution: their equations in float64, and what follows from them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from evalkit.configuration import composition, nodes
from evalkit.configuration.spec import Spec
from evalkit.models.layers.decays import ChannelDecay, HeadDecay
from evalkit.models.layers.mixer import Decaying
from evalkit.models.layers.positions import turned
from evalkit.models.mixers.convolution import BaseConv
from evalkit.models.mixers.linear_state import MatrixStateBlock
from evalkit.models.mixers.mamba2 import Mamba2Block
from evalkit.models.mixers.mamba3 import Mamba3Block, Steps, trapezoidal
from evalkit.models.mixers.mingru import MinGRUBlock
from support.shrunk import sampled

WIDTH, HEADS, KEYS, VALUES, STATES, PAIRS, LENGTH = 8, 2, 3, 4, 5, 2, 21
PARAMETERS = 250_000
MATRIX = (
    *("linear_attention", "gla", "deltanet", "gated_deltanet", "kda", "deltanet_negative"),
    *("deltaproduct", "gated_deltanet_negative", "mamba2", "mamba3"),
)
OTHERS = ("rwkv7", "mlstm", "kda_hybrid", "gated_deltanet_hybrid", "mamba2_hybrid")
EXACT = 4e-6
GOLDEN = Path(__file__).parents[1] / "golden" / "mixers.npz"


def settings_of(name: str) -> dict[str, Any]:
    """What the model's YAML says of its mixer, at the sizes of these tests."""
    node = Spec.of(["task=induction_heads", f"model={name}"]).plain["model"]["mixers"]
    assert isinstance(node, dict)
    ((_, mixer),) = node.items()
    return {key: value for key, value in mixer.items() if not key.startswith("_")}


def block_of(name: str, **others: Any) -> Any:
    """The mixer of a model, small, with every parameter away from where it starts."""
    sizes = {"width_rnn": 12} if name == "mingru" else {"heads": HEADS, "head_dim": KEYS}
    if name in ("mamba2", "mamba3"):
        sizes["states"] = STATES if name == "mamba2" else 4 * PAIRS
    elif name != "mingru":
        sizes["value_dim"] = VALUES
    kind = {"mamba2": Mamba2Block, "mamba3": Mamba3Block, "mingru": MinGRUBlock}.get(name, MatrixStateBlock)
    graph, state = nnx.split(kind(WIDTH, rngs=nnx.Rngs(0), **{**settings_of(name), **sizes, **others}))
    rng = np.random.default_rng(1)
    moved = jax.tree.map(lambda leaf: jnp.float32(leaf + 0.3 * rng.normal(size=leaf.shape)), jax.device_get(state))
    return nnx.merge(graph, moved)


def double(value: Any) -> np.ndarray:
    return np.asarray(value, np.float64)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def softplus(x: np.ndarray) -> np.ndarray:
    return np.logaddexp(0, x)


def linear(module: Any, x: np.ndarray) -> np.ndarray:
    bias = 0 if module.bias is None else double(module.bias[...])
    return x @ double(module.kernel[...]) + bias


def convolved(conv: Any, x: np.ndarray) -> np.ndarray:
    taps = double(conv.kernel[...])
    padded = np.concatenate([np.zeros((len(x), len(taps) - 1, x.shape[-1])), x], axis=1)
    y = sum(padded[:, tap : tap + x.shape[1]] * weight for tap, weight in enumerate(taps))
    return y if conv.bias is None else y + double(conv.bias[...])


def silu(x: np.ndarray) -> np.ndarray:
    return x * sigmoid(x)


def normed(norm: Any, x: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * double(norm.scale[...])


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x**2).sum(-1, keepdims=True) + 1e-6)


def in_heads(x: np.ndarray) -> np.ndarray:
    return x.reshape(*x.shape[:2], HEADS, -1)


def head_decay(alpha: Any, x: np.ndarray) -> np.ndarray:
    return np.exp(-np.exp(double(alpha.log_rate[...])) * softplus(linear(alpha.into, x)))[..., None]


def channel_decay(alpha: Any, x: np.ndarray) -> np.ndarray:
    steps = in_heads(softplus(linear(alpha.up, linear(alpha.into, x))))
    return np.exp(-np.exp(double(alpha.log_rate[...]))[:, None] * steps)


def sigmoid_decay(alpha: Any, x: np.ndarray) -> np.ndarray:
    return in_heads(sigmoid(linear(alpha.up, linear(alpha.into, x))) ** (1 / 16))


DECAYS: dict[str, Callable[[Any, np.ndarray], np.ndarray]] = {
    "head": head_decay,
    "channel": channel_decay,
    "sigmoid": sigmoid_decay,
}
GATES: dict[str, Callable[[Any, np.ndarray], np.ndarray]] = {
    "silu": lambda gate, x: silu(linear(gate.into, x)),
    "low_rank": lambda gate, x: sigmoid(linear(gate.up, linear(gate.into, x))),
}


def matrix_state(block: Any, x: np.ndarray, settings: dict[str, Any]) -> np.ndarray:
    """The block token by token, head by head, delta step by delta step, `S` as in its equation `[v, k]`."""
    steps, erasure = settings.get("delta_steps", 1), settings.get("erasure", 0)
    u = linear(block.input, x)
    u = silu(u if block.conv is None else convolved(block.conv, u))
    q, k, v = np.split(u, np.cumsum([HEADS * KEYS, steps * HEADS * KEYS]), axis=-1)
    q, k, v = in_heads(q), *(part.reshape(*x.shape[:2], steps, HEADS, -1) for part in (k, v))
    beta, write = np.zeros((*x.shape[:2], steps, HEADS)), np.ones((*x.shape[:2], steps, HEADS))
    if erasure:
        q, k = unit(q), unit(k)
        beta = write = erasure * sigmoid(linear(block.beta, x)).reshape(beta.shape)
    alpha = np.ones((*x.shape[:2], HEADS, KEYS))
    if settings.get("decay"):
        alpha = alpha * DECAYS[settings["decay"]](block.alpha, x)
    y = np.zeros((*x.shape[:2], HEADS, VALUES))
    for row, head in np.ndindex(len(x), HEADS):
        s = np.zeros((VALUES, KEYS))
        for t in range(x.shape[1]):
            s = s * alpha[row, t, head]
            for n in range(steps):
                key, strength = k[row, t, n, head], beta[row, t, n, head]
                s = s @ (np.eye(KEYS) - strength * np.outer(key, key))
                s = s + write[row, t, n, head] * np.outer(v[row, t, n, head], key)
            y[row, t, head] = s @ q[row, t, head] / KEYS**0.5
    y = normed(block.norm, y).reshape(*x.shape[:2], -1)
    if settings.get("gate"):
        y = y * GATES[settings["gate"]](block.gate, x)
    return linear(block.output, y)


def mamba2(block: Any, x: np.ndarray) -> np.ndarray:
    u = silu(convolved(block.conv, linear(block.input, x)))
    v, b, c = np.split(u, np.cumsum([HEADS * KEYS, STATES]), axis=-1)
    v, step, decay = in_heads(v), softplus(linear(block.alpha.into, x)), head_decay(block.alpha, x)
    y = np.zeros(v.shape)
    for row, head in np.ndindex(len(x), HEADS):
        s = np.zeros((KEYS, STATES))
        for t in range(x.shape[1]):
            s = decay[row, t, head] * s + step[row, t, head] * np.outer(v[row, t, head], b[row, t])
            y[row, t, head] = s @ c[row, t] + double(block.skip[...])[head] * v[row, t, head]
    gate = silu(linear(block.gate, x))
    return linear(block.output, normed(block.norm, y.reshape(*x.shape[:2], -1) * gate))


def in_turn(x: np.ndarray, angle: np.ndarray) -> np.ndarray:
    """The first pairs of channels as complex numbers, each times a phase."""
    width = 2 * angle.shape[-1]
    pairs = (x[..., :width:2] + 1j * x[..., 1:width:2]) * np.exp(1j * angle)
    both = np.stack([pairs.real, pairs.imag], axis=-1).reshape(*x.shape[:-1], width)
    return np.concatenate([both, x[..., width:]], axis=-1)


def mamba3(block: Any, x: np.ndarray) -> np.ndarray:
    states, inner = 4 * PAIRS, HEADS * KEYS
    ends = np.cumsum([inner, inner, states, states, HEADS, HEADS, HEADS])
    gate, v, b, c, step, rate, blend, turn = np.split(linear(block.input, x), ends, axis=-1)
    v, step, blend = in_heads(v), softplus(step + double(block.step_bias[...])), sigmoid(blend)
    decay = np.exp(-step * np.maximum(softplus(rate), 1e-4))
    angle = np.cumsum(step[..., None] * np.pi * np.tanh(turn)[:, :, None], axis=1)
    b = in_turn(normed(block.key_norm, b)[:, :, None] + double(block.key_bias[...]), angle)
    c = in_turn(normed(block.query_norm, c)[:, :, None] + double(block.query_bias[...]), angle)
    y = np.zeros(v.shape)
    for row, head in np.ndindex(len(x), HEADS):
        s, before = np.zeros((KEYS, states)), np.zeros((KEYS, states))
        for t in range(x.shape[1]):
            share, written = blend[row, t, head], step[row, t, head] * np.outer(v[row, t, head], b[row, t, head])
            s = decay[row, t, head] * (s + (1 - share) * step[row, t, head] * before) + share * written
            before = np.outer(v[row, t, head], b[row, t, head])
            y[row, t, head] = s @ c[row, t, head] + double(block.skip[...])[head] * v[row, t, head]
    return linear(block.output, y.reshape(*x.shape[:2], -1) * silu(gate))


def mingru(block: Any, x: np.ndarray) -> np.ndarray:
    u = convolved(block.conv, x)
    z, candidate = sigmoid(linear(block.gate, u)), linear(block.candidate, u)
    g = np.where(candidate >= 0, candidate + 0.5, sigmoid(candidate))
    h, states = np.zeros((len(x), z.shape[-1])), []
    for t in range(x.shape[1]):
        h = (1 - z[:, t]) * h + z[:, t] * g[:, t]
        states.append(h)
    return linear(block.output, np.stack(states, axis=1))


def inputs(length: int = LENGTH) -> jax.Array:
    return jax.random.normal(jax.random.key(2), (2, length, WIDTH))


@pytest.mark.slow
@pytest.mark.parametrize("name", [*MATRIX, "mingru"])
def test_it_is_its_equation_written_out(name: str) -> None:
    block, x = block_of(name), inputs()
    written = {"mamba2": mamba2, "mamba3": mamba3, "mingru": mingru}.get(name)
    expected = written(block, double(x)) if written is not None else matrix_state(block, double(x), settings_of(name))
    found = jax.jit(lambda x: block(x, None, None)[0])(x)
    np.testing.assert_allclose(found, expected, atol=EXACT * np.abs(expected).max(), rtol=0)


@pytest.mark.slow
def test_the_recurrence_of_mamba3_is_its_authors() -> None:
    """Their reference of one step (mamba-ssm 041c087, `mamba3_siso_step_ref`), float32, without skip and gate."""
    with np.load(GOLDEN) as kept:
        arrays = {name.removeprefix("mamba3."): kept[name] for name in kept.files if name.startswith("mamba3.")}
    step, blend = arrays["dt"].swapaxes(1, 2), sigmoid(arrays["trap"].swapaxes(1, 2))
    turns = step[..., None] * np.tanh(arrays["angles"]) / 2
    steps = Steps(*map(jnp.asarray, (step, arrays["adt"].swapaxes(1, 2), jnp.float32(blend), jnp.float32(turns))))
    k, q = (arrays[name] + arrays[f"{name}_bias"] for name in ("k", "q"))
    heads, states, values = q.shape[2], q.shape[3], arrays["v"].shape[3]
    pairs = turns.shape[-1]
    empty = Mamba3Block(
        8, heads=heads, head_dim=values, states=states, rope_fraction=2 * pairs / states, rngs=nnx.Rngs(0)
    )
    cache = empty.init_cache(len(q), 0)
    y, state, last = jax.jit(trapezoidal)(*map(jnp.asarray, (q, k, arrays["v"])), steps, None, cache)
    np.testing.assert_allclose(y, arrays["out"], atol=1e-5 * np.abs(arrays["out"]).max(), rtol=0)
    key, value, own, angle = np.split(
        np.asarray(last)[:, 0], np.cumsum([heads * states, heads * values, heads]), axis=-1
    )
    angle = 2 * np.pi * angle.reshape(len(q), heads, pairs)
    np.testing.assert_allclose(np.exp(1j * angle), np.exp(1j * arrays["angle"]), atol=1e-5)
    # Theirs has the last token's own share in it already.
    key, value = key.reshape(len(q), heads, states), value.reshape(len(q), heads, values)
    whole = np.asarray(state) + own[..., None, None] * key[..., :, None] * value[..., None, :]
    np.testing.assert_allclose(whole.swapaxes(-1, -2), arrays["state"], atol=1e-5 * np.abs(arrays["state"]).max())


in_turns = jax.jit(turned)
slope_of = jax.jit(jax.grad(lambda turns, weights, *where: (turned(turns, *where)[0] * weights).sum()))


@given(seed=st.integers(0, 2**31 - 1), cut=st.sampled_from([1, 8, LENGTH - 1]))
@examples(max_examples=15, deadline=None)
def test_angles_are_the_same_in_any_parts_and_begin_anew(seed: int, cut: int) -> None:
    """To the last bit; by float64 they are sums since the last position 0, and a pad turns nothing."""
    rng = np.random.default_rng(seed)
    turns = rng.normal(size=(2, LENGTH, 3)).astype(np.float32)
    begun, pads = rng.random((2, LENGTH)) < 0.2, rng.random((2, LENGTH)) < 0.2
    positions = np.where(pads, -1, np.where(begun, 0, 7))
    start = jnp.float32(rng.integers(0, 2**24, (2, 3)) / 2**24)
    whole, last = in_turns(turns, positions, start)
    first, between = in_turns(turns[:, :cut], positions[:, :cut], start)
    second, end = in_turns(turns[:, cut:], positions[:, cut:], between)
    np.testing.assert_array_equal(whole, np.concatenate([first, second], axis=1))
    np.testing.assert_array_equal(last, end)
    expected, angle = np.zeros(turns.shape), double(start)
    for t in range(LENGTH):
        angle = np.where((positions[:, t] == 0)[:, None], 0, angle) + turns[:, t] * (positions[:, t] >= 0)[:, None]
        expected[:, t] = angle
    np.testing.assert_allclose(np.exp(2j * np.pi * double(whole)), np.exp(2j * np.pi * expected), atol=1e-5)
    slope = slope_of(turns, turns, positions, start)
    wanted = [
        sum(turns[:, t] * ~(begun & ~pads)[:, s + 1 : t + 1].any(axis=1)[:, None] for t in range(s, LENGTH))
        * ~pads[:, s, None]
        for s in range(LENGTH)
    ]
    np.testing.assert_allclose(slope, np.stack(wanted, axis=1), atol=1e-4)


@pytest.mark.parametrize("settings", [{"conv_width": 0}, {"decay": "head"}], ids=str)
def test_deltaproduct_without_a_convolution_and_with_a_decay(settings: dict[str, Any]) -> None:
    """The decay of a token comes once, before its first delta step."""
    block, x = block_of("deltaproduct", **settings), inputs()
    expected = matrix_state(block, double(x), settings_of("deltaproduct") | settings)
    found = jax.jit(lambda x: block(x, None, None)[0])(x)
    np.testing.assert_allclose(found, expected, atol=EXACT * np.abs(expected).max(), rtol=0)


def test_with_one_delta_step_deltaproduct_is_deltanet_negative() -> None:
    one_step = ["model=deltaproduct", "model.mixers.matrix.delta_steps=1", "model.mlp_expansion=2.625"]
    product, negative = (
        nodes.plain(composition.compose(["task=induction_heads", *words]).config)["model"]
        for words in (one_step, ["model=deltanet_negative"])
    )
    assert product["mixers"]["matrix"].pop("delta_steps") == 1
    assert product == negative


@pytest.mark.slow
def test_an_erased_state_stays_small_where_a_plain_sum_grows() -> None:
    """The largest number of the state after 2,048 tokens, over that after 256, with and without what erases."""

    def grown(name: str) -> float:
        block, sizes = block_of(name), []
        read = jax.jit(lambda x, cache: block(x, None, cache)[1])
        cache = block.init_cache(2, 256)
        for part in jnp.split(inputs(2048), 8, axis=1):
            cache = read(part, cache)
            sizes.append(float(jnp.abs(cache.h).max()))
        return sizes[-1] / sizes[0]

    ratios = {name: grown(name) for name in ("linear_attention", "deltanet_negative", "kda")}
    assert ratios.pop("linear_attention") > 6
    assert max(ratios.values()) < 3, ratios


@pytest.mark.slow
@pytest.mark.parametrize("name", sampled([*MATRIX, *OTHERS, "mingru", "lstm", "gru"], 3))
def test_it_has_250k_parameters_beside_the_embedding(name: str) -> None:
    model = Spec.of(["task=induction_heads", f"model={name}"]).experiment.model
    assert model is not None
    params = jax.eval_shape(model.init, jax.random.key(0))
    count = sum(leaf.size for leaf in jax.tree.leaves(params)) - params["embedding"]["table"].size
    assert abs(count / PARAMETERS - 1) < 0.02, count
    if name in MATRIX:  # one size of state, so that the rules are compared at equal state
        assert {block.h.size for block in model.init_cache(1, 8)} == {4 * 16 * 16}


def test_four_delta_steps_fit_into_as_many_parameters() -> None:
    """By the size of the MLP that the comment of its YAML gives."""
    four = ["model=deltaproduct", "model.mixers.matrix.delta_steps=4", "model.mlp_expansion=0.4375"]
    model = Spec.of(["task=induction_heads", *four]).experiment.model
    assert model is not None
    params = jax.eval_shape(model.init, jax.random.key(0))
    count = sum(leaf.size for leaf in jax.tree.leaves(params)) - params["embedding"]["table"].size
    assert abs(count / PARAMETERS - 1) < 0.02, count


def test_decays_start_as_published() -> None:
    alpha = HeadDecay(WIDTH, 4096, KEYS, 1, rngs=nnx.Rngs(0))
    step, rate = jax.nn.softplus(alpha.into.bias[...]), jnp.exp(alpha.log_rate[...])
    assert 0.001 <= float(step.min()) < 0.0011 and 0.095 < float(step.max()) <= 0.1001
    assert abs(float(jnp.log(step).mean()) - np.log(0.01)) < 0.1
    assert 1 <= float(rate.min()) < 1.1 and 15.9 < float(rate.max()) <= 16 and abs(float(rate.mean()) - 8.5) < 0.3


def test_what_a_mingru_forgets_is_what_its_state_does() -> None:
    block, x = block_of("mingru"), inputs()
    assert isinstance(block, Decaying)
    delta, states = jax.jit(block.decays)(x)
    y, cache = jax.jit(lambda x: block(x, None, block.init_cache(2, 8)))(x)
    np.testing.assert_allclose(block.output(states), y, atol=1e-6)
    np.testing.assert_allclose(states[:, -1], cache.h, atol=1e-6)
    z = sigmoid(linear(block.gate, convolved(block.conv, double(x))))
    np.testing.assert_allclose(np.exp(-double(delta)), 1 - z, atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"heads": 0}, "heads=0; allowed: 1 or more"),
        ({"value_dim": 0}, "value_dim=0; allowed: 1 or more"),
        ({"decay": "fast"}, "decay='fast'; allowed: none, head, channel, sigmoid"),
        ({"gate": "tanh"}, "gate='tanh'; allowed: none, silu, low_rank"),
        ({"implementation": "quick"}, "implementation='quick'; allowed: auto, sequential, chunked"),
        ({"erasure": 2.5}, "erasure=2.5; allowed: 0 to 2"),
        ({"delta_steps": 2}, "delta_steps=2 with erasure=0; give an erasure above 0"),
        ({"conv_width": -1}, "conv_width=-1; allowed: "),
    ],
)
def test_an_impossible_block_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        MatrixStateBlock(WIDTH, rngs=nnx.Rngs(0), **{"heads": 2, "head_dim": 4, **settings})


@pytest.mark.parametrize(
    ("fraction", "channels"), [(0.3, "1.8"), (0.5, "3"), (0.0, "0"), (2.0, "12"), (float("nan"), "nan")]
)
def test_a_part_of_the_channels_that_cannot_turn_is_refused(fraction: float, channels: str) -> None:
    with pytest.raises(ValueError, match=f"= {channels} channels to turn; use an even number of 2 to 6"):
        Mamba3Block(WIDTH, heads=2, head_dim=4, states=6, rope_fraction=fraction, rngs=nnx.Rngs(0))


@pytest.mark.parametrize("kind", [HeadDecay, ChannelDecay])
def test_in_bfloat16_the_bias_of_a_step_is_not_rounded(kind: Any) -> None:
    """It lies where bfloat16 has steps of 2%, and its rounding would be the same on every token."""
    decay = kind(64, 4, 16, 16, rngs=nnx.Rngs(0))
    tokens = 0.3 * jax.random.normal(jax.random.key(1), (2, 256, 64))
    exact = decay(decay.into(tokens))
    rounded = decay(decay.into(tokens.astype(jnp.bfloat16)))
    assert rounded.dtype == jnp.float32
    off = np.asarray((rounded / exact - 1).reshape(512, -1)).mean(axis=0)
    assert np.abs(off).max() < 2e-3


def test_it_is_the_published_formula_in_float64() -> None:
    block = BaseConv(6, rngs=nnx.Rngs(0), conv_width=3)
    rng = np.random.default_rng(1)
    graph, state = nnx.split(block)
    block = nnx.merge(graph, jax.tree.map(lambda leaf: jnp.float32(rng.normal(size=leaf.shape)), state))
    x = rng.normal(size=(2, 9, 6))
    y, _ = block(jnp.float32(x), None, None)
    of = {
        name: np.asarray(leaf, np.float64)
        for name, leaf in {
            "taps": block.conv.kernel[...],
            "shift": block.conv.bias[...],
            "kernel": block.gate.kernel[...],
            "bias": block.gate.bias[...],
        }.items()
    }
    padded = np.pad(x, ((0, 0), (2, 0), (0, 0)))
    convolved = sum(of["taps"][tap] * padded[:, tap : tap + 9] for tap in range(3)) + of["shift"]
    np.testing.assert_allclose(y, (x @ of["kernel"] + of["bias"]) * convolved, rtol=0, atol=4e-6)


def test_the_model_has_250k_parameters_and_the_cache_of_three_layers_of_attention() -> None:
    models = {name: Spec.of(["task=induction_heads", f"model={name}"]).experiment.model for name in ("mqa", "mqa_conv")}
    model, attention = models["mqa_conv"], models["mqa"]
    assert model is not None and attention is not None
    params = jax.eval_shape(model.init, jax.random.key(0))
    count = sum(leaf.size for leaf in jax.tree.leaves(params)) - params["embedding"]["table"].size
    assert abs(count / PARAMETERS - 1) < 0.02, count
    grown = [one.cache_bytes(1, 512) - one.cache_bytes(1, 256) for one in (model, attention)]
    assert grown[0] == pytest.approx(3 / 5 * grown[1])
