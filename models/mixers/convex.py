"""The RG-LRU with its input scaled by 1 − a: a control for the scale of the RG-LRU, sqrt(1 − a²)."""

from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jaxtyping import Float

from evalkit.models.layers.mixer import Activations, Positions
from evalkit.models.layers.positions import scanned
from evalkit.models.mixers.rglru import RGLRU, TwoBranches


class ConvexRGLRU(RGLRU):
    """`h_t = a_t h_{t-1} + s (1 − a_t) i_t x_t` with the gates, parameters and initialisation of the RG-LRU.

    As a → 1, the scale of eq. 4 falls only as sqrt(1 − a): a constant input adds up to sqrt((1 + a) / (1 − a)) times
    itself. Here, as in S6, a channel that forgets slowly also takes in slowly. So the state is an average of its
    inputs, times `s`, which is `input_scale`. Gates are float32. Raises ValueError for a scale that is not above 0.
    """

    gate_flops: int = 2

    def __init__(self, width: int, gate_blocks: int, *, rngs: nnx.Rngs, input_scale: float = 1.0):
        if not input_scale > 0:
            raise ValueError(f"input_scale={input_scale}; allowed: above 0")
        super().__init__(width, gate_blocks, rngs=rngs)
        self.input_scale = input_scale

    def __call__(
        self, x: Activations, positions: Positions | None, h: Float[Array, "b r"] | None
    ) -> tuple[Activations, Float[Array, "b r"]]:
        """Runs over `x` from state `h`; returns the outputs and the last state (float32)."""
        a, entering = self.gated(x)
        y, last = scanned(entering, a, positions, h)
        return y.astype(x.dtype), last

    def gated(self, x: Activations) -> tuple[Activations, Activations]:
        """Returns the decay `a` and the input of the recurrence, `s (1 − a) i x`, both float32."""
        recurrence, input_gate = (gate.astype(jnp.float32) for gate in self._before_sigmoid(x))
        log_a = self._rate()[None, None] * jax.nn.sigmoid(recurrence)
        # expm1, because 1 − exp(log a) cancels near a = 1.
        return jnp.exp(log_a), -self.input_scale * jnp.expm1(log_a) * jax.nn.sigmoid(input_gate) * x.astype(jnp.float32)


class ConvexRecurrentBlock(TwoBranches):
    """The recurrent block with a `ConvexRGLRU`: a control of how the RG-LRU scales its input.

    Raises ValueError if `gate_blocks` does not divide `width_rnn`.

    Options, beside those of `TwoBranches`:
      gate_blocks (blocks): blocks of the gates' block-diagonal matrices; must divide `width_rnn`.
      input_scale (factor): multiplies the input; with 8.8 it starts as large as the RG-LRU's, in the median channel.
    """

    def __init__(
        self,
        width: int,
        *,
        width_rnn: int,
        rngs: nnx.Rngs,
        gate_blocks: int = 16,
        conv_width: int = 4,
        input_scale: float = 1.0,
    ):
        unit = partial(ConvexRGLRU, width_rnn, gate_blocks, input_scale=input_scale)
        super().__init__(width, unit, width_rnn=width_rnn, conv_width=conv_width, rngs=rngs)
