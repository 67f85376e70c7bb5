"""The mLSTM (Beck et al. 2024, arXiv 2405.04517) as in xLSTM 7B (2503.13427): a matrix state with exponential gates."""

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jaxtyping import Float

from evalkit.checks import refuse_below_1, refuse_other
from evalkit.kernels.matrix.linear_state import IMPLEMENTATIONS
from evalkit.models.layers.mixer import Activations, Positions
from evalkit.models.layers.modules import BiasedLater, HeadNorm, Linear, NoDecay, add_bias, side_by_side
from evalkit.models.layers.positions import matrix_scanned
from evalkit.models.layers.recurrent import Recurrent, RecurrentCache

CAP = 15.0
"""Gates before their exponential or sigmoid are `15 tanh(x / 15)`, as published."""
EPSILON = 1e-6
"""What is added to the normaliser, as published."""
OPEN = (3.0, 6.0)
"""The biases of the heads' forget gates start evenly spaced from the first to the second, as published."""


class MLSTMBlock(Recurrent):
    """The mLSTM: a matrix a head, with an exponential input gate and a sigmoid forget gate, and a normalised output.

    `C_t = f_t C_{t-1} + i_t v_t k_tᵀ`, `n_t = f_t n_{t-1} + i_t k_t` and `h_t = C_t q_t / max(|n_t · q_t|, 1)`, with
    `i = exp(ĩ)`, `f = σ(f̃)` of a head and `q / √k`. Both states are kept divided by `exp(m)`, where `m_t` is
    `max(log f_t + m_{t-1}, ĩ_t)`, so that no gate overflows; m cancels in h, except for the 1e-6 that is added to
    the divided normaliser. The output is `W (norm(h) ⊙ σ(x W))`,
    with a layer norm of each head. As in xLSTM 7B there is no convolution, and gates are capped at ± 15. Raises
    ValueError for impossible settings.

    Options:
      heads (heads): heads, each with a state of its own.
      head_dim (channels): the width of a head's values.
      key_dim (channels): the width of its keys and queries; xLSTM 7B has half of `head_dim`.
      input_bias (logit): where the input gates start; xLSTM 7B has −10, which short trainings hardly leave.
      implementation: how the recurrence is computed: `auto`, `sequential` or `chunked` (docs/kernels.md).

    >>> y, _ = MLSTMBlock(16, heads=2, head_dim=8, key_dim=4, rngs=nnx.Rngs(0))(jnp.zeros((1, 4, 16)), None, None)
    >>> y.shape
    (1, 4, 16)
    """

    def __init__(
        self,
        width: int,
        *,
        heads: int,
        head_dim: int,
        key_dim: int,
        rngs: nnx.Rngs,
        input_bias: float = -10.0,
        implementation: str = "auto",
    ):
        refuse_below_1(heads=heads, head_dim=head_dim, key_dim=key_dim)
        refuse_other("implementation", implementation, IMPLEMENTATIONS)
        if not abs(input_bias) <= CAP:
            raise ValueError(f"input_bias={input_bias:g}; allowed: -{CAP:g} to {CAP:g}")
        self.heads, self.head_dim, self.key_dim = heads, head_dim, key_dim
        self.implementation, self.conv = implementation, None
        self.sizes = [heads * key_dim, heads * key_dim, heads * head_dim, heads * head_dim]
        self.input = Linear(width, sum(self.sizes), rngs=rngs)
        self.gates = BiasedLater(width, 2 * heads, rngs=rngs, bias=True)
        self.gates.bias = NoDecay(jnp.concatenate([jnp.full((heads,), input_bias), jnp.linspace(*OPEN, heads)]))
        self.norm = HeadNorm(heads, head_dim)
        self.output = Linear(heads * head_dim, width, rngs=rngs)

    def mixed(
        self, x: Activations, positions: Positions | None, before: RecurrentCache
    ) -> tuple[Activations, Float[Array, "b h k v"], Float[Array, "b 1 c"]]:
        u, gates = side_by_side(x, self.input, self.gates)
        q, k, v, o = jnp.split(u, [sum(self.sizes[:count]) for count in (1, 2, 3)], axis=-1)
        bias = self.gates.bias
        assert bias is not None
        gates = add_bias(gates.astype(jnp.float32), bias[...])
        input_gate, forget = jnp.split(CAP * jnp.tanh(gates / CAP), 2, axis=-1)
        y, state, largest = normalised(
            self._in_heads(q),
            self._in_heads(k),
            self._in_heads(v),
            input_gate,
            jax.nn.log_sigmoid(forget),
            positions,
            before,
            self.implementation,
        )
        return self.output(self.norm(y) * jax.nn.sigmoid(o)), state, largest

    def state_shape(self) -> tuple[int, int, int]:
        """Returns the shape of C with one more value, for n."""
        return self.heads, self.key_dim, self.head_dim + 1

    def state(self, cache: RecurrentCache) -> Float[Array, "b h k v"]:
        """Returns C and n of the equations, which the cache keeps divided by `exp(m)`; m is at most `CAP`."""
        return cache.h * jnp.exp(cache.conv[:, 0, :, None, None])

    def init_cache(self, batch: int, length: int) -> RecurrentCache:
        """Returns zero states, and 0 for m of each head."""
        return super().init_cache(batch, length)._replace(conv=jnp.zeros((batch, 1, self.heads), jnp.float32))

    def flops(self, length: int) -> int:
        """See `Counted`: maps, gates, the recurrence and the normaliser of each head, norm and output gate."""
        k, v = self.key_dim, self.head_dim + 1
        maps = sum(part.flops(length) for part in (self.input, self.gates, self.output, self.norm))
        of_head = 5 * k * v + v + k + 2 * 3 + 4 + 6 + 2 + self.head_dim + 2 * self.head_dim
        return maps + length * self.heads * of_head

    def _in_heads(self, x: Float[Array, "b t c"]) -> Float[Array, "b t h k"]:
        return x.reshape(*x.shape[:2], self.heads, -1)


