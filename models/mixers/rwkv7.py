"""RWKV-7's time mixing and channel mixing (Peng et al. 2025, arXiv 2503.14456), each a mixer of its own."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jaxtyping import Float

from evalkit.checks import refuse_below_1, refuse_other
from evalkit.kernels.matrix.linear_state import IMPLEMENTATIONS
from evalkit.models.layers.mixer import Activations, Positions, Values
from evalkit.models.layers.modules import HeadNorm, Linear, NoDecay, add_bias, matmul, scaled
from evalkit.models.layers.positions import matrix_scanned, preceding
from evalkit.models.layers.recurrent import Recurrent, RecurrentCache

STRONGEST = -math.exp(-0.5)
"""The least log decay of a token: a channel keeps at least 0.545 of itself, as published."""
EPSILON = 64e-5
"""What the norm of a head adds to the variance, as published."""
SHIFTS = {"query": 0.1, "decay": 0.45, "key": 0.35, "value": 0.35, "rate": 0.45, "gate": 0.1}
"""μ of each input starts as `1 − (channel / width)^power`, with the powers of the authors' middle layer."""


class Adapter(nnx.Module):
    """Two maps with `rank` channels and a function between them, and an optional bias, all without weight decay.

    The first map starts at zero, so that at first the output is the same for all tokens; the second starts orthogonal.
    """

    def __init__(
        self,
        width: int,
        outputs: int,
        rank: int,
        *,
        rngs: nnx.Rngs,
        between: Callable[[Array], Array] | None = None,
        bias: Float[Array, " d"] | None = None,
    ):
        self.between = between
        self.into = NoDecay(jnp.zeros((width, rank)))
        self.up = NoDecay(nnx.initializers.orthogonal(0.1)(rngs.params(), (rank, outputs)))
        self.bias = None if bias is None else NoDecay(bias)

    def flops(self, length: int) -> int:
        """See `Counted`."""
        width, rank = self.into.shape
        return length * (2 * width * rank + self.up.shape[1] * (2 * rank + (self.bias is not None)))

    def __call__(self, x: Float[Array, "b t d"]) -> Float[Array, "b t _"]:
        """Returns `between(x A) B + bias` in float32."""
        inner = matmul(x, self.into[...])
        y = matmul(inner if self.between is None else self.between(inner), self.up[...]).astype(jnp.float32)
        return y if self.bias is None else add_bias(y, self.bias[...])


