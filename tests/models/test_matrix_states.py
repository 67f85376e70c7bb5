"""RWKV-7 and the mLSTM: their authors' own arrays, values from block to block, gates, and what is refused."""

import itertools
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from evalkit.models import build
from evalkit.models.layers.modules import NoDecay, add_bias
from evalkit.models.mixers.linear_state import MatrixStateBlock
from evalkit.models.mixers.mamba3 import Mamba3Block, _rotated
from evalkit.models.mixers.mlstm import CAP, MLSTMBlock
from evalkit.models.mixers.rwkv7 import ChannelMixing, TimeMixing

GOLDEN = Path(__file__).parents[1] / "golden" / "mixers.npz"
WIDTH, HEADS, HEAD_DIM, RANK, LENGTH = 12, 2, 8, 3, 21
MLSTM_WIDTH, KEYS, VALUES = 8, 3, 4
SHIFTS = {"query": "x_r", "decay": "x_w", "key": "x_k", "value": "x_v", "rate": "x_a", "gate": "x_g"}
ADAPTERS = {
    "decay": ("w1", "w2", "w0"),
    "rate": ("a1", "a2", "a0"),
    "gate": ("g1", "g2"),
    "residual": ("v1", "v2", "v0"),
}
VECTORS = {"removal": "k_k", "replacement": "k_a"}


def block(later: bool = False) -> TimeMixing:
    return TimeMixing(WIDTH, heads=HEADS, head_dim=HEAD_DIM, rank=RANK, value_residual=later, rngs=nnx.Rngs(0))


def moved(mixer: Any) -> Any:
    """The mixer with every parameter away from where it starts, so that none is zero."""
    graph, state = nnx.split(mixer)
    rng = np.random.default_rng(1)
    away = jax.tree.map(lambda leaf: jnp.float32(leaf + 0.3 * rng.normal(size=leaf.shape)), jax.device_get(state))
    return nnx.merge(graph, away)


def theirs(mixer: TimeMixing, held: dict[str, np.ndarray]) -> TimeMixing:
    """Puts the parameters of the authors' layer, whose maps are transposed, into the mixer."""
    for ours, name in SHIFTS.items():
        mixer.shifts[ours].set_value(jnp.asarray(held[name]))
    for ours, names in ADAPTERS.items():
        adapter = getattr(mixer, ours)
        for part, name in zip(("into", "up", "bias"), names, strict=False):
            if adapter is not None:
                getattr(adapter, part).set_value(jnp.asarray(held[name]))
    for ours, name in VECTORS.items():
        getattr(mixer, ours).set_value(jnp.asarray(held[name]))
    mixer.norm.scale.set_value(jnp.asarray(held["ln_w"]))
    if mixer.norm.bias is not None:
        mixer.norm.bias.set_value(jnp.asarray(held["ln_b"]))
    mixer.bonus.set_value(jnp.asarray(held["r_k"]).reshape(HEADS, HEAD_DIM))
    for ours, name in {"query": "receptance", "key": "key", "value": "value", "output": "output"}.items():
        getattr(mixer, ours).kernel.set_value(jnp.asarray(held[name]).T)
    return mixer


def golden() -> dict[str, np.ndarray]:
    with np.load(GOLDEN) as kept:
        return {name: kept[name] for name in kept.files}


def of(held: dict[str, np.ndarray], part: str) -> dict[str, np.ndarray]:
    return {name.removeprefix(f"{part}."): one for name, one in held.items() if name.startswith(f"{part}.")}


def agree(actual: Any, expected: np.ndarray, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance * np.abs(expected).max())


def test_time_mixing_is_its_authors() -> None:
    """Their model in NumPy (RWKV-LM 2148350), in float64 there: a first layer, and a later one with its values."""
    held = of(golden(), "rwkv7")
    x, values = jnp.asarray(held["x"]), None
    for name in ("first", "later"):
        mixer = theirs(block(later=name == "later"), of(held, name))
        y, cache, values = jax.jit(mixer.with_values)(x, None, mixer.init_cache(len(x), 0), values)
        agree(y, held[f"{name}.y"])
        agree(cache.h.swapaxes(-1, -2), held[f"{name}.state"])  # theirs has values first
        agree(values, held["values"])  # those of the first go on, whatever a later block made of them