def normalised(
    q: Float[Array, "b t h k"],
    k: Float[Array, "b t h k"],
    v: Float[Array, "b t h v"],
    input_gate: Float[Array, "b t h"],
    log_forget: Float[Array, "b t h"],
    positions: Positions | None,
    before: RecurrentCache,
    implementation: str = "auto",
) -> tuple[Float[Array, "b t h v"], Float[Array, "b h k u"], Float[Array, "b 1 h"]]:
    """Returns `h_t` of the mLSTM, the last states C and n divided by `exp(m)`, and the last m."""
    largest, earlier = _largest(input_gate, log_forget, positions, before.conv[:, 0])
    values = jnp.concatenate([v.astype(jnp.float32), jnp.ones((*v.shape[:3], 1), jnp.float32)], axis=-1)
    read, state = matrix_scanned(
        q.astype(jnp.float32) * q.shape[-1] ** -0.5,
        k.astype(jnp.float32),
        values,
        positions,
        before.h,
        log_decay=log_forget + earlier - largest,
        write=jnp.exp(input_gate - largest),
        implementation=implementation,
    )
    normaliser = jnp.maximum(jnp.abs(read[..., -1]), jnp.exp(-largest)) + EPSILON
    return (read[..., :-1] / normaliser[..., None]).astype(v.dtype), state, largest[:, -1:]


def _largest(
    input_gate: Float[Array, "b t h"],
    log_forget: Float[Array, "b t h"],
    positions: Positions | None,
    start: Float[Array, "b h"],
) -> tuple[Float[Array, "b t h"], Float[Array, "b t h"]]:
    """`m_t = max(log f_t + m_{t-1}, ĩ_t)` and the m before each token: 0 where a sequence begins; pads change nothing.

    m cancels in what is read but for `EPSILON`, so no gradient goes through it.
    """
    by, at_least = jax.lax.stop_gradient((log_forget, input_gate))
    if positions is not None:
        begun, pad = (positions == 0)[..., None], (positions < 0)[..., None]
        at_least = jnp.where(begun, jnp.maximum(by, at_least), jnp.where(pad, -jnp.inf, at_least))
        by = jnp.where(begun, -jnp.inf, jnp.where(pad, 0.0, by))

    def joined(one: tuple[Array, Array], two: tuple[Array, Array]) -> tuple[Array, Array]:
        return one[0] + two[0], jnp.maximum(one[1] + two[0], two[1])

    total, own = jax.lax.associative_scan(joined, (by, at_least), axis=1)
    # After a position 0 nothing is left of `start`, even if it is NaN.
    largest = jnp.where(total == -jnp.inf, own, jnp.maximum(total + start[:, None], own))
    earlier = jnp.concatenate([start[:, None], largest[:, :-1]], axis=1)
    return largest, earlier if positions is None else jnp.where((positions == 0)[..., None], 0.0, earlier)
