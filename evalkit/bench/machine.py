"""What the machine can do, measured: the rate of a large float32 product and of a copy."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from evalkit.bench.stopwatch import spread, times

PRODUCT = 2048
COPIED = 2**26


def rates(repeats: int) -> dict[str, float]:
    """`product` in FLOP/s (a square float32 product), and two copies in bytes/s, read and written both counted.

    `copy` writes to memory that is there, as a loop does, and `fresh_copy` to a new array, as a single call does: on a
    CPU the system's work on new pages is most of its time (6.7 GB/s against 22 on two cores).
    """
    matrix = jnp.ones((PRODUCT, PRODUCT))
    product = jax.jit(lambda x: x @ x)
    vector, copy, fresh = jnp.ones((COPIED,)), _copy_to_one_place(), jax.jit(lambda x: x + 1)
    done = {"product": lambda: product(matrix), "copy": lambda: copy(vector), "fresh_copy": lambda: fresh(vector)}
    moved = {"product": 2 * PRODUCT**3, "copy": 2 * vector.nbytes, "fresh_copy": 2 * vector.nbytes}
    return {name: moved[name] / spread(seconds).median for name, seconds in times(done, repeats).items()}


def _copy_to_one_place() -> Callable[[Array], Array]:
    """A copy of a vector of `COPIED` numbers, always to the same memory."""
    write = jax.jit(lambda x, place: x + 1, donate_argnames=("place",), keep_unused=True)
    places = [jnp.zeros((COPIED,))]

    def copy(x: Array) -> Array:
        places[0] = write(x, places[0])
        return places[0]

    return copy