def test_channel_mixing_is_its_authors() -> None:
    held = of(golden(), "rwkv7")
    mixer, theirs = ChannelMixing(WIDTH, expansion=4, rngs=nnx.Rngs(0)), of(held, "channels")
    mixer.shift.set_value(jnp.asarray(theirs["x_k"]))
    mixer.up.kernel.set_value(jnp.asarray(theirs["key"]).T)
    mixer.down.kernel.set_value(jnp.asarray(theirs["value"]).T)
    agree(mixer(jnp.asarray(held["x"]), None, None)[0], theirs["y"])


MIXERS = {
    "time mixing": lambda: block(),
    "channel mixing": lambda: ChannelMixing(WIDTH, expansion=2, rngs=nnx.Rngs(0)),
    "mlstm": lambda: MLSTMBlock(WIDTH, heads=HEADS, key_dim=KEYS, head_dim=VALUES, input_bias=0.0, rngs=nnx.Rngs(0)),
    "mamba3": lambda: Mamba3Block(WIDTH, heads=HEADS, head_dim=VALUES, states=8, rngs=nnx.Rngs(0)),
}


@pytest.mark.parametrize("name", MIXERS)
def test_token_by_token_is_the_whole_with_resets_and_pads(name: str) -> None:
    """What stood before a document changes nothing of it, even where it was no number."""
    mixer, x = moved(MIXERS[name]()), jax.random.normal(jax.random.key(2), (2, LENGTH, WIDTH))
    places = [*range(6), -1, 6, 0, 1, -1, -1, *range(2, 9), -1, -1]
    positions = jnp.array([places, [-1, *range(LENGTH - 1)]])
    step = jax.jit(lambda x, positions, cache: mixer(x, positions, cache))
    whole, last = step(x, positions, mixer.init_cache(2, LENGTH))
    cache, one_by_one = mixer.init_cache(2, LENGTH), []
    for t in range(LENGTH):
        y, cache = step(x[:, t : t + 1], positions[:, t : t + 1], cache)
        one_by_one.append(y[:, 0])
    valid = np.asarray(positions) >= 0
    np.testing.assert_allclose(np.stack(one_by_one, axis=1)[valid], np.asarray(whole)[valid], atol=2e-5)
    jax.tree.map(lambda one, two: np.testing.assert_allclose(one, two, atol=2e-5), cache, last)
    alone = step(x[:1, 8:10], None, mixer.init_cache(1, 2))[0]
    np.testing.assert_allclose(whole[:1, 8:10], alone, atol=2e-5)
    spoilt = last._replace(h=jnp.full_like(last.h, jnp.nan), conv=jnp.full_like(last.conv, jnp.nan))
    assert bool(jnp.isfinite(step(x[:, :2], jnp.array([[0, 1]] * 2), spoilt)[0]).all())


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["mlstm", *(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("time mixing", "mamba3"))]
)
def test_a_state_stays_finite_and_bounded_over_65536_tokens(name: str) -> None:
    """What it holds after all of them is of the size that it was after the first eighth."""
    mixer = moved(MIXERS[name]())
    read = jax.jit(lambda x, cache: mixer(x, None, cache))
    cache, largest = mixer.init_cache(1, 8), []
    for part in range(16):
        y, cache = read(jax.random.normal(jax.random.key(part), (1, 4096, WIDTH)), cache)
        assert bool(jnp.isfinite(y).all()) and float(jnp.abs(y).max()) > 0
        largest.append(float(jnp.abs(cache.h).max()))
    assert 0 < max(largest[2:]) < 4 * max(largest[:2]), largest


def test_later_blocks_of_another_width_are_refused_when_a_model_is_built() -> None:
    first = partial(TimeMixing, heads=2, head_dim=8, rank=2)
    later = partial(TimeMixing, heads=1, head_dim=8, rank=2, value_residual=True)
    with pytest.raises(
        ValueError, match="have 16 channels, and those of a later one 8; give all of them the same heads"
    ):
        build(vocab_size=7, width=WIDTH, pattern=["a", "b"], mixers={"a": first, "b": later}, mlp_expansion=0)


