"""The cache of attention: a ring, written in place, or all keys so far, read as far as they are filled."""

from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from evalkit.models.mixers import attention
from evalkit.models.mixers.attention import MQA
from evalkit.parallel.devices import bytes_of

WIDTH, LENGTH, BLOCK = 16, 40, 16


@lru_cache
def mixer(window: int | None, cache_dtype: str = "float32") -> MQA:
    return MQA(WIDTH, heads=4, head_dim=4, window=window, cache_dtype=cache_dtype, rngs=nnx.Rngs(0))


def inputs(rows: int, length: int = LENGTH) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((rows, length, WIDTH)).astype(np.float32)


@pytest.mark.parametrize("window", [1, 7, 64])
def test_rows_that_pause_at_different_tokens_are_as_if_alone(window: int) -> None:
    """One-token steps in which some rows have a pad, then a chunk with pads, then steps: nothing is evicted early."""
    random, x = np.random.default_rng(1), inputs(3)
    whole, _ = jax.jit(mixer(window))(x, None, None)
    call = jax.jit(mixer(window).__call__)
    cache, at = mixer(window).init_cache(3, LENGTH), np.zeros(3, int)
    for steps in [1] * 13 + [5, 5] + [1] * 12:
        room = LENGTH - at[:, None]
        valid = (random.random((3, steps)) < 0.7) & (np.arange(steps) < room)
        positions = np.where(valid, at[:, None] + np.cumsum(valid, axis=1) - 1, -1)
        given = np.take_along_axis(x, np.maximum(positions, 0)[..., None], axis=1)
        y, cache = call(given, jnp.asarray(positions, jnp.int32), cache)
        expected = np.take_along_axis(np.asarray(whole), np.maximum(positions, 0)[..., None], axis=1)
        np.testing.assert_allclose(np.asarray(y)[valid], expected[valid], atol=1e-5)
        at += valid.sum(axis=1)
    assert at.min() > 7 and len(set(at)) > 1


@pytest.mark.parametrize("cached", [False, True])
def test_more_pads_between_tokens_than_a_window_hide_none_of_its_keys(cached: bool) -> None:
    x, one = inputs(2, 120), mixer(7)
    call = jax.jit(one.__call__)
    whole, _ = call(x, None, None)
    there = np.r_[0:60, 140:200]
    positions, given = np.full((2, 200), -1, np.int32), np.zeros((2, 200, WIDTH), np.float32)
    positions[:, there], given[:, there] = np.arange(120), x
    positions[1], given[1, :120] = np.arange(200), x[1]  # the other row has no pads
    y, _ = call(given, positions, one.init_cache(2, 200) if cached else None)
    np.testing.assert_allclose(y[0, there], whole[0], atol=1e-5)
    np.testing.assert_allclose(y[1, :120], whole[1], atol=1e-5)


def test_what_lies_beyond_the_filled_blocks_is_never_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their slots are poisoned: read, they would make every output NaN, whatever their weight."""
    monkeypatch.setattr(attention, "KEYS_AT_A_TIME", BLOCK)
    x, one = inputs(2, 20), mixer(None)
    call = jax.jit(lambda *given: one(*given))  # traced here, with the smaller blocks
    whole, _ = call(x, None, None)
    _, cache = call(x[:, :19], None, one.init_cache(2, 8 * BLOCK))
    poisoned = [jnp.asarray(part).at[:, 2 * BLOCK :].set(jnp.nan) for part in (cache.keys, cache.values)]
    y, _ = call(x[:, 19:], None, cache._replace(keys=poisoned[0], values=poisoned[1]))
    np.testing.assert_allclose(y, whole[:, 19:], atol=1e-5)


@pytest.mark.parametrize("window", [None, 512])
def test_a_step_writes_its_donated_cache_in_place(window: int | None) -> None:
    """The program's own memory is a fraction of the cache: nowhere in it is a copy of the keys or of the values."""
    one = MQA(WIDTH, heads=1, head_dim=64, window=window, rngs=nnx.Rngs(0))
    cache = jax.eval_shape(lambda: one.init_cache(2, 4096))
    x = jax.ShapeDtypeStruct((2, 1, WIDTH), jnp.float32)
    step = jax.jit(lambda x, cache: one(x, None, cache), donate_argnums=1)
    memory = step.lower(x, cache).compile().memory_analysis()
    assert memory.alias_size_in_bytes >= bytes_of(cache)
    assert memory.temp_size_in_bytes < bytes_of(cache) / 3


@pytest.mark.parametrize("window", [None, 7])
def test_a_bfloat16_cache_takes_half_and_loses_nothing_of_bfloat16_activations(window: int | None) -> None:
    x = jnp.asarray(inputs(2), jnp.bfloat16)
    outputs = []
    for dtype in attention.CACHE_DTYPES:
        call, cache = jax.jit(mixer(window, dtype).__call__), mixer(window, dtype).init_cache(2, LENGTH)
        assert cache.keys.nbytes == cache.keys.size * (4 if dtype == "float32" else 2)
        first, cache = call(x[:, :30], None, cache)
        second, cache = call(x[:, 30:31], None, cache)
        assert cache.keys.dtype == cache.values.dtype == dtype
        outputs.append(np.asarray(jnp.concatenate([first, second], axis=1), np.float32))
    np.testing.assert_array_equal(*outputs)


def test_no_tokens_are_one_line() -> None:
    with pytest.raises(ValueError, match=r"\(1, 0, 8\); attention needs at least one token"):
        MQA(8, heads=2, head_dim=4, rngs=nnx.Rngs(0))(jnp.zeros((1, 0, 8)), None, None)


def test_an_unknown_dtype_of_the_cache_is_refused() -> None:
    with pytest.raises(ValueError, match="cache_dtype='int8'; allowed: float32, bfloat16"):
        MQA(WIDTH, heads=4, head_dim=4, cache_dtype="int8", rngs=nnx.Rngs(0))


@pytest.mark.slow
def test_rows_of_caches_that_stood_elsewhere_are_not_taken_for_one() -> None:
    """After one token and after two, the next slot of the ring is another; a longer piece puts both in order."""
    module = MQA(8, heads=2, head_dim=4, window=4, rngs=nnx.Rngs(0))
    call = jax.jit(module.__call__)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(1, 3, 8)), jnp.float32)
    _, after_one = call(x[:, :1], None, module.init_cache(1, 8))
    _, after_two = call(x[:, 1:2], None, after_one)
    joined = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), after_one, after_two)
    with pytest.raises(ValueError, match="rows of different caches were joined"):
        module(jnp.concatenate([x[:, 2:], x[:, 2:]]), None, joined)
    found, _ = call(jnp.concatenate([x[:, 1:], x[:, 1:]]), None, joined)
    wanted, _ = call(x[:, 1:], None, after_one)
    np.testing.assert_allclose(found[:1], wanted, atol=1e-6)
