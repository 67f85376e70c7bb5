"""Where each row of a cache stands: what `positions=None` continues from (see `Mixer`)."""

import jax.numpy as jnp

from models.shapes import Positions, PositionsOfAll, Rows


def continued(next_position: Rows, steps: int) -> Positions:
    """The positions of the next `steps` tokens of each row."""
    return next_position[:, None] + jnp.arange(steps, dtype=jnp.int32)[None]


def after(positions: PositionsOfAll, next_position: Rows) -> Rows:
    """Where each row stands after tokens at `positions`: behind its last one that is no pad, else where it stood."""
    valid = positions >= 0
    last = jnp.argmax(jnp.where(valid, jnp.arange(positions.shape[1])[None], -1), axis=1)[:, None]
    position = jnp.take_along_axis(positions, last, axis=1)[:, 0] + 1
    return jnp.where(valid.any(axis=1), position, next_position).astype(jnp.int32)
