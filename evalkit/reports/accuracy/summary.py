"""From the rows of one run to its numbers (`results.json`) and its curves; nothing else is read."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from evalkit.core.rows import Record, Row, value
from evalkit.core.statistics import censored_spread, spread, wilson
from evalkit.reports.kinds import facts_of, last_step
from evalkit.reports.points import Curve, Point

SCHEMA = 1
LEVELS = (0.9, 0.99, 1.0)
METRICS = ("accuracy", "exact_match", "loss")
ROUNDING = 1e-9

Cell = Mapping[str, Row]
"""The rows of one evaluation (one seed, length and step) by metric."""


def summarise(record: Record) -> dict[str, Any]:
    """The content of `results.json` of one run; parts that were never run are empty, null or absent.

    `steps_to` holds, a level, the first validation step at the training length whose accuracy is at least the level
    (null: not reached). `extrapolation` holds a record a length and seed; (`low`, `high`) is the 95% Wilson interval
    of its accuracy, counting sequences.
    """
    cells = _evaluations(record, "validation", record.header.train_length)
    seeds = sorted({entry["seed"] for entry in record.rows if entry["seed"] is not None})
    per_seed = [_seed_summary(seed, _by_step(cells, seed)) for seed in seeds]
    ladder = _ladder(record)
    return {
        "schema": SCHEMA,
        **facts_of(record),
        "step": last_step(record),
        "seeds": per_seed,
        "extrapolation": ladder,
        "not_run": _not_run(record),
        "aggregate": {
            "steps_to": {
                str(level): censored_spread(seed["steps_to"][str(level)] for seed in per_seed) for level in LEVELS
            },
            "validation": _spreads([seed["validation"] for seed in per_seed if seed["validation"]]),
            "extrapolation": [
                {"length": length, "sequences": sum(cell["sequences"] for cell in found), **_spreads(found)}
                for length, found in _group(ladder, "length").items()
            ],
        },
    }


def extrapolation_curve(record: Record) -> Curve:
    """Test accuracy against evaluation length."""
    cells = _evaluations(record, "test")
    seeds = {seed: [_point(length, cell) for (_, length, _), cell in found] for seed, found in _by_seed(cells).items()}
    skipped = sorted({skipped["length"] for skipped in _not_run(record)})
    return Curve(record.header.model, {seed: _latest(points) for seed, points in seeds.items()}, skipped)


def learning_curve(record: Record, length: int | None = None) -> Curve:
    """Validation accuracy against training step, at `length` (by default the training length)."""
    cells = _evaluations(record, "validation", length or record.header.train_length)
    seeds = {seed: [_point(step, cell) for (_, _, step), cell in found] for seed, found in _by_seed(cells).items()}
    return Curve(record.header.model, {seed: _latest(points) for seed, points in seeds.items()})


def probe_lengths(record: Record) -> list[int]:
    """The lengths, other than the training length, that were evaluated while training."""
    lengths = {row["length"] for row in record.rows if row["split"] == "validation" and row["length"] is not None}
    return sorted(lengths - {record.header.train_length})


def _evaluations(record: Record, split: str, length: int | None = None) -> Mapping[tuple[int, int, int], Cell]:
    """Rows of `split` that counted something, by (seed, length, step), then metric; of equal ones the last."""
    cells: dict[tuple[int, int, int], dict[str, Row]] = {}
    for entry in record.rows:
        wanted = entry["split"] == split and entry["task"] == record.header.task and entry["position"] is None
        if wanted and entry["count"] and entry["length"] is not None and length in (None, entry["length"]):
            key = (entry["seed"] or 0, entry["length"], entry["step"] or 0)
            cells.setdefault(key, {})[entry["metric"]] = entry
    return cells


def _by_seed(cells: Mapping[tuple[int, int, int], Cell]) -> dict[int, list[tuple[tuple[int, int, int], Cell]]]:
    found: dict[int, list[tuple[tuple[int, int, int], Cell]]] = {}
    for key, cell in sorted(cells.items(), key=lambda item: item[0]):
        if "accuracy" in cell:
            found.setdefault(key[0], []).append((key, cell))
    return found


def _by_step(cells: Mapping[tuple[int, int, int], Cell], seed: int) -> dict[int, Cell]:
    return {step: cell for (owner, _, step), cell in sorted(cells.items(), key=lambda item: item[0]) if owner == seed}


def _latest(points: Iterable[Point]) -> list[Point]:
    """One point an x: of several evaluations at one length, the one after most training steps."""
    return [point for _, point in sorted({point.x: point for point in points}.items())]


def _seed_summary(seed: int, validation: Mapping[int, Cell]) -> dict[str, Any]:
    records = [{"step": step, **_record(cell)} for step, cell in validation.items() if "accuracy" in cell]
    return {
        "seed": seed,
        "steps_to": {str(level): _first_step(records, level) for level in LEVELS},
        "validation": records[-1] if records else None,
        "best": max(records, key=lambda record: record["accuracy"] or 0.0) if records else None,
    }


def _first_step(records: Iterable[Mapping[str, Any]], level: float) -> int | None:
    return next((record["step"] for record in records if (record["accuracy"] or 0.0) >= level - ROUNDING), None)


def _ladder(record: Record) -> list[dict[str, Any]]:
    """One record a length and seed: the test evaluation after most training steps."""
    latest: dict[tuple[int, int], dict[str, Any]] = {}
    for (seed, length, step), cell in sorted(_evaluations(record, "test").items(), key=lambda item: item[0]):
        if "accuracy" in cell:
            point = _point(length, cell)
            interval = {"low": _finite(point.low), "high": _finite(point.high)}
            latest[length, seed] = {"length": length, "seed": seed, "step": step, **_record(cell), **interval}
    return [latest[key] for key in sorted(latest)]


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
    values = {metric: _finite(value(cell[metric])) if metric in cell else None for metric in METRICS}
    return {**values, "sequences": cell["accuracy"]["count"]}


def _point(x: int, cell: Cell) -> Point:
    """A sum in float32 may end a hair outside [0, count]; it is put back before the interval is taken."""
    entry = cell["accuracy"]
    count = entry["count"] or 0
    if entry["total"] is None:
        return Point(x, math.nan, math.nan, math.nan, count)
    low, high = wilson(min(max(entry["total"], 0.0), count), count)
    return Point(x, value(entry), low, high, count)


def _spreads(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {metric: spread(record[metric] for record in records if record[metric] is not None) for metric in METRICS}


def _group(records: Iterable[dict[str, Any]], key: str) -> dict[Any, list[dict[str, Any]]]:
    groups: dict[Any, list[dict[str, Any]]] = {}
    for record in records:
        groups.setdefault(record[key], []).append(record)
    return groups


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None
