"""The RG-LRU and the recurrent block around it (De et al. 2024, sec. 2.3, 2.4 and app. A)."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jaxtyping import Float

from evalkit.checks import refuse_below_1, refuse_other
from evalkit.kernels import gated_input, rglru
from evalkit.kernels.dispatch import IMPLEMENTATIONS
from evalkit.kernels.gates import CLOSED, GATES
from evalkit.models.layers.decays import first_decays
from evalkit.models.layers.mixer import Activations, Positions, Split, States
from evalkit.models.layers.modules import (
    DENSE_UP_TO,
    GELU_TIMES,
    BlockDiagonalLinear,
    CausalConv1D,
    Linear,
    dense,
    gelu_times,
    matmul,
    side_by_side,
)
from evalkit.models.layers.positions import continued
from evalkit.models.layers.recurrent import Recurrent, RecurrentCache
from evalkit.models.layers.shares import Divided, Division, into, out_of

C = 8.0  # the constant c of eq. 3


class RGLRU(nnx.Module):
    """The real-gated linear recurrent unit, eqs. 1–6; gates are float32 whatever the input's dtype.

    `a^decay_power` starts uniform in `decay_range`. In the paper a^c starts in [0.9, 0.999], in RecurrentGemma a² in
    [0.81, 0.998]. With `unit_reset`, the input at position 0 is not scaled by sqrt(1 − a²), as in RecurrentGemma.
    `implementation` is that of `kernels.rglru`.
    Raises ValueError for an impossible value.
    """

    gate_flops: int = GATES

    def __init__(
        self,
        width: int,
        gate_blocks: int,
        *,
        rngs: nnx.Rngs,
        decay_range: tuple[float, float] | list[float] = (0.9, 0.999),
        decay_power: float = C,
        unit_reset: bool = False,
        implementation: str = "auto",
    ):
        refuse_other("implementation", implementation, IMPLEMENTATIONS)
        self.unit_reset = unit_reset
        self.implementation = implementation
        self.recurrence_gate = BlockDiagonalLinear(width, gate_blocks, rngs=rngs)
        self.input_gate = BlockDiagonalLinear(width, gate_blocks, rngs=rngs)
        self.decay = first_decays(rngs, width, decay_range, decay_power)  # Λ, the logit of a

    def flops(self, length: int) -> int:
        """See `Counted`: both gates and their maps, the scaled input, and the recurrence."""
        maps = self.recurrence_gate.flops(length) + self.input_gate.flops(length)
        return maps + length * self.decay.shape[0] * (self.gate_flops + 2 + 2)

    def __call__(
        self, x: Activations, positions: Positions | None, h: Float[Array, "b r"] | None
    ) -> tuple[Activations, Float[Array, "b r"]]:
        """Runs over `x` from state `h`; returns the outputs and the last state (float32)."""
        recurrence, input_gate = self._before_sigmoid(x)
        reset = None
        if positions is not None:
            # At a pad the recurrence gate is closed: a = 1, and nothing enters.
            recurrence, reset = jnp.where((positions < 0)[..., None], CLOSED, recurrence), positions == 0
        return rglru(
            x,
            recurrence,
            input_gate,
            self._rate(),
            h,
            reset=reset,
            unit_reset=self.unit_reset,
            implementation=self.implementation,
        )

    def gated(self, x: Activations) -> tuple[Activations, Activations]:
        """Returns the decay `a` and the scaled, gated input of the recurrence, both float32 (eqs. 1–4)."""
        recurrence, input_gate = self._before_sigmoid(x)
        return gated_input(recurrence, input_gate, x, self._rate())

    def division(self) -> Division:
        """See `Divided`: a gate's block mixes its own channels alone."""
        names = ("recurrence_gate.kernel", "recurrence_gate.bias", "input_gate.kernel", "input_gate.bias", "decay")
        return Division(dict.fromkeys(names, 0), {"blocks of the gates": self.input_gate.kernel.shape[0]})

    def check_split(self, steps: int) -> None:
        """See `Split`: it needs only the state from the device before."""

    def forgetting(self, x: Activations) -> Activations:
        """Returns δ = −log a = c · softplus(−Λ) · r of every step and channel (eqs. 1, 3 and 6), float32."""
        recurrence, _ = self._before_sigmoid(x)
        return -self._rate()[None, None] * jax.nn.sigmoid(recurrence.astype(jnp.float32))

    def _rate(self) -> Float[Array, " d"]:
        """Returns log a at r = 1 (eqs. 3 and 6)."""
        # −c · softplus(−Λ) is log σ(Λ)^c without taking the logarithm of a number near 1.
        return -C * jax.nn.softplus(-self.decay[...])

    def _before_sigmoid(self, x: Activations) -> tuple[Activations, Activations]:
        """Returns both gates before their sigmoid."""
        gates = (self.recurrence_gate, self.input_gate)
        width = x.shape[-1]
        if width > DENSE_UP_TO:
            recurrence, input_gate = (gate(x) for gate in gates)
            return recurrence, input_gate
        # Narrow block-diagonal products leave vector units idle, so both gates are one dense product.
        both = matmul(x, dense(*gates))
        both = both + jnp.concatenate([gate.bias[...] for gate in gates]).astype(x.dtype)[None, None]
        return both[..., :width], both[..., width:]


