"""The one number that a search judges a run by, from its rows."""

import math
import re
from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from evalkit.core.contracts import Feed
from evalkit.core.errors import UserError
from evalkit.core.objective import METRICS
from evalkit.core.rows import Row, value
from evalkit.reports.numbers import Curve, Point, grouped

SPLITS = {"validation": "validation", "extrapolation": "test"}
"""The parts that may be named, and the splits of their rows."""
HIGHER_IS_BETTER = ("accuracy", "exact_match")
FORM = re.compile(r"(\w+)\.(\w+)(?:@(\d+))?")
EXAMPLES = "by=validation.accuracy or by=extrapolation.accuracy@1024"


class Criterion(NamedTuple):
    """What is judged: a metric of a part at a length (tokens); None stands for the training length.

    >>> Criterion.of("extrapolation.accuracy@1024")
    Criterion(part='extrapolation', metric='accuracy', length=1024)
    """

    part: str
    metric: str
    length: int | None = None

    @classmethod
    def of(cls, text: str) -> "Criterion":
        """Parses the value of `by=`; raises UserError for any other form."""
        match = FORM.fullmatch(text)
        if match is None or match[1] not in SPLITS:
            raise UserError(f"by={text}; allowed: {' or '.join(SPLITS)}, a metric and a length, such as {EXAMPLES}")
        if match[1] == "extrapolation" and match[3] is None:
            raise UserError(f"by={text} is measured at several lengths; give a length, as by={text}@1024")
        return cls(match[1], match[2], None if match[3] is None else int(match[3]))

    def refuse_unmeasured(self, feed: Feed) -> None:
        """Raises UserError for a metric that the task does not report."""
        metrics = feed.reported(dict.fromkeys(METRICS, 0.0))
        if self.metric not in metrics:
            raise UserError(f"by={self}: {self.metric} is not measured; allowed: {', '.join(metrics)}")

    @property
    def direction(self) -> str:
        """`maximize` if a higher value is better, else `minimize`; the user may say otherwise."""
        return "maximize" if self.metric in HIGHER_IS_BETTER else "minimize"

    @property
    def while_training(self) -> "Criterion":
        """What a run is judged by before its end: the same metric in validation."""
        return self if self.part == "validation" else Criterion("validation", self.metric)

    def rows_of(self, rows: Sequence[Row], train_length: int | None) -> list[Row]:
        """The rows that measure this metric."""
        length, split = self.length or train_length, SPLITS[self.part]
        return [
            row
            for row in rows
            if row["split"] == split
            and row["metric"] == self.metric
            and row["position"] is None
            and row["length"] == length
            and row["count"]
        ]

    def value(self, rows: Sequence[Row], train_length: int | None) -> float | None:
        """The mean over seeds at the last step that was measured; None where nothing was, or no number."""
        of_metric = self.rows_of(rows, train_length)
        last = max((row["step"] or 0 for row in of_metric), default=None)
        by_seed = {row["seed"]: value(row) for row in of_metric if (row["step"] or 0) == last}
        mean = fmean(by_seed.values()) if by_seed else math.nan
        return mean if math.isfinite(mean) else None

    def curve(self, rows: Sequence[Row], train_length: int | None) -> Curve:
        """Its values by step."""
        of_metric = self.rows_of(rows, train_length)
        points = grouped((row["seed"] or 0, Point(row["step"] or 0, value(row))) for row in of_metric)
        return Curve("", points)

    def __str__(self) -> str:
        return f"{self.part}.{self.metric}" + ("" if self.length is None else f"@{self.length}")
