"""What positions mean to a mixer: where each row continues, and what resets and pads do to a scan (see `Mixer`)."""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from evalkit.kernels import linear_scan
from evalkit.models.layers.shapes import Activations, Positions, PositionsOfAll, Rows


def continued(next_position: Rows, steps: int) -> Positions:
    """Returns the positions of the next `steps` tokens of each row."""
    return next_position[:, None] + jnp.arange(steps, dtype=jnp.int32)[None]


def after(positions: PositionsOfAll, next_position: Rows) -> Rows:
    """Returns the next position of each row: one after its last token, or `next_position` if all of it is pads."""
    valid = positions >= 0
    last = jnp.argmax(jnp.where(valid, jnp.arange(positions.shape[1])[None], -1), axis=1)[:, None]
    position = jnp.take_along_axis(positions, last, axis=1)[:, 0] + 1
    return jnp.where(valid.any(axis=1), position, next_position).astype(jnp.int32)


def scanned(
    entering: Activations, a: Activations, positions: Positions | None, h: Float[Array, "b r"] | None
) -> tuple[Activations, Float[Array, "b r"]]:
    """Runs the linear scan from state `h`; returns all states and the last. Position 0 resets, pads change nothing."""
    reset = None
    if positions is not None:
        pad = (positions < 0)[..., None]
        a, entering, reset = jnp.where(pad, 1.0, a), jnp.where(pad, 0.0, entering), positions == 0
    return linear_scan(entering, a, h, reset=reset)
