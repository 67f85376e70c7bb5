"""The mLSTM: its authors' own arrays, gates that would overflow, resets and pads, and what is refused."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from evalkit.models.mixers.mlstm import CAP, MLSTMBlock

GOLDEN = Path(__file__).parents[1] / "golden" / "mlstm.npz"
WIDTH, HEADS, KEYS, VALUES, LENGTH = 8, 2, 3, 4, 21


def block(**others: Any) -> MLSTMBlock:
    return MLSTMBlock(WIDTH, rngs=nnx.Rngs(0), **{"heads": HEADS, "key_dim": KEYS, "head_dim": VALUES, **others})


def with_gates(entry: float, forget: float) -> MLSTMBlock:
    """Whose gates are these logits, before the cap, at every token."""
    mixer = block()
    mixer.gates.kernel.set_value(jnp.zeros_like(mixer.gates.kernel[...]))
    assert mixer.gates.bias is not None
    mixer.gates.bias.set_value(jnp.repeat(jnp.array([entry, forget]), HEADS))
    return mixer


@pytest.mark.parametrize("way", ["sequential", "chunked"])
def test_it_is_its_authors(way: str) -> None:
    """xlstm 2.0.6, the layer of xLSTM 7B, with the step of mlstm_kernels 2.0.6 that PyTorch computes, in float64."""
    with np.load(GOLDEN) as kept:
        held = {name: kept[name] for name in kept.files}
    mixer = block(implementation=way)
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


def test_token_by_token_is_the_whole_with_resets_and_pads() -> None:
    mixer, x = block(input_bias=0.0), jax.random.normal(jax.random.key(2), (2, LENGTH, WIDTH))
    places = [*range(6), -1, 6, 0, 1, -1, -1, *range(2, 9), -1, -1]
    positions = jnp.array([places, [-1, *range(LENGTH - 1)]])
    step = jax.jit(lambda x, positions, cache: mixer(x, positions, cache))
    whole, last = step(x, positions, mixer.init_cache(2, LENGTH))
    cache, one_by_one = mixer.init_cache(2, LENGTH), []
    for t in range(LENGTH):
        y, cache = step(x[:, t : t + 1], positions[:, t : t + 1], cache)
        one_by_one.append(y[:, 0])
    valid = np.asarray(positions) >= 0
    np.testing.assert_allclose(np.stack(one_by_one, axis=1)[valid], np.asarray(whole)[valid], atol=1e-5)
    jax.tree.map(lambda one, two: np.testing.assert_allclose(one, two, atol=1e-5), cache, last)
    alone = step(x[:1, 8:10], None, mixer.init_cache(1, 2))[0]
    np.testing.assert_allclose(whole[:1, 8:10], alone, atol=1e-5)


@pytest.mark.parametrize(("entry", "forget"), [(1e6, 1e6), (1e6, -1e6), (-1e6, 1e6), (-1e6, -1e6)])
def test_no_gate_overflows_over_many_tokens(entry: float, forget: float) -> None:
    mixer = with_gates(entry, forget)
    x = jax.random.normal(jax.random.key(3), (1, 4096, WIDTH))
    y, cache = jax.jit(lambda x: mixer(x, None, mixer.init_cache(1, 0)))(x)
    slopes = jax.jit(jax.grad(lambda x: (mixer(x, None, None)[0] ** 2).sum()))(x)
    assert all(bool(jnp.isfinite(one).all()) for one in (y, cache.h, cache.conv, slopes))
    assert float(jnp.abs(cache.conv).max()) <= CAP * 1.001


def test_the_gradient_is_that_of_the_equations_without_m() -> None:
    """The equations as the docstring has them, with plain exponentials, in a loop; the slopes of every parameter."""
    mixer, x = block(input_bias=0.5), jax.random.normal(jax.random.key(2), (2, LENGTH, WIDTH))
    graph, state = nnx.split(mixer)

    def plain(state: Any) -> jax.Array:
        it = nnx.merge(graph, state)
        q, k, v, o = jnp.split(it.input(x), [6, 12, 20], axis=-1)
        entry, forget = jnp.split(CAP * jnp.tanh(it.gates(x) / CAP), 2, axis=-1)
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
def test_an_impossible_block_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        block(**settings)
