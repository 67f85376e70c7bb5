"""From the rows of one run to its numbers (`results.json`) and its curves; nothing else is read."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from evalkit.core.rows import Row, value
from evalkit.core.statistics import censored_spread, spread, wilson

SCHEMA = 1
LEVELS = (0.9, 0.99, 1.0)
METRICS = ("accuracy", "exact_match", "loss")
ROUNDING = 1e-9

Cell = Mapping[str, Row]
"""The rows of one evaluation (one seed, length and step) by metric."""


@dataclass(frozen=True)
class Point:
    """A measured accuracy: `x` is a length or a step, (`low`, `high`) its 95% Wilson interval."""

    x: int
    value: float
    low: float
    high: float
    count: float


@dataclass(frozen=True)
class Curve:
    """Accuracy by length or by step: the points of each seed, and the lengths that were left out."""

    label: str
    seeds: Mapping[int, Sequence[Point]] = field(default_factory=dict)
    not_run: Sequence[int] = ()

    def relabel(self, label: str) -> "Curve":
        """The same points under another name."""
        return replace(self, label=label)

    def over_seeds(self, complete: bool = False) -> list[tuple[int, float, float, float]]:
        """(x, median, min, max) over the seeds that have x; with `complete`, only where every seed has it."""
        values: dict[int, list[float]] = {}
        for points in self.seeds.values():
            for point in points:
                values.setdefault(point.x, []).append(point.value)
        return [
            (x, median(found), min(found), max(found))
            for x, found in sorted(values.items())
            if not complete or len(found) == len(self.seeds)
        ]


def summarise(rows: Sequence[Row]) -> dict[str, Any]:
    """The content of `results.json` from the rows of one run; parts that were never run are empty, null or absent.

    `steps_to` holds, a level, the first validation step at the training length whose accuracy is at least the level
    (null: not reached). `extrapolation` holds a record a length and seed; (`low`, `high`) is the 95% Wilson interval
    of its accuracy, counting sequences.
    """
    facts = run_facts(rows)
    cells = _evaluations(rows, "validation", facts["train_length"])
    validation = {seed: _by_step(cells, seed) for seed in _seeds(rows)}
    per_seed = [_seed_summary(seed, steps) for seed, steps in validation.items()]
    ladder = _ladder(rows)
    return {
        "schema": SCHEMA,
        **facts,
        "step": max((entry["step"] for entry in rows if entry["step"] is not None), default=None),
        "seeds": per_seed,
        "extrapolation": ladder,
        "not_run": _not_run(rows),
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


def run_facts(rows: Sequence[Row]) -> dict[str, Any]:
    """What the run's first row (`parameters`) says of it; without that row, what the other rows show."""
    first = next((entry for entry in rows if entry["metric"] == "parameters"), None)
    named = first or (rows[0] if rows else None)
    extra: dict[str, Any] = (first and first["extra"]) or {}
    notes = extra.get("notes") or []
    return {
        "run": named and named["run"],
        "task": named and named["task"],
        "model": named and named["model"],
        "parameters": None if first is None or first["total"] is None else int(first["total"]),
        "notes": [notes] if isinstance(notes, str) else list(notes),
        "preset": extra.get("preset"),
        "train_length": extra.get("train_length") or _shortest(rows, "validation"),
        "answer_length": extra.get("answer_length"),
        "window": extra.get("window"),
        "chance": extra.get("chance"),
        "steps": extra.get("steps"),
    }


def extrapolation_curve(rows: Sequence[Row]) -> Curve:
    """Test accuracy against evaluation length, of one run."""
    model = str(run_facts(rows)["model"])
    cells = _evaluations(rows, "test")
    seeds = {seed: [_point(length, cell) for (_, length, _), cell in found] for seed, found in _by_seed(cells).items()}
    skipped = sorted({skipped["length"] for skipped in _not_run(rows)})
    return Curve(model, {seed: _latest(points) for seed, points in seeds.items()}, skipped)


def learning_curve(rows: Sequence[Row], length: int | None = None) -> Curve:
    """Validation accuracy against training step, of one run, at `length` (by default the training length)."""
    facts = run_facts(rows)
    cells = _evaluations(rows, "validation", length or facts["train_length"])
    seeds = {seed: [_point(step, cell) for (_, _, step), cell in found] for seed, found in _by_seed(cells).items()}
    return Curve(str(facts["model"]), {seed: _latest(points) for seed, points in seeds.items()})


def probe_lengths(rows: Sequence[Row]) -> list[int]:
    """The lengths, other than the training length, that were evaluated while training."""
    trained = run_facts(rows)["train_length"]
    lengths = {entry["length"] for entry in rows if entry["split"] == "validation" and entry["length"] is not None}
    return sorted(lengths - {trained})


def _evaluations(rows: Sequence[Row], split: str, length: int | None = None) -> Mapping[tuple[int, int, int], Cell]:
    """Rows of `split` that counted something, by (seed, length, step), then metric; of equal ones the last."""
    task = run_facts(rows)["task"]
    cells: dict[tuple[int, int, int], dict[str, Row]] = {}
    for entry in rows:
        wanted = entry["split"] == split and entry["task"] == task and entry["position"] is None
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


def _seeds(rows: Sequence[Row]) -> list[int]:
    return sorted({entry["seed"] for entry in rows if entry["seed"] is not None})


def _shortest(rows: Sequence[Row], split: str) -> int | None:
    lengths = (entry["length"] for entry in rows if entry["split"] == split and entry["length"] is not None)
    return min(lengths, default=None)


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


def _ladder(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """One record a length and seed: the test evaluation after most training steps."""
    latest: dict[tuple[int, int], dict[str, Any]] = {}
    for (seed, length, step), cell in sorted(_evaluations(rows, "test").items(), key=lambda item: item[0]):
        if "accuracy" in cell:
            point = _point(length, cell)
            interval = {"low": _finite(point.low), "high": _finite(point.high)}
            latest[length, seed] = {"length": length, "seed": seed, "step": step, **_record(cell), **interval}
    return [latest[key] for key in sorted(latest)]


def _not_run(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The lengths left out, with the reason, unless a later evaluation has made up for them."""
    measured = {length for _, length, _ in _evaluations(rows, "test")}
    reasons = {
        entry["length"]: entry["extra"]["not_run"]
        for entry in rows
        if entry["split"] == "test" and entry["length"] is not None and entry["extra"] and "not_run" in entry["extra"]
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
