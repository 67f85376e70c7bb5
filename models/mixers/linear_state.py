"""Mixers with a matrix for a state: linear attention, gated or not, and the delta rules, one block with settings."""

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jaxtyping import Float, Int

from evalkit.checks import refuse_below_1, refuse_other
from evalkit.kernels.matrix.linear_state import IMPLEMENTATIONS
from evalkit.models.layers.decays import DECAYS, GATES
from evalkit.models.layers.mixer import Activations, Positions
from evalkit.models.layers.modules import CausalConv1D, Linear, RMSNorm, side_by_side
from evalkit.models.layers.positions import matrix_scanned
from evalkit.models.layers.recurrent import Recurrent, RecurrentCache

MOST = 2.0
"""With unit keys and a β above this an eigenvalue of the transition is below −1, and the state grows."""


class MatrixStateBlock(Recurrent):
    """A matrix a head, which decays, is erased along a key and written to: linear attention and the delta rules.

    Queries, keys and values are `SiLU(conv(x W))`, split into heads. With them, token by token,
    `S_t = S_{t-1} Diag(α_t) (I − β_t k_t k_tᵀ) + w_t v_t k_tᵀ` and `o_t = S_t q_t / √head_dim`. The output is
    `RMSNorm(o_t)` a head, times a gate of the token, through a linear map. The settings give these models:

    | model | decay α | erasure | gate | source |
    |---|---|---|---|---|
    | `linear_attention` | none | 0 | none | Katharopoulos et al. 2020, 2006.16236; norm: Qin et al. 2022, 2210.10340 |
    | `gla` | sigmoid | 0 | silu | Yang et al. 2023, 2312.06635 |
    | `deltanet` | none | 1 | none | Yang et al. 2024, 2406.06484 |
    | `gated_deltanet` | head | 1 | silu | Yang et al. 2024, 2412.06464 |
    | `kda` | channel | 1 | low_rank | Kimi Linear 2025, 2510.26692 |
    | `deltanet_negative` | none | 2 | none | Grazzi et al. 2024, 2411.12537 |
    | `deltaproduct` | none | 2 | none | Siems et al. 2025, 2502.10297 |

    Without erasure β is 0 and w is 1. With it `β = w = erasure · σ(x W)` a head, and queries and keys are divided by
    their length; the eigenvalues of a step then lie between `1 − erasure` and 1. With `delta_steps` n, every token has
    n keys, values and β, which update the state one after the other. The decay comes before the first update.

    Linear attention is as in the tables of these papers: no feature map with a normaliser, whose sum of keys would be
    a state of its own. The convolution is that of the delta rules' papers, and all models here have it, so that they
    differ only in their rule. Raises ValueError for impossible settings.

    Options:
      heads (heads): heads, each with a state of its own.
      head_dim (channels): the width of a head's queries and keys.
      value_dim (channels): the width of a head's values; null: `head_dim`. A state has `head_dim · value_dim` numbers.
      conv_width (tokens): tokens that the convolution sees, the present one included; 0: no convolution.
      decay: the form of α: `none` (1); `head` or `channel` (`exp(−A softplus(x W + b))` for each); `sigmoid` (GLA's).
      erasure (factor): the largest β; above 1 a sign can turn.
      delta_steps (steps): delta steps a token; above 1 only with erasure.
      gate: the gate that multiplies the output.
      rank (channels): the width between the two maps of a low-rank decay or gate.
      implementation: how the recurrence is computed: `auto`, `sequential` or `chunked` (docs/kernels.md).

    >>> block = MatrixStateBlock(16, heads=2, head_dim=4, erasure=1, rngs=nnx.Rngs(0))
    >>> y, cache = block(jnp.zeros((1, 8, 16)), None, block.init_cache(batch=1, length=8))
    >>> y.shape, cache.h.shape
    ((1, 8, 16), (1, 2, 4, 4))
    """

    def __init__(
        self,
        width: int,
        *,
        heads: int,
        head_dim: int,
        rngs: nnx.Rngs,
        value_dim: int | None = None,
        conv_width: int = 4,
        decay: str = "none",
        erasure: float = 0.0,
        delta_steps: int = 1,
        gate: str = "none",
        rank: int = 16,
        implementation: str = "auto",
    ):
        value_dim = head_dim if value_dim is None else value_dim
        refuse_below_1(heads=heads, head_dim=head_dim, value_dim=value_dim, delta_steps=delta_steps, rank=rank)
        refuse_other("decay", decay, DECAYS)
        refuse_other("gate", gate, GATES)
        refuse_other("implementation", implementation, IMPLEMENTATIONS)
        _refuse_erasure(erasure, delta_steps)
        self.heads, self.head_dim, self.value_dim = heads, head_dim, value_dim
        self.erasure, self.delta_steps, self.implementation = erasure, delta_steps, implementation
        if conv_width < 0:
            raise ValueError(f"conv_width={conv_width}; allowed: a number of tokens from 1, or 0 for no convolution")
        self.sizes = [heads * head_dim, delta_steps * heads * head_dim, delta_steps * heads * value_dim]
        self.input = Linear(width, sum(self.sizes), rngs=rngs)
        self.conv = CausalConv1D(sum(self.sizes), conv_width, rngs=rngs) if conv_width else None
        self.beta = Linear(width, delta_steps * heads, rngs=rngs) if erasure else None
        make_decay, make_gate = DECAYS[decay], GATES[gate]
        self.alpha = None if make_decay is None else make_decay(width, heads, head_dim, rank, rngs=rngs)
        self.norm = RMSNorm(value_dim, rngs=rngs)
        self.gate = None if make_gate is None else make_gate(width, heads * value_dim, rank, rngs=rngs)
        self.output = Linear(heads * value_dim, width, rngs=rngs)

    def mixed(
        self, x: Activations, positions: Positions | None, before: RecurrentCache
    ) -> tuple[Activations, Float[Array, "b h k v"], Float[Array, "b s c"]]:
        u, beta, decay, gate = self._projected(x)
        u, conv = self.convolved(u, positions, before)
        o, state = self._recurrence(jax.nn.silu(u), beta, decay, positions, before.h)
        o = self.norm(o).reshape(*x.shape[:2], -1)
        return self.output(o if gate is None else o * gate), state, conv

    def state_shape(self) -> tuple[int, int, int]:
        return self.heads, self.head_dim, self.value_dim

    def flops(self, length: int) -> int:
        """See `Counted`: maps, convolution and its SiLU, decay, norm and gate, and the recurrence of each head.

        A delta step takes the product of the state with a key, and both weights; a write an outer product and a sum.
        """
        parts = (self.input, self.conv, self.beta, self.alpha, self.gate, self.output)
        total = sum(part.flops(length) for part in parts if part is not None) + self.norm.flops(length * self.heads)
        k, v, n = self.head_dim, self.value_dim, self.delta_steps
        of_head = k + n * 2 * k * v + 2 * k * v + v * (self.gate is not None) + k * v * (self.alpha is not None)
        if self.beta is not None:
            of_head += (1 + n) * (3 * k + 1) + n * (1 + k + 2 * v + 2 * k * v)
        return total + length * (sum(self.sizes) + self.heads * of_head)

    def _projected(self, x: Activations) -> tuple[Float[Array, "b t c"], Array | None, Array | None, Array | None]:
        """Returns the input of the convolution, β and log α (float32), and the gate; None for those that are off."""
        maps = [self.input] if self.beta is None else [self.input, self.beta]
        parts = [part for part in (self.alpha, self.gate) if part is not None]
        u, *projections = side_by_side(x, *maps, *(part.into for part in parts))
        gate = None if self.gate is None else self.gate(projections.pop())
        decay = None if self.alpha is None else self.alpha(projections.pop())
        beta = None if self.beta is None else self.erasure * jax.nn.sigmoid(projections.pop().astype(jnp.float32))
        return u, beta, decay, gate

    def _recurrence(
        self,
        u: Float[Array, "b t c"],
        beta: Array | None,
        decay: Array | None,
        positions: Positions | None,
        state: Array,
    ) -> tuple[Float[Array, "b t h v"], Float[Array, "b h k v"]]:
        """Runs over queries, keys and values `u`: `delta_steps` steps a token, of which the last one is read."""
        q, k, v = jnp.split(u, [self.sizes[0], self.sizes[0] + self.sizes[1]], axis=-1)
        n, tokens = self.delta_steps, (u.shape[0], u.shape[1])
        q = q.reshape(*tokens, self.heads, self.head_dim)
        k, v = (part.reshape(tokens[0], tokens[1] * n, self.heads, -1) for part in (k, v))
        if beta is not None:
            q, k, beta = unit(q), unit(k), beta.reshape(tokens[0], tokens[1] * n, self.heads)
        q = _at_step(q * jnp.asarray(self.head_dim**-0.5, q.dtype), n - 1, n)
        where = None if positions is None else _repeated(positions, n)
        decay = None if decay is None else _at_step(decay, 0, n)
        o, last = matrix_scanned(
            *(q, k, v, where, state), log_decay=decay, beta=beta, write=beta, implementation=self.implementation
        )
        return o[:, n - 1 :: n], last


