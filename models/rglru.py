"""The RG-LRU and the recurrent block around it (De et al. 2024, sec. 2.3, 2.4 and app. A)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jaxtyping import Float

from kernels import linear_scan
from models.layers import (
    DENSE_UP_TO,
    BlockDiagonalLinear,
    CausalConv1D,
    Linear,
    NoDecay,
    gelu_times,
    matmul,
    side_by_side,
)
from models.shapes import Activations, Positions

C = 8.0  # eq. 3
SMALLEST_ROOT = 0.5e-3


class RecurrentCache(NamedTuple):
    """The state after the tokens so far: `h` float32 always, `conv` the last inputs of the convolution."""

    h: Float[Array, "b r"]
    conv: Float[Array, "b s r"]


@jax.custom_vjp
def gated_input(
    recurrence: Activations, entry: Activations, x: Activations, rate: Float[Array, " d"]
) -> tuple[Activations, Activations]:
    """`a` and `sqrt(1 − a²) · i · x` in float32, from both gates before their sigmoid (eqs. 1–4 and 6).

    `rate` is log a at r = 1, below 0. With `u = tanh(log a / 2)`, `a = (1 + u) / (1 − u)`, `1 − a² = −4u / (1 − u)²`:
    one tanh for both, and no cancellation as a → 1. The gradient takes all of it again instead of keeping it, and that
    of the root is at most 1000, so that a → 1 gives no infinite gradient (arXiv 2404.07839).
    """
    _, i, a, scale = _gates(recurrence, entry, rate)
    return a, scale * i * x.astype(jnp.float32)


def _gates(recurrence: Array, entry: Array, rate: Array) -> tuple[Array, Array, Array, Array]:
    """r, i, a and sqrt(1 − a²)."""
    r, i = _sigmoid(recurrence.astype(jnp.float32)), _sigmoid(entry.astype(jnp.float32))
    u = jnp.tanh(r * (0.5 * rate)[None, None])
    inverse = 1 / (1 - u)
    return r, i, (1 + u) * inverse, 2 * jnp.sqrt(-u) * inverse


def _sigmoid(x: Array) -> Array:
    """By one tanh, which costs a CPU half of an exponential and a division."""
    return 0.5 + 0.5 * jnp.tanh(0.5 * x)


def _gated_input_forward(recurrence: Array, entry: Array, x: Array, rate: Array):
    return gated_input(recurrence, entry, x, rate), (recurrence, entry, x, rate)


def _gated_input_backward(kept: tuple[Array, ...], cotangents: tuple[Array, Array]) -> tuple[Array, ...]:
    recurrence, entry, x, rate = kept
    da, dinput = cotangents
    x32 = x.astype(jnp.float32)
    r, i, a, scale = _gates(recurrence, entry, rate)
    dscale = dinput * i * x32
    dlog_a = a * (da - dscale * a / jnp.maximum(scale, SMALLEST_ROOT))
    drecurrence = dlog_a * rate[None, None] * r * (1 - r)
    dentry = dinput * scale * x32 * i * (1 - i)
    dx = dinput * scale * i
    drate = (dlog_a * r).reshape(-1, rate.shape[0]).sum(axis=0)  # flat: see `scaled` in layers.py
    return drecurrence.astype(recurrence.dtype), dentry.astype(entry.dtype), dx.astype(x.dtype), drate


gated_input.defvjp(_gated_input_forward, _gated_input_backward)


class RGLRU(nnx.Module):
    """The real-gated linear recurrent unit, eqs. 1–6; gate arithmetic in float32 whatever the input's dtype.

    `decay_range`: `a^c` starts uniform in it (the paper's [0.9, 0.999]).
    """

    def __init__(
        self,
        width: int,
        gate_blocks: int,
        *,
        rngs: nnx.Rngs,
        decay_range: tuple[float, float] | list[float] = (0.9, 0.999),
    ):
        low, high = decay_range
        if not 0 < low < high < 1:
            raise ValueError(f"decay_range={tuple(decay_range)}; allowed: 0 < low < high < 1")
        self.recurrence_gate = BlockDiagonalLinear(width, gate_blocks, rngs=rngs)
        self.input_gate = BlockDiagonalLinear(width, gate_blocks, rngs=rngs)
        a = jax.random.uniform(rngs.params(), (width,), minval=low, maxval=high) ** (1 / C)
        self.decay = NoDecay(jnp.log(a) - jnp.log1p(-a))  # Λ, the logit of a

    def __call__(
        self, x: Activations, positions: Positions | None, h: Float[Array, "b r"] | None
    ) -> tuple[Activations, Float[Array, "b r"]]:
        """Runs over `x` from state `h`; returns the outputs and the last state (float32)."""
        a, inputs = self.gated(x)
        reset = None
        if positions is not None:
            pad = (positions < 0)[..., None]
            a, inputs, reset = jnp.where(pad, 1.0, a), jnp.where(pad, 0.0, inputs), positions == 0
        y, last = linear_scan(inputs, a, h, reset=reset)
        return y.astype(x.dtype), last

    def gated(self, x: Activations) -> tuple[Activations, Activations]:
        """The decay `a` and the scaled, gated input of the recurrence, both float32 (eqs. 1–4)."""
        recurrence, entry = self._before_sigmoid(x)
        return gated_input(recurrence, entry, x, -C * jax.nn.softplus(-self.decay[...]))

    def _before_sigmoid(self, x: Activations) -> tuple[Activations, Activations]:
        """Both gates before their sigmoid; where dense products pay, by one of them."""
        gates = (self.recurrence_gate, self.input_gate)
        width = x.shape[-1]
        if width > DENSE_UP_TO:
            recurrence, entry = (gate(x) for gate in gates)
            return recurrence, entry
        both = matmul(x, jnp.concatenate([gate.dense() for gate in gates], axis=1))
        both = both + jnp.concatenate([gate.bias[...] for gate in gates]).astype(x.dtype)[None, None]
        return both[..., :width], both[..., width:]


class RecurrentBlock(nnx.Module):
    """Two branches: convolution and RG-LRU in one, GeLU in the other; their product back to the width (sec. 2.3).

    `width_rnn` is D_rnn; at width 64 the paper's 4/3 · 64 does not divide into its 16 gate blocks, 64 does.
    Raises ValueError if `gate_blocks` does not divide `width_rnn`.
    """

    window: int | None = None

    def __init__(
        self,
        width: int,
        *,
        width_rnn: int,
        rngs: nnx.Rngs,
        gate_blocks: int = 16,
        conv_width: int = 4,
        decay_range: tuple[float, float] | list[float] = (0.9, 0.999),
    ):
        if width_rnn < 1:
            raise ValueError(f"width_rnn={width_rnn}; allowed: 1 or more")
        self.width_rnn = width_rnn
        self.input = Linear(width, width_rnn, rngs=rngs)
        self.gate = Linear(width, width_rnn, rngs=rngs)
        self.conv = CausalConv1D(width_rnn, conv_width, rngs=rngs)
        self.rglru = RGLRU(width_rnn, gate_blocks, decay_range=decay_range, rngs=rngs)
        self.output = Linear(width_rnn, width, rngs=rngs)

    def __call__(
        self, x: Activations, positions: Positions | None, cache: RecurrentCache | None
    ) -> tuple[Activations, RecurrentCache | None]:
        """Mixes `x [b, t, d]`; see `Mixer` for positions and cache."""
        u, gate = side_by_side(x, self.input, self.gate)
        before = self.init_cache(x.shape[0], 0) if cache is None else cache
        u, conv = self.conv(u, positions, before.conv.astype(u.dtype))
        y, h = self.rglru(u, positions, before.h)
        y = self.output(gelu_times(gate, y))
        return y, None if cache is None else RecurrentCache(h, conv.astype(cache.conv.dtype))

    def init_cache(self, batch: int, length: int) -> RecurrentCache:
        """The zero state; its size does not depend on `length`."""
        return RecurrentCache(
            h=jnp.zeros((batch, self.width_rnn), jnp.float32),
            conv=jnp.zeros((batch, self.conv.taps - 1, self.width_rnn), jnp.float32),
        )