class TimeMixing(Recurrent):
    """RWKV-7's time mixing: a matrix a head under a delta rule whose decays and rates are vectors of a token.

    Its six inputs are `x_t + μ ⊙ (x_{t-1} − x_t)`, each with a μ of its own. A head has the state
    `S_t = S_{t-1} (Diag(w) − κ (a ⊙ κ)ᵀ) + v k̃ᵀ` and reads `o_t = S_t r`: r, k and v are linear maps, the decay is
    `w = exp(−e^{−1/2} σ(w₀ + tanh(x A) B))`, the rate `a = σ(a₀ + x A B)`, the removal key κ is `ξ ⊙ k` at length 1,
    and the replacement key `k̃ = k ⊙ (1 + α ⊙ (a − 1))`. The output is `W ((norm(o) + (r · (ρ ⊙ k̃)) v) ⊙ g)`, with
    `g = σ(x A) B` and a norm of each head. With `value_residual` the value is `v + σ(ν₀ + x A B) ⊙ (v₁ − v)`, where v₁
    is that of the first such block of the model (see `ValueSharing`). Parameters start as in a middle layer of the
    authors' small training example. Raises ValueError for impossible settings.

    Options:
      heads (heads): heads, each with a state of its own.
      head_dim (channels): the width of a head's keys and values; its state has the square of it.
      rank (channels): the width between the two maps of decays, rates, gates and value residuals.
      value_residual: whether values mix with those of the model's first block of this kind.
      implementation: how the recurrence is computed: `auto`, `sequential` or `chunked` (docs/kernels.md).

    >>> y, _ = TimeMixing(16, heads=2, head_dim=8, rank=4, rngs=nnx.Rngs(0))(jnp.zeros((1, 4, 16)), None, None)
    >>> y.shape
    (1, 4, 16)
    """

    def __init__(
        self,
        width: int,
        *,
        heads: int,
        head_dim: int,
        rank: int,
        rngs: nnx.Rngs,
        value_residual: bool = False,
        implementation: str = "auto",
    ):
        refuse_below_1(heads=heads, head_dim=head_dim, rank=rank)
        refuse_other("implementation", implementation, IMPLEMENTATIONS)
        self.heads, self.head_dim, self.implementation, self.conv = heads, head_dim, implementation, None
        self.value_width = inner = heads * head_dim
        across, zigzag = jnp.linspace(-0.5, 0.5, inner), jnp.tile(_zigzag(head_dim), heads)

        def adapter(bias: Array | None = None, between: Callable[[Array], Array] | None = None) -> Adapter:
            return Adapter(width, inner, rank, rngs=rngs, between=between, bias=bias)

        self.shifts = nnx.Dict({name: _first_shift(width, power) for name, power in SHIFTS.items()})
        self.query, self.key, self.value = (_drawn(rngs, width, inner, bound) for bound in (0.5, 0.05, 0.5))
        self.decay = adapter(-5.5 + 6 * (across + 0.5) ** 1.8 + 2.5 * zigzag, jnp.tanh)
        self.rate = adapter(-0.19 + 0.3 * zigzag + 0.4 * across)
        self.gate = adapter(None, jax.nn.sigmoid)
        self.residual = adapter(0.73 - 0.4 * across) if value_residual else None
        self.removal = NoDecay(0.71 - 0.1 * across)  # ξ
        self.replacement = NoDecay(jnp.full((inner,), 1.02))  # α
        self.bonus = NoDecay(jnp.full((heads, head_dim), -0.04))  # ρ
        self.norm = HeadNorm(heads, head_dim, epsilon=EPSILON, bias=True)
        self.output = _drawn(rngs, inner, width, 0.0)

    def with_values(
        self, x: Activations, positions: Positions | None, cache: RecurrentCache | None, values: Values | None
    ) -> tuple[Activations, RecurrentCache | None, Values]:
        """See `ValueSharing`."""
        before = self.init_cache(x.shape[0], 0) if cache is None else cache
        y, state, last, values = self._mixed(x, positions, before, values)
        return y, None if cache is None else before.followed(state, last, positions, x.shape[1]), values

    def mixed(
        self, x: Activations, positions: Positions | None, before: RecurrentCache
    ) -> tuple[Activations, Float[Array, "b h k v"], Float[Array, "b 1 d"]]:
        return self._mixed(x, positions, before, None)[:3]

    def state_shape(self) -> tuple[int, int, int]:
        return self.heads, self.head_dim, self.head_dim

    def init_cache(self, batch: int, length: int) -> RecurrentCache:
        """Returns the zero state, and zeros for the token before the first."""
        zeros = jnp.zeros((batch, 1, self.query.kernel.shape[0]), jnp.float32)
        return super().init_cache(batch, length)._replace(conv=zeros)

    def flops(self, length: int) -> int:
        """See `Counted`: shifts, maps, decay, rate and keys, the recurrence of each head, its norm, bonus and gate.

        Each number of the state costs its decay, two products and sums with keys, one with the value and one with the
        query.
        """
        (width, inner), k = self.query.kernel.shape, self.head_dim
        adapters = [one for one in (self.decay, self.rate, self.gate, self.residual) if one is not None]
        maps = sum(part.flops(length) for part in (self.query, self.key, self.value, self.output, *adapters))
        shifts = width * (1 + 2 * len(SHIFTS))
        # Value residual; log decay and rate; ξ and the length of κ; a ⊙ κ and k̃; bonus; gate.
        of_channel = 6 * (self.residual is not None) + 4 + 3 + 5 + 4 + 4 + 2
        return maps + self.norm.flops(length) + length * (shifts + self.heads * 9 * k * k + inner * of_channel)

    def _mixed(
        self, x: Activations, positions: Positions | None, before: RecurrentCache, values: Values | None
    ) -> tuple[Activations, Float[Array, "b h k v"], Float[Array, "b 1 d"], Values]:
        earlier, last = _earlier(x, positions, before)
        shifted = {name: x + scaled(earlier - x, mu[...].astype(x.dtype)) for name, mu in self.shifts.items()}
        q, k, v = self.query(shifted["query"]), self.key(shifted["key"]), self.value(shifted["value"])
        values = v if values is None else values
        if self.residual is not None:
            v = v + ((values - v) * jax.nn.sigmoid(self.residual(shifted["value"]))).astype(v.dtype)
        rate = jax.nn.sigmoid(self.rate(shifted["rate"]))
        log_decay = STRONGEST * jax.nn.sigmoid(self.decay(shifted["decay"]))
        removal = _unit(self._in_heads(scaled(k.astype(jnp.float32), self.removal[...])))
        k = (k * (1 + scaled(rate - 1, self.replacement[...]))).astype(k.dtype)
        q, k, v, rate, log_decay = map(self._in_heads, (q, k, v, rate, log_decay))
        erased = (removal, rate * removal)
        o, state = matrix_scanned(
            *(q, k, v, positions, before.h), log_decay=log_decay, erased=erased, implementation=self.implementation
        )
        agreed = (q * k * self.bonus[...].astype(q.dtype)[None, None]).sum(axis=-1, keepdims=True)
        y = self.norm(o) + (agreed * v).reshape(*x.shape[:2], -1)
        return self.output(y * self.gate(shifted["gate"]).astype(y.dtype)), state, last, values

    def _in_heads(self, x: Float[Array, "b t c"]) -> Float[Array, "b t h k"]:
        return x.reshape(*x.shape[:2], self.heads, self.head_dim)


