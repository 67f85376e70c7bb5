"""Random keys: every batch is a pure function of a seed and a step, so a resumed run needs no other state."""

from functools import partial
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from evalkit.core.contracts import Cuts, Task
from evalkit.numerics import random_key
from evalkit.parallel.devices import own
from evalkit.tasks import Example

# Folded into every key: another order would change the data of every run.
INIT, TRAIN, VALIDATION, TEST, RECALL, ORDINARY = range(6)
# Folded into the key of a training sequence to draw its length; no task folds in this number.
LENGTH = 2**31
# Folded into the key of a step's ordinary tokens to draw which streams begin anew.
ANEW = 2**31
NOISE = ANEW + 1
# Folded into the key of a stream's ordinary tokens to draw its fact. The task may draw from the keys of smaller
# numbers, since `split` gives the same keys as `fold_in` of 0, 1, ….
WHETHER, PLACE, ANSWER = range(2**31, 2**31 + 3)
MAX_LENGTHS = 8
"""The most lengths that a training draws from: each needs its own sampler, which takes half a second to compile."""


def init_key(seed: ArrayLike) -> Array:
    """Returns the key of a seed's initial parameters."""
    return jax.random.fold_in(random_key(seed), INIT)


def check_length(task: Task, length: int) -> None:
    """Raises the task's own ValueError for a length that it cannot have; draws nothing."""
    jax.eval_shape(lambda key: task.sample(key, length), random_key(0))


def lengths_between(task: Task, shortest: int, longest: int) -> list[int]:
    """Returns the lengths that a training draws from, all equally likely: at most 8, evenly spread, with both ends.

    A length in between that the task cannot have, such as an odd one, is replaced by the next shorter one that it can
    have. Raises the task's own ValueError if it cannot have one of the ends.
    """
    check_length(task, shortest)
    check_length(task, longest)
    count = min(longest - shortest + 1, MAX_LENGTHS)
    wanted = [shortest + round(i * (longest - shortest) / max(count - 1, 1)) for i in range(count)]
    between = [
        next((n for n in range(at, below, -1) if has_length(task, n)), None) for below, at in pairwise(wanted[:-1])
    ]
    return sorted({shortest, longest, *(n for n in between if n is not None)})


def train_batch(
    task: Task, seed: ArrayLike, step: ArrayLike, batch: int, length: int, shortest: int | None = None, shards: int = 1
) -> Example:
    """Returns the training batch `[b, t]` of one seed at one step; a resumed run draws the same one.

    With `shortest`, each sequence has a random length from `shortest` to `length`: any length if the task is one of
    `Cuts`, else one of `lengths_between`. Padding, which is never scored, fills the rest. No earlier position sees it,
    so models need no positions for it. Where `shards` devices share the batch, each draws its own sequences.
    """
    key = jax.random.fold_in(jax.random.fold_in(random_key(seed), TRAIN), step)
    keys = own(jax.random.split(key, batch), shards)
    for_length = partial(jax.random.fold_in, data=LENGTH)
    if shortest is None:
        return jax.vmap(lambda k: task.sample(k, length))(keys)
    if isinstance(task, Cuts):
        lengths = jax.vmap(lambda k: jax.random.randint(for_length(k), (), shortest, length + 1))(keys)
        return jax.vmap(lambda k, n: task.cut(task.sample(k, length), n))(keys, lengths)
    branches = [lambda k, n=n: _padded(task.sample(k, n), length - n) for n in lengths_between(task, shortest, length)]

    def one(key: Array) -> Example:
        return jax.lax.switch(jax.random.randint(for_length(key), (), 0, len(branches)), branches, key)

    # One sequence after another, since under vmap a switch draws an example at every length.
    return jax.lax.map(one, keys)


def ordinary_batch(task: Any, seed: ArrayLike, step: ArrayLike, count: int, length: int, facts: float = 0.0) -> Array:
    """Returns the ordinary tokens `[b, t]` that `count` streams read at one step of one seed.

    With the probability `facts`, the tokens of a stream hold one fact at a random place.
    """

    def one(key: Array) -> Array:
        tokens = task.ordinary(key, length)
        if not facts:
            return tokens
        whether, place, answer = (jax.random.fold_in(key, number) for number in (WHETHER, PLACE, ANSWER))
        planted = task.plant(
            key, length, jax.random.randint(place, (), 0, length - 1), jax.random.randint(answer, (), 0, task.answers)
        )
        return jnp.where(jax.random.bernoulli(whether, facts), planted, tokens)

    return jax.vmap(one)(jax.random.split(_of_streams(seed, step), count))


def begun_anew(seed: ArrayLike, step: ArrayLike, count: int, probability: float) -> Array:
    """Returns `[b]`: which of `count` streams begin anew after one step of one seed."""
    key = jax.random.fold_in(_of_streams(seed, step), ANEW)
    return jax.random.bernoulli(key, probability, (count,))


def noise_keys(seed: ArrayLike, step: ArrayLike, count: int) -> Array:
    """Returns `[b, k]`: the data of a key for each of `count` streams, for noise in place of its state."""
    return jax.random.key_data(jax.random.split(jax.random.fold_in(_of_streams(seed, step), NOISE), count))


def _of_streams(seed: ArrayLike, step: ArrayLike) -> Array:
    """Returns the key for everything that streams of ordinary tokens draw at a step."""
    return jax.random.fold_in(jax.random.fold_in(random_key(seed), ORDINARY), step)


@partial(jax.jit, static_argnames=("task", "batch", "length"))
def held_out_batch(task: Task, stream: ArrayLike, first: ArrayLike, batch: int, length: int) -> Example:
    """Returns sequences `first`, `first + 1`, … of a held-out stream: the same for every seed, model and batch size."""
    key = jax.random.fold_in(jax.random.fold_in(random_key(0), stream), length)
    keys = jax.vmap(lambda i: jax.random.fold_in(key, i))(first + jnp.arange(batch))
    return jax.vmap(lambda k: task.sample(k, length))(keys)


@partial(jax.jit, static_argnames=("task", "batch", "lengths"))
def held_out_padded(
    task: Task, stream: ArrayLike, first: ArrayLike, which: ArrayLike, batch: int, lengths: tuple[int, ...]
) -> Example:
    """Returns `held_out_batch` of the length `lengths[which]`, padded to the longest: one program draws all lengths."""

    def at(length: int) -> Example:
        return _padded(held_out_batch(task, stream, first, batch, length), max(lengths) - length)

    return jax.lax.switch(which, [partial(at, length) for length in lengths])


def has_length(task: Task, length: int) -> bool:
    """Returns whether the task can have this length."""
    try:
        check_length(task, length)
    except ValueError:
        return False
    return True


def _padded(example: Example, extra: int) -> Example:
    """The example, followed by `extra` positions of padding, which are never scored."""
    after = ((0, 0),) * (example.tokens.ndim - 1) + ((0, extra),)
    positions = None if example.positions is None else jnp.pad(example.positions, after, constant_values=-1)
    tokens, targets, mask = (jnp.pad(field, after) for field in example[:3])
    return Example(tokens, targets, mask, positions)
