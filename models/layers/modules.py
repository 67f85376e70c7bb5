"""The layers of a block: norm, linear maps, gated MLP and causal convolution (De et al. 2024, sec. 2)."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Bool, Float, Int

from evalkit.checks import refuse_below_1
from evalkit.kernels import across
from evalkit.models.layers.mixer import Activations, Positions
from evalkit.models.layers.shares import Division, into, out_of
from evalkit.platforms import by_platform

lecun = nnx.initializers.lecun_normal()

# Up to this width a block-diagonal product is faster as one dense product: 16 blocks of 4 x 4 fill no vector unit.
DENSE_UP_TO = 256
# For products with large bfloat16 matrices, which a CPU computes in blocks.
BLOCK = 1280  # columns; divides the sizes of RecurrentGemma's and Gemma's matrices, and their 256,000 tokens
LARGE = 2**22  # entries: a smaller matrix costs little memory in float32


GELU_TIMES = 9
"""The floating-point operations of one `gelu_times`, beside its tanh."""


class NoDecay(nnx.Param):
    """A parameter without weight decay: biases, norms, the embedding, and what sets a recurrence's decays and steps."""


def product(x: Float[Array, "n i"], weight: Float[Array, "i o"], dtype: DTypeLike) -> Float[Array, "n o"]:
    """Returns `x @ weight` in `dtype`."""
    return _product(x, weight, dtype, axis=1)


def product_transposed(x: Float[Array, "n i"], weight: Float[Array, "o i"], dtype: DTypeLike) -> Float[Array, "n o"]:
    """Returns `x @ weightᵀ` in `dtype`."""
    return _product(x, weight, dtype, axis=0)


def _product(x: Array, weight: Array, dtype: DTypeLike, axis: int) -> Array:
    whole = partial(_whole, dtype=dtype, axis=axis)
    if weight.dtype != jnp.bfloat16 or weight.size < LARGE or weight.shape[axis] % BLOCK:
        return whole(x, weight)
    return by_platform(x, weight, cpu=partial(_in_blocks, dtype=dtype, axis=axis), default=whole)


def _whole(x: Array, weight: Array, dtype: DTypeLike, axis: int) -> Array:
    return jax.lax.dot_general(x, weight, (((1,), (1 - axis,)), ((), ())), preferred_element_type=dtype)


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _in_blocks(x: Array, weight: Array, dtype: DTypeLike, axis: int) -> Array:
    """The same as `_whole`, by columns of the weight; its gradient is that of `_whole`, since bits have none."""
    # The loop reads integers, because XLA for the CPU converts whole bfloat16 arrays to float32 before any loop.
    # A bfloat16 is the upper half of a float32.
    bits = jax.lax.bitcast_convert_type(weight, jnp.uint16)

    def block(start: Array) -> Array:
        part = jax.lax.dynamic_slice_in_dim(bits, start, BLOCK, axis).astype(jnp.uint32) << 16
        return _whole(x.astype(jnp.float32), jax.lax.bitcast_convert_type(part, jnp.float32), jnp.float32, axis)

    columns = jax.lax.map(block, jnp.arange(0, weight.shape[axis], BLOCK)).astype(dtype)
    return jnp.moveaxis(columns, 0, 1).reshape(x.shape[0], weight.shape[axis])


def _in_blocks_forward(x: Array, weight: Array, dtype: DTypeLike, axis: int) -> tuple[Array, tuple[Array, Array]]:
    return _in_blocks(x, weight, dtype, axis), (x, weight)


def _in_blocks_backward(dtype: DTypeLike, axis: int, kept: tuple[Array, Array], dy: Array) -> tuple[Array, Array]:
    _, backward = jax.vjp(partial(_whole, dtype=dtype, axis=axis), *kept)
    return backward(dy)


_in_blocks.defvjp(_in_blocks_forward, _in_blocks_backward)


def matmul(x: Float[Array, "... i"], weight: Float[Array, "i o"]) -> Float[Array, "... o"]:
    """Returns `x @ weight` in the dtype of `x`."""
    # Flattened to a 2-D product: 3-D ones are several times slower on a CPU.
    flat = product(x.reshape(-1, x.shape[-1]), weight.astype(x.dtype), x.dtype)
    return flat.reshape(*x.shape[:-1], weight.shape[1])


