"""Mamba's block: a float64 recurrence written out, and transformers' own (needs the extra `parity`)."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from evalkit.models.mixers.convex import ConvexRGLRU
from evalkit.models.mixers.lru import LRU, UngatedRecurrentBlock
from evalkit.models.mixers.rglru import RGLRU
from evalkit.models.mixers.s6 import S6Block

WIDTH, STATES, LENGTH = 8, 3, 37


def block_of(**settings) -> S6Block:
    """Every parameter away from where it starts."""
    block = S6Block(WIDTH, states=STATES, rngs=nnx.Rngs(0), **settings)
    graph, state = nnx.split(block)
    rng = np.random.default_rng(1)
    moved = jax.tree.map(lambda leaf: jnp.float32(leaf + 0.3 * rng.normal(size=leaf.shape)), jax.device_get(state))
    return nnx.merge(graph, moved)


def ran(module, x) -> np.ndarray:
    """What a block or a unit makes of `x`, in one program."""
    return np.asarray(jax.jit(lambda x: module(x, None, None)[0])(x))


def inputs(seed: int = 2) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), (2, LENGTH, WIDTH))


def double(value) -> np.ndarray:
    return np.asarray(value, np.float64)


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def written_out(block: S6Block, x: np.ndarray) -> np.ndarray:
    """Step by step in float64, from the equations."""
    u = x @ double(block.input.kernel[...])
    gate = x @ double(block.gate.kernel[...])
    taps, inner = double(block.conv.kernel[...]), u.shape[-1]
    padded = np.concatenate([np.zeros((len(x), len(taps) - 1, inner)), u], axis=1)
    u = sum(padded[:, i : i + x.shape[1]] * taps[i] for i in range(len(taps))) + double(block.conv.bias[...])
    u = silu(u)
    low, into, out = np.split(u @ double(block.select.kernel[...]), [block.rank, block.rank + STATES], axis=-1)
    step = np.logaddexp(0, low @ double(block.step.kernel[...]) + double(block.step.bias[...]))
    rate = -np.exp(double(block.log_rate[...])).reshape(inner, STATES)
    h, y = np.zeros((len(x), inner, STATES)), []
    for t in range(x.shape[1]):
        now = step[:, t, :, None]
        h = np.exp(now * rate) * h + now * into[:, t, None, :] * u[:, t, :, None]
        y.append((h * out[:, t, None, :]).sum(-1) + double(block.skip[...]) * u[:, t])
    return (np.stack(y, axis=1) * silu(gate)) @ double(block.output.kernel[...])


def test_it_is_the_recurrence_written_out() -> None:
    block, x = block_of(), inputs()
    expected = written_out(block, double(x))
    np.testing.assert_allclose(ran(block, x), expected, atol=2e-6 * np.abs(expected).max())


def test_it_is_the_mixer_of_transformers() -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from transformers.models.mamba.modeling_mamba import MambaMixer

    config = transformers.MambaConfig(
        hidden_size=WIDTH, state_size=STATES, expand=2, conv_kernel=4, time_step_rank=1, num_hidden_layers=1
    )
    block, theirs = block_of(), MambaMixer(config, layer_idx=0).eval()
    kernels = [np.asarray(linear.kernel[...]) for linear in (block.input, block.gate)]
    values = {
        "in_proj.weight": np.concatenate(kernels, axis=1).T,
        "conv1d.weight": np.asarray(block.conv.kernel[...]).T[:, None],
        "conv1d.bias": block.conv.bias[...],
        "x_proj.weight": np.asarray(block.select.kernel[...]).T,
        "dt_proj.weight": np.asarray(block.step.kernel[...]).T,
        "dt_proj.bias": block.step.bias[...],
        "A_log": np.asarray(block.log_rate[...]).reshape(-1, STATES),
        "D": block.skip[...],
        "out_proj.weight": np.asarray(block.output.kernel[...]).T,
    }
    theirs.load_state_dict({name: torch.tensor(np.array(value)) for name, value in values.items()})
    x = inputs()
    with torch.no_grad():
        expected = theirs(torch.tensor(np.array(x))).numpy()
    np.testing.assert_allclose(ran(block, x), expected, atol=2e-6 * np.abs(expected).max())


def test_it_starts_as_published() -> None:
    block = S6Block(64, rngs=nnx.Rngs(0))
    step = jax.nn.softplus(block.step.bias[...])
    assert 0.001 <= float(step.min()) < 0.0015 and 0.07 < float(step.max()) <= 0.1
    np.testing.assert_allclose(jnp.exp(block.log_rate[...]).reshape(128, 16)[5], np.arange(1, 17), rtol=1e-6)
    assert (block.skip[...] == 1).all()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"expand": 0}, "expand=0; allowed: 1 or more"),
        ({"step_rank": 0}, "step_rank=0; allowed: 1 or more"),
        ({"step_range": (0.1, 0.001)}, "step_range=\\(0.1, 0.001\\); allowed: 0 < low < high"),
    ],
)
def test_an_impossible_block_is_refused(settings: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        S6Block(WIDTH, rngs=nnx.Rngs(0), **settings)


def test_without_gates_the_recurrence_is_linear_and_time_invariant() -> None:
    unit = LRU(WIDTH, rngs=nnx.Rngs(0))
    x, y = inputs(), inputs(3)
    run = partial(ran, unit)
    np.testing.assert_allclose(run(2 * x - y), 2 * run(x) - run(y), atol=1e-5)
    later = np.pad(x, ((0, 0), (5, 0), (0, 0)))
    np.testing.assert_allclose(run(later)[:, 5:], run(x), atol=1e-6)
    a = double(jax.nn.sigmoid(unit.decay[...]))
    h, expected = np.zeros((2, WIDTH)), []
    for t in range(LENGTH):
        h = a * h + np.sqrt(1 - a**2) * double(x)[:, t]
        expected.append(h)
    np.testing.assert_allclose(run(x), np.stack(expected, axis=1), atol=2e-6)


def test_an_input_scaled_by_what_is_forgotten_keeps_the_state_among_the_inputs() -> None:
    """Eqs. 1-3 in float64 with 1 − a for the scale: a constant input is a fixed point; the RG-LRU grows past it."""
    unit, plain = (kind(WIDTH, 2, rngs=nnx.Rngs(0)) for kind in (ConvexRGLRU, RGLRU))
    x = inputs()
    a, scaled = map(double, jax.jit(plain.gated)(x))
    h, expected = np.zeros((2, WIDTH)), []
    for t in range(LENGTH):
        h = a[:, t] * h + scaled[:, t] * np.sqrt((1 - a[:, t]) / (1 + a[:, t]))
        expected.append(h)
    np.testing.assert_allclose(ran(unit, x), np.stack(expected, axis=1), atol=2e-6)
    still = jnp.broadcast_to(x[:, :1], (2, 20_000, WIDTH))
    larger = ConvexRGLRU(WIDTH, 2, rngs=nnx.Rngs(0), input_scale=3.0)
    np.testing.assert_allclose(ran(larger, x), 3 * np.stack(expected, axis=1), atol=6e-6)
    rest = double(jax.nn.sigmoid(unit._before_sigmoid(x)[1]) * x)[:, 0]
    states = [jax.jit(lambda x, which=which: which(x, None, None)[1])(still) for which in (unit, plain)]
    np.testing.assert_allclose(states[0], rest, atol=1e-4)
    ratio = double(states[1]) / rest
    np.testing.assert_allclose(ratio, np.sqrt((1 + a[:, 0]) / (1 - a[:, 0])), rtol=1e-3)
    assert ratio.min() > 5


@pytest.mark.parametrize("power", [0.0, -1.0, 1e-6, math.inf, math.nan])
def test_a_power_at_which_a_decay_would_be_0_or_1_is_refused(power: float) -> None:
    with pytest.raises(ValueError, match=rf"decay_power={power}; allowed: above 0"):
        RGLRU(8, 4, decay_power=power, rngs=nnx.Rngs(0))


def test_an_impossible_range_of_decays_is_refused() -> None:
    with pytest.raises(ValueError, match=r"decay_range=\(0.9, 1.0\); allowed: 0 < low < high < 1"):
        UngatedRecurrentBlock(WIDTH, width_rnn=8, rngs=nnx.Rngs(0), decay_range=(0.9, 1.0))
