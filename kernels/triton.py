"""Passes over time on an NVIDIA GPU, by Pallas with Triton, for any number of steps and any width.

A program takes one row of the batch and a block of channels. It keeps the carry in registers and loops over time, with
its loads a few steps ahead of its arithmetic. Where batch and width are too small to fill the GPU, time is cut into
chunks: each is first reduced to `carry ← A · carry + B`, a scan over the chunks gives the carry into each, and then all
run at once. No other module imports Triton, which JAX 0.11 deprecates in Pallas.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt
from jax.typing import ArrayLike, DTypeLike

from evalkit.kernels.gates import BY_EXPONENTIALS, Instructions, by_exponentials
from evalkit.kernels.passes import Kernel, Lagged, Linear, Pass, PerChannel, Reads, Rows, Walked
from evalkit.kernels.planes import Planes, float32, plus, times
from evalkit.kernels.xla import shift

ENOUGH_LANES = 34 * 1024  # batch × channels that fill an H200: about eight warps on each multiprocessor
SHORTEST_CHUNK = 64  # steps
MOST_CHUNKS = 64
MOST_READ = 6  # arrays, of which 16 steps ahead fit into registers
LANES = 32  # of a warp


@dataclass(frozen=True)
class Blocks:
    """The sizes to tune.

    A program takes `channels` (a power of two) with `warps` warps, and loads `ahead` steps at a time. Time is cut into
    `chunks` that run at once; None means as many as fill the GPU.

        rglru(x, recurrence, input_gate, rate, implementation=kernel(Blocks(channels=128, chunks=1)))
    """

    channels: int = 128
    ahead: int = 16
    warps: int = 4
    chunks: int | None = None


class Cut(NamedTuple):
    """The blocks fitted to an array: `chunks` of `chunk` steps, the last of them perhaps shorter."""

    batch: int
    steps: int
    width: int
    channels: int
    ahead: int
    warps: int
    chunk: int
    chunks: int


def _assembled(instruction: str, *arguments: ArrayLike) -> Array:
    """Returns one instruction's result; Pallas has no other way to say that denormal numbers may be 0."""
    shape = jnp.broadcast_shapes(*map(jnp.shape, arguments))
    [result] = plt.elementwise_inline_asm(
        f"{instruction} {', '.join(f'${number}' for number in range(len(arguments) + 1))};",
        args=[jnp.broadcast_to(jnp.asarray(argument, jnp.float32), shape) for argument in arguments],
        constraints=",".join(["=f", *["f"] * len(arguments)]),
        pack=1,
        result_shape_dtypes=[jax.ShapeDtypeStruct(shape, jnp.float32)],
    )
    return result


# XLA compiles Triton without fused multiply-adds and with exact quotients: 72 instructions an element in place of 33.
ASSEMBLED = by_exponentials(
    Instructions(
        exp2=partial(_assembled, "ex2.approx.ftz.f32"),
        reciprocal=partial(_assembled, "rcp.approx.ftz.f32"),
        root=partial(_assembled, "sqrt.approx.ftz.f32"),
        fused=partial(_assembled, "fma.rn.ftz.f32"),
    )
)


def kernel(blocks: Blocks | None = None, *, interpret: bool = False) -> Kernel:
    """Returns the kernel with these blocks; `interpret` runs it on any platform, slowly, for tests."""
    return Kernel(partial(_walk, blocks=blocks, interpret=interpret), BY_EXPONENTIALS if interpret else ASSEMBLED)


