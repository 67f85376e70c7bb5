"""Times repeated calls: medians and quartiles, the candidates called in turn so that noise falls on all alike.

It also measures what the machine can do: the rate of a large float32 product and of a copy.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from evalkit.core.errors import UserError


class Yardstick(NamedTuple):
    """What `rates` times: a product of square matrices with `product` rows, and copies of `copied` numbers.

    Calls follow one another, without waiting, for `least_s`; 0: each is timed by itself.
    """

    product: int
    copied: int
    least_s: float


ON_A_CPU = Yardstick(2048, 2**26, 0.0)
ON_AN_ACCELERATOR = Yardstick(8192, 2**28, 0.1)
"""The time of a single call on 256 MiB is mostly dispatch there: 1.6 TB/s instead of 4.2 on an H200. These calls take
half a millisecond and more, so that the next is dispatched meanwhile."""


class Work(NamedTuple):
    """A call, and how much it does: the bytes that it reads and writes, or its FLOPs."""

    call: Callable[[], Array]
    amount: int


class Quartiles(NamedTuple):
    """Seconds: the median of the repeats and its quartiles."""

    median: float
    low: float
    high: float


def times(functions: Mapping[str, Callable[[], Any]], repeats: int, least_s: float = 0.0) -> dict[str, list[float]]:
    """Seconds of each call, each function called once before the clock starts and then in turn with the others.

    A function faster than `least_s` is called several times in a row, without waiting, to fill this time.
    """
    calls = {name: _calls(function, least_s) for name, function in functions.items()}
    taken: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repeats):
        for name, function in functions.items():
            taken[name].append(_time(function, calls[name]))
    return taken


class Race:
    """Contenders at lengths that grow; one whose call takes more than `patience` seconds goes to no longer one."""

    def __init__(self, repeats: int, patience: float, least_s: float = 0.0):
        self.repeats, self.patience, self.least_s = repeats, patience, least_s
        self.stopped: dict[str, str] = {}

    def run(self, contenders: Mapping[str, Callable[[], Callable[[], Any]]], length: int) -> dict[str, float | str]:
        """Median seconds of each contender, which is made first; or in words why it is not run."""
        results: dict[str, float | str] = {name: self.stopped.get(name, "") for name in contenders}
        running = {name: make() for name, make in contenders.items() if name not in self.stopped}
        for name, seconds in times(running, self.repeats, self.least_s).items():
            results[name] = taken = quartiles(seconds).median
            if taken > self.patience:
                self.stopped[name] = f"took {taken:.1f} s at length {length}"
        return results


def doubling(shortest: int, longest: int) -> Iterator[int]:
    """`shortest`, twice and four times as much, up to `longest`. Raises UserError where there is none."""
    if shortest > longest:
        raise UserError(f"shortest={shortest} is above longest={longest}; give shortest={longest} or less")
    while shortest <= longest:
        yield shortest
        shortest *= 2


def compiled(function: Callable[..., Any], backward: bool, *inputs: Any) -> partial[Any]:
    """The jitted function of `inputs`; if `backward`, also the gradient of all of them, with its value as cotangent."""

    def gradient(*inputs: Any) -> Any:
        value, pull = jax.vjp(function, *inputs)
        return value, pull(value)

    return partial(jax.jit(gradient if backward else function), *inputs)


def name_of_pass(backward: bool) -> str:
    """The name of the pass in a row."""
    return "forward+backward" if backward else "forward"


def _calls(function: Callable[[], Any], least_s: float) -> int:
    """How many calls fill `least_s`; the first one, which may compile, does not count."""
    jax.block_until_ready(function())
    return 1 if not least_s else max(1, round(least_s / _time(function, 1)))


def _time(function: Callable[[], Any], calls: int) -> float:
    began = time.perf_counter()
    for _ in range(calls):
        result = function()
    jax.block_until_ready(result)
    return (time.perf_counter() - began) / calls


def quartiles(seconds: list[float]) -> Quartiles:
    """The median and the quartiles."""
    low, median, high = np.quantile(seconds, [0.25, 0.5, 0.75]).tolist()
    return Quartiles(median, low, high)


def rates(repeats: int, dtype: str = "float32") -> dict[str, float]:
    """`product` in FLOP/s (a square product of `dtype`), and two copies in bytes/s, read and written both counted.

    `copy` writes to memory that is there, as a loop does, and `fresh_copy` to a new array, as a single call does: on a
    CPU the system's work on new pages is most of its time (6.7 GB/s against 22 on two cores). An accelerator's memory
    is JAX's already, so that both are the same there, and one number.
    """
    on_a_cpu = jax.default_backend() == "cpu"
    size = ON_A_CPU if on_a_cpu else ON_AN_ACCELERATOR
    work = {"product": product(size.product, dtype), "copy": copy_to_one_place(size.copied)}
    if on_a_cpu:
        work["fresh_copy"] = fresh_copy(size.copied)
    taken = times({name: one.call for name, one in work.items()}, repeats, size.least_s)
    measured = {name: one.amount / quartiles(taken[name]).median for name, one in work.items()}
    return {"fresh_copy": measured["copy"]} | measured


def product(rows: int, dtype: str) -> Work:
    """A square matrix by itself, of random numbers: on ones a GPU takes less power, and keeps a higher clock."""
    matrix = jnp.asarray(np.random.default_rng(0).standard_normal((rows, rows), np.float32), dtype)
    return Work(partial(jax.jit(lambda x: x @ x), matrix), 2 * rows**3)


def fresh_copy(count: int) -> Work:
    """A copy of a vector of float32 to a new array."""
    vector = jnp.ones((count,))
    return Work(partial(jax.jit(lambda x: x + 1), vector), 2 * vector.nbytes)


def copy_to_one_place(count: int) -> Work:
    """A copy of a vector of float32, always to the same memory."""
    write = jax.jit(lambda x, place: x + 1, donate_argnames=("place",), keep_unused=True)
    vector, places = jnp.ones((count,)), [jnp.zeros((count,))]

    def copy() -> Array:
        places[0] = write(vector, places[0])
        return places[0]

    return Work(copy, 2 * vector.nbytes)
