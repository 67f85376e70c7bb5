"""What decoding takes after a prefill, row by row of figures 4 and 1b, beside equation 5 and this machine's limits."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.stages import Compiled
from jaxtyping import Float

from evalkit.bench.stopwatch import quartiles, times
from evalkit.core.contracts import LanguageModel, Params, Pretrained
from evalkit.inference.generation import MOST_AT_ONCE, decoded
from evalkit.inference.prefill import Prefilled, placed, prefill, shortest_chunk
from evalkit.inference.sampling import GREEDY
from evalkit.numerics import random_key
from evalkit.parallel.devices import by_rows, copied, mesh_sharing
from evalkit.tasks.text.tokenizers import Bytes

CHUNK = 256
"""Tokens of a prompt read at a time, as `generate` reads them."""
KNOTS = 64
"""Lengths at which caches and operations are counted; between two of them both grow evenly."""
IN_CACHE = 2**17
"""Numbers of a matrix that stays in the cache of a CPU core."""
FEWEST_KEYS = 64
PRODUCTS = 64
SOFTMAX = 4
"""What the softmax does of a pair of a query and a key, as `model.flops` counts it."""


class Limits(NamedTuple):
    """What this machine does a second: bytes copied, read and written both counted, and FLOPs at decoding's shapes."""

    copy: float
    maps: float
    attention: float


class Predicted(NamedTuple):
    """Seconds: by equation 5, and by the larger and the sum of the times to read and to compute."""

    equation_5: float
    larger: float
    sum: float


def prompts(batch: int, length: int, vocab_size: int) -> list[list[int]]:
    """Random prompts; an empty prefill is one token, since decoding begins after a token."""
    return np.random.default_rng(0).integers(0, vocab_size, (batch, max(1, length))).tolist()


def with_parameters(model: LanguageModel, batch: int) -> Pretrained:
    """The model with random parameters, placed where decoding a batch needs them."""
    params = jax.jit(model.init)(random_key(0))
    return placed(Pretrained(model, params, Bytes(), "", "", None), batch)


def program(pretrained: Pretrained, read: Prefilled) -> Compiled:
    """The compiled program with which `generate` decodes, for these parameters and this batch."""
    mesh = mesh_sharing(pretrained.params, read.logits.shape[0])
    with jax.default_matmul_precision("highest"):
        inputs = (pretrained.model, mesh, pretrained.params, read, *arguments(read, 0))
        return decoded.lower(*inputs, sampler=GREEDY, ends=()).compile()


def arguments(read: Prefilled, steps: int) -> tuple[np.ndarray, np.ndarray, np.int32, np.int32, np.int32]:
    """The arguments of decoding `steps` tokens beside parameters and caches: no row is done, and nothing is drawn."""
    rows = read.logits.shape[0]
    return np.zeros(rows, bool), np.zeros(rows, np.int32), np.int32(0), np.int32(0), np.int32(steps)


def peak_bytes(run: Compiled) -> int:
    """The bytes on one device of the program's arguments, the caches included, and of its temporary arrays."""
    memory = run.memory_analysis()
    assert memory is not None, "this backend reports no memory"
    return memory.argument_size_in_bytes + memory.temp_size_in_bytes


def seconds(
    run: Compiled, params: Params, read: Prefilled, tokens: Sequence[int], progress: Callable[[int, float], None]
) -> list[float]:
    """Seconds from the prefill to each of `tokens` decoded, ascending; calls `progress` at each; `read` is donated."""
    marks, taken, done = [], 0.0, 0
    read, _ = jax.block_until_ready(run(params, read, *arguments(read, 0)))
    for count in tokens:
        began = time.perf_counter()
        while done < count:
            steps = min(count - done, MOST_AT_ONCE)
            read, _ = jax.block_until_ready(run(params, read, *arguments(read, steps)))
            done += steps
        taken += time.perf_counter() - began
        marks.append(taken)
        progress(count, taken)
    return marks