@partial(jax.jit, static_argnames=("run", "reverse", "dtypes", "blocks", "interpret"))
def _walk(
    run: Pass, reads: Reads, *, reverse: bool, dtypes: tuple[DTypeLike, ...], blocks: Blocks | None, interpret: bool
) -> Walked:
    rows, carry, per_channel, lagged = reads
    # A gradient of the complex unit reads eight arrays: with 16 steps ahead it would spill registers.
    cut = _fit(blocks or Blocks(ahead=8 if len(rows) + len(lagged) > MOST_READ else 16), *rows[0].shape)
    name = type(run).__name__
    launch = partial(_launch, cut=cut, per_channel=per_channel, reverse=reverse, interpret=interpret)
    carries = tuple(plane[:, None] for plane in carry)
    if cut.chunks > 1:
        zeros = jnp.zeros((cut.batch, cut.chunks, cut.width), jnp.float32)
        unchanged = (zeros + 1, *(zeros,) * (2 * len(carry) - 1))  # A = 1, B = 0
        _, reduced = launch(partial(_compose, run), rows, (), unchanged, (), name=f"{name}_chunk")
        carries = _into_each_chunk(reduced, carry, interpret)
    sums = (jnp.zeros_like(carries[0]),) * run.sums
    outputs, ends = launch(partial(_advance, run), rows, lagged, (*carries, *sums), dtypes, name=name)
    last, sums = ends[: len(carry)], ends[len(carry) :]
    return Walked(outputs, tuple(total.sum(axis=(0, 1)) for total in sums), tuple(plane[:, -1] for plane in last))


