"""Passes over time on an NVIDIA Hopper GPU, by Pallas with Mosaic GPU: widths that are multiples of 128.

A program takes one row of the batch and 128 channels, and computes while the next blocks of time are copied to shared
memory. On an H200 that is twice as fast as `kernels.triton`. Time is not cut into chunks, so it wants many lanes.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.typing import DTypeLike

from evalkit.kernels.dispatch import HOPPER_BLOCK, HOPPER_CHANNELS
from evalkit.kernels.gates import PLAIN, by_exponentials
from evalkit.kernels.passes import Kernel, Pass, Reads, Walked
from evalkit.kernels.planes import Planes, plus, times

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
    states, edges = tuple(states for states, _ in lagged), tuple(edge for _, edge in lagged)
    arrays = (in_time, states, edges, flags, per_channel, carry)
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
    batch, j = lax.axis_index("batch"), lax.axis_index("channels")
    channels = pl.ds(j * CHANNELS, CHANNELS)
    (rows, states, edges, reset, per_channel, carry), (outputs, last, sums) = jax.tree.unflatten(structure, refs)
    in_time = (*rows, *states)
    channel = tuple(ref[channels] for ref in per_channel)
    edges = tuple(ref[batch, channels] for ref in edges)
    blocks, order = steps // BLOCK, -1 if reverse else 1
    layout = plgpu.Layout.WG_STRIDED((CHANNELS,), vec_size=1)

    @plgpu.inline_mgpu(arg_types=(plgpu.RefType(), layout))
    def write(context, ref, value):
        # An assignment would wait for all warps, twice a step: this takes half of the kernel's time.
        value.store_untiled(ref)

    def before(t: Array) -> Planes:
        """The state before step `t` in the recurrence, whose gradient this walk is: the next one along the walk."""
        near = jnp.clip(t + order, 0, steps - 1)
        inside = t + order == near
        return tuple(
            _where(inside, ref[batch, near, channels].astype(jnp.float32), edge)
            for ref, edge in zip(states, edges, strict=True)
        )

    def take(t: Array, values: tuple[Array, ...], previous: Planes, carried: tuple[Array, ...]) -> tuple[Array, ...]:
        values = (*values, *(jnp.broadcast_to(flag[batch, t], (CHANNELS,)) for flag in reset))
        now, totals = carried[: len(carry)], carried[len(carry) :]
        a, b = run.coefficients(values, channel)
        after = plus(times(a, now), b)
        written, addends = run.outputs(values, channel, previous, now, after)
        for ref, value in zip(outputs, written, strict=True):
            write(ref.at[batch, t, channels], value.astype(ref.dtype))
        return (*after, *(total + addend for total, addend in zip(totals, addends, strict=True)))

    def block_of(s: Array) -> Array:
        return blocks - 1 - s if reverse else s

    def several(indices, *arguments):
        *buffers, carried = arguments
        first = block_of(indices[0]) * BLOCK
        edge = before(first if reverse else first + BLOCK - 1)  # read now, and used at the end of the block

        def one(n, carried):
            k = BLOCK - 1 - n if reverse else n
            near = jnp.clip(k + order, 0, BLOCK - 1)
            previous = tuple(
                _where(k + order == near, buffer[near].astype(jnp.float32), outside)
                for buffer, outside in zip(buffers[len(rows) :], edge, strict=True)
            )
            return take(first + k, tuple(buffer[k] for buffer in buffers[: len(rows)]), previous, carried)

        return lax.fori_loop(0, BLOCK, one, carried, unroll=UNROLLED)

    def rest(carried):
        """The steps after the last whole block, read as they come."""

        def one(n, carried):
            t = steps - 1 - n if reverse else blocks * BLOCK + n
            return take(t, tuple(ref[batch, t, channels] for ref in rows), before(t), carried)

        return lax.fori_loop(0, steps - blocks * BLOCK, one, carried)

    start = tuple(ref[batch, channels] for ref in carry)
    zero = start[0] * 0  # not a constant, whose layout would differ from the sum's
    carried = (*start, *(zero,) * run.sums)
    if reverse and steps % BLOCK:
        carried = rest(carried)
    if blocks:
        size = sum(ref.dtype.itemsize for ref in in_time)
        spec = plgpu.BlockSpec((BLOCK, CHANNELS), lambda s: (block_of(s), j))
        copies = min(MOST_COPIES, SHARED_MEMORY // (BLOCK * CHANNELS * size), blocks)
        pipeline = plgpu.emit_pipeline(
            several,
            grid=(blocks,),
            in_specs=[spec] * len(in_time),
            max_concurrent_steps=copies,
            init_carry=carried,
        )
        carried = pipeline(*(ref.at[batch] for ref in in_time))
    if not reverse and steps % BLOCK:
        carried = rest(carried)
    for ref, value in zip((*last, *sums), carried, strict=True):
        ref[batch, channels] = value


def _where(flag: Array, one: Array, other: Array) -> Array:
    return jnp.where(jnp.broadcast_to(flag, one.shape), one, other)  # nothing is broadcast unasked
