"""Examples of any length read chunk by chunk through the cache, so that memory does not grow with length."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from evalkit.core.contracts import Cache, LanguageModel, Params
from evalkit.core.objective import Tally, tally
from evalkit.parallel.devices import by_rows, copied, mesh_for, split
from evalkit.tasks import Example


def stream_tally(
    model: LanguageModel,
    params: Params,
    example: Example,
    chunk: int,
    check_interrupt: Callable[[], None] = lambda: None,
) -> Tally:
    """The tally of examples `[b, t]`, `chunk` tokens at a time through the cache, rows split over the devices."""
    *_, total = stream_tallies(model, params, example, chunk, check_interrupt)
    return total


def stream_tallies(
    model: LanguageModel,
    params: Params,
    example: Example,
    chunk: int,
    check_interrupt: Callable[[], None] = lambda: None,
) -> Iterator[Tally]:
    """As `stream_tally`, with the tally so far after each chunk; it is gone when the next one is asked for."""
    batch, length = example.tokens.shape
    chunk = min(chunk, length)
    padding = -length % chunk
    # Padding is never scored, and packed text says of it that it is no token.
    empty = Example(0, 0, False, None if example.positions is None else -1)  # type: ignore[arg-type]
    whole = jax.tree.map(lambda x, fill: _padded(x, padding, fill), example, empty)
    mesh = mesh_for(batch)
    params = jax.device_put(params, copied(mesh))
    # Never smaller than a window, so that all lengths of a model with one share a program.
    cache = jax.device_put(model.init_cache(batch, max(length + padding, model.window or 0)), split(mesh))
    total = jax.device_put(Tally.zero(batch), split(mesh))
    for start in range(0, length, chunk):
        check_interrupt()
        part = jax.tree.map(lambda x, start=start: jax.device_put(x[:, start : start + chunk], split(mesh)), whole)
        scored = bool(whole.mask[:, start : start + chunk].any())
        cache, total = advance(model, mesh, params, part, cache, total, scored)
        yield total


def _padded(field: Any, padding: int, fill: int) -> np.ndarray:
    return np.pad(np.asarray(field), ((0, 0), (0, padding)), constant_values=fill)


@partial(jax.jit, static_argnames=("model", "mesh", "scored"), donate_argnames=("cache", "total"))
def advance(
    model: LanguageModel, mesh: Mesh, params: Params, part: Example, cache: Cache, total: Tally, scored: bool
) -> tuple[Cache, Tally]:
    """The cache and the tally after a chunk; where nothing in it is `scored`, no logits are computed."""

    def on_device(params: Params, part: Example, cache: Cache, total: Tally) -> tuple[Cache, Tally]:
        nowhere = None if scored else jnp.zeros((part.tokens.shape[0], 0), jnp.int32)
        logits, cache = model.apply(params, part.tokens, part.positions, cache, nowhere)
        return cache, total + tally(logits, part) if scored else total

    return by_rows(on_device, mesh, params, part, cache, total)
