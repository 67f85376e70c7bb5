"""Random keys: every batch is a pure function of a seed and a step, so a resumed run needs no other state."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from evalkit.core.contracts import Task
from evalkit.tasks import Example

# Folded into every key: another order would change the data of every run.
INIT, TRAIN, VALIDATION, TEST, RECALL = range(5)


def init_key(seed: ArrayLike) -> Array:
    """Returns the key of a seed's initial parameters."""
    return jax.random.fold_in(jax.random.key(seed), INIT)


def check_length(task: Task, length: int) -> None:
    """Raises the task's own ValueError for a length that it cannot have; draws nothing."""
    jax.eval_shape(lambda key: task.sample(key, length), jax.random.key(0))


def train_batch(task: Task, seed: ArrayLike, step: ArrayLike, batch: int, length: int) -> Example:
    """Returns the training batch `[b, t]` of one seed at one step; a resumed run draws the same one."""
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), TRAIN), step)
    return jax.vmap(lambda k: task.sample(k, length))(jax.random.split(key, batch))


@partial(jax.jit, static_argnames=("task", "stream", "batch", "length"))
def held_out_batch(task: Task, stream: int, first: ArrayLike, batch: int, length: int) -> Example:
    """Returns sequences `first`, `first + 1`, … of a held-out stream: the same for every seed, model and batch size."""
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(0), stream), length)
    keys = jax.vmap(lambda i: jax.random.fold_in(key, i))(first + jnp.arange(batch))
    return jax.vmap(lambda k: task.sample(k, length))(keys)
