"""The block of Mamba-2 (Dao and Gu 2024, arXiv 2405.21060), by the recurrence of a matrix state."""

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jaxtyping import Float

from evalkit.checks import refuse_below_1, refuse_other
from evalkit.kernels.matrix.linear_state import IMPLEMENTATIONS
from evalkit.models.layers.decays import HeadDecay
from evalkit.models.layers.mixer import Activations, Positions
from evalkit.models.layers.modules import CausalConv1D, Linear, NoDecay, RMSNorm, side_by_side
from evalkit.models.layers.positions import matrix_scanned
from evalkit.models.layers.recurrent import Recurrent, RecurrentCache


class Mamba2Block(Recurrent):
    """Mamba-2: a matrix a head that decays as a whole, with keys and queries that all heads share.

    Values v, keys B and queries C are `SiLU(conv(x W) + bias)`. A head's step is `Δ = softplus(x W + b)`, and
    `S_t = exp(−A Δ_t) S_{t-1} + Δ_t v_t B_tᵀ`, `y_t = S_t C_t + D v_t`. The output is `RMSNorm(y_t · SiLU(x W))` over
    all channels, through a linear map. As published, A starts uniform in 1 to 16, Δ log-uniform in 0.001 to 0.1, and D
    at 1. Its paper has no MLPs beside it (`mlp_expansion=0`). Raises ValueError for impossible settings.

    Options:
      heads (heads): heads, each with a state of its own.
      head_dim (channels): the width of a head's values, P in the paper.
      states (numbers): the width of keys and queries, N in the paper; a head's state has `head_dim · states` numbers.
      conv_width (tokens): tokens that the convolution sees, the present one included.
      implementation: how the recurrence is computed: `auto`, `sequential` or `chunked` (docs/kernels.md).

    >>> y, _ = Mamba2Block(16, heads=2, head_dim=4, states=8, rngs=nnx.Rngs(0))(jnp.zeros((1, 4, 16)), None, None)
    >>> y.shape
    (1, 4, 16)
    """

    conv: CausalConv1D

    def __init__(
        self,
        width: int,
        *,
        heads: int,
        head_dim: int,
        states: int,
        rngs: nnx.Rngs,
        conv_width: int = 4,
        implementation: str = "auto",
    ):
        refuse_below_1(heads=heads, head_dim=head_dim, states=states)
        refuse_other("implementation", implementation, IMPLEMENTATIONS)
        self.heads, self.head_dim, self.states = heads, head_dim, states
        self.implementation = implementation
        inner = heads * head_dim
        self.input = Linear(width, inner + 2 * states, rngs=rngs)
        self.conv = CausalConv1D(inner + 2 * states, conv_width, bias=True, rngs=rngs)
        self.alpha = HeadDecay(width, heads, states, 1, rngs=rngs)
        self.skip = NoDecay(jnp.ones((heads,)))
        self.gate = Linear(width, inner, rngs=rngs)
        self.norm = RMSNorm(inner, rngs=rngs)
        self.output = Linear(inner, width, rngs=rngs)

    def mixed(
        self, x: Activations, positions: Positions | None, before: RecurrentCache
    ) -> tuple[Activations, Float[Array, "b h n p"], Float[Array, "b s c"]]:
        u, step, gate = side_by_side(x, self.input, self.alpha.into, self.gate)
        u, conv = self.convolved(u, positions, before)
        y, state = self._recurrence(jax.nn.silu(u), self.alpha.steps(step), positions, before.h)
        return self.output(self.norm(y * jax.nn.silu(gate))), state, conv

    def state_shape(self) -> tuple[int, int, int]:
        return self.heads, self.states, self.head_dim

    def flops(self, length: int) -> int:
        """See `Counted`: maps, convolution, steps, norm, gate, both SiLUs, and the recurrence of each head.

        Each number of the state costs its decay, an outer product, a sum, and the product with the query.
        """
        parts = (self.input, self.conv, self.alpha, self.gate, self.norm, self.output)
        of_head = self.head_dim * (5 * self.states + 1 + 2 + 2)
        silus = self.heads * self.head_dim + 2 * self.states
        return sum(part.flops(length) for part in parts) + length * (silus + self.heads * of_head)

    def _recurrence(
        self, u: Float[Array, "b t c"], step: Float[Array, "b t h"], positions: Positions | None, state: Array
    ) -> tuple[Activations, Float[Array, "b h n p"]]:
        """Runs over values, keys and queries `u`; returns the outputs with their skip, and the last state."""
        batch, length, _ = u.shape
        inner = self.heads * self.head_dim
        v, k, q = jnp.split(u, [inner, inner + self.states], axis=-1)
        v = v.reshape(batch, length, self.heads, self.head_dim)
        k, q = (jnp.broadcast_to(x[:, :, None], (*v.shape[:3], self.states)) for x in (k, q))
        decay = self.alpha.of_steps(step)
        o, last = matrix_scanned(
            q, k, v, positions, state, log_decay=decay, write=step, implementation=self.implementation
        )
        y = o + v * self.skip[...].astype(v.dtype)[None, None, :, None]
        return y.reshape(batch, length, inner), last