def _refuse_erasure(erasure: float, delta_steps: int) -> None:
    """Raises ValueError for a β with which states grow, and for delta steps without erasure."""
    if not 0 <= erasure <= MOST:
        raise ValueError(f"erasure={erasure:g}; allowed: 0 to {MOST:g}")
    if delta_steps > 1 and not erasure:
        raise ValueError(f"delta_steps={delta_steps} with erasure=0; give an erasure above 0, or delta_steps=1")


def unit(x: Float[Array, "*n k"]) -> Float[Array, "*n k"]:
    """Returns `x` divided by its length over the last axis, float32."""
    x = x.astype(jnp.float32)
    return x * jax.lax.rsqrt((x * x).sum(axis=-1, keepdims=True) + 1e-6)


def _at_step(x: Float[Array, "b t *n"], step: int, steps: int) -> Float[Array, "b s *n"]:
    """Spreads `x` in time: each token's value at its own `step` of `steps`, and zeros at its others."""
    padding = [(0, 0)] * x.ndim
    padding.insert(2, (step, steps - 1 - step))
    spread = jnp.pad(x[:, :, None], padding)
    return spread.reshape(x.shape[0], x.shape[1] * steps, *x.shape[2:])


def _repeated(positions: Positions, steps: int) -> Int[Array, "b s"]:
    """Returns positions with `steps` steps a token; at position 0, only the first step begins a document."""
    later = jnp.where(positions == 0, 1, positions)
    every = jnp.stack([positions, *[later] * (steps - 1)], axis=2)
    return every.reshape(positions.shape[0], -1)
