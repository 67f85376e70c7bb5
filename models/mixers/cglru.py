"""The CG-LRU and the recurrent block with it (De et al. 2024, app. B): the RG-LRU with a complex decay."""

import math
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jaxtyping import Float

from evalkit.checks import refuse_other
from evalkit.kernels import cglru
from evalkit.kernels.dispatch import IMPLEMENTATIONS
from evalkit.kernels.gates import CLOSED, GATES, TURN
from evalkit.models.layers.decays import first_decays
from evalkit.models.layers.mixer import Activations, Positions
from evalkit.models.layers.modules import BlockDiagonalLinear, NoDecay
from evalkit.models.mixers.rglru import C, TwoBranches


class CGLRU(nnx.Module):
    """The complex-gated linear recurrent unit: real parts in the first half of the width, imaginary ones in the second.

    The paper's `a = σ(Λ) e^{jθ}` is raised to `c r`. |a|^c starts uniform in `decay_range`, as in the RG-LRU. The
    phase c · θ of a step with r = 1, in radians, starts uniform in `angle_range`. The paper does not say where θ
    starts; up to π/10 is what RecurrentGemma's code takes. `implementation` is that of `kernels.cglru`.
    Raises ValueError if `gate_blocks` does not divide half of `width`, for impossible ranges, and for an unknown
    implementation.
    """

    def __init__(
        self,
        width: int,
        gate_blocks: int,
        *,
        rngs: nnx.Rngs,
        decay_range: tuple[float, float] | list[float] = (0.9, 0.999),
        angle_range: tuple[float, float] | list[float] = (0.0, math.pi / 10),
        implementation: str = "auto",
    ):
        if gate_blocks < 1 or width % (2 * gate_blocks):
            raise ValueError(
                f"gate_blocks={gate_blocks} does not divide the {width / 2:g} complex channels of width {width}; "
                f"use a divisor of {width // 2}"
            )
        least, most = angle_range
        if not least <= most:
            raise ValueError(f"angle_range={tuple(angle_range)}; allowed: low <= high, in radians")
        refuse_other("implementation", implementation, IMPLEMENTATIONS)
        self.implementation = implementation
        self.gates = BlockDiagonalLinear(width, gate_blocks, rngs=rngs)
        self.decay = first_decays(rngs, width // 2, decay_range, C)  # Λ, the logit of |a|
        self.angle = NoDecay(jax.random.uniform(rngs.params(), (width // 2,), minval=least, maxval=most) / C)  # θ

    def __call__(
        self, x: Activations, positions: Positions | None, h: Float[Array, "b r"] | None
    ) -> tuple[Activations, Float[Array, "b r"]]:
        """Runs over `x` from state `h`; returns the outputs and the last state (float32)."""
        recurrence, input_gate = self._before_sigmoid(x)
        reset = None
        if positions is not None:
            recurrence = jnp.where((positions < 0)[..., None], CLOSED, recurrence)  # a = 1, and nothing enters
            reset = positions == 0
        rate = -C * jax.nn.softplus(-self.decay[...])
        angle = C * self.angle[...]
        return cglru(x, recurrence, input_gate, rate, angle, h, reset=reset, implementation=self.implementation)

    def flops(self, length: int) -> int:
        """See `Counted`: both gates and their map, the decay's phase, the scaled input, and the complex recurrence."""
        return self.gates.flops(length) + length * self.decay.shape[0] * (GATES + TURN + 3 + 3 + 8)

    def forgetting(self, x: Activations) -> Activations:
        """Returns δ = −log |a| of every step, float32, the same for both parts of a channel."""
        recurrence, _ = self._before_sigmoid(x)
        delta = C * jax.nn.softplus(-self.decay[...])[None, None] * jax.nn.sigmoid(recurrence.astype(jnp.float32))
        return jnp.concatenate([delta, delta], axis=-1)

    def _before_sigmoid(self, x: Activations) -> tuple[Float[Array, "b t n"], Float[Array, "b t n"]]:
        """Returns both gates before their sigmoid; each block of the gates sees both parts of its channels."""
        batch, steps, width = x.shape
        blocks = self.gates.blocks
        channels = width // 2 // blocks
        parts = x.reshape(batch, steps, 2, blocks, channels).swapaxes(2, 3).reshape(x.shape)
        gates = self.gates(parts).reshape(batch, steps, blocks, 2, channels).swapaxes(2, 3)
        recurrence, input_gate = jnp.split(gates.reshape(x.shape), 2, axis=-1)
        return recurrence, input_gate


class ComplexRecurrentBlock(TwoBranches):
    """The recurrent block with a CG-LRU over `width_rnn / 2` complex channels; see `CGLRU`.

    Options, beside those of `TwoBranches`:
      gate_blocks (blocks): blocks of the gates' block-diagonal matrices; must divide `width_rnn / 2`.
      decay_range: the range in which the decay's size to the power of 8 starts.
      angle_range (radians): the lowest and the highest phase of a step at the start.
      implementation: how the recurrence is computed: `auto`, `sequential`, `associative` or a kernel (docs/kernels.md).

    >>> block = ComplexRecurrentBlock(16, width_rnn=16, gate_blocks=4, rngs=nnx.Rngs(0))
    >>> y, _ = block(jnp.zeros((1, 4, 16)), None, None)
    >>> y.shape
    (1, 4, 16)
    """

    def __init__(
        self,
        width: int,
        *,
        width_rnn: int,
        rngs: nnx.Rngs,
        gate_blocks: int = 16,
        conv_width: int = 4,
        decay_range: tuple[float, float] | list[float] = (0.9, 0.999),
        angle_range: tuple[float, float] | list[float] = (0.0, math.pi / 10),
        implementation: str = "auto",
    ):
        unit = partial(
            CGLRU,
            width_rnn,
            gate_blocks,
            decay_range=decay_range,
            angle_range=angle_range,
            implementation=implementation,
        )
        super().__init__(width, unit, width_rnn=width_rnn, conv_width=conv_width, rngs=rngs)
