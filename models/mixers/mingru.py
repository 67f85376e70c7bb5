"""The minGRU (Feng et al. 2024, arXiv 2410.01201), computed by the linear scan."""

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jaxtyping import Float

from evalkit.checks import refuse_below_1
from evalkit.models.layers.decays import SOFTPLUS
from evalkit.models.layers.mixer import Activations, Positions, States
from evalkit.models.layers.modules import CausalConv1D, Linear, side_by_side
from evalkit.models.layers.positions import scanned
from evalkit.models.layers.recurrent import Recurrent, RecurrentCache


class MinGRUBlock(Recurrent):
    """A GRU whose gates see the input alone, after a convolution and before a linear map, as in the paper's models.

    `h_t = (1 − z_t) h_{t-1} + z_t g(h̃_t)` with `z_t = σ(u W + b)` and `h̃_t = u W + b`, u being the convolved input.
    g is that of the paper's log-space form: `g(x) = x + 0.5` for x ≥ 0, and `σ(x)` below; so states are positive.
    Raises ValueError for impossible sizes.

    Options:
      width_rnn (channels): the width of the recurrence.
      conv_width (tokens): tokens that the convolution sees, the present one included.

    >>> y, _ = MinGRUBlock(16, width_rnn=24, rngs=nnx.Rngs(0))(jnp.zeros((1, 4, 16)), None, None)
    >>> y.shape
    (1, 4, 16)
    """

    conv: CausalConv1D

    def __init__(self, width: int, *, width_rnn: int, rngs: nnx.Rngs, conv_width: int = 4):
        refuse_below_1(width_rnn=width_rnn)
        self.width_rnn = width_rnn
        self.conv = CausalConv1D(width, conv_width, rngs=rngs)
        self.gate = Linear(width, width_rnn, bias=True, rngs=rngs)
        self.candidate = Linear(width, width_rnn, bias=True, rngs=rngs)
        self.output = Linear(width_rnn, width, rngs=rngs)

    def mixed(
        self, x: Activations, positions: Positions | None, before: RecurrentCache
    ) -> tuple[Activations, Float[Array, "b r"], Float[Array, "b s d"]]:
        u, conv = self.convolved(x, positions, before)
        delta, entering = self._delta_and_entering(u)
        h, last = scanned(entering, jnp.exp(-delta), positions, before.h)
        return self.output(h.astype(x.dtype)), last, conv

    def state_shape(self) -> tuple[int]:
        return (self.width_rnn,)

    def check_split(self, steps: int) -> None:
        """See `Split`: it needs the last inputs of the convolution, and the state, from the device before."""
        self.conv.check_split(steps)

    def flops(self, length: int) -> int:
        """See `Counted`: the maps and the convolution, and of each channel δ, z g(h̃) and the recurrence."""
        parts = (self.conv, self.gate, self.candidate, self.output)
        return sum(part.flops(length) for part in parts) + length * self.width_rnn * (SOFTPLUS + 1 + 4 + 2)

    def decays(self, x: Activations) -> tuple[States, States]:
        u, _ = self.convolved(x, None)
        delta, entering = self._delta_and_entering(u)
        return delta, scanned(entering, jnp.exp(-delta), None, None)[0]

    def _delta_and_entering(self, u: Activations) -> tuple[Array, Array]:
        """Returns δ = −log(1 − z) and z g(h̃), both float32."""
        gate, candidate = (part.astype(jnp.float32) for part in side_by_side(u, self.gate, self.candidate))
        # δ is softplus of the gate before its sigmoid: 1 − z would lose its digits near z = 1.
        positive = jnp.where(candidate >= 0, candidate + 0.5, jax.nn.sigmoid(candidate))
        return jax.nn.softplus(gate), jax.nn.sigmoid(gate) * positive