@jax.custom_vjp
def scaled(x: Float[Array, "*n d"], scale: Float[Array, " d"]) -> Float[Array, "*n d"]:
    """Returns `x * scale` over the last axis, with a gradient that is fast for a batch of one sequence."""
    return x * scale.reshape((1,) * (x.ndim - 1) + (-1,))


def _scaled_forward(x: Array, scale: Array) -> tuple[Array, tuple[Array, Array]]:
    return scaled(x, scale), (x, scale)


def _scaled_backward(kept: tuple[Array, Array], dy: Array) -> tuple[Array, Array]:
    x, scale = kept
    # Summed over flat rows: on a CPU, XLA sums an array whose first axis is 1 twenty times slower.
    return scaled(dy, scale), (dy * x).reshape(-1, x.shape[-1]).sum(axis=0)


scaled.defvjp(_scaled_forward, _scaled_backward)


class RMSNorm(nnx.Module):
    """Root-mean-square norm with a learned scale, computed in float32."""

    def __init__(self, width: int, *, rngs: nnx.Rngs):
        self.scale = NoDecay(jnp.ones((width,)))

    def flops(self, length: int) -> int:
        """See `Counted`: squares and their sum, and two products for each channel; the mean and 1e-6 for each row."""
        return length * (4 * self.scale.shape[0] + 2)

    def __call__(self, x: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
        """`x / rms(x) * scale` over the last axis."""
        # In bfloat16 the mean of squares would keep eight bits. Flat rows, as in `matmul`.
        rows = x.astype(jnp.float32).reshape(-1, x.shape[-1])
        inverse = jax.lax.rsqrt(jnp.mean(rows * rows, axis=-1, keepdims=True) + 1e-6)
        return scaled(rows * inverse, self.scale[...]).reshape(x.shape).astype(x.dtype)


class HeadNorm(nnx.Module):
    """Layer norm of each head: subtracts its mean, divides by its deviation; a learned scale and, with `bias`, a bias.

    `epsilon` is added to the variance. It is computed in float32.
    """

    def __init__(self, heads: int, head_dim: int, *, epsilon: float = 1e-6, bias: bool = False):
        self.epsilon = epsilon
        self.scale = NoDecay(jnp.ones((heads * head_dim,)))
        self.bias = NoDecay(jnp.zeros((heads * head_dim,))) if bias else None

    def flops(self, length: int) -> int:
        """See `Counted`: mean, centring, squares and their mean, the quotient, scale and bias of each channel."""
        return length * self.scale.shape[0] * (6 + (self.bias is not None))

    def __call__(self, x: Float[Array, "b t h v"]) -> Float[Array, "b t c"]:
        """Returns all heads side by side."""
        wide = x.astype(jnp.float32)
        centred = wide - wide.mean(axis=-1, keepdims=True)
        variance = (centred * centred).mean(axis=-1, keepdims=True)
        y = scaled((centred * jax.lax.rsqrt(variance + self.epsilon)).reshape(*x.shape[:2], -1), self.scale[...])
        return (y if self.bias is None else add_bias(y, self.bias[...])).astype(x.dtype)


def add_bias(x: Float[Array, "*n d"], bias: Float[Array, " d"]) -> Float[Array, "*n d"]:
    """`x + bias` over the last axis, in the dtype of `x`."""
    return x + bias.astype(x.dtype).reshape((1,) * (x.ndim - 1) + (-1,))


class Linear(nnx.Module):
    """A linear map with LeCun initialisation; its bias, if it has one, starts at zero.

    Linear(64, 128, rngs=nnx.Rngs(0))(x)   # x [b, t, 64] -> [b, t, 128]
    """

    def __init__(self, inputs: int, outputs: int, *, rngs: nnx.Rngs, bias: bool = False):
        self.kernel = nnx.Param(lecun(rngs.params(), (inputs, outputs)))
        self.bias = NoDecay(jnp.zeros((outputs,))) if bias else None

    def flops(self, length: int) -> int:
        """See `Counted`: a multiply and an add for each weight, and an add for each bias."""
        inputs, outputs = self.kernel.shape
        return length * outputs * (2 * inputs + (self.bias is not None))

    def __call__(self, x: Float[Array, "*n i"]) -> Float[Array, "*n o"]:
        """Returns `x @ kernel + bias`."""
        return self.with_bias(matmul(x, self.kernel[...]))

    def with_bias(self, y: Float[Array, "*n o"]) -> Float[Array, "*n o"]:
        """Returns the product `y` plus the bias, if there is one."""
        return y if self.bias is None else add_bias(y, self.bias[...])

    def in_float32(self, x: Float[Array, "*n i"]) -> Float[Array, "*n o"]:
        """Returns the same in float32: in bfloat16, a bias far from zero would be rounded alike on every token."""
        return self.with_bias(matmul(x, self.kernel[...]).astype(jnp.float32))


class BiasedLater(Linear):
    """A linear map with a bias that its owner adds, in float32."""

    def with_bias(self, y: Float[Array, "*n o"]) -> Float[Array, "*n o"]:
        """Returns `y`."""
        return y


def side_by_side(x: Float[Array, "*n i"], *maps: Linear) -> list[Float[Array, "*n _"]]:
    """Applies several linear maps to the same `x`, in one matrix product."""
    # Narrow products, taken one by one, leave vector units idle.
    kernels = [linear.kernel[...] for linear in maps]
    ends = np.cumsum([kernel.shape[1] for kernel in kernels])[:-1].tolist()
    products: Any = _columns(matmul(x, jnp.concatenate(kernels, axis=1)), tuple(ends))
    return [linear.with_bias(product) for linear, product in zip(maps, products, strict=True)]


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def _columns(x: Float[Array, "*n d"], ends: tuple[int, ...]) -> list[Float[Array, "*n _"]]:
    """Returns `x` cut at these columns, with a gradient that is put together once."""
    return jnp.split(x, ends, axis=-1)


def _columns_backward(ends: tuple[int, ...], _: None, gradients: list[Array]) -> tuple[Array]:
    # Both products of a linear map's gradient read it: XLA for a GPU would put it together for each of them.
    return (jax.lax.optimization_barrier(jnp.concatenate(gradients, axis=-1)),)


_columns.defvjp(lambda x, ends: (_columns(x, ends), None), _columns_backward)


class BlockDiagonalLinear(nnx.Module):
    """A linear map of `blocks` independent blocks with a bias (De et al. 2024, sec. 4.1).

    Raises ValueError if `blocks` does not divide `width`.
    """

    def __init__(self, width: int, blocks: int, *, rngs: nnx.Rngs):
        if blocks < 1 or width % blocks:
            raise ValueError(f"width {width} is not divisible by gate_blocks={blocks}; use a divisor of {width}")
        block = width // blocks
        self.blocks = blocks
        # Initialised block by block: the fan-in of a channel is its block, not the width.
        self.kernel = nnx.Param(
            jax.vmap(lambda key: lecun(key, (block, block)))(jax.random.split(rngs.params(), blocks))
        )
        self.bias = NoDecay(jnp.zeros((width,)))

    def flops(self, length: int) -> int:
        """See `Counted`: of the blocks alone, though narrow ones are computed as one dense product."""
        blocks, block, _ = self.kernel.shape
        return length * blocks * block * (2 * block + 1)

    def __call__(self, x: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
        """Returns each block of channels times its own matrix, plus the bias."""
        kernel, width = self.kernel[...].astype(x.dtype), x.shape[-1]
        if width <= DENSE_UP_TO:
            y = matmul(x, dense(self))
        else:
            blocks = x.reshape(-1, *kernel.shape[:2])  # on a mesh a device has its share of the blocks
            y = jnp.einsum("zni,nij->znj", blocks, kernel).reshape(x.shape)
        return add_bias(y, self.bias[...])


def dense(*maps: BlockDiagonalLinear) -> Float[Array, "d _"]:
    """Returns the whole matrices of the maps side by side; they are zero outside the blocks."""
    kernels = jnp.stack([blocks.kernel[...] for blocks in maps])
    count, blocks, block, _ = kernels.shape
    eye = jnp.eye(blocks, dtype=kernels.dtype)
    return jnp.einsum("gnij,nm->nigmj", kernels, eye).reshape(blocks * block, count * blocks * block)


class GatedMLP(nnx.Module):
    """A gated MLP: two branches of width `hidden`, one through GeLU, multiplied and projected back (sec. 2.2).

    `bias` adds a bias to all three maps, as in RecurrentGemma; the paper's maps have none.
    """

    def __init__(self, width: int, hidden: int, *, rngs: nnx.Rngs, bias: bool = False):
        self.gate = Linear(width, hidden, bias=bias, rngs=rngs)
        self.up = Linear(width, hidden, bias=bias, rngs=rngs)
        self.down = Linear(hidden, width, bias=bias, rngs=rngs)

    def division(self) -> Division:
        """See `Divided`: each device has some of the channels."""
        return Division({**into("gate", "up"), **out_of("down")}, {"channels": self.up.kernel.shape[1]})

    def flops(self, length: int) -> int:
        """See `Counted`."""
        maps = sum(linear.flops(length) for linear in (self.gate, self.up, self.down))
        return maps + length * GELU_TIMES * self.gate.kernel.shape[1]

    def __call__(self, x: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
        """Returns `down(gelu(gate(x)) * up(x))`."""
        return self.down(gelu_times(self.gate(x), self.up(x)))


@jax.custom_vjp
def gelu_times(x: Float[Array, "*n"], y: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """Returns `gelu(x) * y`, with GeLU in its tanh form."""
    return _gelu_and_slope(x)[0] * y


def _gelu_times_forward(x: Array, y: Array) -> tuple[Array, tuple[Array, Array]]:
    return gelu_times(x, y), (x, y)


def _gelu_times_backward(kept: tuple[Array, Array], dz: Array) -> tuple[Array, Array]:
    # The tanh is computed again: on a CPU that is cheaper than keeping it in memory.
    x, y = kept
    gelu, slope = _gelu_and_slope(x)
    return dz * y * slope, dz * gelu


gelu_times.defvjp(_gelu_times_forward, _gelu_times_backward)


def _gelu_and_slope(x: Array) -> tuple[Array, Array]:
    """Returns GeLU and its derivative."""
    inner = (2 / np.pi) ** 0.5 * (x + 0.044715 * x * x * x)
    tanh = jnp.tanh(inner)
    slope = (2 / np.pi) ** 0.5 * (1 + 3 * 0.044715 * x * x)
    half = 0.5 * (1 + tanh)
    return x * half, half + 0.5 * x * (1 - tanh * tanh) * slope


@jax.custom_vjp
def _summed_over_taps(inputs: Float[Array, "b s d"], kernel: Float[Array, "n d"]) -> Activations:
    """Returns the convolution of `inputs`, with one sum over time for the gradients of all taps."""
    steps = inputs.shape[1] - len(kernel) + 1
    terms = (inputs[:, tap : tap + steps] * weights[None, None] for tap, weights in enumerate(kernel))
    return sum(terms, jnp.zeros((), inputs.dtype))


def _taps_forward(inputs: Array, kernel: Array) -> tuple[Array, tuple[Array, Array]]:
    return _summed_over_taps(inputs, kernel), (inputs, kernel)


def _taps_backward(kept: tuple[Array, Array], dy: Array) -> tuple[Array, Array]:
    inputs, kernel = kept
    taps, (_, steps, width) = len(kernel), dy.shape
    terms = [
        jnp.pad(dy * kernel[tap][None, None], ((0, 0), (tap, taps - 1 - tap), (0, 0))) for tap in reversed(range(taps))
    ]

    def products(inputs: Array, dy: Array) -> list[Array]:
        return [dy * inputs[:, tap : tap + steps] for tap in range(taps)]

    def one_by_one(inputs: Array, dy: Array) -> Array:
        return jnp.stack([product.reshape(-1, width).sum(axis=0) for product in products(inputs, dy)])

    def together(inputs: Array, dy: Array) -> Array:
        return jnp.stack(products(inputs, dy), axis=2).reshape(-1, taps, width).sum(axis=0)

    # A GPU launches one kernel for all sums; a CPU sums them one by one as it always did, in the same order.
    dkernel = by_platform(inputs, dy, cpu=one_by_one, default=together)
    return sum(terms[1:], terms[0]), dkernel


_summed_over_taps.defvjp(_taps_forward, _taps_backward)


class CausalConv1D(nnx.Module):
    """Depth-wise causal convolution with `taps` weights per channel, the last for the present (sec. 2.3).

    Its state is the last `taps - 1` inputs. It has no bias by default: the paper counts `conv_width * d_rnn` weights.
    Weights start with the standard deviation `std`; None is `taps**-0.5`, which keeps the variance of the input.
    """

    def __init__(self, width: int, taps: int, *, rngs: nnx.Rngs, bias: bool = False, std: float | None = None):
        refuse_below_1(conv_width=taps)
        self.taps = taps
        if std is not None and not std > 0:
            raise ValueError(f"conv_init={std}; allowed: above 0, or null")
        deviation = taps**-0.5 if std is None else std
        self.kernel = nnx.Param(jax.random.normal(rngs.params(), (taps, width)) * deviation)
        self.bias = NoDecay(jnp.zeros((width,))) if bias else None

    def check_split(self, steps: int) -> None:
        """Raises ValueError if a device, with `steps` tokens, has fewer inputs than the next device needs from it."""
        if self.taps - 1 > steps:
            raise ValueError(f"conv_width={self.taps} reaches beyond the {steps} tokens of a device")

    def flops(self, length: int) -> int:
        """See `Counted`: a multiply and an add for each tap of a channel, and an add for each bias."""
        taps, width = self.kernel.shape
        return length * width * (2 * taps + (self.bias is not None))

    def __call__(
        self, x: Activations, positions: Positions | None, state: Float[Array, "b s d"]
    ) -> tuple[Activations, Float[Array, "b s d"]]:
        """Convolves `x`, which follows the inputs in `state [b, taps - 1, d]`; also returns the new state."""
        if positions is None:
            inputs = jnp.concatenate([state, x], axis=1)
            return self._convolve(inputs, None), inputs[:, x.shape[1] :]
        # Pads may stand between the state and the first token. So the tokens are moved together before the
        # convolution, and back after it.
        valid = positions >= 0
        order = jnp.argsort(~valid, axis=1, stable=True)
        together = jnp.take_along_axis(x, order[..., None], axis=1)
        segments = jnp.cumsum(jnp.take_along_axis(positions == 0, order, axis=1), axis=1)
        segments = jnp.pad(segments, ((0, 0), (self.taps - 1, 0)))
        state, after = across(state, self._state(state, together, segments, valid))
        y = self._convolve(jnp.concatenate([state, together], axis=1), segments)
        back = jnp.argsort(order, axis=1)
        return jnp.take_along_axis(y, back[..., None], axis=1), after

    def _convolve(self, inputs: Float[Array, "b s d"], segments: Int[Array, "b s"] | None) -> Activations:
        """Returns the sum over taps, without inputs of an earlier segment."""
        kernel = self.kernel[...].astype(inputs.dtype)
        steps = inputs.shape[1] - self.taps + 1
        if segments is None:
            y = _summed_over_taps(inputs, kernel)
        else:
            y = jnp.zeros((), inputs.dtype)
            for tap in range(self.taps):
                same = segments[:, tap : tap + steps] == segments[:, self.taps - 1 :]
                y = y + jnp.where(same[..., None], scaled(inputs[:, tap : tap + steps], kernel[tap]), 0)
        return y if self.bias is None else add_bias(y, self.bias[...])

    def _state(self, state: Array, together: Array, segments: Array, valid: Bool[Array, "b t"]) -> Array:
        """Returns the last `taps - 1` inputs of each row, with zeros for those of an earlier segment."""
        count = valid.sum(axis=1)
        index = count[:, None] + jnp.arange(self.taps - 1)[None]
        inputs = jnp.concatenate([state, together], axis=1)
        latest = jnp.take_along_axis(segments, (count + self.taps - 2)[:, None], axis=1)
        same = jnp.take_along_axis(segments, index, axis=1) == latest
        return jnp.where(same[..., None], jnp.take_along_axis(inputs, index[..., None], axis=1), 0)
