"""What attention keeps between calls: a ring of the last keys, or all keys so far.

A one-token step writes one slot in place. XLA then copies nothing, if the cache is donated or carried by a loop.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.core import Tracer
from jaxtyping import Float, Int

from evalkit.models.layers.mixer import Keys, Positions, PositionsOfAll, Queries, Rows
from evalkit.models.layers.positions import after, after_all


class AttentionCache(NamedTuple):
    """Keys and values so far, each with its position (−1: empty) and its segment, the number of resets before it.

    A local cache holds the last `window` keys as a ring, and slot `oldest` is the next to be written. `oldest` is the
    same in all rows, so rows of two caches can be joined only if they agree in it. A global cache is filled from the
    left. `written` counts all keys that a row ever received.
    """

    keys: Float[Array, "b s h"]
    values: Float[Array, "b s h"]
    positions: Int[Array, "b s"]
    segments: Int[Array, "b s"]
    next_position: Rows
    segment: Rows
    written: Rows
    oldest: Rows


def empty(batch: int, size: int, head_dim: int, dtype: str) -> AttentionCache:
    """Returns a cache of `size` slots, keys and values in `dtype`."""
    return AttentionCache(
        keys=jnp.zeros((batch, size, head_dim), dtype),
        values=jnp.zeros((batch, size, head_dim), dtype),
        positions=jnp.full((batch, size), -1, jnp.int32),
        segments=jnp.zeros((batch, size), jnp.int32),
        next_position=jnp.zeros((batch,), jnp.int32),
        segment=jnp.zeros((batch,), jnp.int32),
        written=jnp.zeros((batch,), jnp.int32),
        oldest=jnp.zeros((batch,), jnp.int32),
    )


def entries(
    cache: AttentionCache, keys: Keys, values: Keys, where: PositionsOfAll, segments: Positions, *, padded: bool
) -> AttentionCache:
    """Returns a cache of the new keys and values alone, token i in slot i, with the state of each row after them.

    `padded` says that pads may be among them.
    """
    steps = keys.shape[1]
    where = jnp.broadcast_to(where, segments.shape)
    return AttentionCache(
        keys=keys.astype(cache.keys.dtype),
        values=values.astype(cache.values.dtype),
        positions=where,
        segments=segments,
        next_position=after(where, cache.next_position) if padded else after_all(cache.next_position, steps),
        segment=segments[:, -1].astype(jnp.int32),
        written=cache.written + ((where >= 0).sum(axis=1, dtype=jnp.int32) if padded else steps),
        oldest=cache.oldest,
    )


def appended(cache: AttentionCache, new: AttentionCache) -> AttentionCache:
    """Writes the new keys of a global cache after those already there; drops pads and keys that do not fit."""
    size, steps = cache.keys.shape[1], new.keys.shape[1]
    valid = new.positions >= 0
    slots = cache.written[:, None] + jnp.cumsum(valid, axis=1) - 1
    slots = jnp.where(valid, slots, size + steps)  # out of range: dropped
    row = jnp.arange(slots.shape[0])[:, None]
    return _map_entries(lambda old, x: old.at[row, slots].set(x, mode="drop"), cache, new)


def entered(cache: AttentionCache, new: AttentionCache) -> AttentionCache:
    """Writes one new key a row into a ring, over the oldest one, which is in the same slot in all rows.

    Raises ValueError, outside `jit`, if the rows come from caches with different oldest slots.
    """
    size, slot = cache.keys.shape[1], cache.oldest[0]
    if not isinstance(slot, Tracer) and (cache.oldest != slot).any():
        raise ValueError("rows of different caches were joined; read at least two tokens at once after joining them")
    # One slice of all rows is written in place. A scatter copied the whole ring, several times a token.
    stored = _map_entries(lambda old, x: jax.lax.dynamic_update_slice_in_dim(old, x, slot, axis=1), cache, new)
    stored = jax.lax.optimization_barrier(stored)
    return stored._replace(oldest=(cache.oldest + 1) % size)


def in_order(cache: AttentionCache) -> AttentionCache:
    """Returns the ring with the oldest key of each row in its first slot."""
    size = cache.keys.shape[1]

    def turned() -> AttentionCache:
        order = (cache.oldest[:, None] + jnp.arange(size)[None]) % size
        return _map_entries(lambda _, x: _reordered(x, order), cache, cache)

    # After a chunk a ring is in order already, so that reading a prompt in chunks moves nothing.
    turned_where_needed = jax.lax.cond((cache.oldest > 0).any(), turned, lambda: cache)
    return turned_where_needed._replace(oldest=jnp.zeros_like(cache.oldest))


def followed_by(cache: AttentionCache, new: AttentionCache) -> AttentionCache:
    """Returns the slots of a ring that is in order and then the new keys, pads included."""
    return _map_entries(lambda old, x: jnp.concatenate([old, x], axis=1), cache, new)._replace(oldest=cache.oldest)


def newest(stored: AttentionCache, size: int, *, padded: bool) -> AttentionCache:
    """Returns the ring, in order, of the `size` newest keys; `padded` says that pads may stand between them."""
    if padded:  # moves empty slots and pads to the front
        order = jnp.argsort(stored.positions >= 0, axis=1, stable=True)
        stored = _map_entries(lambda _, x: _reordered(x, order), stored, stored)
    return _map_entries(lambda _, x: x[:, -size:], stored, stored)


def refuse_overflow(y: Queries, written: Rows, size: int) -> Queries:
    """Returns `y`, NaN in rows that received more than `size` keys; outside `jit`, raises ValueError instead."""
    if not isinstance(written, Tracer) and int(written.max()) > size:
        raise ValueError(
            f"the cache holds {size} keys and was given {int(written.max())}; use init_cache with a longer length"
        )
    return jnp.where((written > size)[:, None, None, None], jnp.nan, y)


def _map_entries(function: Callable[[Array, Array], Array], old: AttentionCache, new: AttentionCache) -> AttentionCache:
    """Applies `function` to the old and new keys, values, positions and segments; the rest is the new cache's."""
    return new._replace(
        keys=function(old.keys, new.keys),
        values=function(old.values, new.values),
        positions=function(old.positions, new.positions),
        segments=function(old.segments, new.segments),
    )


def _reordered(x: Array, order: Int[Array, "b s"]) -> Array:
    return jnp.take_along_axis(x, order.reshape(order.shape + (1,) * (x.ndim - 2)), axis=1)
