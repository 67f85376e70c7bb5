"""Times by repetition: medians and quartiles, the candidates taken in turn so that noise falls on all alike."""

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np


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
