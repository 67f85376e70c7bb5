"""Passes over time on a TPU, by Pallas with Mosaic: any number of steps, any width.

Arrays keep their layout `[b, t, d]`, so nothing is transposed. The grid walks through blocks of time in order, with the
carry in fast memory. Within a block, tiles of eight steps are scanned by three rolls, which use all eight sublanes of
the vector unit.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.typing import DTypeLike

from evalkit.kernels.gates import BY_TANH
from evalkit.kernels.passes import Kernel, Pass, Reads, Walked
from evalkit.kernels.planes import ONE, Planes, plus, times

TILE = 8  # sublanes
PACKED = 16  # steps in a tile of bfloat16, so the smallest block for every dtype
LANES = 128


class Blocks(NamedTuple):
    """The block in fast memory: `steps`, a multiple of 16, and `channels`, a multiple of 128."""

    steps: int = 256
    channels: int = 256


def kernel(blocks: Blocks | None = None, *, interpret: bool = False) -> Kernel:
    """Returns the kernel with these blocks; `interpret` runs it on any platform, slowly, for tests.

    Raises ValueError for blocks that are no multiples of a tile.
    """
    blocks = blocks or Blocks()
    if blocks.steps % PACKED or blocks.channels % LANES or min(blocks) < 1:
        raise ValueError(f"{blocks}; allowed: steps a multiple of {PACKED}, channels of {LANES}")
    return Kernel(partial(_walk, blocks=blocks, interpret=interpret), BY_TANH)


@partial(jax.jit, static_argnames=("run", "reverse", "dtypes", "blocks", "interpret"))
def _walk(
    run: Pass, reads: Reads, *, reverse: bool, dtypes: tuple[DTypeLike, ...], blocks: Blocks, interpret: bool
) -> Walked:
    rows, carry, per_channel, lagged = reads
    batch, steps, width = rows[0].shape
    block = min(blocks.steps, pl.cdiv(steps, PACKED) * PACKED)
    channels = min(blocks.channels, pl.cdiv(width, LANES) * LANES)
    count = pl.cdiv(steps, block)

    def time(s):
        return count - 1 - s if reverse else s

    def beside(s):
        """Returns the tile next to block `s` in time that has the lagged state of the block's edge."""
        edge = time(s) * (block // PACKED) - 1 if reverse else (time(s) + 1) * (block // PACKED)
        return jnp.clip(edge, 0, pl.cdiv(steps, PACKED) - 1)

    in_time = pl.BlockSpec((None, block, channels), lambda b, d, s: (b, time(s), d))
    flags = pl.BlockSpec((None, block, 1), lambda b, d, s: (b, time(s), 0))
    few = pl.BlockSpec((None, PACKED, channels), lambda b, d, s: (b, beside(s), d))
    once = pl.BlockSpec((None, 1, channels), lambda b, d, s: (b, 0, d))
    of_channel = pl.BlockSpec((1, channels), lambda b, d, s: (0, d))
    outputs, last, sums = pl.pallas_call(
        partial(_kernel, run=run, steps=steps, block=block, reverse=reverse),
        grid=(batch, pl.cdiv(width, channels), count),
        in_specs=(
            tuple(in_time if row.ndim == 3 else flags for row in rows),
            (of_channel,) * len(per_channel),
            ((in_time, few, once),) * len(lagged),
            (once,) * len(carry),
        ),
        out_specs=((in_time,) * len(dtypes), (once,) * len(carry), (once,) * run.sums),
        out_shape=(
            tuple(jax.ShapeDtypeStruct((batch, steps, width), dtype) for dtype in dtypes),
            (jax.ShapeDtypeStruct((batch, 1, width), jnp.float32),) * len(carry),
            (jax.ShapeDtypeStruct((batch, 1, width), jnp.float32),) * run.sums,
        ),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary")),
        interpret=interpret,
        name=type(run).__name__,
    )(
        tuple(row if row.ndim == 3 else row[..., None] for row in rows),
        tuple(vector[None] for vector in per_channel),
        tuple((states, states, edge[:, None]) for states, edge in lagged),
        tuple(plane[:, None] for plane in carry),
    )
    return Walked(outputs, tuple(total.sum(axis=(0, 1)) for total in sums), tuple(plane[:, 0] for plane in last))


def _kernel(rows, per_channel, lagged, carry, outputs, last, sums, *, run: Pass, steps: int, block: int, reverse: bool):
    """Runs one block of time; `last` and `sums` stay in fast memory between blocks, so they are the carry."""
    s = pl.program_id(2)
    start = (pl.cdiv(steps, block) - 1 - s if reverse else s) * block
    shape = (TILE, last[0].shape[-1])
    row = lax.broadcasted_iota(jnp.int32, shape, 0)
    channel = tuple(vector[...] for vector in per_channel)

    @pl.when(s == 0)
    def _():
        for plane, start_of in zip(last, carry, strict=True):
            plane[...] = start_of[...]
        for total in sums:
            total[...] = jnp.zeros_like(total)

    def tile_of(ref, k):
        values = ref[pl.ds(pl.multiple_of(k * TILE, TILE), TILE), :]
        return values if values.shape == shape else jnp.broadcast_to(values, shape)

    def previous(k, t, states, few, edge):
        """Returns the state before each step of tile `k`, whose steps are at times `t`."""
        ends = block // TILE - 1
        neighbour = tile_of(states, jnp.maximum(k - 1, 0) if reverse else jnp.minimum(k + 1, ends))
        far = few[-TILE:, :] if reverse else few[:TILE, :]
        neighbour = jnp.where(k == (0 if reverse else ends), far.astype(jnp.float32), neighbour.astype(jnp.float32))
        moved = _shift(tile_of(states, k).astype(jnp.float32), neighbour, row, reverse)
        return jnp.where(t == (0 if reverse else steps - 1), edge[...], moved)

    def tile(n, carried):
        before, totals = carried
        k = block // TILE - 1 - n if reverse else n
        values = tuple(tile_of(ref, k) for ref in rows)
        t = start + k * TILE + row
        inside = t < steps  # the last block may end after the last step; beyond it a = 1 and b = 0 keep the carry
        a, b = run.coefficients(values, channel)
        a = tuple(jnp.where(inside, plane, one) for plane, one in zip(a, ONE, strict=False))
        b = tuple(jnp.where(inside, plane, 0.0) for plane in b)
        after = _scan_tile(a, b, before, row, reverse)
        befores = tuple(
            _shift(plane, jnp.broadcast_to(edge, shape), row, not reverse)
            for plane, edge in zip(after, before, strict=True)
        )
        lags = tuple(previous(k, t, *refs) for refs in lagged)
        written, addends = run.outputs(values, channel, lags, befores, after)
        for ref, value in zip(outputs, written, strict=True):
            ref[pl.ds(pl.multiple_of(k * TILE, TILE), TILE), :] = value.astype(ref.dtype)
        totals = [total + jnp.where(inside, addend, 0.0) for total, addend in zip(totals, addends, strict=True)]
        return tuple(plane[:1] if reverse else plane[-1:] for plane in after), totals

    zeros = [jnp.zeros(shape, jnp.float32) for _ in sums]
    final, totals = lax.fori_loop(0, block // TILE, tile, (tuple(plane[...] for plane in last), zeros))
    for ref, plane in zip(last, final, strict=True):
        ref[...] = plane
    for ref, total in zip(sums, totals, strict=True):
        ref[...] += total.sum(axis=0, keepdims=True)


def _scan_tile(a: Planes, b: Planes, before: Planes, row: Array, reverse: bool) -> Planes:
    """Returns the carry after each of the eight steps, by doubling: 1, 2, then 4 steps are composed."""
    for distance in (1, 2, 4):
        inside = row < TILE - distance if reverse else row >= distance
        move = TILE - distance if reverse else distance
        added = times(a, tuple(pltpu.roll(plane, move, 0) for plane in b))
        b = plus(tuple(jnp.where(inside, plane, 0.0) for plane in added), b)
        longer = times(a, tuple(pltpu.roll(plane, move, 0) for plane in a))
        a = tuple(jnp.where(inside, plane, one) for plane, one in zip(longer, a, strict=True))
    return plus(times(a, before), b)


def _shift(values: Array, neighbour: Array, row: Array, later: bool) -> Array:
    """Moves each row to the next one (to the one before, if not `later`); fills the gap from the neighbouring tile."""
    move, gap = (1, 0) if later else (TILE - 1, TILE - 1)
    return jnp.where(row == gap, pltpu.roll(neighbour, move, 0), pltpu.roll(values, move, 0))
