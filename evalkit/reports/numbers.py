"""What every kind of report does with numbers: groups them, shows them, and makes points and curves of them."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any, TypeVar

from evalkit.core.rows import Row, value
from evalkit.core.statistics import wilson

DASH = "–"
Key = TypeVar("Key")
Value = TypeVar("Value")


def grouped(pairs: Iterable[tuple[Key, Value]]) -> dict[Key, list[Value]]:
    """The values of each key; keys and values in the order found."""
    groups: dict[Key, list[Value]] = {}
    for key, one in pairs:
        groups.setdefault(key, []).append(one)
    return groups


def finite(number: float) -> float | None:
    """The number, or None for what JSON has not: NaN and infinity."""
    return number if math.isfinite(number) else None


def finite_throughout(plain: Any) -> Any:
    """Plain data in which None stands for every number that is not finite, as JSON needs."""
    if isinstance(plain, float):
        return finite(plain)
    if isinstance(plain, Mapping):
        return {name: finite_throughout(one) for name, one in plain.items()}
    return [finite_throughout(one) for one in plain] if isinstance(plain, list | tuple) else plain


def interval(entry: Row) -> tuple[float, float]:
    """The 95% Wilson interval of a row whose numbers are right or wrong; NaN where their sum is none.

    A sum in float32 may end a hair outside [0, count]; it is put back first.
    """
    total, count = entry["total"], entry["count"] or 0
    return (math.nan, math.nan) if total is None else wilson(min(max(total, 0.0), count), count)


def shown(number: float | None, form: str = ".3f") -> str:
    """The number in a table, a dash where there is none or it is not finite."""
    return DASH if number is None or not math.isfinite(number) else f"{number:{form}}"


def between(low: float | None, high: float | None, form: str = ".3f") -> str:
    """A range or an interval in a table, a dash where there is none."""
    return DASH if low is None or not math.isfinite(low) else f"{low:{form}} {DASH} {shown(high, form)}"


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
