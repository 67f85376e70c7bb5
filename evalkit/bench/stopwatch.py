"""Times by repetition: medians and quartiles, the candidates taken in turn so that noise falls on all alike.

And by them, what the machine can do: the rate of a large float32 product and of a copy.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

PRODUCT = 2048
COPIED = 2**26


class Spread(NamedTuple):
    """Seconds: the median of the repeats and its quartiles."""

    median: float
    low: float
    high: float


def times(functions: Mapping[str, Callable[[], Any]], repeats: int, least_s: float = 0.0) -> dict[str, list[float]]:
    """Seconds of each call, each function called once before the clock starts and then in turn with the others.

    A function faster than `least_s` is called so often in a row, without waiting, that they are filled.
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
            results[name] = taken = spread(seconds).median
            if taken > self.patience:
                self.stopped[name] = f"took {taken:.1f} s at length {length}"
        return results


def doubling(shortest: int, longest: int) -> Iterator[int]:
    """`shortest`, twice and four times as much, up to `longest`."""
    while shortest <= longest:
        yield shortest
        shortest *= 2


def compiled(function: Callable[..., Any], backward: bool, *inputs: Any) -> Callable[[], Any]:
    """The function of these inputs, with the gradient of all of them if `backward`, whose cotangent is its value."""

    def gradient(*inputs: Any) -> Any:
        value, pull = jax.vjp(function, *inputs)
        return value, pull(value)

    return partial(jax.jit(gradient if backward else function), *inputs)


def name_of_pass(backward: bool) -> str:
    """What a row calls it."""
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


def spread(seconds: list[float]) -> Spread:
    """The median and the quartiles."""
    low, median, high = np.quantile(seconds, [0.25, 0.5, 0.75]).tolist()
    return Spread(median, low, high)


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
