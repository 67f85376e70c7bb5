"""`bench scan`: the recurrence alone, by every implementation that this backend has (fig. 8a), and the fused RG-LRU."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from evalkit.bench.stopwatch import Race, compiled, doubling, name_of_pass, rates
from evalkit.kernels import linear_scan, rglru
from evalkit.numerics import random_key

# What a backend has beside XLA's own loops.
PALLAS = {"gpu": ("triton",), "tpu": ("mosaic_tpu",), "cpu": ()}
# So long a measurement makes the time of dispatching a call small beside it.
LEAST_S = 5e-3
# Inputs, outputs, cotangents and the intermediates of the dearest contender, in arrays of float32.
ARRAYS_AT_ONCE = 16


@dataclass(frozen=True)
class Contender:
    """One way to run the recurrence; `inputs` arrays `[b, t, d]` of `dtype` go in, and one comes out."""

    operation: str
    implementation: str
    dtype: str
    inputs: int
    function: Callable[..., tuple[Array, Array]]

    def bytes(self, elements: int, backward: bool) -> int:
        """What must be read and written: forward its inputs and h; backward those, dh, and a gradient of each input."""
        arrays = self.inputs + 1 + (2 * self.inputs + 2 if backward else 0)
        # A linear scan's gradient does not need its x.
        arrays -= backward and self.operation == "linear_scan"
        return arrays * elements * jnp.dtype(self.dtype).itemsize


def measure(batch: int, width: int, shortest: int, longest: int, repeats: int, patience: int) -> dict[str, Any]:
    """Milliseconds, GB/s and share of a copy's rate, forward and with the gradient, at lengths that double.

    A contender whose call takes more than `patience` seconds is not run at longer lengths; a length that would not fit
    in memory is not run; the rows say so.
    """
    copy = rates(repeats)["fresh_copy"]  # a call writes its outputs to new arrays
    race = Race(repeats, patience, LEAST_S)
    rows = [row for length in doubling(shortest, longest) for row in _at_length(race, batch, length, width, copy)]
    return {"batch": batch, "width": width, "machine_fresh_copy_gb_per_s": copy / 1e9, "rows": rows}


def _at_length(race: Race, batch: int, length: int, width: int, copy: float) -> Iterator[dict[str, Any]]:
    elements = batch * length * width
    needed = ARRAYS_AT_ONCE * 4 * elements
    lacking = f"needs about {needed / 2**30:.0f} GiB" if needed > memory() else None
    for backward in (False, True):
        racing = {f"{one.operation} {one.implementation} {one.dtype} {backward}": one for one in contenders()}
        makers = {name: partial(call, one, batch, length, width, backward) for name, one in racing.items()}
        results = dict.fromkeys(racing, lacking) if lacking else race.run(makers, length)
        for one, taken in zip(racing.values(), results.values(), strict=True):
            row = {"operation": one.operation, "implementation": one.implementation, "dtype": one.dtype}
            row |= {"pass": name_of_pass(backward), "length": length}
            if isinstance(taken, float):
                rate = one.bytes(elements, backward) / taken
                yield row | {"ms": taken * 1e3, "gb_per_s": rate / 1e9, "of_copy": rate / copy}
            else:
                yield row | {"not_run": taken}


def contenders() -> Iterator[Contender]:
    """Pallas where this backend has it, XLA's loop, and pairs in logarithmic depth, with our gradient and JAX's own."""
    pallas = PALLAS[jax.default_backend()]
    for implementation in (*pallas, "sequential", "associative"):
        function = partial(linear_scan, implementation=implementation)
        yield Contender("linear_scan", implementation, "float32", 2, function)
    for dtype in ("float32", "bfloat16"):
        yield Contender("linear_scan", "lax.associative_scan", dtype, 2, plain_associative)
    for implementation in (*pallas, "sequential"):
        for dtype in ("float32", "bfloat16"):
            yield Contender("rglru", implementation, dtype, 3, partial(rglru, implementation=implementation))


def plain_associative(x: Array, a: Array) -> tuple[Array, Array]:
    """What one writes without this project: `lax.associative_scan` in the inputs' own dtype, its gradient by JAX."""

    def compose(left: tuple[Array, Array], right: tuple[Array, Array]) -> tuple[Array, Array]:
        (a1, x1), (a2, x2) = left, right
        return a1 * a2, a2 * x1 + x2

    h = lax.associative_scan(compose, (a, x), axis=1)[1]
    return h, h[:, -1]


def call(contender: Contender, batch: int, length: int, width: int, backward: bool) -> Callable[[], Any]:
    """The contender on random inputs, with the gradient of all of them if `backward`."""
    keys = jax.random.split(random_key(0), contender.inputs)
    dtype = jnp.dtype(contender.dtype)
    inputs = [jax.random.normal(key, (batch, length, width), dtype) for key in keys]
    if contender.operation == "linear_scan":
        inputs[1] = jax.nn.sigmoid(inputs[1])
    rest = () if contender.operation == "linear_scan" else (jnp.full((width,), -0.5),)
    return compiled(lambda *inputs: contender.function(*inputs, *rest)[0], backward, *inputs)


def memory() -> int:
    """Bytes of the device's memory that may be used: all that JAX may allocate, or half of a computer's own."""
    stats = jax.local_devices()[0].memory_stats()
    if stats and "bytes_limit" in stats:
        return stats["bytes_limit"]
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
