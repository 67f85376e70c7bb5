"""RWKV-7: its authors' own arrays, its path of values from block to block, and what is refused."""

from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from evalkit.models import build
from evalkit.models.mixers.linear_state import MatrixStateBlock
from evalkit.models.mixers.rwkv7 import ChannelMixing, TimeMixing

GOLDEN = Path(__file__).parents[1] / "golden" / "rwkv7.npz"
WIDTH, HEADS, HEAD_DIM, RANK, LENGTH = 12, 2, 8, 3, 21
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
    held = golden()
    x, values = jnp.asarray(held["x"]), None
    for name in ("first", "later"):
        mixer = theirs(block(later=name == "later"), of(held, name))
        y, cache, values = jax.jit(mixer.with_values)(x, None, mixer.init_cache(len(x), 0), values)
        agree(y, held[f"{name}.y"])
        agree(cache.h.swapaxes(-1, -2), held[f"{name}.state"])  # theirs has values first
        agree(values, held["values"])  # those of the first go on, whatever a later block made of them


def test_channel_mixing_is_its_authors() -> None:
    held = golden()
    mixer, theirs = ChannelMixing(WIDTH, expansion=4, rngs=nnx.Rngs(0)), of(held, "channels")
    mixer.shift.set_value(jnp.asarray(theirs["x_k"]))
    mixer.up.kernel.set_value(jnp.asarray(theirs["key"]).T)
    mixer.down.kernel.set_value(jnp.asarray(theirs["value"]).T)
    agree(mixer(jnp.asarray(held["x"]), None, None)[0], theirs["y"])


@pytest.mark.parametrize(
    "mixer", [block(), ChannelMixing(WIDTH, expansion=2, rngs=nnx.Rngs(0))], ids=["time", "channel"]
)
def test_token_by_token_is_the_whole_with_resets_and_pads(mixer: Any) -> None:
    mixer, x = moved(mixer), jax.random.normal(jax.random.key(2), (2, LENGTH, WIDTH))
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


def logits(pattern: list[str], change: float) -> np.ndarray:
    """Of a model whose first block adds nothing to the stream, once its map of values has been changed."""
    time = partial(TimeMixing, heads=HEADS, head_dim=HEAD_DIM, rank=RANK)
    mixers = {
        "first": time,
        "later": partial(time, value_residual=True),
        "other": partial(MatrixStateBlock, heads=HEADS, head_dim=HEAD_DIM),
    }
    model = build(vocab_size=7, width=WIDTH, pattern=pattern, mixers=mixers, mlp_expansion=0)
    params = model.init(jax.random.key(0))
    last = params["blocks"][max(params["blocks"])]["mixer"]["output"]
    last["kernel"] = jnp.ones_like(last["kernel"])
    values = params["blocks"][0]["mixer"]["value"]
    values["kernel"] = values["kernel"] + change * jax.random.normal(jax.random.key(1), values["kernel"].shape)
    return np.asarray(model.apply(params, jnp.arange(10)[None] % 7)[0])


@pytest.mark.parametrize(
    ("pattern", "reaches"),
    [
        (["first", "later"], True),
        (["first", "other", "later"], True),
        (["first", "first"], False),
        (["first", "other"], False),
    ],
    ids=str,
)
def test_values_reach_the_blocks_that_take_them_and_no_others(pattern: list[str], reaches: bool) -> None:
    """The first block's output is zero at the start, so its values come by their own path or not at all."""
    assert np.array_equal(logits(pattern, 0.0), logits(pattern, 1.0)) is not reaches


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
