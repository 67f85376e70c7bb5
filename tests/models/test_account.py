"""What a model says that it keeps and computes is what its cache and XLA have; large products go a block at a time."""

from functools import partial
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from evalkit.models import build, lm
from evalkit.models.layers import modules
from evalkit.models.layers.mixer import Counted
from evalkit.models.layers.modules import BLOCK, product, product_transposed
from evalkit.models.mixers import rglru
from evalkit.models.mixers.attention import MQA
from evalkit.models.mixers.lru import UngatedRecurrentBlock
from evalkit.models.mixers.rglru import RecurrentBlock
from evalkit.models.model import Model
from evalkit.parallel.devices import bytes_of
from support.shrunk import WINDOW, every_model, shrunk

LENGTH = 32
AFFINE = (1, WINDOW, WINDOW + 1, LENGTH)
"""Between these sizes of a cache the cost of a step grows by as much for every slot."""


def count_of_a_step(model: Model, slots: int) -> float:
    """What XLA counts of reading one token with a cache for so many: no loop in it has more than one step."""
    params = jax.eval_shape(model.init, jax.random.key(0))
    cache = jax.eval_shape(lambda: model.init_cache(1, slots))
    token = jax.ShapeDtypeStruct((1, 1), jnp.int32)
    lowered = jax.jit(lambda params, token, cache: model.apply(params, token, None, cache)).lower(params, token, cache)
    return lowered.cost_analysis()["flops"]


