"""The block of Mamba-3 with one input and one output (Lahoti et al. 2026, arXiv 2603.15569), by a matrix state."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jaxtyping import Float

from evalkit.checks import refuse_below_1, refuse_other
from evalkit.kernels.matrix.linear_state import IMPLEMENTATIONS
from evalkit.models.layers.decays import SOFTPLUS, first_steps
from evalkit.models.layers.mixer import Activations, Positions
from evalkit.models.layers.modules import Linear, NoDecay, RMSNorm
from evalkit.models.layers.positions import matrix_scanned, preceding, turned
from evalkit.models.layers.recurrent import Recurrent, RecurrentCache

SLOWEST = 1e-4
"""The least rate of decay −A, as published."""
MOST_TURN = 0.5
"""The most turns of a pair in a step with Δ = 1, as published."""


class Steps(NamedTuple):
    """What a token gives to the recurrence of each head, float32: Δ, log α, λ, and turns of each pair `[b t h r]`."""

    step: Float[Array, "b t h"]
    log_decay: Float[Array, "b t h"]
    blend: Float[Array, "b t h"]
    turns: Float[Array, "b t h r"]


class Mamba3Block(Recurrent):
    """Mamba-3: a matrix a head, written by the trapezoidal rule; the token decides how far keys and queries turn.

    With values v, keys B and queries C of a token, a step `Δ = softplus(x W + b)`, a decay
    `α = exp(−Δ softplus(x W))` and a share `λ = σ(x W)` of each head,
    `S_t = α_t S_{t-1} + (1 − λ_t) Δ_t α_t v_{t-1} B_{t-1}ᵀ + λ_t Δ_t v_t B_tᵀ` and `y_t = S_t C_t + D v_t`. Keys and
    queries are `RMSNorm(x W)`, which heads share, plus a bias a head. Pairs of their channels are turned by the sum of
    `Δ π tanh(x W)` since the sequence began: that part of the state acts as complex numbers whose phase a token can
    move, so that it can count modulo a number. The output is `y_t · SiLU(x W)`, through a linear map. The share of the
    previous token takes the place of a convolution. As published, biases of B and C and D start at 1, and Δ log-uniform
    in 0.001 to 0.1; the norms' ε is 1e-6, not 1e-5. Raises ValueError for impossible settings.

    Options:
      heads (heads): heads, each with a state of its own.
      head_dim (channels): the width of a head's values.
      states (numbers): the width of keys and queries; a head's state has `head_dim · states` numbers.
      rope_fraction (share): the part of keys and queries that turns.
      implementation: how the recurrence is computed: `auto`, `sequential` or `chunked` (docs/kernels.md).

    >>> y, _ = Mamba3Block(16, heads=2, head_dim=4, states=8, rngs=nnx.Rngs(0))(jnp.zeros((1, 4, 16)), None, None)
    >>> y.shape
    (1, 4, 16)
    """

    def __init__(
        self,
        width: int,
        *,
        heads: int,
        head_dim: int,
        states: int,
        rngs: nnx.Rngs,
        rope_fraction: float = 0.5,
        implementation: str = "auto",
    ):
        refuse_below_1(heads=heads, head_dim=head_dim, states=states)
        refuse_other("implementation", implementation, IMPLEMENTATIONS)
        self.heads, self.head_dim, self.states = heads, head_dim, states
        self.pairs = _pairs(states, rope_fraction)
        self.implementation, self.conv = implementation, None
        inner = heads * head_dim
        self.sizes = [inner, inner, states, states, heads, heads, heads, self.pairs]
        self.input = Linear(width, sum(self.sizes), rngs=rngs)
        self.step_bias = first_steps(rngs, heads)
        self.key_norm, self.query_norm = RMSNorm(states, rngs=rngs), RMSNorm(states, rngs=rngs)
        self.key_bias, self.query_bias = NoDecay(jnp.ones((heads, states))), NoDecay(jnp.ones((heads, states)))
        self.skip = NoDecay(jnp.ones((heads,)))
        self.output = Linear(inner, width, rngs=rngs)

    def mixed(
        self, x: Activations, positions: Positions | None, before: RecurrentCache
    ) -> tuple[Activations, Float[Array, "b h n p"], Float[Array, "b 1 c"]]:
        gate, v, k, q, *steps = self._projected(x)
        k = self.key_norm(k)[:, :, None] + self.key_bias[...].astype(k.dtype)[None, None]
        q = self.query_norm(q)[:, :, None] + self.query_bias[...].astype(q.dtype)[None, None]
        v = v.reshape(*x.shape[:2], self.heads, self.head_dim)
        y, state, last = trapezoidal(q, k, v, self._steps(*steps), positions, before, self.implementation)
        y = y + self.skip[...].astype(v.dtype)[None, None, :, None] * v
        return self.output(y.reshape(gate.shape) * jax.nn.silu(gate)), state, last

    def state_shape(self) -> tuple[int, int, int]:
        return self.heads, self.states, self.head_dim

    def state(self, cache: RecurrentCache) -> Float[Array, "b h n p"]:
        """Returns S of the equations; the cache keeps the last token's own share of it apart, as `trapezoidal` says."""
        heads, inner = self.heads, self.heads * self.head_dim
        ends = [heads * self.states, heads * self.states + inner, heads * self.states + inner + heads]
        key, value, share, _ = jnp.split(cache.conv[:, 0], ends, axis=-1)
        outer = key.reshape(-1, heads, self.states, 1) * value.reshape(-1, heads, 1, self.head_dim)
        return cache.h + share[..., None, None] * outer

    def init_cache(self, batch: int, length: int) -> RecurrentCache:
        """Returns the zero state, and zeros for the key, value and weight of the token before, and for the angles."""
        of_head = self.states + self.head_dim + 1 + self.pairs
        zeros = jnp.zeros((batch, 1, self.heads * of_head), jnp.float32)
        return super().init_cache(batch, length)._replace(conv=zeros)

    def flops(self, length: int) -> int:
        """See `Counted`: maps, norms, biases, steps and turns, the recurrence of each head, skip and gate.

        Each number of the state costs its decay, an outer product, a sum, and the product with the query.
        """
        n, p, r = self.states, self.head_dim, self.pairs
        recurrence = 5 * n * p + p + 2 * n + 2 * p + 2 * p + 2 * p
        of_head = 2 * n + 2 * (6 * r) + 3 * r + 2 * SOFTPLUS + 8 + recurrence
        parts = (self.input, self.output, self.key_norm, self.query_norm)
        return sum(part.flops(length) for part in parts) + length * self.heads * of_head

    def _projected(self, x: Activations) -> list[Float[Array, "b t _"]]:
        ends = [sum(self.sizes[:count]) for count in range(1, len(self.sizes))]
        return jnp.split(self.input(x), ends, axis=-1)

    def _steps(
        self,
        step: Float[Array, "b t h"],
        rate: Float[Array, "b t h"],
        blend: Float[Array, "b t h"],
        turn: Float[Array, "b t r"],
    ) -> Steps:
        step, rate, blend, turn = (each.astype(jnp.float32) for each in (step, rate, blend, turn))
        step = jax.nn.softplus(step + self.step_bias[...][None, None])
        rate = jnp.maximum(jax.nn.softplus(rate), SLOWEST)
        turns = step[..., None] * (MOST_TURN * jnp.tanh(turn))[:, :, None]
        return Steps(step, -rate * step, jax.nn.sigmoid(blend), turns)


