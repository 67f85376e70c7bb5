"""From the rows of one run to its numbers (`results.json`) and its curves; nothing else is read."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Any

from evalkit.core.rows import Record, Row, value
from evalkit.core.statistics import censored_spread, spread
from evalkit.evaluations.extrapolation.effective import KEPT, Effective, Tally, effective_length
from evalkit.reports.kinds import facts_of, last_step
from evalkit.reports.numbers import Curve, Point, finite, grouped, interval, point_of

SCHEMA = 1
LEVELS = (0.5, 0.7, 0.9, 0.99, 1.0)
LOOKS = 4
METRICS = ("accuracy", "exact_match", "loss")
ROUNDING = 1e-9

Cell = Mapping[str, Row]
"""The rows of one evaluation by metric."""
Cells = Mapping[tuple[int, int, int], Cell]
"""Evaluations by (seed, length, step), in that order."""


def summarise(record: Record) -> dict[str, Any]:
    """The content of `results.json` of one run; parts that were never run are empty, null or absent.

    `steps_to` has, for each level, the first validation step at the training length whose accuracy is at least the
    level (null: not reached). `area` is the area under the curve of these validations divided by its steps: a mean
    accuracy that depends on no single level (null: fewer than two). `extrapolation` has one record per length and seed;
    (`low`, `high`) is the 95% Wilson interval of its accuracy, counting sequences. `spans`, if there are any, has the
    same for positions `first` to `last`. `effective_length` has, for each share of the accuracy at the training length,
    the length up to which it is kept. `late`, if longer lengths were tested while training, is the median of a seed's
    last `LOOKS` tests at each: one test on few sequences says little while accuracy goes up and down.
    """
    cells = _evaluations(record, "validation", record.header.train_length)
    seeds = sorted({entry["seed"] for entry in record.rows if entry["seed"] is not None})
    ladder = _ladder(record)
    per_seed = [{**_seed_summary(seed, cells), **_effective(record, ladder, seed)} for seed in seeds]
    reached = {str(level): [seed["steps_to"][str(level)] for seed in per_seed] for level in LEVELS}
    return {
        "schema": SCHEMA,
        **facts_of(record),
        "step": last_step(record),
        "seeds": per_seed,
        "extrapolation": ladder,
        "not_run": _not_run(record),
        **({"spans": spans} if (spans := _spans(record)) else {}),
        **({"late": late} if (late := _late(record)) else {}),
        "aggregate": {
            "steps_to": {level: censored_spread(steps) for level, steps in reached.items()},
            "area": spread(seed["area"] for seed in per_seed if seed["area"] is not None),
            **_effective(record, ladder),
            "validation": _spreads([seed["validation"] for seed in per_seed if seed["validation"]]),
            "extrapolation": [
                {"length": length, "sequences": sum(cell["sequences"] for cell in of_length), **_spreads(of_length)}
                for length, of_length in grouped((cell["length"], cell) for cell in ladder).items()
            ],
        },
    }


def extrapolation_curve(record: Record) -> Curve:
    """Test accuracy against evaluation length."""
    return Curve(
        record.header.model,
        _points({(seed, length): cell for (seed, length, _), cell in _evaluations(record, "test").items()}),
        [left["length"] for left in _not_run(record)],
    )


def learning_curve(record: Record, length: int | None = None) -> Curve:
    """Validation accuracy against training step, at `length` (by default the training length)."""
    cells = _evaluations(record, "validation", length or record.header.train_length)
    return Curve(record.header.model, _points({(seed, step): cell for (seed, _, step), cell in cells.items()}))


def probe_lengths(record: Record) -> list[int]:
    """The lengths, other than the training length, that were evaluated while training."""
    lengths = {row["length"] for row in record.rows if row["split"] == "validation" and row["length"] is not None}
    return sorted(lengths - {record.header.train_length})


def _evaluations(record: Record, split: str, length: int | None = None) -> Cells:
    """The evaluations of `split` that counted something and have an accuracy; of equal rows the last one is taken.

    Of equal validations it is the one on most sequences: older runs also probed the training length, on fewer.
    """
    cells: dict[tuple[int, int, int], dict[str, Row]] = {}
    for entry in record.rows:
        wanted = entry["split"] == split and entry["task"] == record.header.task and entry["position"] is None
        if wanted and entry["count"] and entry["length"] is not None and length in (None, entry["length"]):
            key = (entry["seed"] or 0, entry["length"], entry["step"] or 0)
            cell = cells.setdefault(key, {})
            before = cell.get(entry["metric"])
            if before is None or split == "test" or entry["count"] >= (before["count"] or 0):
                cell[entry["metric"]] = entry
    return {key: cells[key] for key in sorted(cells) if "accuracy" in cells[key]}


def _points(cells: Mapping[tuple[int, int], Cell]) -> dict[int, list[Point]]:
    return grouped((seed, point_of(x, cells[seed, x]["accuracy"])) for seed, x in sorted(cells))


def _seed_summary(seed: int, cells: Cells) -> dict[str, Any]:
    by_step = {step: {"step": step, **_record(cell)} for (owner, _, step), cell in cells.items() if owner == seed}
    records = list(by_step.values())
    steps = {level: [record["step"] for record in records if _accuracy(record) >= level - ROUNDING] for level in LEVELS}
    return {
        "seed": seed,
        "steps_to": {str(level): next(iter(reached), None) for level, reached in steps.items()},
        "area": _area(records),
        "validation": records[-1] if records else None,
        "best": max(records, key=_accuracy, default=None),
    }


def _area(records: Sequence[Mapping[str, Any]]) -> float | None:
    """The area under the validation curve (trapezoids), divided by the steps from the first validation to the last."""
    if len(records) < 2:
        return None
    parts = [
        (after["step"] - before["step"]) * (_accuracy(before) + _accuracy(after)) / 2
        for before, after in pairwise(records)
    ]
    return math.fsum(parts) / (records[-1]["step"] - records[0]["step"])


def _accuracy(record: Mapping[str, Any]) -> float:
    return record["accuracy"] or 0.0


def _ladder(record: Record) -> list[dict[str, Any]]:
    """One record a length and seed: the test evaluation after most training steps."""
    latest: dict[tuple[int, int], dict[str, Any]] = {}
    for (seed, length, step), cell in _evaluations(record, "test").items():
        low, high = map(finite, interval(cell["accuracy"]))
        latest[length, seed] = {"length": length, "seed": seed, "step": step, **_record(cell), "low": low, "high": high}
    return [latest[key] for key in sorted(latest)]


def _effective(
    record: Record, ladder: Sequence[Mapping[str, Any]], seed: int | None = None
) -> dict[str, dict[str, Effective]]:
    """The effective lengths of one seed's model, or of all seeds together, by the share of accuracy that is kept."""
    tallies = grouped(
        (at["seed"], (at["length"], Tally(at["accuracy"] * at["sequences"], at["sequences"])))
        for at in ladder
        if at["accuracy"] is not None and seed in (None, at["seed"])
    )
    ladders = [dict(of_seed) for of_seed in tallies.values()]
    header = record.header
    return {
        "effective_length": {
            str(kept): effective_length(ladders, header.train_length, kept, header.chance) for kept in KEPT
        }
    }


