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


def times(functions: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, list[float]]:
    """Seconds of each call, each function called once before the clock starts and then in turn with the others."""
    for function in functions.values():
        jax.block_until_ready(function())
    taken: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repeats):
        for name, function in functions.items():
            began = time.perf_counter()
            jax.block_until_ready(function())
            taken[name].append(time.perf_counter() - began)
    return taken


def spread(seconds: list[float]) -> Spread:
    """The median and the quartiles."""
    low, median, high = np.quantile(seconds, [0.25, 0.5, 0.75]).tolist()
    return Spread(median, low, high)
