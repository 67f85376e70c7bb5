"""One part of a claim's test: a statistic of kept rows, its marks, and on which side of them it lies."""

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any, Literal

from evalkit.claims.measures import NoRows, Numbers, estimated, measured, refuse_other_seeds
from evalkit.core.errors import UserError
from evalkit.core.statistics import mann_whitney

Side = Literal["exact", "meets", "fails", "open"]
COMPARED: Mapping[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
LEVEL = 0.05
"""The largest p of an exact test, adjusted for the comparisons of its figure, that shows an order."""
SEEDS_A_STRAY = 5
"""One in so many seeds may lie on the other side of a mark; with fewer seeds none may (studies/protocol.md)."""
STATISTICS = ("median", "ratio", "difference", "order", "slope", "context", "repeated", "tests")


@dataclass(frozen=True)
class Mark:
    """A comparison with a number, such as `>= 0.99`."""

    sign: str
    number: float

    @classmethod
    def of(cls, text: str) -> "Mark":
        """Parses a mark. Raises UserError for any other text."""
        parsed = re.fullmatch(r"(>=|<=|>|<) (-?\d+(?:\.\d+)?)", text)
        if parsed is None:
            raise UserError(f"{text!r} is no mark of a claim; write it as >= 0.99, with one of {', '.join(COMPARED)}")
        return cls(parsed[1], float(parsed[2]))

    def holds(self, number: float) -> bool:
        """Whether the number is as the mark says."""
        return COMPARED[self.sign](number, self.number)


@dataclass(frozen=True)
class Part:
    """What is measured and compared with marks; between `meets` and `fails` nothing is decided.

    With `exact`, a part is exact if its median is 1 and every seed satisfies this mark. With `median_alone`, seeds on
    the other side of a mark do not count.
    """

    statistic: str
    of: Any
    says: str
    meets: Mark | None = None
    fails: Mark | None = None
    exact: Mark | None = None
    median_alone: bool = False

    @property
    def is_timing(self) -> bool:
        """Whether it has rounds in place of seeds."""
        measures = self.of if isinstance(self.of, list) else [self.of]
        return any(isinstance(one, Mapping) and one.get("of") == "timing" for one in measures)

    @property
    def upward(self) -> bool:
        """Whether the exact test is for the first of two groups being higher, which the marks ask for or rule out."""
        neutral = 1.0 if self.statistic == "ratio" else 0.0
        mark = self.meets or Mark(">", neutral)
        return mark.number > neutral or (mark.number == neutral and mark.sign in (">", ">="))

    @classmethod
    def read(cls, entry: Mapping[str, Any]) -> "Part":
        """Of an entry `{STATISTIC: …, says: …, meets: …, fails: …}`. Raises UserError for another."""
        statistics = [name for name in entry if name in STATISTICS]
        strange = sorted(set(entry) - {*STATISTICS, "says", "meets", "fails", "exact", "median_alone"})
        if len(statistics) != 1 or strange or "says" not in entry:
            raise UserError(
                f"a part of a test has {', '.join(entry)}; give one of {', '.join(STATISTICS)}, and says, meets, fails"
            )
        marks = {name: Mark.of(entry[name]) for name in ("meets", "fails", "exact") if name in entry}
        if statistics[0] not in ("order", "tests") and "meets" not in marks:
            raise UserError(
                f"the {statistics[0]} of {entry['says']!r} has no mark; give meets, and fails where there is one"
            )
        return cls(
            statistics[0],
            entry[statistics[0]],
            entry["says"],
            **marks,
            median_alone=entry.get("median_alone", False),
        )


@dataclass(frozen=True)
class Finding:
    """What one part measured. `repeats` counts seeds, or rounds of a timing."""

    part: Part
    value: float
    each: Mapping[int, float] = field(default_factory=dict)
    low: float | None = None
    high: float | None = None
    documents: int | None = None
    repeats: int = 1
    p: float | None = None
    """The exact one-sided p of the order that the marks ask for or rule out.

    None unless two families are compared that have at least two seeds each.
    """
    p_reverse: float | None = None
    """The two-sided p of the opposite order, which was not foreseen."""
    p_adjusted: float | None = None
    p_reverse_adjusted: float | None = None

    @property
    def at_the_mark(self) -> int:
        """How many seeds meet the mark."""
        return 0 if self.part.meets is None else sum(map(self.part.meets.holds, self.each.values()))

    @property
    def side(self) -> Side:
        """On which side of the marks it lies."""
        if self.part.statistic == "tests":
            return "exact"
        if self.part.statistic == "order":
            return self._side_of_order()
        if self._reaches(self.part.exact) and self.value == 1:
            return "exact"
        return "meets" if self._meets(self.part.meets) else "fails" if self._meets(self.part.fails) else "open"

    def adjusted(self, p: float | None, p_reverse: float | None) -> "Finding":
        """The same, with p-values adjusted for the comparisons of the figure."""
        return replace(self, p_adjusted=p, p_reverse_adjusted=p_reverse)

    def _side_of_order(self) -> Side:
        if self.p_adjusted is not None and self.p_adjusted <= LEVEL:
            return "meets"
        return "fails" if self.p_reverse_adjusted is not None and self.p_reverse_adjusted <= LEVEL else "open"

    def _reaches(self, mark: Mark | None) -> bool:
        return mark is not None and all(map(mark.holds, self.each.values()))

    def _meets(self, mark: Mark | None) -> bool:
        """Whether the value meets a mark, its whole interval over documents, and all seeds but a stray one of five."""
        if mark is None or not mark.holds(self.value):
            return False
        if self.documents is not None:
            return self.low is not None and self.high is not None and mark.holds(self.low) and mark.holds(self.high)
        strays = sum(not mark.holds(number) for number in self.each.values())
        return self.part.median_alone or strays <= len(self.each) // SEEDS_A_STRAY


def measure(part: Part, studies: Path) -> Finding:
    """What this part of a test measures in the folder of studies. Raises NoRows where its rows are not kept."""
    if part.statistic == "tests":
        return _tests(part, studies)
    if part.statistic in ("context", "repeated"):
        estimate, seeds = estimated(studies, part.statistic, **part.of)
        finite = {name: x for name in ("low", "high") if math.isfinite(x := getattr(estimate, name))}
        return Finding(part, estimate.mean, documents=estimate.documents, repeats=seeds, **finite)
    groups = [measured(studies, **one) for one in (part.of if isinstance(part.of, list) else [part.of])]
    return finding_of(part, groups)


def finding_of(part: Part, groups: Sequence[Numbers]) -> Finding:
    """A statistic of one group of numbers, or of two; `slope` takes one group a point, in order."""
    values = [list(group.values()) for group in groups]
    first, last = groups[0], values[-1]
    each: Mapping[int, float] = first
    if part.statistic == "ratio":
        each = {seed: number / median(last) for seed, number in first.items()}
    elif part.statistic in ("difference", "order"):
        each = {seed: number - median(last) for seed, number in first.items()}
    elif part.statistic == "slope":
        refuse_other_seeds(groups)
        each = {seed: _slope([group[seed] for group in groups]) for seed in first}
    numbers = list(each.values())
    families = {one.get("run") for one in part.of} if isinstance(part.of, list) else ()
    compared = len(families) == 2 and len(groups) == 2 and min(map(len, values)) > 1
    higher, lower = (values[0], last) if part.upward else (last, values[0])
    return Finding(
        part,
        median(numbers),
        each,
        min(numbers),
        max(numbers),
        repeats=min(map(len, values)),
        p=mann_whitney(higher, lower) if compared else None,
        p_reverse=min(1.0, 2 * mann_whitney(lower, higher)) if compared else None,
    )


def _slope(numbers: Sequence[float]) -> float:
    """Of the least squares' line through numbers at 0, 1, 2 and so on."""
    middle, mean = (len(numbers) - 1) / 2, sum(numbers) / len(numbers)
    products = sum((at - middle) * (number - mean) for at, number in enumerate(numbers))
    return products / sum((at - middle) ** 2 for at in range(len(numbers)))


def _tests(part: Part, studies: Path) -> Finding:
    """Checks that the tests that prove a claim exist; the test suite is what runs them."""
    for test in part.of:
        name, _, function = test.partition("::")
        path = studies.parent / name
        if not path.is_file() or f"def {function}(" not in path.read_text(encoding="utf-8"):
            raise NoRows(f"there is no test {test}")
    return Finding(part, 1.0, repeats=len(part.of))
