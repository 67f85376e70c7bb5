"""Prompts of different lengths read through the cache, a chunk at a time: what generation and scoring begin with."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh
from jaxtyping import Float, Int

from evalkit.core.contracts import Cache, LanguageModel, Params, Pretrained
from evalkit.parallel.devices import RUNS_ONCE, by_rows, copied, mesh_sharing, split

PER_OCTAVE = 8


class Prefilled(NamedTuple):
    """A batch of prompts that have been read: the cache after them, and the logits of the next token."""

    cache: Cache
    logits: Float[Array, "b v"]


def placed(pretrained: Pretrained, rows: int) -> Pretrained:
    """`pretrained` with its parameters on every device that `rows` are split over: once, instead of at each batch."""
    where = copied(mesh_sharing(pretrained.params, rows))
    # This check takes a tenth of the time of placing parameters that are in place already.
    if all(isinstance(leaf, Array) and leaf.sharding == where for leaf in jax.tree.leaves(pretrained.params)):
        return pretrained
    return replace(pretrained, params=jax.device_put(pretrained.params, where))


def by_length(prompts: Sequence[Sequence[int]], rows: int) -> Iterator[list[int]]:
    """The prompts' indices in batches of at most `rows`, the longest first, so that a batch needs little padding."""
    order = sorted(range(len(prompts)), key=lambda index: -len(prompts[index]))
    for start in range(0, len(order), rows):
        yield order[start : start + rows]


def rows_within(pretrained: Pretrained, rows: int, size: int, gib: float) -> int:
    """How many prompts to read at a time, so that caches for `size` tokens take at most `gib`: `rows`, or a part of it.

    There are never fewer than one a device.
    """
    devices, one = mesh_sharing(pretrained.params, rows).size, pretrained.model.cache_bytes(1, size)
    parts = (count for count in range(devices, rows + 1, devices) if rows % count == 0)
    return max((count for count in parts if count * one <= gib * 2**30), default=devices)


def bucket(length: int) -> int:
    """`length` rounded up to one of eight sizes an octave, so that few programs serve all lengths."""
    step = max(1, 2 ** (length - 1).bit_length() // (2 * PER_OCTAVE))
    return -(-length // step) * step


def shortest_chunk(prompts: Sequence[Sequence[int]], most: int) -> int:
    """The tokens to read at a time, so that short prompts are not padded to `most`: a power of 2, or `most`."""
    longest = max(map(len, prompts), default=1)
    return min(most, 1 << (longest - 1).bit_length())


def check(prompts: Sequence[Sequence[int]], vocab_size: int) -> None:
    """Raises ValueError for a prompt without a token, or with one that the vocabulary has not."""
    for index, prompt in enumerate(prompts):
        if not len(prompt):
            raise ValueError(f"prompt {index} is empty; give at least one token, such as the tokenizer's bos")
        low, high = min(prompt), max(prompt)
        if low < 0 or high >= vocab_size:
            raise ValueError(f"prompt {index} has tokens from {low} to {high}; allowed: 0 to {vocab_size - 1}")


def prefill(pretrained: Pretrained, prompts: Sequence[Sequence[int]], *, rows: int, size: int, chunk: int) -> Prefilled:
    """Reads `prompts`, token ids, as a batch of `rows`; rows beyond the prompts repeat the first prompt.

    Rows are left-padded with position −1, which mixers ignore, so each row is read as if it were alone. A global cache
    gets room for `size` tokens. `chunk` tokens of each row are in memory at a time. The program does not depend on the
    prompts' lengths, and on `size` only if the cache does. Raises ValueError for a prompt longer than `size`.
    """
    longest = max(map(len, prompts))
    if longest > size:
        raise ValueError(f"a prompt has {longest} tokens, and the cache room for {size}; give a shorter one")
    tokens, positions = _left_padded([*prompts, *[prompts[0]] * (rows - len(prompts))], chunk)
    mesh = mesh_sharing(pretrained.params, rows)
    cache = empty_cache(pretrained.model, mesh, rows, size)
    logits = None
    for start in range(0, tokens.shape[1], chunk):
        part, where = tokens[:, start : start + chunk], positions[:, start : start + chunk]
        # Without padding no positions are needed, which costs less in local attention.
        padded = jnp.asarray(where) if (where < 0).any() else None
        with jax.default_matmul_precision("highest"):
            logits, cache = _read(pretrained.model, mesh, pretrained.params, jnp.asarray(part), padded, cache)
    assert logits is not None
    return Prefilled(cache, logits)


def _left_padded(prompts: Sequence[Sequence[int]], chunk: int) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and positions `[b, t]`, the rows' ends aligned, t a multiple of `chunk`."""
    length = -(-max(map(len, prompts)) // chunk) * chunk
    tokens = np.zeros((len(prompts), length), np.int32)
    positions = np.full((len(prompts), length), -1, np.int32)
    for row, prompt in enumerate(prompts):
        tokens[row, length - len(prompt) :] = prompt
        positions[row, length - len(prompt) :] = np.arange(len(prompt))
    return tokens, positions


@partial(jax.jit, static_argnames=("model", "mesh", "rows", "size"), compiler_options=RUNS_ONCE)
def empty_cache(model: LanguageModel, mesh: Mesh, rows: int, size: int) -> Cache:
    """The cache of no token. Compiled, because array by array it took longer than reading a short prompt."""
    return jax.lax.with_sharding_constraint(model.init_cache(rows, size), split(mesh))


@partial(jax.jit, static_argnames=("model", "mesh"), donate_argnames=("cache",))
def _read(
    model: LanguageModel,
    mesh: Mesh,
    params: Params,
    tokens: Int[Array, "b t"],
    positions: Int[Array, "b t"] | None,
    cache: Cache,
) -> tuple[Float[Array, "b v"], Cache]:
    def on_device(params: Params, tokens: Array, positions: Array | None, cache: Cache) -> tuple[Array, Cache]:
        last = jnp.full((tokens.shape[0], 1), tokens.shape[1] - 1, jnp.int32)
        logits, cache = model.apply(params, tokens, positions, cache, last)
        return logits[:, 0], cache

    return by_rows(on_device, mesh, params, tokens, positions, cache)