def _fit(blocks: Blocks, batch: int, steps: int, width: int) -> Cut:
    channels = min(blocks.channels, pl.next_power_of_2(width))
    wanted = blocks.chunks or min(ENOUGH_LANES // (batch * width), steps // SHORTEST_CHUNK, MOST_CHUNKS)
    chunk = steps if wanted <= 1 else pl.cdiv(pl.cdiv(steps, wanted), blocks.ahead) * blocks.ahead
    warps = min(blocks.warps, pl.cdiv(channels, LANES))
    return Cut(batch, steps, width, channels, blocks.ahead, warps, chunk, pl.cdiv(steps, chunk))


def _into_each_chunk(reduced: tuple[Array, ...], carry: Planes, interpret: bool) -> Planes:
    """Returns the carry into each chunk `[b, g, d]`: over whole chunks, the walk is a linear scan of few steps."""
    over_chunks = partial(_walk, reverse=False, blocks=Blocks(chunks=1), interpret=interpret)
    states = over_chunks(Linear(), Reads(reduced, carry), dtypes=(jnp.float32,) * len(carry)).outputs
    return tuple(shift(after, before, reverse=False) for after, before in zip(states, carry, strict=True))


Carries = tuple[Array, ...]


def _compose(
    run: Pass, carries: Carries, rows: Rows, per_channel: PerChannel, previous: Planes
) -> tuple[Carries, Rows]:
    """Extends `carry ← A · carry + B` by one step."""
    a, b = run.coefficients(rows, per_channel)
    decay, end = carries[: len(a)], carries[len(a) :]
    return (*times(a, decay), *plus(times(a, end), b)), ()


def _advance(
    run: Pass, carries: Carries, rows: Rows, per_channel: PerChannel, previous: Planes
) -> tuple[Carries, Rows]:
    """Takes one step of the pass; its sums are carried beside the carry."""
    a, b = run.coefficients(rows, per_channel)
    before, sums = carries[: len(a)], carries[len(a) :]
    after = plus(times(a, before), b)
    outputs, addends = run.outputs(rows, per_channel, previous, before, after)
    return (*after, *(total + addend for total, addend in zip(sums, addends, strict=True))), outputs


def _launch(
    step: Callable[..., tuple[Carries, Rows]],
    rows: Rows,
    lagged: Lagged,
    carries: Carries,
    dtypes: tuple[DTypeLike, ...],
    *,
    name: str,
    cut: Cut,
    per_channel: PerChannel,
    reverse: bool,
    interpret: bool,
) -> tuple[tuple[Array, ...], Carries]:
    """Runs `step` over every chunk from its carries `[b, g, d]`; returns what it writes and the carries at the end."""
    in_time = pl.BlockSpec((None, cut.steps, cut.channels), lambda b, j: (b, 0, j // cut.chunks))
    flags = pl.BlockSpec((None, cut.steps), lambda b, j: (b, 0))
    of_batch = pl.BlockSpec((None, cut.channels), lambda b, j: (b, j // cut.chunks))
    of_chunk = pl.BlockSpec((None, None, cut.channels), lambda b, j: (b, j % cut.chunks, j // cut.chunks))
    of_channel = pl.BlockSpec((cut.channels,), lambda b, j: (j // cut.chunks,))
    specs = (
        tuple(in_time if row.ndim == 3 else flags for row in rows),
        (of_channel,) * len(per_channel),
        ((in_time, of_batch),) * len(lagged),
        (of_chunk,) * len(carries),
    )
    outputs, ends = pl.pallas_call(
        partial(_kernel, step=jax.jit(step), cut=cut, reverse=reverse),  # traced once, not once a step
        grid=(cut.batch, pl.cdiv(cut.width, cut.channels) * cut.chunks),
        in_specs=specs,
        out_specs=((in_time,) * len(dtypes), (of_chunk,) * len(carries)),
        out_shape=(
            tuple(jax.ShapeDtypeStruct((cut.batch, cut.steps, cut.width), dtype) for dtype in dtypes),
            tuple(jax.ShapeDtypeStruct(carry.shape, jnp.float32) for carry in carries),
        ),
        compiler_params=plt.CompilerParams(num_warps=cut.warps, num_stages=1),
        interpret=interpret,
        name=name,
    )(rows, per_channel, lagged, carries)
    return outputs, ends


def _kernel(rows, per_channel, lagged, carries, outputs, ends, *, step, cut: Cut, reverse: bool):
    """Runs one chunk of time, of one row of the batch and one block of channels. Steps are counted along the walk."""
    j = pl.program_id(1)
    lane = j // cut.chunks * cut.channels + lax.broadcasted_iota(jnp.int32, (cut.channels,), 0)
    mask = None if cut.width % cut.channels == 0 else lane < cut.width
    other = None if mask is None else 0
    start = j % cut.chunks * cut.chunk
    stop = jnp.minimum(start + cut.chunk, cut.steps)

    def vector(ref):
        return plt.load(ref.at[:], mask=mask, other=other)

    def row(ref, s):
        t = cut.steps - 1 - s if reverse else s
        return plt.load(ref.at[t]) if len(ref.shape) == 1 else plt.load(ref.at[t, :], mask=mask, other=other)

    def load(s):
        """Loads what step `s` reads; in a gradient, the state before it in time is the next one along the walk."""
        previous = tuple(row(states, jnp.minimum(s + 1, cut.steps - 1)) for states, _ in lagged)
        return tuple(row(ref, s) for ref in rows), previous

    def take(s, loaded, carries):
        """Takes step `s`; the state before the first step in time is the edge of the lagged states."""
        values, previous = loaded
        previous = tuple(
            jnp.where(s + 1 < cut.steps, state, edge) for state, edge in zip(float32(previous), edges, strict=True)
        )
        carries, written = step(carries, values, channel, previous)
        t = cut.steps - 1 - s if reverse else s
        for ref, value in zip(outputs, written, strict=True):
            plt.store(ref.at[t, :], value.astype(ref.dtype), mask=mask)
        return carries

    def take_several(n, state):
        """Takes `ahead` steps while the loads of the next ones are under way."""
        carries, loaded = state
        first = start + n * cut.ahead
        following = load_several(first + cut.ahead)
        for k in range(cut.ahead):
            carries = take(first + k, loaded[k], carries)
        return carries, following

    def load_several(first):
        # The last loads are not used, but must lie inside the array.
        first = jnp.minimum(first, cut.steps - cut.ahead)
        return [load(first + k) for k in range(cut.ahead)]

    channel, edges = tuple(vector(ref) for ref in per_channel), [vector(edge) for _, edge in lagged]
    carries = tuple(vector(ref) for ref in carries)
    whole = (stop - start) // cut.ahead
    if cut.steps >= cut.ahead:
        carries, _ = lax.fori_loop(0, whole, take_several, (carries, load_several(start)))
    carries = lax.fori_loop(start + whole * cut.ahead, stop, lambda s, carries: take(s, load(s), carries), carries)
    for ref, value in zip(ends, carries, strict=True):
        plt.store(ref.at[:], value, mask=mask)
