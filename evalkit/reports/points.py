"""What a figure draws: points with their intervals, and curves of them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from evalkit.core.rows import Row, value
from evalkit.reports.numbers import grouped, interval


@dataclass(frozen=True)
class Point:
    """A measured `value` at a length or step `x`; (`low`, `high`) is its 95% interval over `count` units."""

    x: int
    value: float
    low: float = math.nan
    high: float = math.nan
    count: float = 1


def point_of(x: int, entry: Row) -> Point:
    """The value of a row at `x`, with the interval of numbers that are right or wrong."""
    return Point(x, value(entry), *interval(entry), entry["count"] or 0)


@dataclass(frozen=True)
class Curve:
    """A value by length or by step: the points of each seed, and the lengths that were left out.

    `banded`: the intervals of a single seed are drawn as a band, which many points need.
    """

    label: str
    seeds: Mapping[int, Sequence[Point]] = field(default_factory=dict)
    not_run: Sequence[int] = ()
    banded: bool = False

    def relabel(self, label: str) -> "Curve":
        """The same points under another name."""
        return replace(self, label=label)

    def over_seeds(self, complete: bool = False) -> list[tuple[int, float, float, float]]:
        """(x, median, min, max) over the seeds that have x; with `complete`, only where every seed has it."""
        values = grouped((point.x, point.value) for points in self.seeds.values() for point in points)
        return [
            (x, median(at_x), min(at_x), max(at_x))
            for x, at_x in sorted(values.items())
            if not complete or len(at_x) == len(self.seeds)
        ]