def _spans(record: Record) -> list[dict[str, Any]]:
    """One record a length, span of positions and seed, of `eval.span`: the last of equal rows."""
    latest: dict[tuple[int, int, int], dict[str, Any]] = {}
    for entry in record.rows:
        if entry["metric"] == "accuracy" and entry["split"] == "test" and "first" in entry["extra"]:
            length, last, seed = entry["length"] or 0, entry["position"] or 0, entry["seed"] or 0
            low, high = map(finite, interval(entry))
            at = {"length": length, "first": entry["extra"]["first"], "last": last, "seed": seed}
            measured = {"accuracy": finite(value(entry)), "low": low, "high": high, "sequences": entry["count"] or 0}
            latest[length, last, seed] = {**at, **measured}
    return [latest[key] for key in sorted(latest)]


def _late(record: Record) -> list[dict[str, Any]]:
    """One record a length and seed that was looked at while training."""
    looks = {length: learning_curve(record, length).seeds for length in probe_lengths(record)}
    return [
        {"length": length, "seed": seed, "looks": len(last), "accuracy": finite(median(point.value for point in last))}
        for length, of_seeds in looks.items()
        for seed, points in of_seeds.items()
        if (last := points[-LOOKS:])
    ]


def _not_run(record: Record) -> list[dict[str, Any]]:
    """The lengths left out, with the reason, unless a later evaluation has made up for them."""
    measured = {length for _, length, _ in _evaluations(record, "test")}
    reasons = {
        entry["length"]: entry["extra"]["not_run"]
        for entry in record.rows
        if entry["split"] == "test" and entry["length"] is not None and "not_run" in entry["extra"]
    }
    return [{"length": length, "reason": reasons[length]} for length in sorted(reasons) if length not in measured]


def _record(cell: Cell) -> dict[str, Any]:
    values = {metric: finite(value(cell[metric])) if metric in cell else None for metric in METRICS}
    return {**values, "sequences": cell["accuracy"]["count"]}


def _spreads(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {metric: spread(record[metric] for record in records if record[metric] is not None) for metric in METRICS}