def trapezoidal(
    q: Float[Array, "b t h n"],
    k: Float[Array, "b t h n"],
    v: Float[Array, "b t h p"],
    steps: Steps,
    positions: Positions | None,
    before: RecurrentCache,
    implementation: str = "auto",
) -> tuple[Float[Array, "b t h p"], Float[Array, "b h n p"], Float[Array, "b 1 c"]]:
    """Returns `S_t C_t` of Mamba-3 without its skip, the last state, and what the next token needs of the last one.

    The state in the cache is S without the last token's own share. Both shares of a token are written together, at the
    next token and with the decay of that token, so that one step of `linear_state` is one token. The cache's `conv` has
    keys, values and λΔ of the last token, and the angles, in turns.
    """
    batch, length, heads, _ = k.shape
    pairs = steps.turns.shape[-1]
    carried, angles = jnp.split(before.conv, [before.conv.shape[-1] - heads * pairs], axis=-1)
    angle, last_angle = turned(steps.turns, positions, angles.reshape(batch, heads, pairs))
    q, k = _rotated(q.astype(jnp.float32), angle), _rotated(k.astype(jnp.float32), angle)
    own = steps.blend * steps.step
    now = (k, v.astype(jnp.float32), own[..., None])
    flat = jnp.concatenate([each.reshape(batch, length, -1) for each in now], axis=-1)
    previous, last = preceding(flat, positions, carried)
    sizes = [each.shape[2] * each.shape[3] for each in now]
    key, value, share = jnp.split(previous, [sizes[0], sizes[0] + sizes[1]], axis=-1)
    write = jnp.exp(steps.log_decay) * (share + (1 - steps.blend) * steps.step)
    if positions is not None:  # the token before belongs to another sequence
        begun = (positions == 0)[..., None]
        key, value, write = (jnp.where(begun, 0, each) for each in (key, value, write))
    o, state = matrix_scanned(
        q,
        key.reshape(k.shape),
        value.reshape(v.shape),
        positions,
        before.h,
        log_decay=steps.log_decay,
        write=write,
        implementation=implementation,
    )
    o = o + (own * (q * k).sum(-1))[..., None] * now[1]
    after = jnp.concatenate([last, last_angle.reshape(batch, 1, -1)], axis=-1)
    return o.astype(v.dtype), state, after


def _pairs(states: int, rope_fraction: float) -> int:
    """Returns how many pairs of channels turn; raises ValueError where the part is none of whole pairs."""
    channels = states * rope_fraction
    if not 0 < rope_fraction <= 1 or abs(channels - 2 * round(channels / 2)) > 1e-6 or round(channels) < 2:
        raise ValueError(
            f"states={states} x rope_fraction={rope_fraction:g} = {channels:g} channels to turn; "
            f"use an even number of 2 to {states}"
        )
    return round(channels / 2)


def _rotated(x: Float[Array, "b t h n"], angle: Float[Array, "b t h r"]) -> Float[Array, "b t h n"]:
    """Turns the first pairs of neighbouring channels by angles, given in turns; the rest stays."""
    cos, sin = jnp.cos(2 * jnp.pi * angle), jnp.sin(2 * jnp.pi * angle)
    width = 2 * angle.shape[-1]
    a, b = x[..., :width:2], x[..., 1:width:2]
    both = jnp.stack([a * cos - b * sin, a * sin + b * cos], axis=-1)
    return jnp.concatenate([both.reshape(*both.shape[:-2], width), x[..., width:]], axis=-1)
