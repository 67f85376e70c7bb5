"""The LSTM and the GRU: their equations written out in float64, resets and pads, and what only they can do."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from evalkit.models.mixers.gru import GRUBlock
from evalkit.models.mixers.lstm import LSTMBlock

WIDTH, CHANNELS, LENGTH = 16, 12, 40
KINDS: Mapping[str, Any] = {"lstm": LSTMBlock, "gru": GRUBlock}
EXACT = 4e-6


def block_of(name: str) -> Any:
    """The mixer, small, with every parameter away from where it starts."""
    graph, state = nnx.split(KINDS[name](WIDTH, width_rnn=CHANNELS, rngs=nnx.Rngs(0)))
    rng = np.random.default_rng(1)
    moved = jax.tree.map(lambda leaf: jnp.float32(leaf + 0.3 * rng.normal(size=leaf.shape)), jax.device_get(state))
    return nnx.merge(graph, moved)


def inputs() -> jax.Array:
    return jax.random.normal(jax.random.key(2), (2, LENGTH, WIDTH))


def double(value: Any) -> np.ndarray:
    return np.asarray(value, np.float64)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def linear(layer: Any, x: np.ndarray) -> np.ndarray:
    return x @ double(layer.kernel[...]) + (0 if layer.bias is None else double(layer.bias[...]))


def lstm(block: Any, x: np.ndarray) -> np.ndarray:
    h = c = np.zeros((len(x), CHANNELS))
    states = []
    for t in range(x.shape[1]):
        i, f, g, o = np.split(linear(block.input, x[:, t]) + linear(block.recurrent, h), 4, axis=-1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        states.append(h)
    return linear(block.output, np.stack(states, axis=1))


def gru(block: Any, x: np.ndarray) -> np.ndarray:
    h, states = np.zeros((len(x), CHANNELS)), []
    for t in range(x.shape[1]):
        a, u = (np.split(linear(*pair), 3, axis=-1) for pair in ((block.input, x[:, t]), (block.recurrent, h)))
        z, n = sigmoid(a[1] + u[1]), np.tanh(a[2] + sigmoid(a[0] + u[0]) * u[2])
        h = (1 - z) * n + z * h
        states.append(h)
    return linear(block.output, np.stack(states, axis=1))


@pytest.mark.parametrize(("name", "written"), [("lstm", lstm), ("gru", gru)])
def test_it_is_its_equation_written_out(name: str, written: Callable[[Any, np.ndarray], np.ndarray]) -> None:
    block, x = block_of(name), inputs()
    expected = written(block, double(x))
    y = jax.jit(lambda x: block(x, None, None)[0])(x)
    np.testing.assert_allclose(y, expected, atol=EXACT * np.abs(expected).max(), rtol=0)


@pytest.mark.parametrize("name", KINDS)
def test_it_is_that_of_pytorch(name: str) -> None:
    torch = pytest.importorskip("torch")
    block, x = block_of(name), inputs()
    theirs = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}[name](WIDTH, CHANNELS, batch_first=True)
    ours = {"ih": block.input, "hh": block.recurrent}
    with torch.no_grad():
        for which, layer in ours.items():
            bias = jnp.zeros(layer.kernel.shape[1]) if layer.bias is None else layer.bias[...]
            getattr(theirs, f"weight_{which}_l0").copy_(torch.tensor(np.array(layer.kernel[...].T)))
            getattr(theirs, f"bias_{which}_l0").copy_(torch.tensor(np.array(bias)))
        states = theirs(torch.tensor(np.array(x)))[0].numpy()
    y = jax.jit(lambda x: block(x, None, None)[0])(x)
    expected = linear(block.output, double(states))
    np.testing.assert_allclose(y, expected, atol=1e-5 * np.abs(expected).max(), rtol=0)


@pytest.mark.parametrize("name", KINDS)
def test_documents_are_apart_and_pads_change_nothing(name: str) -> None:
    """Two documents in a row, with pads before, between and after them, are as if each were read alone."""
    block, x = block_of(name), inputs()
    first, second, pads = list(range(11)), list(range(17)), [-1] * 4
    positions = jnp.array([pads + first + pads + second + pads] * 2)
    read = jax.jit(lambda x, positions: block(x, positions, block.init_cache(2, LENGTH)))
    y, cache = read(x, positions)
    alone, last = jax.jit(lambda x: block(x, None, block.init_cache(2, LENGTH)))(x[:, 19:36])
    np.testing.assert_allclose(y[:, 4:15], jax.jit(lambda x: block(x, None, None)[0])(x[:, 4:15]), atol=1e-6)
    np.testing.assert_allclose(y[:, 19:36], alone, atol=1e-6)
    np.testing.assert_allclose(cache.h, last.h, atol=1e-6)
    assert bool(jnp.isfinite(y).all())


@pytest.mark.parametrize("name", KINDS)
def test_a_state_of_65_536_tokens_stays_finite_and_bounded(name: str) -> None:
    block = block_of(name)
    read = jax.jit(lambda x, cache: block(x, None, cache)[1])
    cache = block.init_cache(1, 0)
    for part in range(16):
        cache = read(jax.random.normal(jax.random.key(part), (1, 4096, WIDTH)), cache)
    assert bool(jnp.isfinite(cache.h).all())
    outputs = cache.h[:, 0] if name == "lstm" else cache.h
    assert float(jnp.abs(outputs).max()) <= 1


def test_the_forget_gate_of_an_lstm_starts_open() -> None:
    bias = LSTMBlock(WIDTH, width_rnn=CHANNELS, rngs=nnx.Rngs(0)).input.bias
    assert bias is not None
    np.testing.assert_array_equal(bias[...].reshape(4, CHANNELS).sum(axis=1), [0, CHANNELS, 0, 0])
