"""The LSTM (Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000), token by token."""

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jaxtyping import Float

from evalkit.checks import refuse_below_1
from evalkit.models.layers.mixer import Activations, Positions
from evalkit.models.layers.modules import Linear, matmul
from evalkit.models.layers.positions import looped
from evalkit.models.layers.recurrent import Recurrent, RecurrentCache


class LSTMBlock(Recurrent):
    """An LSTM between two linear maps: its gates see its own output, so that no scan computes it.

    `c_t = σ(f_t) c_{t-1} + σ(i_t) tanh(g_t)` and `h_t = σ(o_t) tanh(c_t)`, where `i, f, g, o = x W + h_{t-1} U + b`.
    It tracks states that no linear recurrence with real decays can, and costs a loop over time. The bias of the forget
    gate starts at 1 (Jozefowicz et al. 2015). Raises ValueError for impossible sizes.

    Options:
      width_rnn (channels): the width of h, and of c.

    >>> y, _ = LSTMBlock(16, width_rnn=24, rngs=nnx.Rngs(0))(jnp.zeros((1, 4, 16)), None, None)
    >>> y.shape
    (1, 4, 16)
    """

    def __init__(self, width: int, *, width_rnn: int, rngs: nnx.Rngs):
        refuse_below_1(width_rnn=width_rnn)
        self.width_rnn = width_rnn
        self.conv = None
        self.input = Linear(width, 4 * width_rnn, bias=True, rngs=rngs)
        assert self.input.bias is not None
        self.input.bias[...] = self.input.bias[...].at[width_rnn : 2 * width_rnn].set(1.0)
        self.recurrent = Linear(width_rnn, 4 * width_rnn, rngs=rngs)
        self.output = Linear(width_rnn, width, rngs=rngs)

    def mixed(
        self, x: Activations, positions: Positions | None, before: RecurrentCache
    ) -> tuple[Activations, Float[Array, "b 2 r"], Float[Array, "b s c"]]:
        weight = self.recurrent.kernel[...]

        def step(state: Float[Array, "b 2 r"], entering: Float[Array, "b g"]) -> Float[Array, "b 2 r"]:
            h, c = state[:, 0], state[:, 1]
            i, f, g, o = jnp.split(entering + matmul(h, weight), 4, axis=-1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            return jnp.stack([jax.nn.sigmoid(o) * jnp.tanh(c), c], axis=1)

        states, last = looped(step, self.input.in_float32(x), positions, before.h)
        return self.output(states[:, :, 0].astype(x.dtype)), last, before.conv

    def state_shape(self) -> tuple[int, int]:
        return (2, self.width_rnn)

    def flops(self, length: int) -> int:
        """See `Counted`: the maps, and of each channel the sums of four gates, and c and h."""
        parts = (self.input, self.recurrent, self.output)
        return sum(part.flops(length) for part in parts) + length * self.width_rnn * (4 + 3 + 1)
