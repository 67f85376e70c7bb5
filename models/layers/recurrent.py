"""What mixers with a state of fixed size share: their cache, and the code around the recurrence in every call."""

from typing import NamedTuple

import jax.numpy as jnp
from flax import nnx
from jax import Array
from jaxtyping import Float

from evalkit.models.layers.mixer import Activations, Positions, Rows
from evalkit.models.layers.modules import CausalConv1D
from evalkit.models.layers.positions import after, after_all


class RecurrentCache(NamedTuple):
    """The state after the tokens so far, `h`, and what else the next token needs, `conv`; both always float32.

    `conv` is the last inputs of a convolution, where the mixer has one. Others keep there what their equations take of
    the token before: the mLSTM its m, RWKV-7 the token itself, Mamba-3 its key, value, step and angles.
    """

    h: Float[Array, "b *n"]
    conv: Float[Array, "b s c"]
    next_position: Rows

    def followed(
        self, h: Float[Array, "b *n"], conv: Float[Array, "b s c"], positions: Positions | None, steps: int
    ) -> "RecurrentCache":
        """Returns the cache after `steps` more tokens at `positions`, which left `h` and `conv`."""
        following = self.next_position
        following = after_all(following, steps) if positions is None else after(positions, following)
        return RecurrentCache(h.astype(self.h.dtype), conv.astype(self.conv.dtype), following)


class Recurrent(nnx.Module):
    """A mixer that keeps a state, and the last inputs of a short convolution before it; `conv` is None without one.

    A subclass defines the shape of its state and how it mixes; this class handles positions, cache and empty cache.
    """

    window: int | None = None
    conv: CausalConv1D | None

    def __call__(
        self, x: Activations, positions: Positions | None, cache: RecurrentCache | None
    ) -> tuple[Activations, RecurrentCache | None]:
        """Mixes `x [b, t, d]`; see `Mixer` for positions and cache."""
        before = self.init_cache(x.shape[0], 0) if cache is None else cache
        y, h, conv = self.mixed(x, positions, before)
        return y, None if cache is None else before.followed(h, conv, positions, x.shape[1])

    def mixed(
        self, x: Activations, positions: Positions | None, before: RecurrentCache
    ) -> tuple[Activations, Array, Float[Array, "b s c"]]:
        """Returns the output, the state `h` after the tokens, and the last inputs of the convolution."""
        raise NotImplementedError

    def state_shape(self) -> tuple[int, ...]:
        """Returns the shape of one row's state."""
        raise NotImplementedError

    def state(self, cache: RecurrentCache) -> Float[Array, "b *n"]:
        """Returns the state of the mixer's equations in a cache."""
        return cache.h

    def convolved(
        self, u: Activations, positions: Positions | None, before: RecurrentCache | None = None
    ) -> tuple[Activations, Float[Array, "b s c"]]:
        """Returns the convolution of `u`, and its last inputs; without a cache nothing comes before `u`."""
        before = before or self.init_cache(u.shape[0], 0)
        conv = before.conv.astype(u.dtype)
        return (u, conv) if self.conv is None else self.conv(u, positions, conv)

    def init_cache(self, batch: int, length: int) -> RecurrentCache:
        """Returns the zero state, whose size does not depend on `length`."""
        # The sizes are those of the parameters: on a mesh a device has its share of the channels.
        taps, channels = (1, 0) if self.conv is None else self.conv.kernel.shape
        return RecurrentCache(
            h=jnp.zeros((batch, *self.state_shape()), jnp.float32),
            conv=jnp.zeros((batch, taps - 1, channels), jnp.float32),
            next_position=jnp.zeros((batch,), jnp.int32),
        )