class OtherMixing(TimeMixing):
    """A class of its own, whose values are of no use to the other."""


def logits(pattern: list[str]) -> list[np.ndarray]:
    """Of a model whose first block adds nothing to the stream, before and after its map of values is changed."""
    time = partial(TimeMixing, heads=HEADS, head_dim=HEAD_DIM, rank=RANK)
    mixers = {
        "first": time,
        "later": partial(time, value_residual=True),
        "another": partial(OtherMixing, heads=HEADS, head_dim=HEAD_DIM, rank=RANK, value_residual=True),
        "other": partial(MatrixStateBlock, heads=HEADS, head_dim=HEAD_DIM),
    }
    model = build(vocab_size=7, width=WIDTH, pattern=pattern, mixers=mixers, mlp_expansion=0)
    params = jax.jit(model.init)(jax.random.key(0))
    last = params["blocks"][max(params["blocks"])]["mixer"]["output"]
    last["kernel"] = jnp.ones_like(last["kernel"])
    values = params["blocks"][0]["mixer"]["value"]
    change = jax.random.normal(jax.random.key(1), values["kernel"].shape)
    apply, said = jax.jit(model.apply), []
    for kernel in (values["kernel"], values["kernel"] + change):
        values["kernel"] = kernel
        said.append(np.asarray(apply(params, jnp.arange(10)[None] % 7)[0]))
    return said


@pytest.mark.parametrize(
    ("pattern", "reaches"),
    [
        (["first", "later"], True),
        (["first", "other", "later"], True),
        (["first", "first"], False),
        (["first", "other"], False),
        (["first", "another"], False),
    ],
    ids=str,
)
def test_values_reach_the_blocks_that_take_them_and_no_others(pattern: list[str], reaches: bool) -> None:
    """The first block's output is zero at the start, so its values come by their own path or not at all."""
    assert np.array_equal(*logits(pattern)) is not reaches


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"heads": 0}, "heads=0; allowed: 1 or more"),
        ({"rank": 0}, "rank=0; allowed: 1 or more"),
        ({"implementation": "quick"}, "implementation='quick'; allowed: auto, sequential, chunked"),
    ],
)
def test_an_impossible_time_mixing_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        TimeMixing(WIDTH, rngs=nnx.Rngs(0), **{"heads": 2, "head_dim": 4, "rank": 2, **settings})


@pytest.mark.parametrize("expansion", [0, 0.3, float("nan"), float("inf"), -2])
def test_an_impossible_channel_mixing_is_refused(expansion: float) -> None:
    with pytest.raises(ValueError, match=r"^expansion=.* channels; use a whole number, 1 or more$"):
        ChannelMixing(WIDTH, expansion=expansion, rngs=nnx.Rngs(0))


def mlstm(**others: Any) -> MLSTMBlock:
    return MLSTMBlock(MLSTM_WIDTH, rngs=nnx.Rngs(0), **{"heads": HEADS, "key_dim": KEYS, "head_dim": VALUES, **others})


def with_gates(entry: float, forget: float) -> MLSTMBlock:
    """Whose gates are these logits, before the cap, at every token."""
    mixer = mlstm()
    mixer.gates.kernel.set_value(jnp.zeros_like(mixer.gates.kernel[...]))
    assert mixer.gates.bias is not None
    mixer.gates.bias.set_value(jnp.repeat(jnp.array([entry, forget]), HEADS))
    return mixer


