"""Examples of any length read chunk by chunk through the cache, so that memory does not grow with length."""

from collections.abc import Callable, Iterator
from functools import partial
from math import isqrt
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import Mesh

from evalkit.core.contracts import LONGEST, Cache, LanguageModel, Params
from evalkit.core.objective import Tally, scored_only, tally
from evalkit.parallel.devices import by_rows, copied, mesh_for, own_accelerator_bytes, split
from evalkit.tasks import Example

CHUNKS = {"cpu": 1}
"""How many chunks one call reads, by device (else `MOST_CHUNKS`): a call may take longer than reading a chunk."""
MOST_CHUNKS = 32
ROWS = 8
"""Sequences that a CPU reads at a time: few enough that a core keeps their activations in its cache."""
MOST_ROWS = 256
SHARE = 4
"""The part of an accelerator's memory, one in so many, that sequences may take."""
LOGIT_BYTES = 4
TOKEN_BYTES = 24
"""Bytes of activations a token, for each unit of √parameters: n blocks of width d have some 12 n d² parameters."""


def rows_at_once(
    setting: int | str,
    model: LanguageModel,
    params: Params,
    length: int,
    chunk: int,
    look: int,
    logits: int = 0,
    share: int = SHARE,
) -> int:
    """Sequences of `length` tokens that are in memory at a time: the `setting`, or by the device where it is "auto".

    An accelerator reads as many as fit into one part in `share` of its memory, a power of two up to 256, since one
    alone takes as long. It reads at most `look`, the number after which an evaluation may end. `logits` is how many of
    a sequence are in memory at a time.
    """
    if not isinstance(setting, str):
        return setting
    if jax.default_backend() == "cpu":
        return ROWS
    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    bytes_of_row = model.cache_bytes(1, length) + chunk * TOKEN_BYTES * isqrt(count) + logits * LOGIT_BYTES
    fitting = max(1, own_accelerator_bytes() // share // bytes_of_row)
    return min(MOST_ROWS, look, 1 << fitting.bit_length() - 1)


def least_rows(setting: int | str) -> int:
    """A lower bound of `rows_at_once`: with "auto" an accelerator with little memory reads one sequence at a time."""
    if not isinstance(setting, str):
        return setting
    return ROWS if jax.default_backend() == "cpu" else 1


def stream_tally(
    model: LanguageModel,
    params: Params,
    example: Example,
    chunk: int,
    check_interrupt: Callable[[], None] = lambda: None,
    scored: int | None = None,
) -> Tally:
    """The tally of examples `[b, t]`, `chunk` tokens at a time through the cache, rows split over the devices.

    Of each row at most `scored` positions count (None: any number): logits are computed at so many of each chunk.
    """
    *_, (_, total, _) = _calls(model, params, example, chunk, check_interrupt, scored)
    return total


def stream_tallies(
    model: LanguageModel,
    params: Params,
    example: Example,
    chunk: int,
    check_interrupt: Callable[[], None] = lambda: None,
    scored: int | None = None,
) -> Iterator[Tally]:
    """As `stream_tally`, the tally so far after each chunk, on the host."""
    for count, _, after in _calls(model, params, example, chunk, check_interrupt, scored):
        after = jax.device_get(after)
        for number in range(count):
            yield Tally(*(field[:, number] for field in after))


def begun(model: LanguageModel, mesh: Mesh, batch: int, length: int) -> tuple[Cache, Tally]:
    """An empty cache for `batch` rows of `length` tokens, and the tally of nothing, rows split over the devices."""
    # Never smaller than a window, and one length stands for all that need as much, so that they share a program.
    length = max(length, model.window or 0)
    bounded = model.cache_bytes(1, length) == model.cache_bytes(1, LONGEST)
    return _begun(model, mesh, batch, LONGEST if bounded else length)


@partial(jax.jit, static_argnames=("model", "mesh", "batch", "length"))
def _begun(model: LanguageModel, mesh: Mesh, batch: int, length: int) -> tuple[Cache, Tally]:
    return lax.with_sharding_constraint((model.init_cache(batch, length), Tally.zero(batch)), split(mesh))


def _calls(
    model: LanguageModel,
    params: Params,
    example: Example,
    chunk: int,
    check_interrupt: Callable[[], None],
    scored: int | None,
) -> Iterator[tuple[int, Tally, Tally]]:
    """Yields for each call its number of chunks, the tally so far, and the tallies `[b, n]` after each of its chunks.

    The tally so far is donated to the next call: it cannot be used after that.
    """
    batch, length = example.tokens.shape
    chunks = -(-length // chunk)
    most = CHUNKS.get(jax.default_backend(), MOST_CHUNKS)
    padding = -length % (chunk * most)
    # Padding is never scored, and in packed text position −1 marks it as no token.
    empty = Example(0, 0, False, None if example.positions is None else -1)  # type: ignore[arg-type]
    whole = jax.tree.map(lambda x, fill: _padded(x, padding, fill), example, empty)
    counts = whole.mask.reshape(batch, -1, chunk).sum(axis=2).max(axis=0)
    known = scored is not None and counts.max() <= scored
    mesh = mesh_for(batch)
    params = jax.device_put(params, copied(mesh))
    cache, total = begun(model, mesh, batch, length + -length % chunk)
    for first in range(0, chunks, most):
        check_interrupt()
        tokens, count = slice(first * chunk, (first + most) * chunk), min(most, chunks - first)
        part = jax.tree.map(lambda x, tokens=tokens: jax.device_put(x[:, tokens], split(mesh)), whole)
        asked = scored if known else None if counts[first : first + most].any() else 0
        cache, total, after = advance(model, mesh, params, part, cache, total, count, asked, chunk)
        yield count, total, after


def _padded(field: Any, padding: int, fill: int) -> np.ndarray:
    return np.pad(np.asarray(field), ((0, 0), (0, padding)), constant_values=fill)


@partial(jax.jit, static_argnames=("model", "mesh", "scored", "chunk"), donate_argnames=("cache", "total"))
def advance(
    model: LanguageModel,
    mesh: Mesh,
    params: Params,
    part: Example,
    cache: Cache,
    total: Tally,
    count: Array | int,
    scored: int | None,
    chunk: int,
) -> tuple[Cache, Tally, Tally]:
    """The cache and the tally after the first `count` chunks of `part`, and the tallies `[b, n]` after each of them.

    Logits are computed at `scored` positions of each chunk (None: at all). There must be one chunk at least.
    """
    chunks = part.tokens.shape[1] // chunk

    def on_device(params: Params, part: Example, cache: Cache, total: Tally) -> tuple[Cache, Tally, Tally]:
        def read(number: Array | int, carried: tuple[Cache, Tally, Tally]) -> tuple[Cache, Tally, Tally]:
            cache, total, after = carried
            now = jax.tree.map(lambda x: lax.dynamic_slice_in_dim(x, number * chunk, chunk, axis=1), part)
            at, asked = scored_only(now, scored)
            logits, cache = model.apply(params, now.tokens, now.positions, cache, at)
            total = total + tally(logits, asked)
            return cache, total, jax.tree.map(lambda x, y: x.at[:, number].set(y), after, total)

        after = jax.tree.map(lambda x: jnp.zeros((x.shape[0], chunks)), total)
        return lax.fori_loop(0, 1 if chunks == 1 else count, read, (cache, total, after))

    return by_rows(on_device, mesh, params, part, cache, total)