def read_prompts(pretrained: Pretrained, batch: int, length: int, room: int, vocab_size: int) -> Prefilled:
    """The batch after a prefill of `length` tokens, its cache with room for `room` tokens."""
    tokens, size = prompts(batch, length, vocab_size), max(1, length) + room
    return prefill(pretrained, tokens, rows=batch, size=size, chunk=shortest_chunk(tokens, CHUNK))


def limits(pretrained: Pretrained, batch: int, width: int, heads: int, head_dim: int, copy: float) -> Limits:
    """FLOP/s of products with `batch` rows, and of attention with the heads of each row, on what stays in a cache.

    From there it takes no time to read, so that reading and computing are measured apart. Rows are split over
    devices as in decoding. Softmax is part of attention, since `model.flops` counts it.
    """
    mesh = mesh_sharing(pretrained.params, batch)
    wide = max(1, min(width, IN_CACHE // width))
    rows = max(1, min(batch // mesh.size, IN_CACHE // (FEWEST_KEYS * head_dim)))  # on one device
    keys = IN_CACHE // (rows * head_dim)
    there, back = jnp.full((width, wide), 1 / width), jnp.full((wide, width), 1 / wide)
    x, k = jnp.ones((batch, width)), jnp.full((mesh.size * rows, keys, head_dim), 1 / head_dim)
    q = jnp.ones((mesh.size * rows, heads, head_dim))

    def maps(whole: tuple[Array, Array], x: Array) -> Array:
        return lax.fori_loop(0, PRODUCTS, lambda _, x: (x @ whole[0]) @ whole[1], x)

    def attention(_: tuple[()], q: Array, k: Array) -> Array:
        def read(_: Array, q: Array) -> Array:
            return jnp.einsum("brs,bsh->brh", jax.nn.softmax(jnp.einsum("brh,bsh->brs", q, k)), k)

        return lax.fori_loop(0, PRODUCTS, read, q)

    with jax.default_matmul_precision("highest"):
        run_maps, run_attention = jax.jit(partial(by_rows, maps, mesh)), jax.jit(partial(by_rows, attention, mesh))
        weights = jax.device_put((there, back), copied(mesh))
        taken = times({"maps": lambda: run_maps(weights, x), "attention": lambda: run_attention((), q, k)}, 5, 0.02)
    pairs = mesh.size * rows * heads * keys
    flops = {"maps": 4 * batch * width * wide, "attention": pairs * (4 * head_dim + SOFTMAX)}
    rates = {name: PRODUCTS * count / quartiles(taken[name]).median for name, count in flops.items()}
    return Limits(copy, rates["maps"], rates["attention"])


def predicted(
    model: LanguageModel, weights: int, batch: int, prefilled: int, tokens: Sequence[int], limits: Limits
) -> list[Predicted]:
    """The predicted time to decode each of `tokens`, ascending, after `prefilled`, from what is read and computed.

    A step reads all weights and, of each row, the cache as far as it is filled (De et al. 2024, eq. 5). It computes
    what a first token does, at the rate of maps, and what a longer context adds, at the rate of attention.
    """
    start = max(1, prefilled)
    lengths = start + 1 + np.arange(tokens[-1])
    cache, flops = _along(model, lengths)
    first = model.flops(1)
    reading = (weights + batch * cache) / limits.copy
    computing = batch * (np.minimum(flops, first) / limits.maps + np.maximum(flops - first, 0) / limits.attention)
    totals = [np.cumsum(each) for each in (reading, np.maximum(reading, computing), reading + computing)]
    return [Predicted(*(float(total[count - 1]) for total in totals)) for count in tokens]


def _along(model: LanguageModel, lengths: np.ndarray) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """Bytes of a row's cache, and FLOPs of the last token, at each of these lengths in a row."""
    low, high = int(lengths[0]), int(lengths[-1])
    knots = {*np.linspace(low, high, KNOTS).astype(int).tolist()}
    if model.window is not None:
        knots |= {at for at in (model.window, model.window + 1) if low < at < high}
    ordered = sorted(knots)
    cache = [model.cache_bytes(1, at) for at in ordered]
    flops = [model.flops(at) - model.flops(at - 1) for at in ordered]
    return np.interp(lengths, ordered, cache), np.interp(lengths, ordered, flops)