@pytest.mark.parametrize("way", ["sequential", "chunked"])
def test_the_mlstm_is_its_authors(way: str) -> None:
    """xlstm 2.0.6, the layer of xLSTM 7B, with the step of mlstm_kernels 2.0.6 that PyTorch computes, in float64."""
    held = of(golden(), "mlstm")
    mixer = mlstm(implementation=way)
    mixer.input.kernel.set_value(jnp.concatenate([held[name] for name in ("q", "k", "v", "o")], axis=1))
    mixer.gates.kernel.set_value(jnp.concatenate([held["i"], held["f"]], axis=1))
    assert mixer.gates.bias is not None
    mixer.gates.bias.set_value(jnp.concatenate([held["ib"], held["fb"]]))
    mixer.norm.scale.set_value(jnp.asarray(held["scale"]))
    mixer.output.kernel.set_value(jnp.asarray(held["out"]))
    x = jnp.asarray(held["x"])
    y, cache = jax.jit(lambda x: mixer(x, None, mixer.init_cache(2, 0)))(x)
    state = np.concatenate([held["C"], held["n"][..., None]], axis=-1)
    for actual, expected in ((y, held["y"]), (cache.h, state), (cache.conv[:, 0], held["m"][..., 0])):
        np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_no_gate_overflows_over_many_tokens() -> None:
    x = jax.random.normal(jax.random.key(3), (1, 4096, MLSTM_WIDTH))
    graph, _ = nnx.split(with_gates(0, 0))

    @jax.jit
    def read(state: Any) -> tuple[Any, jax.Array]:
        mixer = nnx.merge(graph, state)
        slopes = jax.grad(lambda x: (mixer(x, None, None)[0] ** 2).sum())(x)
        return mixer(x, None, mixer.init_cache(1, 0)), slopes

    for gates in itertools.product((1e6, -1e6), repeat=2):
        (y, cache), slopes = read(nnx.split(with_gates(*gates))[1])
        assert all(bool(jnp.isfinite(one).all()) for one in (y, cache.h, cache.conv, slopes)), gates
        assert float(jnp.abs(cache.conv).max()) <= CAP * 1.001, gates


def test_the_gradient_is_that_of_the_equations_without_m() -> None:
    """The equations as the docstring has them, with plain exponentials, in a loop; the slopes of every parameter."""
    mixer, x = mlstm(input_bias=0.5), jax.random.normal(jax.random.key(2), (2, LENGTH, MLSTM_WIDTH))
    graph, state = nnx.split(mixer)

    def plain(state: Any) -> jax.Array:
        it = nnx.merge(graph, state)
        q, k, v, o = jnp.split(it.input(x), [6, 12, 20], axis=-1)
        gates = add_bias(it.gates(x), it.gates.bias[...])
        entry, forget = jnp.split(CAP * jnp.tanh(gates / CAP), 2, axis=-1)
        q, k, v = (part.reshape(2, LENGTH, HEADS, -1) for part in (q / KEYS**0.5, k, v))
        c, n, read = jnp.zeros((2, HEADS, VALUES, KEYS)), jnp.zeros((2, HEADS, KEYS)), []
        for t in range(LENGTH):
            i, f = jnp.exp(entry[:, t])[..., None], jax.nn.sigmoid(forget[:, t])[..., None]
            c = f[..., None] * c + (i * v[:, t])[..., None] * k[:, t, :, None]
            n = f * n + i * k[:, t]
            share = jnp.maximum(jnp.abs((n * q[:, t]).sum(-1)), 1)[..., None]
            read.append((c * q[:, t, :, None]).sum(-1) / share)
        return it.output(it.norm(jnp.stack(read, axis=1)) * jax.nn.sigmoid(o))

    weights = jax.random.normal(jax.random.key(4), x.shape)
    ours, theirs = (
        jax.jit(jax.value_and_grad(lambda state, f=f: (f(state) * weights).sum()))(state)
        for f in (lambda state: nnx.merge(graph, state)(x, None, None)[0], plain)
    )
    for one, two in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(one, two, rtol=0, atol=1e-4 * float(jnp.abs(two).max()))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"heads": 0}, "heads=0; allowed: 1 or more"),
        ({"key_dim": 0}, "key_dim=0; allowed: 1 or more"),
        ({"input_bias": 16.0}, "input_bias=16; allowed: -15 to 15"),
        ({"input_bias": float("nan")}, "input_bias=nan; allowed: -15 to 15"),
        ({"implementation": "quick"}, "implementation='quick'; allowed: auto, sequential, chunked"),
    ],
)
def test_an_impossible_mlstm_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        mlstm(**settings)


