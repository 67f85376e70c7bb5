"""What the machine can do, measured: the rate of a large float32 product and of a copy."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from evalkit.bench.stopwatch import spread, times

PRODUCT = 2048
COPIED = 2**26


def rates(repeats: int) -> dict[str, float]:
    """`product` in FLOP/s (a square float32 product) and `copy` in bytes/s, read and written both counted."""
    matrix = jnp.ones((PRODUCT, PRODUCT))
    product = jax.jit(lambda x: x @ x)
    vector, copy = jnp.ones((COPIED,)), into_memory_that_is_there()
    taken = times({"product": lambda: product(matrix), "copy": lambda: copy(vector)}, repeats)
    return {
        "product": 2 * PRODUCT**3 / spread(taken["product"]).median,
        "copy": 2 * vector.nbytes / spread(taken["copy"]).median,
    }


def into_memory_that_is_there() -> Callable[[Array], Array]:
    """A copy of a vector of `COPIED` numbers, always to the same place.

    To a new place most of the time goes into the system's pages: 6.7 GB/s were measured where this gives 22.
    """
    write = jax.jit(lambda x, place: x + 1, donate_argnames=("place",), keep_unused=True)
    places = [jnp.zeros((COPIED,))]

    def copy(x: Array) -> Array:
        places[0] = write(x, places[0])
        return places[0]

    return copy