@pytest.mark.slow
@pytest.mark.parametrize("name", every_model())
def test_flops_are_what_xla_counts_of_the_unrolled_sequential_form(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Token by token, each with a cache that it fills, so that every pair that is computed is one that is seen."""
    for module in (modules, rglru):  # blocks as blocks, not as one dense product with zeros
        monkeypatch.setattr(module, "DENSE_UP_TO", 0)
    monkeypatch.setattr(lm, "ONE_HOT_UP_TO", 0)  # a lookup as a lookup
    model = shrunk(name)
    counted = [count_of_a_step(model, slots) for slots in AFFINE]
    unrolled = np.interp(range(1, LENGTH + 1), AFFINE, counted).sum()
    assert model.flops(LENGTH) == pytest.approx(unrolled, rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("name", every_model())
def test_cache_bytes_are_those_of_the_cache_that_comes_out(name: str) -> None:
    model = shrunk(name)
    params = jax.eval_shape(model.init, jax.random.key(0))
    for batch, length in ((1, 1), (1, 40), (3, WINDOW - 1), (3, 40)):
        given = jax.eval_shape(partial(model.init_cache, batch, length))
        tokens = jax.ShapeDtypeStruct((batch, length), jnp.int32)
        _, kept = jax.eval_shape(partial(model.apply, positions=None), params, tokens, cache=given)
        assert model.cache_bytes(batch, length) == bytes_of(kept)
    arrays = jax.tree.leaves(model.init_cache(3, 40))
    assert model.cache_bytes(3, 40) == sum(array.nbytes for array in arrays)  # what is allocated


def test_the_size_of_a_state_says_what_grows_with_the_length() -> None:
    """Numbers of float32, and of the 32-bit positions beside them, of one block."""
    recurrent, everything, nearest = (shrunk(name) for name in ("hawk", "mqa", "mqa_local"))
    assert recurrent.cache_bytes(1, 10) == recurrent.cache_bytes(1, 10_000) == 4 * (16 + 3 * 16 + 1)
    assert everything.cache_bytes(2, 100) == 2 * 4 * (100 * (4 + 4 + 1 + 1) + 4)
    assert nearest.cache_bytes(1, WINDOW) == nearest.cache_bytes(1, 10_000) < everything.cache_bytes(1, WINDOW + 1)


def test_flops_grow_with_the_length_as_the_pairs_do() -> None:
    def growth(name: str) -> list[int]:
        counts = [shrunk(name).flops(length) for length in range(1, 3 * WINDOW)]
        return [after - before for before, after in pairwise(counts)]

    assert len(set(growth("hawk"))) == 1
    of_a_pair = 4 * (4 * 4 + 4)
    assert {after - before for before, after in pairwise(growth("mqa"))} == {of_a_pair}
    nearest = [after - before for before, after in pairwise(growth("mqa_local"))]
    assert nearest == [of_a_pair] * (WINDOW - 2) + [0] * (2 * WINDOW - 1)


def test_a_large_model_is_counted_as_on_paper() -> None:
    """Two operations a weight and token for each matrix, which at this width is nearly all."""
    mixers = {"r": partial(RecurrentBlock, width_rnn=1024), "a": partial(MQA, heads=16, head_dim=64)}
    model = build(vocab_size=1000, width=1024, pattern="ra", mixers=mixers)
    params = sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(model.init, jax.random.key(0))))
    pairs = 512 * 513 // 2 * 16 * 4 * 64
    assert model.flops(512) == pytest.approx(2 * 512 * params + pairs, rel=0.01)


class Unsaid(nnx.Module):
    """A mixer from outside: the ungated block, which does not say here what it computes."""

    window = None

    def __init__(self, width: int, *, rngs: nnx.Rngs):
        self.inner = UngatedRecurrentBlock(width, width_rnn=width, rngs=rngs)

    def __call__(self, x, positions, cache):
        return self.inner(x, positions, cache)

    def init_cache(self, batch: int, length: int):
        return self.inner.init_cache(batch, length)


def test_a_mixer_that_does_not_say_what_it_computes_is_counted_by_xla() -> None:
    said, counted = (
        build(vocab_size=16, width=32, pattern="m", mixers={"m": mixer}, mlp_expansion=0).flops(64)
        for mixer in (partial(UngatedRecurrentBlock, width_rnn=32), Unsaid)
    )
    assert not isinstance(Unsaid(8, rngs=nnx.Rngs(0)), Counted)
    assert counted == pytest.approx(said, rel=0.05) and counted != said


@pytest.mark.parametrize("function", [product, product_transposed])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_blocks_give_the_whole_product(function, dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modules, "LARGE", 1)
    x = jax.random.normal(jax.random.key(0), (5, 48), jnp.bfloat16)
    weight = jax.random.normal(jax.random.key(1), (48, 2 * BLOCK), jnp.bfloat16)
    exact = np.asarray(x, np.float64) @ np.asarray(weight, np.float64)
    y = jax.jit(lambda x, w: function(x, w, dtype))(x, weight if function is product else weight.T)
    assert y.dtype == dtype
    np.testing.assert_allclose(np.asarray(y, np.float64), exact, atol=1e-5 if dtype == jnp.float32 else 0.1)


@pytest.mark.parametrize("function", [product, product_transposed])
def test_blocks_have_the_gradient_of_the_whole_product(function, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bits of a number have none, so that a large weight would never be trained, without a word."""
    x = jax.random.normal(jax.random.key(0), (5, 48), jnp.bfloat16)
    weight = jax.random.normal(jax.random.key(1), (48, 2 * BLOCK), jnp.bfloat16)
    given = (x, weight if function is product else weight.T)

    def gradients() -> tuple[jax.Array, jax.Array]:
        return jax.jit(jax.grad(lambda x, w: (function(x, w, jnp.float32) ** 2).sum(), argnums=(0, 1)))(*given)

    whole = gradients()
    monkeypatch.setattr(modules, "LARGE", 1)
    for found, expected in zip(gradients(), whole, strict=True):
        assert found.dtype == jnp.bfloat16 and np.abs(np.asarray(expected, np.float32)).max() > 1
        np.testing.assert_allclose(np.asarray(found, np.float32), np.asarray(expected, np.float32), rtol=0.02, atol=0.5)


def test_no_copy_in_float32_is_made() -> None:
    x, weight = jnp.zeros((2, 2048), jnp.bfloat16), jnp.zeros((2048, 4 * BLOCK), jnp.bfloat16)
    assert weight.size >= modules.LARGE
    stats = jax.jit(lambda x, w: product(x, w, x.dtype)).lower(x, weight).compile().memory_analysis()
    assert stats is not None and stats.temp_size_in_bytes < 1.8 * weight.nbytes  # in float32 it alone is 2
