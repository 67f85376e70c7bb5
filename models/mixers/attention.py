"""Multi-query attention, global or local (De et al. 2024, sec. 2.3).

One rule says which keys a query sees, in training, prefill and decoding: see `MQA` and `Marks.visible`.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from jaxtyping import Bool, Float, Int

from evalkit.checks import refuse_other
from evalkit.kernels import across, is_split
from evalkit.models.layers.mixer import Activations, Keys, Positions, PositionsOfAll, Queries
from evalkit.models.layers.modules import Linear, side_by_side
from evalkit.models.layers.positions import continued
from evalkit.models.layers.shares import TERM, Division, into, out_of
from evalkit.models.mixers.attention_cache import (
    AttentionCache,
    appended,
    empty,
    entered,
    entries,
    followed_by,
    in_order,
    newest,
    refuse_overflow,
)
from evalkit.platforms import by_platform

MASKED = -1e30  # a score of a key that is not visible; finite, so that a row without any visible key is not NaN
DECODED = 16  # with at most so many new tokens, attention to a whole window costs too little to avoid it
ROPE_SPLIT = 1024  # a position is this times an integer, plus the rest
KEYS_AT_A_TIME = 256  # of a global cache: with 512, one token of 16 rows cost up to 1.7 times as much
CACHE_DTYPES = ("float32", "bfloat16")
AT_ONCE = 2**26  # scores, of all blocks of queries together, that an accelerator computes by one kernel: 256 MiB
IN_CACHE = 2**18  # scores, of one block of queries over all sequences, that fit into the cache of a CPU core


class MQA(nnx.Module):
    """Multi-query attention: many query heads share one key head and one value head.

    A query sees a key if both are of one segment and `0 ≤ q_pos − k_pos < window`. `heads × head_dim` may differ from
    the width. Raises ValueError for impossible sizes.

    Options:
      heads (heads): query heads; they share one key head and one value head.
      head_dim (channels): the width of a head.
      window (tokens): tokens that a query sees, itself included; null: all before it (global attention).
      rope: whether positions rotate queries and keys (RoPE); false: no position encoding (NoPE, sec. 6).
      rope_base: RoPE's wavelengths go from 2π tokens to nearly 2π times this.
      rope_fraction (share): the part of a head's channels that rotate: all in the paper, half in RecurrentGemma.
      output_bias: whether the output map has a bias, as in RecurrentGemma.
      cache_dtype: the dtype of stored keys and values: `float32`, or `bfloat16`, which rounds no bfloat16 activation.

    >>> attention = MQA(64, heads=4, head_dim=16, window=8, rngs=nnx.Rngs(0))
    >>> x = jnp.zeros((2, 12, 64))
    >>> y, _ = attention(x, None, None)
    >>> y, cache = attention(x, None, attention.init_cache(batch=2, length=12))
    >>> y.shape, cache.keys.shape
    ((2, 12, 64), (2, 8, 16))
    """

    def __init__(
        self,
        width: int,
        *,
        heads: int,
        head_dim: int,
        rngs: nnx.Rngs,
        window: int | None = None,
        rope: bool = True,
        rope_base: float = 10_000.0,
        rope_fraction: float = 1.0,
        output_bias: bool = False,
        cache_dtype: str = "float32",
    ):
        rotated = head_dim * rope_fraction
        _refuse_sizes(heads, head_dim, window, rotated if rope else None, rope_base)
        refuse_other("cache_dtype", cache_dtype, CACHE_DTYPES)
        self.heads, self.head_dim, self.window = heads, head_dim, window
        self.rope_base = rope_base if rope else None
        self.rotated = int(rotated)
        self.cache_dtype = cache_dtype
        self.query = Linear(width, heads * head_dim, rngs=rngs)
        self.key = Linear(width, head_dim, rngs=rngs)
        self.value = Linear(width, head_dim, rngs=rngs)
        self.output = Linear(heads * head_dim, width, bias=output_bias, rngs=rngs)

    def __call__(
        self, x: Activations, positions: Positions | None, cache: AttentionCache | None
    ) -> tuple[Activations, AttentionCache | None]:
        """Mixes `x [b, t, d]`; see `Mixer` for positions and cache.

        Raises ValueError for no tokens, and if a global cache overflows. Inside `jit`, where its content is unknown
        while tracing, the outputs of rows that overflow are NaN instead.
        """
        batch, steps, _ = x.shape
        if steps == 0:
            raise ValueError(f"x has the shape {x.shape}; attention needs at least one token")
        if positions is not None:
            where = positions
        elif cache is not None:
            where = continued(cache.next_position, steps)
        else:
            where = jnp.arange(steps, dtype=jnp.int32)[None]
        segments = jnp.zeros_like(where) if cache is None else jnp.broadcast_to(cache.segment[:, None], (batch, steps))
        if positions is not None:
            segments = segments + jnp.cumsum(positions == 0, axis=1)
        queries, keys, values = side_by_side(x, self.query, self.key, self.value)
        # As many heads as the parameters have: on a mesh a device has its share of them.
        queries = self._rotate(queries.reshape(batch, steps, -1, self.head_dim), where)
        keys = self._rotate(keys[:, :, None], where)[:, :, 0]
        if cache is None:
            # Leaving segments out skips a comparison of every query with every key.
            seen = None if positions is None else segments
            among = partial(attend, queries, keys, values, Marks(where, where, seen, seen), self.window)
            y = _in_order(among, positions) if self.window is not None else among(aligned=True)
            return self.output(y.reshape(batch, steps, -1)), None
        new = entries(cache, keys, values, where, segments, padded=positions is not None)
        if self.window is not None and (steps > 1 or positions is not None):
            y, after = self._piece(cache, new, queries, padded=positions is not None)
        else:
            after = appended(cache, new) if self.window is None else entered(cache, new)
            y = self._among(after, new, queries, aligned=False)
        if self.window is None or cache.keys.shape[1] < self.window:
            y = refuse_overflow(y, after.written, cache.keys.shape[1])
        return self.output(y.reshape(batch, steps, -1)), after

    def _piece(
        self, cache: AttentionCache, new: AttentionCache, queries: Queries, *, padded: bool
    ) -> tuple[Queries, AttentionCache]:
        """Local attention of several tokens a row, and the cache after them."""
        size, steps = cache.keys.shape[1], queries.shape[1]
        stored = followed_by(in_order(cache), new)
        after = newest(stored, size, padded=padded)
        if is_split():
            before, after = across(in_order(cache), after)
            # Each device counts its own resets, so the segments go on from those of the device before.
            new = new._replace(segments=new.segments + (before.segment - cache.segment)[:, None])
            cache, stored = before, followed_by(before, new)
        # Without pads the newest keys stand last and in order, so each block of queries sees only a band of them.
        among = partial(self._among, stored, new, queries, aligned=not padded)
        if not DECODED < steps <= size:
            return among(), after
        # A prompt after an empty cache sees only its own keys, so the empty slots are left out.
        alone = partial(self._among, new, new, queries, aligned=True)
        return jax.lax.cond(cache.written.max() == 0, alone, among), after

    def _among(self, stored: AttentionCache, new: AttentionCache, queries: Queries, *, aligned: bool) -> Queries:
        """Attends to the keys that are stored, the new ones among them; see `attend` for `aligned`."""
        marks = Marks(new.positions, stored.positions, new.segments, stored.segments)
        if self.window is None:
            return attend_filled(queries, stored.keys, stored.values, marks, stored.written.max())
        keys, values = stored.keys.astype(queries.dtype), stored.values.astype(queries.dtype)
        return attend(queries, keys, values, marks, self.window, aligned=aligned)

    def division(self) -> Division:
        """See `Divided`: each device has some of the query heads, and all of the one key and value."""
        keys = {"key.kernel": TERM, "value.kernel": TERM}
        return Division({**into("query"), **keys, **out_of("output")}, {"heads": self.heads})

    def check_split(self, steps: int) -> None:
        """See `Split`: a device needs the window of the device before, and no more."""
        if self.window is None:
            raise ValueError("global attention needs all earlier tokens on every device")
        if self.window > steps:
            raise ValueError(f"attention has window={self.window}, more than the {steps} tokens of a device")

    def init_cache(self, batch: int, length: int) -> AttentionCache:
        """Returns an empty cache for `length` keys, or for a window of keys if that is fewer."""
        size = length if self.window is None else min(self.window, length)
        return empty(batch, size, self.head_dim, self.cache_dtype)

    def flops(self, length: int) -> int:
        """See `Counted`: the four maps, RoPE, and softmax attention to the keys that each query sees, masks left out.

        Each pair of a query and a key costs a dot product, a weighted value, and four operations of the softmax.
        """
        maps = sum(linear.flops(length) for linear in (self.query, self.key, self.value, self.output))
        rotated = 0 if self.rope_base is None else self.rotated
        turned = 3 * rotated * (self.heads + 1) + 3 * rotated // 2
        pairs = _pairs(length, self.window)
        return maps + length * turned + self.heads * (pairs * (4 * self.head_dim + 4) + length * 2 * self.head_dim)

    def _rotate(self, x: Queries, positions: PositionsOfAll) -> Queries:
        if self.rope_base is None:
            return x
        turned = rope(x[..., : self.rotated], positions, self.rope_base)
        return jnp.concatenate([turned, x[..., self.rotated :]], axis=-1)


def _refuse_sizes(heads: int, head_dim: int, window: int | None, rotated: float | None, rope_base: float) -> None:
    """Raises ValueError for impossible sizes; `rotated` is how many channels of a head RoPE turns, None without it."""
    if heads < 1 or head_dim < 1:
        raise ValueError(f"heads={heads}, head_dim={head_dim}; allowed: 1 or more of each")
    if rotated is not None and (rotated % 2 or not 0 < rotated <= head_dim):
        raise ValueError(
            f"head_dim={head_dim} x rope_fraction={rotated / head_dim:g} = {rotated:g} channels to rotate; "
            f"use an even number of 2 to {head_dim}, or rope=false"
        )
    if not rope_base > 1:
        raise ValueError(f"rope_base={rope_base}; allowed: above 1")
    if window is not None and window < 1:
        raise ValueError(f"window={window}; allowed: 1 or more, or null for global attention")


def _pairs(length: int, window: int | None) -> int:
    """Returns the number of pairs of a query and a key that the query sees, in one sequence."""
    seen = min(length, window or length)
    return seen * (seen + 1) // 2 + (length - seen) * seen


class Marks(NamedTuple):
    """The positions and segments of queries and keys; segments are None where there is only one."""

    query_positions: Int[Array, "#b t"]
    key_positions: Int[Array, "#b s"]
    query_segments: Int[Array, "b t"] | None
    key_segments: Int[Array, "b s"] | None

    def visible(self, queries: slice, keys: slice, window: int | None) -> Bool[Array, "b t s"]:
        """Returns which of these keys each of these queries sees."""
        k = self.key_positions[:, None, keys]
        distance = self.query_positions[:, queries, None] - k
        visible = (k >= 0) & (distance >= 0)
        if window is not None:
            visible &= distance < window
        if self.query_segments is not None and self.key_segments is not None:
            visible &= self.query_segments[:, queries, None] == self.key_segments[:, None, keys]
        return visible

    def keys_from(self, start: Array, count: int) -> "Marks":
        """Returns the marks of `count` keys from `start` on, and of all queries."""
        cut = partial(jax.lax.dynamic_slice_in_dim, start_index=start, slice_size=count, axis=1)
        segments = None if self.key_segments is None else cut(self.key_segments)
        return self._replace(key_positions=cut(self.key_positions), key_segments=segments)


def _in_order(among: Callable[..., Queries], positions: Positions | None) -> Queries:
    """Attends to a band of keys, or to all where pads between tokens put keys of the window out of the band."""
    if positions is None:
        return among(aligned=True)
    there = positions >= 0
    begins = there & ~jnp.pad(there, ((0, 0), (1, 0)))[:, :-1]  # where tokens follow pads, or nothing
    interrupted = (begins.sum(axis=1) > 1).any()
    return jax.lax.cond(interrupted, partial(among, aligned=False), partial(among, aligned=True))


def attend(queries: Queries, keys: Keys, values: Keys, marks: Marks, window: int | None, *, aligned: bool) -> Queries:
    """Computes softmax attention for a block of queries at a time.

    `aligned` means that the last key belongs to the last query and both are in order. Then a block of queries needs
    only the keys from the start of its window to its own end, so the cost is O(t · window).
    """
    batch, steps, heads, _ = queries.shape
    size = _block_size(steps)
    one_by_one = partial(_one_block_after_another, window=window, aligned=aligned)
    if not aligned or window is None or steps == size or steps % size:
        return one_by_one(queries, keys, values, marks)
    if batch * steps * heads * (size + window - 1) > AT_ONCE:
        return one_by_one(queries, keys, values, marks)
    # On a GPU a block is a few launches, which all blocks together can share.
    together = partial(_all_blocks_together, window=window, size=size)
    return by_platform(queries, keys, values, marks, cpu=one_by_one, default=together)


def _one_block_after_another(
    queries: Queries, keys: Keys, values: Keys, marks: Marks, *, window: int | None, aligned: bool
) -> Queries:
    blocks = [
        _attend_block(queries[:, q], keys[:, k], values[:, k], marks.visible(q, k, window))
        for q, k in _blocks(queries.shape[1], keys.shape[1], window, aligned)
    ]
    return jnp.concatenate(blocks, axis=1)


def _all_blocks_together(
    queries: Queries, keys: Keys, values: Keys, marks: Marks, *, window: int, size: int
) -> Queries:
    """Attends by blocks of `size` queries as if each were a sequence, with a band of keys that ends where it ends."""
    batch, steps = queries.shape[:2]
    surplus = keys.shape[1] - steps - (window - 1)  # keys before the first band; below 0: empty slots that it lacks

    def blocks(x: Array) -> Array:
        x = jnp.broadcast_to(x, (batch, *x.shape[1:]))
        return x.reshape(-1, size, *x.shape[2:])

    def bands(x: Array, empty: int = 0) -> Array:
        around = ((0, 0), (max(-surplus, 0), 0), *[(0, 0)] * (x.ndim - 2))
        x = jnp.pad(jnp.broadcast_to(x, (batch, *x.shape[1:])), around, constant_values=empty)[:, max(surplus, 0) :]
        starts = range(0, steps, size)
        bands = jnp.stack([x[:, start : start + size + window - 1] for start in starts], axis=1)
        return bands.reshape(-1, *bands.shape[2:])

    segments = (marks.query_segments, marks.key_segments)
    if marks.query_segments is not None and marks.key_segments is not None:
        segments = blocks(marks.query_segments), bands(marks.key_segments)
    marks = Marks(blocks(marks.query_positions), bands(marks.key_positions, empty=-1), *segments)
    visible = marks.visible(slice(None), slice(None), window)
    return _attend_block(blocks(queries), bands(keys), bands(values), visible).reshape(queries.shape)


def attend_filled(queries: Queries, keys: Keys, values: Keys, marks: Marks, filled: Array) -> Queries:
    """Computes global attention over a cache that is `filled` from the left, a block of keys at a time.

    Only blocks with keys are read. The softmax is updated block by block (Milakov & Gimelshein 2018), so that memory
    does not grow with the cache.
    """
    batch, steps, heads, width = queries.shape
    stored = keys.shape[1]
    if stored <= KEYS_AT_A_TIME:
        return attend(queries, keys.astype(queries.dtype), values.astype(queries.dtype), marks, None, aligned=False)
    rows = queries.reshape(batch, steps * heads, width) * jnp.asarray(width**-0.5, queries.dtype)

    def block(state: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        first, highest, weight, sums = state
        start = jnp.minimum(first, stored - KEYS_AT_A_TIME)  # the last block begins early; `visible` drops the overlap
        k, v = (jax.lax.dynamic_slice_in_dim(x, start, KEYS_AT_A_TIME, axis=1) for x in (keys, values))
        k, v = k.astype(rows.dtype), v.astype(rows.dtype)  # not before: it would copy the cache for each token
        part = marks.keys_from(start, KEYS_AT_A_TIME)
        visible = part.visible(slice(None), slice(None), None)
        visible &= (start + jnp.arange(KEYS_AT_A_TIME) >= first)[None, None]
        scores = jnp.einsum("bqh,bsh->bqs", rows, k, preferred_element_type=jnp.float32)
        scores = jnp.where(visible[:, :, None], scores.reshape(batch, steps, heads, -1), MASKED)
        scores = scores.reshape(batch, steps * heads, -1)
        new = jnp.maximum(highest, scores.max(axis=-1))
        weights, before = jnp.exp(scores - new[..., None]), jnp.exp(highest - new)
        products = jnp.einsum("bqs,bsh->bqh", weights.astype(v.dtype), v, preferred_element_type=jnp.float32)
        weight = weight * before + weights.sum(axis=-1)
        return first + KEYS_AT_A_TIME, new, weight, sums * before[..., None] + products

    # A loop over what is filled, not over what is allocated; it has no gradient, and nothing asks for one.
    nothing = jnp.full(rows.shape[:2], MASKED), jnp.zeros(rows.shape[:2]), jnp.zeros(rows.shape)
    filled = jnp.minimum(filled, stored)
    start = jnp.zeros((), jnp.int32), *nothing
    _, _, weight, sums = jax.lax.while_loop(lambda state: state[0] < filled, block, start)
    y = sums / jnp.maximum(weight, 1e-30)[..., None]  # a pad may see no key, and has weight 0
    return y.reshape(queries.shape).astype(queries.dtype)


def _blocks(steps: int, stored: int, window: int | None, aligned: bool) -> Iterator[tuple[slice, slice]]:
    """Yields slices of queries, and of the keys that they can see."""
    size = _block_size(steps)
    offset = stored - steps
    for start in range(0, steps, size):
        stop = min(start + size, steps)
        if aligned:
            first = 0 if window is None else max(0, start + offset - window + 1)
            yield slice(start, stop), slice(first, stop + offset)
        else:
            yield slice(start, stop), slice(0, stored)


def _block_size(steps: int) -> int:
    # At most eight blocks: sixteen were slower at length 1024, and each adds to the time of compilation.
    return max(64, -(-steps // 8))


def _attend_block(queries: Queries, keys: Keys, values: Keys, visible: Bool[Array, "c t s"]) -> Queries:
    batch, steps, heads, width = queries.shape
    # All heads share the keys, so heads are folded into the rows of one product for each sequence.
    rows = queries.reshape(batch, steps * heads, width) * jnp.asarray(width**-0.5, queries.dtype)
    visible = jnp.repeat(visible, heads, axis=1)
    return _softmax_of_rows(rows, keys, values, visible).reshape(queries.shape)


@jax.custom_vjp
def _softmax_of_rows(
    rows: Float[Array, "b r h"], keys: Keys, values: Keys, visible: Bool[Array, "c r s"]
) -> Float[Array, "b r h"]:
    """Returns `softmax(rows @ keysᵀ) @ values`."""
    return _softmax_forward(rows, keys, values, visible)[0]


def _softmax_forward(rows: Array, keys: Array, values: Array, visible: Array) -> tuple[Array, tuple[Array, ...]]:
    # The gradient keeps two numbers for each row and computes the weights again: on a CPU that is cheaper than memory.
    y, highest, total = _by_sequence(_weighted, visible, rows, keys, values)
    return y, (rows, keys, values, visible, y, highest, total)


def _weighted(visible: Array, rows: Array, keys: Array, values: Array) -> tuple[Array, Array, Array]:
    """Returns the average of the values, the highest score of each row, and the sum of its weights."""
    scores = _scores(rows, keys, visible)
    highest = scores.max(axis=-1, keepdims=True)
    weights = jnp.exp(scores - highest)
    total = weights.sum(axis=-1, keepdims=True)
    y = jnp.einsum("brs,bsh->brh", weights.astype(values.dtype), values, preferred_element_type=jnp.float32) / total
    return y.astype(values.dtype), highest, total


def _softmax_backward(kept: tuple[Array, ...], dy: Array) -> tuple[Array, Array, Array, None]:
    rows, keys, values, visible, *rest = kept
    drows, dkeys, dvalues = _by_sequence(_gradients, visible, rows, keys, values, *rest, dy)
    return drows, dkeys, dvalues, None


def _gradients(
    visible: Array, rows: Array, keys: Array, values: Array, y: Array, highest: Array, total: Array, dy: Array
) -> tuple[Array, Array, Array]:
    """Returns the gradients of the rows, the keys and the values."""
    weights = jnp.exp(_scores(rows, keys, visible) - highest) / total
    dweights = jnp.einsum("brh,bsh->brs", dy, values, preferred_element_type=jnp.float32)
    # The gradient of a softmax: each weight times its own gradient less the mean of all, which is dy · y.
    along = (dy.astype(jnp.float32) * y.astype(jnp.float32)).sum(axis=-1, keepdims=True)
    dscores = (weights * (dweights - along)).astype(rows.dtype)
    drows = jnp.einsum("brs,bsh->brh", dscores, keys)
    return drows, _over_rows(dscores, rows), _over_rows(weights.astype(values.dtype), dy)


def _over_rows(left: Float[Array, "b r s"], right: Float[Array, "b r h"]) -> Keys:
    """Returns the sum over rows of the products of both."""

    def short_first(left: Array, right: Array) -> Array:
        return jnp.swapaxes(jnp.einsum("brs,brh->bhs", left, right), 1, 2)

    # With the short axis last these products are four times slower on a CPU; on a GPU a transposition is a launch.
    short_last = partial(jnp.einsum, "brs,brh->bsh")
    return by_platform(left, right, cpu=short_first, default=short_last)


def _by_sequence(function: Callable[..., tuple[Array, ...]], visible: Array, *arrays: Array) -> tuple[Array, ...]:
    """Calls `function`, on a CPU sequence by sequence if the scores of all together would not stay in its cache."""
    rows, keys = arrays[:2]
    if rows.shape[0] == 1 or rows.shape[0] * rows.shape[1] * keys.shape[1] <= IN_CACHE:
        return function(visible, *arrays)
    one_by_one = partial(_one_by_one, function)
    return by_platform(visible, *arrays, cpu=one_by_one, default=function)


def _one_by_one(function: Callable[..., tuple[Array, ...]], visible: Array, *arrays: Array) -> tuple[Array, ...]:
    alike = visible.shape[0] == 1

    def one(index: Array) -> tuple[Array, ...]:
        its = [jax.lax.dynamic_slice_in_dim(array, index, 1) for array in arrays]
        seen = visible if alike else jax.lax.dynamic_slice_in_dim(visible, index, 1)
        return tuple(result[0] for result in function(seen, *its))

    return jax.lax.map(one, jnp.arange(arrays[0].shape[0]))


_softmax_of_rows.defvjp(_softmax_forward, _softmax_backward)


def _scores(rows: Array, keys: Array, visible: Array) -> Array:
    return jnp.where(visible, jnp.einsum("brh,bsh->brs", rows, keys, preferred_element_type=jnp.float32), MASKED)


def rope(x: Queries, positions: PositionsOfAll, base: float) -> Queries:
    """Rotates the two halves of the last axis by `position · base^(−2i/h)` (Su et al. 2021).

    The angle is exact to 1e-3 at position 2^20, where a plain float32 product is off by 0.06.
    """
    # The position is split into a multiple of ROPE_SPLIT and a rest. Both products are of small numbers, because the
    # angle of ROPE_SPLIT is reduced to less than a turn in float64.
    half = x.shape[-1] // 2
    frequency = base ** (-np.arange(half, dtype=np.float64) / half)
    coarse = np.remainder(ROPE_SPLIT * frequency, 2 * np.pi)
    high, low = positions // ROPE_SPLIT, positions % ROPE_SPLIT
    angle = (
        low[..., None] * frequency.astype(np.float32)[None, None]
        + high[..., None] * coarse.astype(np.float32)[None, None]
    )[:, :, None]
    # The barrier makes XLA compute them once: without it, it computes them again for each head, forward and backward.
    sin, cos = jax.lax.optimization_barrier((jnp.sin(angle), jnp.cos(angle)))
    left, right = x[..., :half].astype(jnp.float32), x[..., half:].astype(jnp.float32)
    return jnp.concatenate([left * cos - right * sin, right * cos + left * sin], axis=-1).astype(x.dtype)
