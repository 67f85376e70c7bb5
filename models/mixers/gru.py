"""The GRU (Cho et al. 2014, arXiv 1406.1078), token by token."""

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jaxtyping import Float

from evalkit.checks import refuse_below_1
from evalkit.models.layers.mixer import Activations, Positions, States
from evalkit.models.layers.modules import Linear
from evalkit.models.layers.positions import looped
from evalkit.models.layers.recurrent import Recurrent, RecurrentCache


class GRUBlock(Recurrent):
    """A GRU between two linear maps: its gates see its own output, so that no scan computes it.

    `h_t = (1 − z_t) n_t + z_t h_{t-1}` and `n_t = tanh(a_n + σ(a_r + u_r) u_n)`, where `a = x W + b` and
    `u = h_{t-1} U + b'`. The reset gate acts after the product with U, as in cuDNN and PyTorch. Raises ValueError for
    impossible sizes.

    Options:
      width_rnn (channels): the width of h.

    >>> y, _ = GRUBlock(16, width_rnn=24, rngs=nnx.Rngs(0))(jnp.zeros((1, 4, 16)), None, None)
    >>> y.shape
    (1, 4, 16)
    """

    def __init__(self, width: int, *, width_rnn: int, rngs: nnx.Rngs):
        refuse_below_1(width_rnn=width_rnn)
        self.width_rnn = width_rnn
        self.conv = None
        self.input = Linear(width, 3 * width_rnn, bias=True, rngs=rngs)
        self.recurrent = Linear(width_rnn, 3 * width_rnn, bias=True, rngs=rngs)
        self.output = Linear(width_rnn, width, rngs=rngs)

    def mixed(
        self, x: Activations, positions: Positions | None, before: RecurrentCache
    ) -> tuple[Activations, Float[Array, "b r"], Float[Array, "b s c"]]:
        def step(h: Float[Array, "b r"], entering: Float[Array, "b g"]) -> Float[Array, "b r"]:
            reset, update, candidate = jnp.split(entering, 3, axis=-1)
            of_reset, of_update, of_candidate = jnp.split(self.recurrent(h), 3, axis=-1)
            z = jax.nn.sigmoid(update + of_update)
            n = jnp.tanh(candidate + jax.nn.sigmoid(reset + of_reset) * of_candidate)
            return n + z * (h - n)

        states: States
        states, last = looped(step, self.input.in_float32(x), positions, before.h)
        return self.output(states.astype(x.dtype)), last, before.conv

    def state_shape(self) -> tuple[int]:
        return (self.width_rnn,)

    def flops(self, length: int) -> int:
        """See `Counted`: the maps, and of each channel the sums of three gates, the reset, and h."""
        parts = (self.input, self.recurrent, self.output)
        return sum(part.flops(length) for part in parts) + length * self.width_rnn * (3 + 1 + 3)
