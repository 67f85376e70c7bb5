"""The few statistics that reports need; every count is a count of sequences."""

import math
from collections.abc import Iterable
from statistics import median
from typing import TypedDict


class Spread(TypedDict):
    """Mean, median and range over `seeds` seeds; null where there is no number."""

    mean: float | None
    median: float | None
    min: float | None
    max: float | None
    seeds: int


def wilson(total: float, count: float, z: float = 1.96) -> tuple[float, float]:
    """Wilson's score interval (low, high) for the mean `total / count` of `count` numbers in [0, 1].

    `total` may be fractional: the interval is then conservative, since a number in [0, 1] varies at most as a 0/1 draw
    of the same mean does. A count of 0 gives (nan, nan). Raises `ValueError` unless 0 <= total <= count.
    Source: Wilson 1927, "Probable inference, the law of succession, and statistical inference".
    """
    if count == 0:
        return math.nan, math.nan
    if not 0 <= total <= count:
        raise ValueError(f"total {total} lies outside [0, count = {count}]: give the sum of numbers in [0, 1]")
    mean = total / count
    shrink = 1 + z * z / count
    centre = (mean + z * z / (2 * count)) / shrink
    half = z / shrink * math.sqrt(mean * (1 - mean) / count + z * z / (4 * count * count))
    return min(mean, max(0.0, centre - half)), max(mean, min(1.0, centre + half))


def spread(values: Iterable[float]) -> Spread:
    """Mean, median, least and greatest of the finite `values`, one a seed."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return Spread(mean=None, median=None, min=None, max=None, seeds=0)
    mean = math.fsum(finite) / len(finite)
    return Spread(mean=mean, median=median(finite), min=min(finite), max=max(finite), seeds=len(finite))


def censored_spread(steps: Iterable[int | None]) -> Spread:
    """Mean, median and range of steps to a level, where `None` means never reached.

    The mean and the greatest are null as soon as one seed did not reach the level: its number is only bounded below.
    The median is null once it is such a number, or half-way to one. `seeds` counts those that reached it.
    """
    steps = list(steps)
    reached = [step for step in steps if step is not None]
    result = spread(float(step) for step in reached)
    if len(reached) < len(steps):
        result["mean"] = result["max"] = None
        middle = median(math.inf if step is None else step for step in steps)
        result["median"] = middle if math.isfinite(middle) else None
    return result
