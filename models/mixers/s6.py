"""The selective state-space block of Mamba (Gu and Dao 2023, arXiv 2312.00752, sec. 3)."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jaxtyping import Float

from evalkit.kernels import linear_scan
from evalkit.kernels.selective import entering
from evalkit.models.layers.decays import SOFTPLUS
from evalkit.models.layers.modules import CausalConv1D, Linear, NoDecay, side_by_side
from evalkit.models.layers.positions import after, continued, selective_scanned
from evalkit.models.layers.shapes import Activations, Positions, Rows, States


class S6Cache(NamedTuple):
    """The state after the tokens so far: `h` in float32, and `conv`, the last inputs of the convolution."""

    h: Float[Array, "b r"]
    conv: Float[Array, "b s r"]
    next_position: Rows


class S6Block(nnx.Module):
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

    window: int | None = None

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
        for name, value in (
            ("expand", expand),
            ("states", states),
            ("step_rank", 1 if step_rank is None else step_rank),
        ):
            if value < 1:
                raise ValueError(f"{name}={value}; allowed: 1 or more")
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

    def __call__(
        self, x: Activations, positions: Positions | None, cache: S6Cache | None
    ) -> tuple[Activations, S6Cache | None]:
        """Mixes `x [b, t, d]`; see `Mixer` for positions and cache."""
        u, gate = side_by_side(x, self.input, self.gate)
        before = self.init_cache(x.shape[0], 0) if cache is None else cache
        u, conv = self.conv(u, positions, before.conv.astype(u.dtype))
        y, h = self._select(jax.nn.silu(u), positions, before.h)
        y = self.output(y * jax.nn.silu(gate))
        if cache is None:
            return y, None
        where = continued(before.next_position, x.shape[1]) if positions is None else positions
        return y, S6Cache(h, conv.astype(cache.conv.dtype), after(where, cache.next_position))

    def init_cache(self, batch: int, length: int) -> S6Cache:
        """Returns the zero state, whose size does not depend on `length`."""
        return S6Cache(
            h=jnp.zeros((batch, self.inner * self.states), jnp.float32),
            conv=jnp.zeros((batch, self.conv.taps - 1, self.inner), jnp.float32),
            next_position=jnp.zeros((batch,), jnp.int32),
        )

    def check_split(self, steps: int) -> None:
        """See `Split`: of the device before it needs the last inputs of the convolution, and its state."""
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
        u, _ = self.conv(self.input(x), None, self.init_cache(x.shape[0], 0).conv.astype(x.dtype))
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