class ChannelMixing(Recurrent):
    """RWKV-7's channel mixing: `W relu(V (x_t + μ ⊙ (x_{t-1} − x_t)))²`, an MLP that also sees the previous token.

    It stands in `model.pattern` as a block of its own, since it keeps the last token between calls; the model's own
    MLPs are left out by `mlp_expansion: 0`. V starts orthogonal, W and μ at zero, as in
    the authors' small example of training.

    Options:
      expansion (share): the hidden width over the model's; the paper's is 4.

    >>> y, _ = ChannelMixing(16, expansion=4, rngs=nnx.Rngs(0))(jnp.zeros((1, 4, 16)), None, None)
    >>> y.shape
    (1, 4, 16)
    """

    def __init__(self, width: int, *, expansion: float, rngs: nnx.Rngs):
        channels = expansion * width
        hidden = round(channels) if math.isfinite(channels) else 0
        if hidden < 1 or abs(hidden - channels) > 1e-6 * hidden:
            raise ValueError(f"expansion={expansion:g} makes {channels:g} channels; use a whole number, 1 or more")
        self.conv = None
        self.shift = NoDecay(jnp.zeros((width,)))
        self.up, self.down = _drawn(rngs, width, hidden, 0.0), _drawn(rngs, hidden, width, 0.0)
        first = nnx.initializers.orthogonal(max(1.0, hidden / width) ** 0.5)
        self.up.kernel = nnx.Param(first(rngs.params(), (width, hidden)))

    def mixed(
        self, x: Activations, positions: Positions | None, before: RecurrentCache
    ) -> tuple[Activations, Float[Array, "b 0"], Float[Array, "b 1 d"]]:
        earlier, last = _earlier(x, positions, before)
        hidden = jax.nn.relu(self.up(x + scaled(earlier - x, self.shift[...].astype(x.dtype))))
        return self.down(hidden * hidden), before.h, last

    def state_shape(self) -> tuple[int]:
        """Returns the shape of an empty state: only the previous token is kept."""
        return (0,)

    def init_cache(self, batch: int, length: int) -> RecurrentCache:
        """Returns zeros for the token before the first."""
        zeros = jnp.zeros((batch, 1, self.shift.shape[0]), jnp.float32)
        return super().init_cache(batch, length)._replace(conv=zeros)

    def flops(self, length: int) -> int:
        """See `Counted`: the shift, both maps, and a maximum and a square for each hidden channel."""
        width, hidden = self.up.kernel.shape
        return self.up.flops(length) + self.down.flops(length) + length * (3 * width + 2 * hidden)


def _earlier(
    x: Activations, positions: Positions | None, before: RecurrentCache
) -> tuple[Activations, Float[Array, "b 1 d"]]:
    """The token before each, zero where a sequence begins, and the last token."""
    earlier, last = preceding(x, positions, before.conv)
    return earlier if positions is None else jnp.where((positions == 0)[..., None], 0, earlier), last


def _first_shift(width: int, power: float) -> NoDecay:
    return NoDecay(1 - (jnp.arange(width) / width) ** power)


def _drawn(rngs: nnx.Rngs, inputs: int, outputs: int, bound: float) -> Linear:
    """A map whose weights start uniform within ± `bound / √inputs`."""
    drawn = Linear(inputs, outputs, rngs=rngs)
    limit = bound * inputs**-0.5
    drawn.kernel = nnx.Param(jax.random.uniform(rngs.params(), (inputs, outputs), minval=-limit, maxval=limit))
    return drawn


def _zigzag(head_dim: int) -> Float[Array, " k"]:
    """From −1 to 1 across a head, flat in the middle."""
    line = jnp.linspace(-1, 1, head_dim) if head_dim > 1 else jnp.zeros(1)
    return line * jnp.abs(line)


def _unit(x: Float[Array, "b t h k"]) -> Float[Array, "b t h k"]:
    """`x` at length 1 over the last axis; a key of zeros stays zero."""
    return x * jax.lax.rsqrt((x * x).sum(axis=-1, keepdims=True) + 1e-12)
