"""Passes over time on an NVIDIA Hopper GPU, by Pallas with Mosaic GPU: widths that are multiples of 128.

A program takes one row of the batch and 128 channels; copies of the next blocks of time are under way in shared memory
while it computes. Slower to start than `kernels.triton` on few lanes, for time is not cut into chunks here; what JAX
supports for longer. Never chosen unless asked for.
"""

from functools import partial
from math import gcd

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.typing import DTypeLike

from kernels.gates import gates_by_exponentials
from kernels.passes import Kernel, Pass, Rows, Walked
from kernels.xla import shift

CHANNELS = 128
BLOCK = 32  # steps in one copy
MOST_COPIES = 4  # under way at once
SHARED_MEMORY = 200_000  # bytes for them, of the 232448 that a program may have


def kernel() -> Kernel:
    """This implementation."""
    return Kernel(_walk, gates_by_exponentials)


@partial(jax.jit, static_argnames=("run", "reverse", "dtypes"))
def _walk(
    run: Pass,
    rows: Rows,
    rate: Array | None,
    lagged: tuple[Array, Array] | None,
    carry: Array,
    *,
    reverse: bool,
    dtypes: tuple[DTypeLike, ...],
) -> Walked:
    from jax.experimental.pallas import mosaic_gpu as plgpu  # here, for it wants more than JAX itself installs

    batch, steps, width = rows[0].shape
    if width % CHANNELS:
        raise ValueError(f"mosaic_gpu takes widths that are multiples of {CHANNELS}, not {width}; use 'triton'")
    in_time = tuple(row for row in rows if row.ndim == 3)
    flags = tuple(row for row in rows if row.ndim == 2)
    if lagged is not None:
        in_time = (*in_time, shift(*lagged, reverse=not reverse))
    per_channel = () if rate is None else (rate,)
    of_batch = jax.ShapeDtypeStruct((batch, width), jnp.float32)
    body = partial(
        _kernel, plgpu, run, reverse, steps, len(in_time), len(flags), len(per_channel), len(dtypes), lagged is not None
    )
    results = plgpu.kernel(
        body,
        out_type=[*(jax.ShapeDtypeStruct(rows[0].shape, dtype) for dtype in dtypes), *[of_batch] * (1 + run.sums)],
        grid=(batch, width // CHANNELS),
        grid_names=("batch", "channels"),
    )(*in_time, *flags, *per_channel, carry)
    outputs, (last, *sums) = results[: len(dtypes)], results[len(dtypes) :]
    return Walked(tuple(outputs), tuple(total.sum(axis=0) for total in sums), last)


def _kernel(plgpu, run: Pass, reverse: bool, steps: int, times: int, flags: int, rates: int, writes: int, lags, *refs):
    """One row of the batch, one block of channels, all of time."""
    block = gcd(steps, BLOCK)
    batch, j = lax.axis_index("batch"), lax.axis_index("channels")
    channels = pl.ds(j * CHANNELS, CHANNELS)
    in_time, refs = refs[:times], refs[times:]
    reset, refs = refs[:flags], refs[flags:]
    rate = refs[0][channels] if rates else None
    carry, *refs = refs[rates:]
    outputs, ends = refs[:writes], refs[writes:]

    def block_of(s):
        return steps // block - 1 - s if reverse else s

    def several(indices, *arguments):
        *buffers, carried = arguments

        def one(n, carried):
            k = block - 1 - n if reverse else n
            t = block_of(indices[0]) * block + k
            values = [buffer[k] for buffer in buffers]
            previous = values.pop() if lags else None
            values = (*values, *(jnp.broadcast_to(flag[batch, t], (CHANNELS,)) for flag in reset))
            before, *sums = carried
            a, b = run.coefficients(values, rate)
            after = a * before + b
            written, addends = run.outputs(values, rate, previous, before, after)
            for ref, value in zip(outputs, written, strict=True):
                ref[batch, t, channels] = value.astype(ref.dtype)
            return (after, *(total + addend for total, addend in zip(sums, addends, strict=True)))

        return lax.fori_loop(0, block, one, carried)

    size = sum(ref.dtype.itemsize for ref in in_time)
    spec = plgpu.BlockSpec((block, CHANNELS), lambda s: (block_of(s), j))
    start = carry[batch, channels]
    zero = start * 0  # not a constant, for its layout would not be that of the sum
    pipeline = plgpu.emit_pipeline(
        several,
        grid=(steps // block,),
        in_specs=[spec] * times,
        max_concurrent_steps=min(MOST_COPIES, SHARED_MEMORY // (block * CHANNELS * size), steps // block),
        init_carry=(start, *(zero,) * run.sums),
    )
    for ref, value in zip(ends, pipeline(*(ref.at[batch] for ref in in_time)), strict=True):
        ref[batch, channels] = value
