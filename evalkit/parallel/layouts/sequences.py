"""Sequences for which one device is too slow or too small: every device reads its own part of each, at the same time.

The parts are of `chunk` tokens. What is longer than the parts of all devices is read in turns, through the cache.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from evalkit.core.contracts import Cache, LanguageModel, Params, Split
from evalkit.core.objective import Tally
from evalkit.kernels import SEQUENCE
from evalkit.tasks import Example

ROWS = "rows"
SHARED = (ROWS, SEQUENCE)
"""What devices share: the rows of a batch, whole sequences each, or the time of every sequence."""


class Read(NamedTuple):
    """The loss (nats) and the hit, 1 or 0, at each position `[b, t]`; at one that is not scored they mean nothing."""

    loss: np.ndarray
    correct: np.ndarray


def refuse_unsplit(model: LanguageModel, chunk: int) -> None:
    """Raises ValueError for a model whose time cannot be split into `chunk` tokens a device."""
    if not isinstance(model, Split):
        raise ValueError(f"devices=sequence, but {type(model).__name__} has no check_split; give devices=rows")
    try:
        model.check_split(chunk)
    except ValueError as error:
        raise ValueError(f"devices=sequence with chunk={chunk}, but {error}; give devices=rows") from error


def split_tallies(
    model: LanguageModel, params: Params, example: Example, chunk: int, check_interrupt: Callable[[], None]
) -> Iterator[Tally]:
    """As `streaming.stream_tallies`: yields the tally so far each time all devices have read their parts."""
    mask, start = np.asarray(example.mask, np.float64), 0
    total = Tally.zero(len(mask))
    for read in read_split(model, params, example, chunk, check_interrupt):
        scored = mask[:, start : start + read.loss.shape[1]]
        start += read.loss.shape[1]
        sums = [(read.loss * scored).sum(axis=1), (read.correct * scored).sum(axis=1), scored.sum(axis=1)]
        total = total + Tally(*(jnp.asarray(of_rows, jnp.float32) for of_rows in sums))
        yield total


def read_split(
    model: LanguageModel, params: Params, example: Example, chunk: int, check_interrupt: Callable[[], None]
) -> Iterator[Read]:
    """Yields loss and hits of examples `[b, t]` each time all devices have read their parts; in all they cover `t`."""
    mesh = Mesh(np.asarray(jax.local_devices()), (SEQUENCE,))
    batch, length = example.tokens.shape
    together = chunk * mesh.size
    padding = -length % together
    everywhere, parts = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec(None, SEQUENCE))
    # A device cannot count the tokens before its own, so that every token is told its position; padding has none.
    positions = np.arange(length)[None] if example.positions is None else np.asarray(example.positions)
    fields = (example.tokens, 0), (example.targets, 0), (np.broadcast_to(positions, (batch, length)), -1)
    padded = [
        np.pad(np.asarray(field, np.int32), ((0, 0), (0, padding)), constant_values=fill) for field, fill in fields
    ]
    params = jax.device_put(params, everywhere)
    cache = jax.device_put(model.init_cache(batch, max(length + padding, model.window or 0)), everywhere)
    for start in range(0, length, together):
        check_interrupt()
        tokens, targets, positions = (jax.device_put(field[:, start : start + together], parts) for field in padded)
        cache, loss, correct = _advance(model, mesh, params, tokens, targets, positions, cache)
        rest = length - start
        yield Read(np.asarray(loss)[:, :rest], np.asarray(correct)[:, :rest])


@partial(jax.jit, static_argnames=("model", "mesh"), donate_argnames=("cache",))
def _advance(
    model: LanguageModel, mesh: Mesh, params: Params, tokens: Array, targets: Array, positions: Array, cache: Cache
) -> tuple[Cache, Array, Array]:
    def on_device(params: Params, tokens: Array, targets: Array, positions: Array, cache: Cache):
        logits, cache = model.apply(params, tokens, positions, cache)
        right = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
        loss = jax.nn.logsumexp(logits, axis=-1) - right
        return cache, loss, (jnp.argmax(logits, axis=-1) == targets).astype(jnp.float32)

    whole, part = PartitionSpec(), PartitionSpec(None, SEQUENCE)
    return jax.shard_map(
        on_device, mesh=mesh, in_specs=(whole, part, part, part, whole), out_specs=(whole, part, part), check_vma=False
    )(params, tokens, targets, positions, cache)