class TwoBranches(Recurrent):
    """The recurrent block of sec. 2.3 around any unit: convolution and recurrence in one branch, GeLU in the other.

    The branches are multiplied and projected back to the width. `unit` builds the recurrence over `width_rnn` channels:
    a module with the call signature of `RGLRU`, and with its methods `forgetting` and `flops`.

    Options:
      width_rnn (channels): the width of the recurrence, D_rnn in the paper, about 4/3 of the model's width.
      conv_width (tokens): tokens that the convolution sees, the present one included.
    """

    conv: CausalConv1D
    # With unit_reset the unit treats position 0 differently even from a zero state, so it needs the positions.
    unit_reset: bool = False

    def __init__(
        self,
        width: int,
        unit: Callable[..., Any],
        *,
        width_rnn: int,
        conv_width: int,
        rngs: nnx.Rngs,
        bias: bool = False,
        conv_init: float | None = None,
    ):
        refuse_below_1(width_rnn=width_rnn)
        self.width_rnn = width_rnn
        self.input = Linear(width, width_rnn, bias=bias, rngs=rngs)
        self.gate = Linear(width, width_rnn, bias=bias, rngs=rngs)
        self.conv = CausalConv1D(width_rnn, conv_width, bias=bias, std=conv_init, rngs=rngs)
        self.rglru = unit(rngs=rngs)
        self.output = Linear(width_rnn, width, bias=bias, rngs=rngs)

    def mixed(
        self, x: Activations, positions: Positions | None, before: RecurrentCache
    ) -> tuple[Activations, Float[Array, "b r"], Float[Array, "b s r"]]:
        u, gate = side_by_side(x, self.input, self.gate)
        u, conv = self.convolved(u, positions, before)
        if positions is None and self.unit_reset:
            positions = continued(before.next_position, x.shape[1])
        y, h = self.rglru(u, positions, before.h)
        return self.output(gelu_times(gate, y)), h, conv

    def state_shape(self) -> tuple[int]:
        return (self.conv.kernel.shape[1],)

    def division(self) -> Division:
        """See `Divided`: each device has some of the channels; the unit gives the rules of its own parameters."""
        unit = self.rglru.division() if isinstance(self.rglru, Divided) else Division({}, {})
        axes = {f"rglru.{name}": how for name, how in unit.axes.items()}
        return Division(
            {**into("input", "gate", "conv"), **axes, **out_of("output")}, {"channels": self.width_rnn, **unit.units}
        )

    def check_split(self, steps: int) -> None:
        """See `Split`: the convolution needs the last inputs of the device before; the unit says what it needs."""
        if not isinstance(self.rglru, Split):
            raise ValueError(f"{type(self.rglru).__name__} cannot have its time split over devices")
        self.conv.check_split(steps)
        self.rglru.check_split(steps)

    def flops(self, length: int) -> int:
        """See `Counted`: the three maps, the convolution, the unit, and the product of both branches."""
        parts = (self.input, self.gate, self.conv, self.rglru, self.output)
        return sum(part.flops(length) for part in parts) + length * self.width_rnn * GELU_TIMES

    def decays(self, x: Activations) -> tuple[States, States]:
        u, _ = self.convolved(self.input(x), None)
        positions = continued(jnp.zeros(x.shape[0], jnp.int32), x.shape[1]) if self.unit_reset else None
        return self.rglru.forgetting(u), self.rglru(u, positions, None)[0]


class RecurrentBlock(TwoBranches):
    """The recurrent block of Hawk and Griffin: two branches with an RG-LRU.

    Raises ValueError if `gate_blocks` does not divide `width_rnn`.

    Options, beside those of `TwoBranches`:
      bias: whether the linear maps and the convolution have biases, as in RecurrentGemma; the paper's have none.
      gate_blocks (blocks): blocks of the gates' block-diagonal matrices; must divide `width_rnn`.
      decay_range: the range in which the decay to the power of `decay_power` starts.
      decay_power (exponent): see `decay_range`; 8 in the paper, 2 in RecurrentGemma.
      unit_reset: whether the input at position 0 enters unscaled, as in RecurrentGemma.
      conv_init: the standard deviation of the convolution's first weights; null: 1/sqrt(`conv_width`).
      implementation: how the recurrence is computed: `auto`, `sequential`, `associative` or a kernel (docs/kernels.md).

    >>> block = RecurrentBlock(64, width_rnn=64, rngs=nnx.Rngs(0))
    >>> y, _ = block(jnp.zeros((2, 8, 64)), None, None)
    >>> y.shape
    (2, 8, 64)
    """

    def __init__(
        self,
        width: int,
        *,
        width_rnn: int,
        rngs: nnx.Rngs,
        gate_blocks: int = 16,
        conv_width: int = 4,
        bias: bool = False,
        decay_range: tuple[float, float] | list[float] = (0.9, 0.999),
        decay_power: float = C,
        unit_reset: bool = False,
        conv_init: float | None = None,
        implementation: str = "auto",
    ):
        unit = partial(
            RGLRU,
            width_rnn,
            gate_blocks,
            decay_range=decay_range,
            decay_power=decay_power,
            unit_reset=unit_reset,
            implementation=implementation,
        )
        super().__init__(
            width, unit, width_rnn=width_rnn, conv_width=conv_width, bias=bias, conv_init=conv_init, rngs=rngs
        )
        self.gate_blocks = gate_blocks
        self.unit_reset = unit_reset
