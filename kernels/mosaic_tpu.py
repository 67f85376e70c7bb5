"""Passes over time on a TPU, by Pallas with Mosaic: any number of steps, any width.

Arrays keep their native layout `[b, t, d]`, so nothing is copied on the way in or out. The grid walks through blocks of
time in order, with the carry in fast memory; within a block, tiles of eight steps are scanned by three rolls, which is
what fills the eight sublanes of the vector unit.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.typing import DTypeLike

from kernels.gates import gates
from kernels.passes import Kernel, Pass, Rows, Walked

TILE = 8  # sublanes
PACKED = 16  # steps in a tile of bfloat16: the finest that a block of any dtype may be
LANES = 128


class Blocks(NamedTuple):
    """How a walk is cut up: `steps` (a multiple of 16) and `channels` (of 128) that are in fast memory at once."""

    steps: int = 256
    channels: int = 256


def kernel(blocks: Blocks | None = None, *, interpret: bool = False) -> Kernel:
    """This implementation, cut up as `blocks` says; `interpret` runs its meaning on any platform, slowly, for tests."""
    return Kernel(partial(_walk, blocks=blocks or Blocks(), interpret=interpret), gates)


@partial(jax.jit, static_argnames=("run", "reverse", "dtypes", "blocks", "interpret"))
def _walk(
    run: Pass,
    rows: Rows,
    rate: Array | None,
    lagged: tuple[Array, Array] | None,
    carry: Array,
    *,
    reverse: bool,
    dtypes: tuple[DTypeLike, ...],
    blocks: Blocks,
    interpret: bool,
) -> Walked:
    batch, steps, width = rows[0].shape
    block = min(blocks.steps, pl.cdiv(steps, PACKED) * PACKED)
    channels = min(blocks.channels, pl.cdiv(width, LANES) * LANES)
    times = pl.cdiv(steps, block)

    def time(s):
        return times - 1 - s if reverse else s

    def beside(s):
        """The few steps just before block `s`, in the order of `lagged`: the state that its end of the walk needs."""
        edge = time(s) * (block // PACKED) - 1 if reverse else (time(s) + 1) * (block // PACKED)
        return jnp.clip(edge, 0, pl.cdiv(steps, PACKED) - 1)

    in_time = pl.BlockSpec((None, block, channels), lambda b, d, s: (b, time(s), d))
    flags = pl.BlockSpec((None, block, 1), lambda b, d, s: (b, time(s), 0))
    few = pl.BlockSpec((None, PACKED, channels), lambda b, d, s: (b, beside(s), d))
    once = pl.BlockSpec((None, 1, channels), lambda b, d, s: (b, 0, d))
    of_channel = pl.BlockSpec((1, channels), lambda b, d, s: (0, d))
    states, edge = lagged or (None, None)
    outputs, last, sums = pl.pallas_call(
        partial(_kernel, run=run, steps=steps, block=block, reverse=reverse),
        grid=(batch, pl.cdiv(width, channels), times),
        in_specs=(
            tuple(in_time if row.ndim == 3 else flags for row in rows),
            () if rate is None else (of_channel,),
            () if lagged is None else (in_time, few, once),
            once,
        ),
        out_specs=((in_time,) * len(dtypes), once, (once,) * run.sums),
        out_shape=(
            tuple(jax.ShapeDtypeStruct((batch, steps, width), dtype) for dtype in dtypes),
            jax.ShapeDtypeStruct((batch, 1, width), jnp.float32),
            (jax.ShapeDtypeStruct((batch, 1, width), jnp.float32),) * run.sums,
        ),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary")),
        interpret=interpret,
        name=type(run).__name__,
    )(
        tuple(row if row.ndim == 3 else row[..., None] for row in rows),
        () if rate is None else (rate[None],),
        () if edge is None else (states, states, edge[:, None]),
        carry[:, None],
    )
    return Walked(outputs, tuple(total.sum(axis=(0, 1)) for total in sums), last[:, 0])


def _kernel(rows, rate, lagged, carry, outputs, last, sums, *, run: Pass, steps: int, block: int, reverse: bool):
    """One block of time. `last` and `sums` stay in fast memory from one block to the next, so they are the carry."""
    s = pl.program_id(2)
    start = (pl.cdiv(steps, block) - 1 - s if reverse else s) * block
    shape = (TILE, last.shape[-1])
    row = lax.broadcasted_iota(jnp.int32, shape, 0)
    per_channel = rate[0][...] if rate else None

    @pl.when(s == 0)
    def _():
        last[...] = carry[...]
        for total in sums:
            total[...] = jnp.zeros_like(total)

    def tile_of(ref, k):
        values = ref[pl.ds(pl.multiple_of(k * TILE, TILE), TILE), :]
        return values if values.shape == shape else jnp.broadcast_to(values, shape)

    def previous(k, t):
        """The state before each step of tile `k`, whose own steps are at times `t`."""
        if not lagged:
            return None
        states, few, edge = lagged
        ends = block // TILE - 1
        neighbour = tile_of(states, jnp.maximum(k - 1, 0) if reverse else jnp.minimum(k + 1, ends))
        far = few[-TILE:, :] if reverse else few[:TILE, :]
        neighbour = jnp.where(k == (0 if reverse else ends), far.astype(jnp.float32), neighbour.astype(jnp.float32))
        moved = _shift(tile_of(states, k).astype(jnp.float32), neighbour, row, reverse)
        return jnp.where(t == (0 if reverse else steps - 1), edge[...], moved)

    def tile(n, carried):
        before, *totals = carried
        k = block // TILE - 1 - n if reverse else n
        values = tuple(tile_of(ref, k) for ref in rows)
        t = start + k * TILE + row
        inside = t < steps
        a, b = run.coefficients(values, per_channel)
        a, b = jnp.where(inside, a, 1.0), jnp.where(inside, b, 0.0)
        after = _scan_tile(a, b, before, row, reverse)
        befores = _shift(after, jnp.broadcast_to(before, shape), row, not reverse)
        written, addends = run.outputs(values, per_channel, previous(k, t), befores, after)
        for ref, value in zip(outputs, written, strict=True):
            ref[pl.ds(pl.multiple_of(k * TILE, TILE), TILE), :] = value.astype(ref.dtype)
        totals = [total + jnp.where(inside, addend, 0.0) for total, addend in zip(totals, addends, strict=True)]
        return (after[:1] if reverse else after[-1:], *totals)

    final, *totals = lax.fori_loop(0, block // TILE, tile, (last[...], *(jnp.zeros(shape, jnp.float32) for _ in sums)))
    last[...] = final
    for ref, total in zip(sums, totals, strict=True):
        ref[...] += total.sum(axis=0, keepdims=True)


def _scan_tile(a: Array, b: Array, before: Array, row: Array, reverse: bool) -> Array:
    """The carry after each of the eight steps, by doubling: 1, 2, then 4 steps are composed."""
    for distance in (1, 2, 4):
        inside = row < TILE - distance if reverse else row >= distance
        move = TILE - distance if reverse else distance
        b = jnp.where(inside, a * pltpu.roll(b, move, 0), 0.0) + b
        a = jnp.where(inside, a * pltpu.roll(a, move, 0), a)
    return a * before + b


def _shift(values: Array, neighbour: Array, row: Array, later: bool) -> Array:
    """Each row moved to the next (the one before, if not `later`); the gap is filled from the tile on that side."""
    move, gap = (1, 0) if later else (TILE - 1, TILE - 1)
    return jnp.where(row == gap, pltpu.roll(neighbour, move, 0), pltpu.roll(values, move, 0))
