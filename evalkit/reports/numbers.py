"""What every kind of report does with numbers: by what they are grouped, what JSON can hold, how a table shows them."""

import math
from collections.abc import Iterable
from typing import TypeVar

from evalkit.core.rows import Row
from evalkit.core.statistics import wilson

DASH = "–"
Key = TypeVar("Key")
Value = TypeVar("Value")


def grouped(pairs: Iterable[tuple[Key, Value]]) -> dict[Key, list[Value]]:
    """The values of each key; keys and values in the order found."""
    groups: dict[Key, list[Value]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def finite(number: float) -> float | None:
    """The number, or None for what JSON has not: NaN and infinity."""
    return number if math.isfinite(number) else None


def interval(entry: Row) -> tuple[float, float]:
    """The 95% Wilson interval of a row whose numbers are right or wrong; NaN where their sum is none.

    A sum in float32 may end a hair outside [0, count]; it is put back first.
    """
    total, count = entry["total"], entry["count"] or 0
    return (math.nan, math.nan) if total is None else wilson(min(max(total, 0.0), count), count)


def shown(number: float | None, form: str = ".3f") -> str:
    """The number in a table, a dash where there is none."""
    return DASH if number is None else f"{number:{form}}"


def between(low: float | None, high: float | None, form: str = ".3f") -> str:
    """A range or an interval in a table, a dash where there is none."""
    return DASH if low is None else f"{low:{form}} {DASH} {shown(high, form)}"
