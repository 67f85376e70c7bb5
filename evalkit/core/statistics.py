"""Statistics of the reports; every count is a count of sequences."""

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import median
from typing import TypedDict

from scipy.special import betaincinv

LOOK_EVERY = 32
"""Sequences between two checks of an interval's width: an evaluation that stops early stops at a multiple of this."""


class Spread(TypedDict):
    """Mean, median and range over `seeds` seeds; null where there is no number."""

    mean: float | None
    median: float | None
    min: float | None
    max: float | None
    seeds: int


def wilson(total: float, count: float, z: float = 1.96) -> tuple[float, float]:
    """Returns Wilson's score interval (low, high) for the mean `total / count` of `count` numbers in [0, 1].

    `total` may be fractional. The interval is then conservative: of all numbers in [0, 1] with one mean, 0 and 1 vary
    most. A count of 0 gives (nan, nan). Raises ValueError unless 0 <= total <= count.
    Source: Wilson 1927, "Probable inference, the law of succession, and statistical inference".

    >>> low, high = wilson(63, 64)
    >>> round(low, 3), round(high, 3)
    (0.917, 0.997)
    """
    if count == 0:
        return math.nan, math.nan
    if not 0 <= total <= count:
        raise ValueError(f"total {total} lies outside [0, count = {count}]: give the sum of numbers in [0, 1]")
    mean = total / count
    shrink = 1 + z * z / count
    centre = (mean + z * z / (2 * count)) / shrink
    half = z / shrink * math.sqrt(mean * (1 - mean) / count + z * z / (4 * count * count))
    # Rounding may move an end past the mean or out of [0, 1], as at total 0 and total = count.
    return min(mean, max(0.0, centre - half)), max(mean, min(1.0, centre + half))


def scaled(accuracy: float, chance: float) -> float:
    """Returns an accuracy rescaled so that chance is 0 and 1 stays 1; below chance it is negative.

    Tables of formal languages have it, since one guess in two is right in some of them (Lahoti et al. 2026,
    arXiv 2603.15569). Raises ValueError unless 0 <= chance < 1.

    >>> scaled(0.75, 0.5), scaled(0.5, 0.5)
    (0.5, 0.0)
    """
    if not 0 <= chance < 1:
        raise ValueError(f"chance={chance}; allowed: from 0 to below 1")
    return (accuracy - chance) / (1 - chance)


def is_narrow(total: float, count: int, width: float | None, marks: Sequence[float] = ()) -> bool:
    """Whether the 95% interval of `total` / `count` is at most `width` wide and has none of `marks` inside it.

    Without a `width` no interval is narrow enough.
    """
    if width is None:
        return False
    low, high = wilson(min(total, count), count)
    return high - low <= width and not any(low < mark < high for mark in marks)


def mann_whitney(first: Sequence[float], second: Sequence[float]) -> float:
    """Returns the exact one-sided p-value of "`first` is larger".

    It is the share of all ways to divide these numbers into two groups of these sizes in which the first group's ranks
    are at least as high. Equal numbers share a middle rank. Infinite numbers are allowed, for a step that was never
    reached. Raises ValueError for an empty group, and for NaN, which has no rank.
    Source: Mann & Whitney 1947, "On a test of whether one of two random variables is stochastically larger".

    >>> mann_whitney([0.9, 0.8, 1.0], [0.5, 0.6, 0.7])
    0.05
    """
    if not first or not second:
        raise ValueError(f"groups of {len(first)} and {len(second)} numbers; a test needs one or more in each")
    if any(map(math.isnan, (*first, *second))):
        raise ValueError("one of the numbers is NaN, which has no rank; leave it out, or give infinity")
    pooled = sorted([*first, *second])
    # Twice the middle rank, less 1: a whole number for equal numbers, too.
    rank = {number: bisect_left(pooled, number) + bisect_right(pooled, number) for number in pooled}
    ways = [Counter({0: 1}), *(Counter[int]() for _ in first)]
    for number in pooled:
        for size in reversed(range(len(first))):
            for total, count in ways[size].items():
                ways[size + 1][total + rank[number]] += count
    observed = sum(rank[number] for number in first)
    high = sum(count for total, count in ways[-1].items() if total >= observed)
    return high / math.comb(len(pooled), len(first))


def two_sided(first: Sequence[float], second: Sequence[float]) -> float:
    """Returns the exact p-value of "one is larger", where which of the two it is was not predicted.

    It is twice the smaller of the two one-sided ones, as in `mann_whitney`, and at most 1.

    >>> two_sided([0.9, 0.8, 1.0], [0.5, 0.6, 0.7])
    0.1
    """
    return min(1.0, 2 * mann_whitney(first, second), 2 * mann_whitney(second, first))


def least_p(first: int, second: int) -> float:
    """Returns the least p-value that `two_sided` can give groups of these sizes.

    >>> least_p(3, 3), least_p(1, 1)
    (0.1, 1.0)
    """
    return min(1.0, 2 / math.comb(first + second, first))


def spread(values: Iterable[float]) -> Spread:
    """Returns mean, median, least and greatest of the finite `values`, one for each seed."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return Spread(mean=None, median=None, min=None, max=None, seeds=0)
    mean = math.fsum(finite) / len(finite)
    return Spread(mean=mean, median=median(finite), min=min(finite), max=max(finite), seeds=len(finite))


def censored_spread(steps: Iterable[int | None]) -> Spread:
    """Returns mean, median and range of the steps to a level, where None means that a seed never reached it.

    Such a step is known only to be larger than the run, so mean and maximum are null as soon as there is one. The
    median is null if it depends on such a step. `seeds` counts the seeds that reached the level.
    """
    steps = list(steps)
    reached = [step for step in steps if step is not None]
    result = spread(float(step) for step in reached)
    if len(reached) < len(steps):
        result["mean"] = result["max"] = None
        middle = median(math.inf if step is None else step for step in steps)
        result["median"] = middle if math.isfinite(middle) else None
    return result


def exact_interval(successes: int, trials: int, level: float = 0.95) -> tuple[float, float]:
    """Returns the exact interval (low, high) for a share, given `successes` in `trials`, such as seeds.

    Raises ValueError unless 0 <= successes <= trials and trials > 0.
    Source: Clopper & Pearson 1934, "The use of confidence or fiducial limits illustrated in the case of the binomial".

    >>> low, high = exact_interval(4, 5)
    >>> round(low, 3), round(high, 3)
    (0.284, 0.995)
    """
    if not 0 <= successes <= trials or not trials:
        raise ValueError(f"{successes} of {trials}: give a count from 0 to a number of trials above 0")
    tail, failures = (1 - level) / 2, trials - successes
    low = float(betaincinv(successes, failures + 1, tail)) if successes else 0.0
    high = float(betaincinv(successes + 1, failures, 1 - tail)) if failures else 1.0
    return low, high


def holm(p_values: Sequence[float]) -> list[float]:
    """Returns p-values adjusted for multiple tests, in their order: compare each with the level of a single test.

    Source: Holm 1979, "A simple sequentially rejective multiple test procedure".

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    adjusted, least = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda index: p_values[index])):
        least = max(least, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = least
    return adjusted
