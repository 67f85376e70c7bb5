"""Passes over time on an NVIDIA Hopper GPU, by Pallas with Mosaic GPU: widths that are multiples of 128.

A program takes one row of the batch and 128 channels, and computes while the next blocks of time are copied to shared
memory. For large arrays in bfloat16 an H200 takes half of `kernels.triton`'s time, or four fifths with the gradient.
Time is not cut into chunks, so speed needs many lanes (batch × channels). A block has 32 steps, or the greatest common
divisor of 32 and the number of steps.
"""

from functools import partial
from math import gcd
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.typing import DTypeLike

from evalkit.kernels.dispatch import HOPPER_BLOCK, HOPPER_CHANNELS
from evalkit.kernels.gates import PLAIN, by_exponentials
from evalkit.kernels.passes import Kernel, Pass, Reads, Walked
from evalkit.kernels.planes import float32, plus, times
from evalkit.kernels.xla import shift

CHANNELS, BLOCK = HOPPER_CHANNELS, HOPPER_BLOCK
UNROLLED = 8  # steps that the compiler may interleave, since most of their arithmetic does not wait for the carry
MOST_COPIES = 4  # in flight at once
SHARED_MEMORY = 200_000  # bytes for the copies, of the 232,448 that a program may have


def _reciprocal(x: Array) -> Array:
    root = lax.rsqrt(x)  # one instruction, where an exact quotient is ten
    return root * root


ARITHMETIC = by_exponentials(PLAIN._replace(reciprocal=_reciprocal))


def kernel() -> Kernel:
    """Returns the kernel; raises ImportError where JAX lacks Mosaic GPU."""
    from jax.experimental.pallas import mosaic_gpu  # noqa: F401  it needs packages that JAX does not install

    return Kernel(_walk, ARITHMETIC)


@partial(jax.jit, static_argnames=("run", "reverse", "dtypes"))
def _walk(run: Pass, reads: Reads, *, reverse: bool, dtypes: tuple[DTypeLike, ...]) -> Walked:
    from jax.experimental.pallas import mosaic_gpu as plgpu

    rows, carry, per_channel, lagged = reads
    if len(carry) > 1:  # its lowering has no floor, which the complex phase needs
        raise ValueError("mosaic_gpu takes the real unit, not the complex one; use 'triton'")
    batch, steps, width = rows[0].shape
    if width % CHANNELS:
        raise ValueError(f"mosaic_gpu takes widths that are multiples of {CHANNELS}, not {width}; use 'triton'")
    in_time = tuple(row for row in rows if row.ndim == 3)
    flags = tuple(row for row in rows if row.ndim == 2)
    previous = tuple(shift(*plane, reverse=not reverse) for plane in lagged)
    arrays = (in_time, previous, flags, per_channel, carry)
    of_batch = jax.ShapeDtypeStruct((batch, width), jnp.float32)
    written = tuple(jax.ShapeDtypeStruct(rows[0].shape, dtype) for dtype in dtypes)
    shapes = (written, (of_batch,) * len(carry), (of_batch,) * run.sums)
    results = plgpu.kernel(
        partial(_kernel, plgpu, run, reverse, steps, jax.tree.structure((arrays, shapes))),
        out_type=jax.tree.leaves(shapes),
        grid=(batch, width // CHANNELS),
        grid_names=("batch", "channels"),
        compiler_params=plgpu.CompilerParams(approx_math=True),  # 2^x and 1/√x are single instructions, to 2 ulp
    )(*jax.tree.leaves(arrays))
    outputs, last, sums = jax.tree.unflatten(jax.tree.structure(shapes), results)
    return Walked(outputs, tuple(total.sum(axis=0) for total in sums), last)


def _kernel(plgpu: Any, run: Pass, reverse: bool, steps: int, structure: Any, *refs):
    """Runs all of time, for one row of the batch and one block of channels."""
    block = gcd(steps, BLOCK)
    batch, j = lax.axis_index("batch"), lax.axis_index("channels")
    channels = pl.ds(j * CHANNELS, CHANNELS)
    (rows, lagged, reset, per_channel, carry), (outputs, last, sums) = jax.tree.unflatten(structure, refs)
    in_time = (*rows, *lagged)
    channel = tuple(ref[channels] for ref in per_channel)
    layout = plgpu.Layout.WG_STRIDED((CHANNELS,), vec_size=1)

    @plgpu.inline_mgpu(arg_types=(plgpu.RefType(), layout))
    def write(context, ref, value):
        # An assignment would have all warps wait for each other twice a step, which is half of the kernel's time.
        value.store_untiled(ref)

    def block_of(s):
        return steps // block - 1 - s if reverse else s

    def several(indices, *arguments):
        *buffers, carried = arguments

        def one(n, carried):
            k = block - 1 - n if reverse else n
            t = block_of(indices[0]) * block + k
            values = tuple(buffer[k] for buffer in buffers)
            values, previous = values[: len(rows)], float32(values[len(rows) :])
            values = (*values, *(jnp.broadcast_to(flag[batch, t], (CHANNELS,)) for flag in reset))
            before, totals = carried[: len(carry)], carried[len(carry) :]
            a, b = run.coefficients(values, channel)
            after = plus(times(a, before), b)
            written, addends = run.outputs(values, channel, previous, before, after)
            for ref, value in zip(outputs, written, strict=True):
                write(ref.at[batch, t, channels], value.astype(ref.dtype))
            return (*after, *(total + addend for total, addend in zip(totals, addends, strict=True)))

        return lax.fori_loop(0, block, one, carried, unroll=gcd(block, UNROLLED))

    size = sum(ref.dtype.itemsize for ref in in_time)
    spec = plgpu.BlockSpec((block, CHANNELS), lambda s: (block_of(s), j))
    start = tuple(ref[batch, channels] for ref in carry)
    zero = start[0] * 0  # not a constant, whose layout would differ from the sum's
    pipeline = plgpu.emit_pipeline(
        several,
        grid=(steps // block,),
        in_specs=[spec] * len(in_time),
        max_concurrent_steps=min(MOST_COPIES, SHARED_MEMORY // (block * CHANNELS * size), steps // block),
        init_carry=(*start, *(zero,) * run.sums),
    )
    for ref, value in zip((*last, *sums), pipeline(*(ref.at[batch] for ref in in_time)), strict=True):
        ref[batch, channels] = value
