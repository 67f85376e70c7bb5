"""Contexts with one planted fact: which ones they are depends on their numbers alone, not on the model or the run."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from evalkit.core import streams
from evalkit.core.contracts import Recalls
from evalkit.numerics import random_key


def planted(
    task: Recalls, numbers: np.ndarray, places: np.ndarray, length: int, answers: np.ndarray | None = None
) -> tuple[Array, Array]:
    """Contexts `[b, length]` of those numbers, the fact at `places`, and their `answers` (drawn where not given)."""
    chosen = jnp.asarray(
        [np.random.default_rng([int(number), 0]).integers(task.answers) for number in numbers]
        if answers is None
        else answers
    )
    return _plant(task, length, jnp.asarray(numbers), jnp.asarray(places), chosen), chosen


def planted_pair(task: Recalls, number: int, length: int) -> Array:
    """Two contexts `[2, length]` that differ in nothing but the answer of the fact at their beginning."""
    one = int(np.random.default_rng([number, 1]).integers(task.answers))
    other = (one + 1 + int(np.random.default_rng([number, 2]).integers(task.answers - 1))) % task.answers
    return planted(task, np.array([number, number]), np.zeros(2, int), length, np.array([one, other]))[0]


@partial(jax.jit, static_argnames=("task", "length"))
def _plant(task: Recalls, length: int, numbers: Array, places: Array, answers: Array) -> Array:
    stream = jax.random.fold_in(jax.random.fold_in(random_key(0), streams.RECALL), length)
    keys = jax.vmap(lambda number: jax.random.fold_in(stream, number))(numbers)
    return jax.vmap(lambda key, place, answer: task.plant(key, length, place, answer))(keys, places, answers)