def test_in_bfloat16_the_biases_of_the_mlstms_gates_are_not_rounded() -> None:
    """Moved by 0.03, as training moves them, from where bfloat16 has steps of 0.06."""
    mixer = MLSTMBlock(64, heads=8, head_dim=8, key_dim=8, rngs=nnx.Rngs(0))
    mixer.gates.bias = NoDecay(mixer.gates.bias[...] + 0.03)
    x = 0.3 * jax.random.normal(jax.random.key(1), (2, 64, 64))
    before = mixer.init_cache(2, 0)
    mixed = jax.jit(lambda x: mixer.mixed(x, None, before)[2])
    exact, rounded = (mixed(x.astype(dtype)) for dtype in (jnp.float32, jnp.bfloat16))
    assert np.abs(np.asarray(rounded - exact)).mean() < 5e-3


@pytest.mark.parametrize("length", [1, 9])
def test_the_state_of_mamba3_is_that_of_its_equations(length: int) -> None:
    """The cache keeps the last token's own share apart, and after one token nothing else."""
    mixer = Mamba3Block(8, heads=2, head_dim=4, states=4, rngs=nnx.Rngs(0))
    x = jax.random.normal(jax.random.key(3), (1, length, 8))

    @jax.jit
    def parts(x: jax.Array) -> tuple[Any, ...]:
        _, cache = mixer(x, None, mixer.init_cache(1, length))
        _, v, k, _, *steps = mixer._projected(x)
        of_steps = mixer._steps(*steps)
        keys = mixer.key_norm(k)[:, :, None] + mixer.key_bias[...][None, None]
        return mixer.state(cache), v, _rotated(keys, of_steps.turns.cumsum(axis=1)), of_steps

    found, v, keys, of_steps = parts(x)
    keys = np.asarray(keys, np.float64)[0]
    step, log_decay, share, _ = (np.asarray(each, np.float64)[0] for each in of_steps)
    written = keys[..., None] * np.asarray(v, np.float64).reshape(length, 2, 1, 4)
    state, before = np.zeros((2, 4, 4)), np.zeros((2, 4, 4))
    for t in range(length):
        of_step, decay, own = (each[t][:, None, None] for each in (step, np.exp(log_decay), share))
        state = decay * state + (1 - own) * of_step * decay * before + own * of_step * written[t]
        before = written[t]
    np.testing.assert_allclose(found[0], state, rtol=2e-5, atol=1e-6)


def test_the_state_of_the_mlstm_is_that_of_its_equations() -> None:
    """The cache has it divided by exp(m), which with closed input gates falls for as long as nothing is written."""
    mixer = MLSTMBlock(8, heads=2, head_dim=4, key_dim=4, rngs=nnx.Rngs(0))
    x = np.random.default_rng(2).normal(size=(1, 40, 8)).astype(np.float32)
    _, cache = jax.jit(lambda x: mixer(x, None, mixer.init_cache(1, 40)))(jnp.asarray(x))
    maps = (mixer.input.kernel, mixer.gates.kernel, mixer.gates.bias)
    of_input, of_gates, bias = (np.asarray(leaf[...], np.float64) for leaf in maps)
    _, k, v, _ = np.split(x[0] @ of_input, np.cumsum(mixer.sizes)[:-1], axis=-1)
    gates = x[0] @ of_gates + bias
    i, f = np.split(15 * np.tanh(gates / 15), 2, axis=-1)
    state = np.zeros((2, 4, 5))
    for t in range(40):
        written = np.append(v[t].reshape(2, 4), np.ones((2, 1)), axis=1)
        outer = k[t].reshape(2, 4, 1) * written[:, None]
        state = state / (1 + np.exp(-f[t]))[:, None, None] + np.exp(i[t])[:, None, None] * outer
    np.testing.assert_allclose(mixer.state(cache)[0], state, rtol=2e-5, atol=1e-9)
    assert np.abs(cache.h / mixer.state(cache)).max() > 2
