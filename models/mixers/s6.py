"""The selective state-space block of Mamba (Gu and Dao 2023, arXiv 2312.00752, sec. 3)."""

import math

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jaxtyping import Float

from evalkit.checks import refuse_below_1
from evalkit.kernels import linear_scan
from evalkit.kernels.selective import entering
from evalkit.models.layers.decays import SOFTPLUS
from evalkit.models.layers.mixer import Activations, Positions, States
from evalkit.models.layers.modules import CausalConv1D, Linear, NoDecay, side_by_side
from evalkit.models.layers.positions import selective_scanned
from evalkit.models.layers.recurrent import Recurrent, RecurrentCache


class S6Block(Recurrent):
    """A Mamba block: convolution, selective SSM, gate. It is a whole layer, so use it with `mlp_expansion=0`.

    u is the convolved input of `expand · width` channels, and each channel has `states` numbers of state:
    `h_t = exp(Δ_t A) h_{t-1} + Δ_t B_t u_t`, `y_t = C_t h_t + D u_t`. Δ, B and C come from u by linear maps, Δ
    through `step_rank` numbers and a softplus. As published, A starts at −1, −2, … −`states`, and Δ log-uniform in
    `step_range`. Raises ValueError for impossible sizes.

    Options:
      expand (× width): the number of channels of the state-space model.
      states (numbers): numbers of state of each channel.
      conv_width (tokens): tokens that the convolution sees, the present one included.
      step_rank (numbers): numbers that a token's step Δ is computed from; null: width / 16, rounded up.
      step_range: the lowest and the highest step Δ at the start.

    >>> y, _ = S6Block(16, states=4, rngs=nnx.Rngs(0))(jnp.zeros((1, 4, 16)), None, None)
    >>> y.shape
    (1, 4, 16)
    """

    conv: CausalConv1D

    def __init__(
        self,
        width: int,
        *,
        rngs: nnx.Rngs,
        expand: int = 2,
        states: int = 16,
        conv_width: int = 4,
        step_rank: int | None = None,
        step_range: tuple[float, float] | list[float] = (0.001, 0.1),
    ):
        refuse_below_1(expand=expand, states=states, step_rank=1 if step_rank is None else step_rank)
        low, high = step_range
        if not 0 < low < high:
            raise ValueError(f"step_range={tuple(step_range)}; allowed: 0 < low < high")
        inner, rank = expand * width, step_rank or math.ceil(width / 16)
        self.inner, self.states, self.rank = inner, states, rank
        self.input = Linear(width, inner, rngs=rngs)
        self.gate = Linear(width, inner, rngs=rngs)
        self.conv = CausalConv1D(inner, conv_width, bias=True, rngs=rngs)
        self.select = Linear(inner, rank + 2 * states, rngs=rngs)
        self.step = Linear(rank, inner, bias=True, rngs=rngs)
        start = jnp.exp(jax.random.uniform(rngs.params(), (inner,), minval=math.log(low), maxval=math.log(high)))
        self.step.bias = NoDecay(jnp.log(jnp.expm1(start)))  # softplus of it is `start`
        self.log_rate = NoDecay(jnp.log(jnp.tile(jnp.arange(1.0, states + 1), inner)))
        self.skip = NoDecay(jnp.ones((inner,)))
        self.output = Linear(inner, width, rngs=rngs)

    def mixed(
        self, x: Activations, positions: Positions | None, before: RecurrentCache
    ) -> tuple[Activations, Float[Array, "b r"], Float[Array, "b s c"]]:
        u, gate = side_by_side(x, self.input, self.gate)
        u, conv = self.convolved(u, positions, before)
        y, h = self._select(jax.nn.silu(u), positions, before.h)
        return self.output(y * jax.nn.silu(gate)), h, conv

    def state_shape(self) -> tuple[int]:
        return (self.inner * self.states,)

    def check_split(self, steps: int) -> None:
        """See `Split`: it needs the last inputs of the convolution, and the state, from the device before."""
        self.conv.check_split(steps)

    def flops(self, length: int) -> int:
        """See `Counted`: maps and convolution, then of each number of state its δ, input, recurrence and output.

        Each channel has its step Δ, the product Δ u, the skip D u, both SiLUs and the gate.
        """
        maps = (self.input, self.gate, self.conv, self.select, self.step, self.output)
        of_states, of_channels = 2 + 1 + 2 + 2, SOFTPLUS + 1 + 2 + 2 + 1
        elementwise = self.inner * (self.states * of_states + of_channels)
        return sum(part.flops(length) for part in maps) + length * elementwise

    def decays(self, x: Activations) -> tuple[States, States]:
        """See `Decaying`; there are `expand · width · states` numbers for each step."""
        u, _ = self.convolved(self.input(x), None)
        u = jax.nn.silu(u)
        step, rate, into, _ = self._steps_and_choices(u)
        delta = (step[..., None] * rate[None, None]).reshape(*step.shape[:2], -1)
        return delta, linear_scan(entering(u.astype(jnp.float32), step, into), jnp.exp(-delta))[0]

    def _select(
        self, u: Activations, positions: Positions | None, h: Float[Array, "b r"]
    ) -> tuple[Activations, Float[Array, "b r"]]:
        step, rate, into, out = self._steps_and_choices(u)
        wide = u.astype(jnp.float32)
        y, last = selective_scanned(wide, step, rate, into, out, positions, h.reshape(len(h), *rate.shape))
        return (y + wide * self.skip[...][None, None]).astype(u.dtype), last.reshape(h.shape)

    def _steps_and_choices(self, u: Activations) -> tuple[Array, Array, Array, Array]:
        """Returns Δ `[b, t, inner]`, −A `[inner, states]`, B and C `[b, t, states]`, all float32."""
        low, into, out = jnp.split(self.select(u), [self.rank, self.rank + self.states], axis=-1)
        step = jax.nn.softplus(self.step.in_float32(low))
        rate = jnp.exp(self.log_rate[...]).reshape(self.inner, self.states)
        return step, rate, into.astype(jnp.float32), out.astype(jnp.float32)
