"""The gated short convolution that zoology puts before attention (Arora et al. 2023, arXiv 2312.04927)."""

from typing import NamedTuple

import jax.numpy as jnp
from flax import nnx
from jax import Array
from jaxtyping import Float

from evalkit.models.layers.modules import CausalConv1D, Linear
from evalkit.models.layers.positions import after, continued
from evalkit.models.layers.shapes import Activations, Positions, Rows


class ConvolutionCache(NamedTuple):
    """The last inputs of the convolution, float32."""

    conv: Float[Array, "b s d"]
    next_position: Rows


class BaseConv(nnx.Module):
    """A short convolution times a linear map of the token: `y = (x W + b) ⊙ (conv(x) + c)`, the paper's BaseConv.

    It gives a token what stood just before it, so that the attention after it finds a value by its key at once. The
    convolution has a few taps; the paper's as long as the context is left out. Raises ValueError for impossible sizes.

    Options:
      conv_width (tokens): tokens that the convolution sees, the present one included.

    >>> y, _ = BaseConv(16, rngs=nnx.Rngs(0))(jnp.zeros((1, 4, 16)), None, None)
    >>> y.shape
    (1, 4, 16)
    """

    window: int | None = None

    def __init__(self, width: int, *, rngs: nnx.Rngs, conv_width: int = 3):
        self.width = width
        self.conv = CausalConv1D(width, conv_width, rngs=rngs, bias=True)
        self.gate = Linear(width, width, bias=True, rngs=rngs)

    def __call__(
        self, x: Activations, positions: Positions | None, cache: ConvolutionCache | None
    ) -> tuple[Activations, ConvolutionCache | None]:
        """Mixes `x [b, t, d]`; see `Mixer` for positions and cache."""
        before = self.init_cache(x.shape[0], 0) if cache is None else cache
        u, conv = self.conv(x, positions, before.conv.astype(x.dtype))
        y = self.gate(x) * u
        if cache is None:
            return y, None
        where = continued(before.next_position, x.shape[1]) if positions is None else positions
        return y, ConvolutionCache(conv.astype(cache.conv.dtype), after(where, cache.next_position))

    def init_cache(self, batch: int, length: int) -> ConvolutionCache:
        """Returns zeros, whose size does not depend on `length`."""
        inputs = jnp.zeros((batch, self.conv.taps - 1, self.width), jnp.float32)
        return ConvolutionCache(inputs, jnp.zeros((batch,), jnp.int32))

    def check_split(self, steps: int) -> None:
        """See `Split`: of the device before it needs the last inputs of the convolution."""
        self.conv.check_split(steps)

    def flops(self, length: int) -> int:
        """See `Counted`: the map, the convolution, and their product."""
        return self.gate.flops(length) + self.conv.flops(length) + length * self.width
