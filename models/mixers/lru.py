"""The recurrent block with a recurrence that has no gates: a control for the effect of the RG-LRU's gates."""

from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jaxtyping import Float

from evalkit.models.layers.decays import first_decays
from evalkit.models.layers.mixer import Activations, Positions
from evalkit.models.layers.positions import scanned
from evalkit.models.layers.shares import Division
from evalkit.models.mixers.rglru import TwoBranches


class LRU(nnx.Module):
    """`h_t = a h_{t-1} + sqrt(1 − a²) x_t` with one learned decay for each channel: eq. 4 without both gates.

    `a = σ(Λ)` starts uniform in `decay_range`. Neither the scale of the input nor the decay depends on the token (the
    real-valued case of Orvieto et al. 2023, arXiv 2303.06349).
    Raises ValueError for an impossible range.
    """

    def __init__(self, width: int, *, rngs: nnx.Rngs, decay_range: tuple[float, float] | list[float] = (0.9, 0.999)):
        self.decay = first_decays(rngs, width, decay_range)  # Λ, the logit of a

    def __call__(
        self, x: Activations, positions: Positions | None, h: Float[Array, "b r"] | None
    ) -> tuple[Activations, Float[Array, "b r"]]:
        """Runs over `x` from state `h`; returns the outputs and the last state (float32)."""
        log_a = -jax.nn.softplus(-self.decay[...])  # log σ(Λ), and below 1 − a², both exact near a = 1
        a = jnp.broadcast_to(jnp.exp(log_a)[None, None], x.shape)
        entering = x.astype(jnp.float32) * jnp.sqrt(-jnp.expm1(2 * log_a))[None, None]
        y, last = scanned(entering, a, positions, h)
        return y.astype(x.dtype), last

    def flops(self, length: int) -> int:
        """See `Counted`: the scaled input and the recurrence."""
        return length * self.decay.shape[0] * (1 + 2)

    def division(self) -> Division:
        return Division({"decay": 0}, {})

    def check_split(self, steps: int) -> None:
        """See `Split`: it needs only the state from the device before."""

    def forgetting(self, x: Activations) -> Activations:
        """Returns δ = −log a, the same at every step."""
        return jnp.broadcast_to(jax.nn.softplus(-self.decay[...])[None, None], x.shape)


class UngatedRecurrentBlock(TwoBranches):
    """The recurrent block with an `LRU` in place of the RG-LRU: a control without selection.

    Options, beside those of `TwoBranches`:
      decay_range: the lowest and the highest decay at the start.

    >>> y, _ = UngatedRecurrentBlock(16, width_rnn=16, rngs=nnx.Rngs(0))(jnp.zeros((1, 4, 16)), None, None)
    >>> y.shape
    (1, 4, 16)
    """

    def __init__(
        self,
        width: int,
        *,
        width_rnn: int,
        rngs: nnx.Rngs,
        conv_width: int = 4,
        decay_range: tuple[float, float] | list[float] = (0.9, 0.999),
    ):
        unit = partial(LRU, width_rnn, decay_range=decay_range)
        super().__init__(width, unit, width_rnn=width_rnn, conv_width=conv_width, rngs=rngs)
