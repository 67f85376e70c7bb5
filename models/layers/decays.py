"""Initial decays of states, and modules that compute from a token the decay of a matrix state and its output's gate.

Each module here has a linear map `into`. The mixer computes it together with its own maps of the token, in one product,
and calls the module with the result.
"""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jaxtyping import Float

from evalkit.models.layers.mixer import Activations
from evalkit.models.layers.modules import BiasedLater, Linear, NoDecay, add_bias

RATES = (1.0, 16.0)
TINY = 1e-7
"""About what float32 adds to 1 at the least."""
STEPS = (0.001, 0.1)
GLA_POWER = 1 / 16
"""GLA's decay is a sigmoid to this power, so that it starts near 1 (Yang et al. 2023, sec. 4.4)."""
SOFTPLUS = 8
"""The floating-point operations of one softplus, beside its exp and log."""


def first_decays(rngs: nnx.Rngs, count: int, decay_range: Sequence[float], power: float = 1.0) -> NoDecay:
    """Returns Λ, the logits of decays `a` of which `a^power` is uniform in `decay_range` (De et al. 2024, sec. 2.4).

    Raises ValueError for an impossible range, and for a power at which float32 takes `a` for 0 or 1.
    """
    low, high = decay_range
    if not 0 < low < high < 1:
        raise ValueError(f"decay_range={tuple(decay_range)}; allowed: 0 < low < high < 1")
    if not (power > 0 and low ** (1 / power) > TINY and high ** (1 / power) < 1 - TINY):
        raise ValueError(f"decay_power={power}; allowed: above 0, such as 8, with a^(1 / power) between 0 and 1")
    a = jax.random.uniform(rngs.params(), (count,), minval=low, maxval=high) ** (1 / power)
    return NoDecay(jnp.log(a) - jnp.log1p(-a))


def first_rates(rngs: nnx.Rngs, count: int) -> NoDecay:
    """Returns log A with A uniform in `RATES`, as Mamba-2 starts."""
    low, high = RATES
    return NoDecay(jnp.log(jax.random.uniform(rngs.params(), (count,), minval=low, maxval=high)))


def first_steps(rngs: nnx.Rngs, count: int) -> NoDecay:
    """Returns biases whose softplus Δ is log-uniform in `STEPS`, as Mamba starts."""
    low, high = map(math.log, STEPS)
    return NoDecay(jnp.log(jnp.expm1(jnp.exp(jax.random.uniform(rngs.params(), (count,), minval=low, maxval=high)))))


class LowRank(nnx.Module):
    """Two maps of a token with `rank` channels between them, the second with a bias."""

    def __init__(self, width: int, outputs: int, rank: int, *, rngs: nnx.Rngs):
        self.into = Linear(width, rank, rngs=rngs)
        self.up = Linear(rank, outputs, bias=True, rngs=rngs)

    def flops(self, length: int) -> int:
        """See `Counted`: both maps."""
        return self.into.flops(length) + self.up.flops(length)


class HeadDecay(nnx.Module):
    """One decay a head, `log α = −A Δ` with the step `Δ = softplus(x W + b)` (Dao and Gu 2024; Yang et al. 2024)."""

    def __init__(self, width: int, heads: int, head_dim: int, rank: int, *, rngs: nnx.Rngs):
        self.into = BiasedLater(width, heads, bias=True, rngs=rngs)
        self.into.bias = first_steps(rngs, heads)
        self.log_rate = first_rates(rngs, heads)

    def __call__(self, projected: Activations) -> Float[Array, "b t h"]:
        """Returns log α, float32."""
        return self.of_steps(self.steps(projected))

    def flops(self, length: int) -> int:
        """See `Counted`: the map, and of each head its step and the product with its rate."""
        return self.into.flops(length) + length * self.log_rate.shape[0] * (SOFTPLUS + 1)

    def steps(self, projected: Activations) -> Float[Array, "b t h"]:
        """Returns Δ, float32."""
        assert self.into.bias is not None
        return jax.nn.softplus(add_bias(projected.astype(jnp.float32), self.into.bias[...]))

    def of_steps(self, steps: Float[Array, "b t h"]) -> Float[Array, "b t h"]:
        """Returns log α of the steps Δ."""
        return -jnp.exp(self.log_rate[...])[None, None] * steps


class ChannelDecay(LowRank):
    """One decay a key channel, `log α = −A softplus(x W₁ W₂ + b)` with A a head's (Kimi Linear, sec. 3)."""

    def __init__(self, width: int, heads: int, head_dim: int, rank: int, *, rngs: nnx.Rngs):
        super().__init__(width, heads * head_dim, rank, rngs=rngs)
        self.heads = heads
        self.up.bias = first_steps(rngs, heads * head_dim)
        self.log_rate = first_rates(rngs, heads)

    def __call__(self, projected: Activations) -> Float[Array, "b t h k"]:
        """Returns log α, float32."""
        steps = jax.nn.softplus(self.up.in_float32(projected))
        return -jnp.exp(self.log_rate[...])[None, None, :, None] * _in_heads(steps, self.heads)

    def flops(self, length: int) -> int:
        """See `Counted`: both maps, and of each channel its step and the product with its rate."""
        return super().flops(length) + length * self.up.kernel.shape[1] * (SOFTPLUS + 1)


class SigmoidDecay(LowRank):
    """One decay a key channel, `α = σ(x W₁ W₂ + b)^(1/16)` (GLA, sec. 4.4)."""

    def __init__(self, width: int, heads: int, head_dim: int, rank: int, *, rngs: nnx.Rngs):
        super().__init__(width, heads * head_dim, rank, rngs=rngs)
        self.heads = heads

    def __call__(self, projected: Activations) -> Float[Array, "b t h k"]:
        """Returns log α, float32."""
        return _in_heads(GLA_POWER * jax.nn.log_sigmoid(self.up.in_float32(projected)), self.heads)

    def flops(self, length: int) -> int:
        """See `Counted`: both maps, and of each channel its sigmoid's logarithm and its power."""
        return super().flops(length) + length * self.up.kernel.shape[1] * (SOFTPLUS + 3)


class SiluGate(nnx.Module):
    """The gate `silu(x W)` of GLA and Gated DeltaNet."""

    def __init__(self, width: int, channels: int, rank: int, *, rngs: nnx.Rngs):
        self.into = Linear(width, channels, rngs=rngs)

    def __call__(self, projected: Float[Array, "b t r"]) -> Activations:
        """Returns the gate."""
        return jax.nn.silu(projected)

    def flops(self, length: int) -> int:
        """See `Counted`: the map and the SiLU."""
        return self.into.flops(length) + length * self.into.kernel.shape[1]


class LowRankGate(LowRank):
    """The gate `σ(x W₁ W₂ + b)` of KDA."""

    def __call__(self, projected: Float[Array, "b t r"]) -> Activations:
        """Returns the gate."""
        return jax.nn.sigmoid(self.up(projected))


Decay = HeadDecay | ChannelDecay | SigmoidDecay
Gate = SiluGate | LowRankGate
DECAYS: dict[str, type[Decay] | None] = {
    "none": None,
    "head": HeadDecay,
    "channel": ChannelDecay,
    "sigmoid": SigmoidDecay,
}
GATES: dict[str, type[Gate] | None] = {"none": None, "silu": SiluGate, "low_rank": LowRankGate}


def _in_heads(x: Activations, heads: int) -> Float[Array, "b t h k"]:
    return x.reshape(*x.shape[:2], heads, -1)
