"""Phonebook lookup by prompt tokens (De et al. 2024, fig. 6c): a kind of report."""

from collections.abc import Sequence
from typing import Any

from evalkit.core.rows import Record, Row, value
from evalkit.evaluations.phonebook.rows import ALL, INSIDE, OUTSIDE
from evalkit.reports.curves import frame_of, length_figure
from evalkit.reports.kinds import Drawing, Table, by_column
from evalkit.reports.numbers import Curve, Point, grouped, interval, point_of, shown
from evalkit.reports.pooling import Line

LABELS = {ALL: "all prompts", INSIDE: "answer inside the window", OUTSIDE: "answer outside it"}
HEADING = "Exact match by prompt length"
CAPTION = "Whether the whole number is right; the bar is a 95% interval over prompts."
COSTS_TOLD = ("parameters", "cache_bytes", "flops_per_token")
FACTS = ("run", "task", "model", *COSTS_TOLD, "train_length", "window", "source", "digest")


def summarise(record: Record) -> dict[str, Any]:
    """The content of `results.json`: what was evaluated, and one record per length.

    A record has each group's metrics and the 95% Wilson interval of its exact match; null for a group without prompts.
    """
    by_length = grouped((entry["length"], entry) for entry in record.rows if entry["length"] is not None)
    return {name: getattr(record.header, name) for name in FACTS} | {
        "lengths": [_of_length(by_length[length]) for length in sorted(by_length)]
    }


def figures(lines: Sequence[Line], title: str, notes: Sequence[str]) -> dict[str, Drawing]:
    """Exact match against prompt tokens with 95% Wilson intervals, a line a model.

    One model with a window has three lines: all prompts, and those whose answer is inside and outside of it.
    """
    alone = lines[0].alone
    curves = [Curve(line.label, {0: points_of(line.record, ALL)}) for line in lines]
    if alone:
        groups = {label: points_of(lines[0].record, which) for which, label in LABELS.items()}
        by_group = [Curve(label, {0: points}) for label, points in groups.items() if points]
        curves = by_group if len(by_group) > 1 else curves
    frame = frame_of([line.header for line in lines], y="exact match")
    drawn = Drawing(HEADING, CAPTION, length_figure(curves, frame, title, notes))
    return {"lookup" if alone else "compare": drawn}


def tables(lines: Sequence[Line]) -> list[Table]:
    """Of one run a row a length; of several a row each, a column a length."""
    if lines[0].alone:
        return [_lookup_table(summarise(lines[0].record))]
    cells = {line.label: {point.x: shown(point.value) for point in points_of(line.record, ALL)} for line in lines}
    return [by_column(HEADING, "model", cells, lines)]


def records(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """A record a model and length, of all prompts."""
    return [
        {
            "model": line.label,
            "length": point.x,
            "exact_match": point.value,
            "low": point.low,
            "high": point.high,
            "prompts": int(point.count),
        }
        for line in lines
        for point in points_of(line.record, ALL)
    ]


def points_of(record: Record, which: str) -> list[Point]:
    """The exact match of one group of prompts by length."""
    return [
        point_of(entry["length"] or 0, entry)
        for entry in record.rows
        if entry["metric"] == "exact_match" and entry["extra"]["answer"] == which
    ]


def _lookup_table(summary: dict[str, Any]) -> Table:
    header = ["length", "entries", "exact match", "inside window", "outside", "digits", "log p", "prompts"]
    lines = []
    for record in summary["lengths"]:
        cells = [
            record[ALL]["exact_match"],
            *((record[which] or {}).get("exact_match") for which in (INSIDE, OUTSIDE)),
            record[ALL]["digit_accuracy"],
            record[ALL]["log_probability"],
        ]
        numbers = map(shown, cells)
        lines.append([f"{record['length']:,}", f"{record['entries']:,}", *numbers, f"{record[ALL]['prompts']:,}"])
    return Table(HEADING, header, lines)


def _of_length(rows: Sequence[Row]) -> dict[str, Any]:
    groups = {which: [entry for entry in rows if entry["extra"]["answer"] == which] for which in LABELS}
    about = {"length": rows[0]["length"], "entries": rows[0]["extra"]["entries"]}
    return about | {which: _group(of_group) for which, of_group in groups.items()}


def _group(rows: Sequence[Row]) -> dict[str, Any] | None:
    if not rows:
        return None
    match = next(entry for entry in rows if entry["metric"] == "exact_match")
    low, high = interval(match)
    return {
        **{entry["metric"]: value(entry) for entry in rows},
        "exact_match_low": low,
        "exact_match_high": high,
        "prompt_tokens": match["extra"]["prompt_tokens"],
        "prompts": int(match["count"] or 0),
    }
