"""Flags of JAX and Flax that change numbers or break models.

evalkit sets them itself, so that data and parameters depend on the seed alone.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jax import Array
    from jax.typing import ArrayLike

GENERATOR = "threefry2x32"
FLAGS = {
    "JAX_DEFAULT_PRNG_IMPL": GENERATOR,
    "JAX_ENABLE_X64": "0",
    "JAX_NUMPY_DTYPE_PROMOTION": "standard",
    "JAX_RANDOM_SEED_OFFSET": "0",
    "JAX_THREEFRY_PARTITIONABLE": "1",
    "FLAX_HIJAX_VARIABLE": "0",
    "FLAX_USE_FLAXLIB": "0",
}
"""The environment variables of these flags, with the values that they have in evalkit."""
GUMBEL = "low"
"""How Gumbel noise is drawn: JAX's own way, unless JAX_HIGH_DYNAMIC_RANGE_GUMBEL says otherwise."""
IN_ORDER = "--xla_cpu_enable_concurrency_optimized_scheduler=false"
"""A flag of XLA that evalkit sets where memory is short (`parallel.devices.spare_memory`); it changes no number."""
NOT_TRIED = ("--xla_gpu_experimental_enable_fusion_autotuner=false", "--xla_gpu_enable_triton_gemm=false")
"""Flags of XLA that evalkit's commands set: XLA tries fewer ways to compile (`parallel.devices.compile_sooner`)."""


def fix_process() -> None:
    """Sets the variables before JAX reads them as it is imported; for a process that is evalkit's own."""
    os.environ.update(FLAGS)


@contextmanager
def fixed() -> Iterator[None]:
    """In the block, JAX's flags are `FLAGS`, whatever the environment or a notebook sets; it decorates functions, too.

    They are set for this thread, and only until the block ends. JAX's own defaults are the same, so JAX is not imported
    just to set them, unless a variable has another value.
    """
    if "jax" not in sys.modules and all(os.environ.get(name, value) == value for name, value in FLAGS.items()):
        yield
        return
    import jax

    with (
        jax.default_prng_impl(GENERATOR),
        jax.enable_x64(False),
        jax.numpy_dtype_promotion("standard"),
        jax.threefry_partitionable(True),
    ):
        yield


def for_threads(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a function for another thread: it runs with this thread's settings of JAX, which JAX keeps per thread."""
    import jax

    precision = jax.config.values["jax_default_matmul_precision"]

    def call(*arguments: Any) -> Any:
        with fixed(), jax.default_matmul_precision(precision):
            return function(*arguments)

    return call


def quick_key(seed: int) -> "Array":
    """A key whose random bits take a tenth of the work to compile; for checks alone, not for results."""
    import jax
    import numpy as np

    return jax.random.wrap_key_data(jax.device_put(np.array([0, seed, 0, seed], np.uint32)), impl="unsafe_rbg")


def random_key(seed: "ArrayLike") -> "Array":
    """The random key of a seed below 2^32: always of the same generator, and without JAX's own offset of seeds."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    if isinstance(seed, int):
        data = jax.device_put(np.array([0, seed], np.uint32))  # compiles nothing
    else:
        low = jnp.asarray(seed, jnp.uint32)
        data = jnp.stack([jnp.zeros_like(low), low], axis=-1)
    return jax.random.wrap_key_data(data, impl=GENERATOR)
