"""Products with large bfloat16 matrices, in blocks on a CPU, which would convert the whole matrix to float32."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float

from evalkit.platforms import by_platform

BLOCK = 1280  # columns; divides the sizes of RecurrentGemma's and Gemma's matrices, and their 256,000 tokens
LARGE = 2**22  # entries: a smaller matrix costs little memory in float32


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


def _in_blocks(x: Array, weight: Array, dtype: DTypeLike, axis: int) -> Array:
    # The loop reads integers, because XLA for the CPU converts whole bfloat16 arrays to float32 before any loop.
    # A bfloat16 is the upper half of a float32.
    bits = jax.lax.bitcast_convert_type(weight, jnp.uint16)

    def block(start: Array) -> Array:
        part = jax.lax.dynamic_slice_in_dim(bits, start, BLOCK, axis).astype(jnp.uint32) << 16
        return _whole(x.astype(jnp.float32), jax.lax.bitcast_convert_type(part, jnp.float32), jnp.float32, axis)

    columns = jax.lax.map(block, jnp.arange(0, weight.shape[axis], BLOCK)).astype(dtype)
    return jnp.moveaxis(columns, 0, 1).reshape(x.shape[0], weight.shape[axis])
