"""What the machine can do, measured: the rate of a large float32 product and of a copy."""

import jax
import jax.numpy as jnp

from evalkit.bench.stopwatch import spread, times

PRODUCT = 2048
COPIED = 2**26


def rates(repeats: int) -> dict[str, float]:
    """`product` in FLOP/s (a square float32 product) and `copy` in bytes/s, read and written both counted."""
    matrix = jnp.ones((PRODUCT, PRODUCT))
    vector = jnp.ones((COPIED,))
    product = jax.jit(lambda x: x @ x)
    copy = jax.jit(lambda x: x + 1)
    taken = times({"product": lambda: product(matrix), "copy": lambda: copy(vector)}, repeats)
    return {
        "product": 2 * PRODUCT**3 / spread(taken["product"]).median,
        "copy": 2 * vector.nbytes / spread(taken["copy"]).median,
    }
