"""The gated short convolution that zoology puts before attention (Arora et al. 2023, arXiv 2312.04927)."""

from flax import nnx
from jax import Array
from jaxtyping import Float

from evalkit.models.layers.mixer import Activations, Positions
from evalkit.models.layers.modules import CausalConv1D, Linear
from evalkit.models.layers.recurrent import Recurrent, RecurrentCache


class BaseConv(Recurrent):
    """A short convolution times a linear map of the token: `y = (x W + b) ⊙ (conv(x) + c)`, the paper's BaseConv.

    It gives each token the tokens just before it, so that attention after it finds a value by its key in one step. It
    has a few taps; the paper's convolution over the whole context is left out. Raises ValueError for impossible sizes.

    Options:
      conv_width (tokens): tokens that the convolution sees, the present one included.

    >>> y, _ = BaseConv(16, rngs=nnx.Rngs(0))(jnp.zeros((1, 4, 16)), None, None)
    >>> y.shape
    (1, 4, 16)
    """

    conv: CausalConv1D

    def __init__(self, width: int, *, rngs: nnx.Rngs, conv_width: int = 3):
        self.width = width
        self.conv = CausalConv1D(width, conv_width, rngs=rngs, bias=True)
        self.gate = Linear(width, width, bias=True, rngs=rngs)

    def mixed(
        self, x: Activations, positions: Positions | None, before: RecurrentCache
    ) -> tuple[Activations, Float[Array, "b 0"], Float[Array, "b s d"]]:
        u, conv = self.convolved(x, positions, before)
        return self.gate(x) * u, before.h, conv

    def state_shape(self) -> tuple[int]:
        """See `Recurrent`: there is no state beside the inputs that the convolution keeps."""
        return (0,)

    def check_split(self, steps: int) -> None:
        """See `Split`: it needs the last inputs of the convolution from the device before."""
        self.conv.check_split(steps)

    def flops(self, length: int) -> int:
        """See `Counted`: the map, the convolution, and their product."""
        return self.gate.flops(length) + self.conv.flops(length) + length * self.width
