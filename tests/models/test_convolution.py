"""The gated short convolution, and the model of attention with it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from evalkit.configuration.spec import Spec
from evalkit.models.mixers.convolution import BaseConv

PARAMETERS = 250_000


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
