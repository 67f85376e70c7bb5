"""Phonebook lookup from its rows alone: the figure (De et al. 2024, fig. 6c), a table, numbers."""

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from evalkit.core.rows import Row, value
from evalkit.core.statistics import wilson
from evalkit.record.phonebook_rows import ALL, INSIDE, METRICS, OUTSIDE
from evalkit.reports.accuracy.summary import Curve, Point, run_facts
from evalkit.reports.curves import extrapolation_figure

TASK = "phonebook_lookup"
LABELS = {ALL: "all prompts", INSIDE: "answer inside the window", OUTSIDE: "answer outside it"}
AXIS = "exact match"


def is_complete(entry: Row) -> bool:
    """Whether it is the last row of a length."""
    return entry["metric"] == METRICS[-1] and (entry["extra"] or {}).get("answer") == ALL


def lookup_figure(rows: Sequence[Row]) -> Figure:
    """Exact match against prompt tokens with 95% Wilson intervals.

    A model with a window has three lines: all prompts, and those whose answer is inside and outside of it.
    """
    told = run_facts(rows)
    curves = [Curve(LABELS[which], {0: points}) for which in LABELS if (points := points_of(rows, which))]
    if len(curves) == 1:
        curves = [curves[0].relabel(str(told["model"]))]
    title = f"Phonebook lookup · {told['model']}"
    return extrapolation_figure(curves, told["train_length"], [told["window"]], title=title, measure=AXIS)


def lookup_curve(rows: Sequence[Row]) -> Curve:
    """Exact match of all prompts against prompt tokens, of one run."""
    return Curve(str(run_facts(rows)["model"]), {0: points_of(rows, ALL)})


def lookup_table(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Header and lines, one a length."""
    header = ["length", "entries", "exact match", "inside window", "outside", "digits", "log p", "prompts"]
    lines = []
    for record in results(rows)["lengths"]:
        cells = [
            record[ALL]["exact_match"],
            *((record[which] or {}).get("exact_match") for which in (INSIDE, OUTSIDE)),
            record[ALL]["digit_accuracy"],
            record[ALL]["log_probability"],
        ]
        shown = ["–" if number is None else f"{number:.3f}" for number in cells]
        lines.append([f"{record['length']:,}", f"{record['entries']:,}", *shown, f"{record[ALL]['prompts']:,}"])
    return header, lines


def results(rows: Sequence[Row]) -> dict[str, Any]:
    """The content of `results.json`: what was evaluated, and a record a length, with each group's metrics and the 95%
    Wilson interval of its exact match; null for a group that has no prompt."""
    first = next(entry for entry in rows if entry["metric"] == "parameters")
    facts = run_facts(rows)
    told = {name: facts[name] for name in ("run", "task", "model", "parameters", "train_length", "window")}
    lengths = sorted({entry["length"] for entry in rows if entry["length"] is not None})
    return {**told, **{name: (first["extra"] or {})[name] for name in ("source", "digest")}} | {
        "lengths": [_record([entry for entry in rows if entry["length"] == length], length) for length in lengths]
    }


def points_of(rows: Sequence[Row], which: str) -> list[Point]:
    """The exact match of one group of prompts by length."""
    points = []
    for entry in rows:
        if entry["metric"] == "exact_match" and (entry["extra"] or {}).get("answer") == which:
            total, count = entry["total"] or 0.0, entry["count"] or 0
            points.append(Point(entry["length"] or 0, value(entry), *wilson(total, count), count))
    return points


def _record(rows: Sequence[Row], length: int) -> dict[str, Any]:
    extra = rows[0]["extra"] or {}
    groups = {which: [row for row in rows if (row["extra"] or {})["answer"] == which] for which in LABELS}
    return {"length": length, "entries": extra["entries"], **{name: _group(found) for name, found in groups.items()}}


def _group(rows: Sequence[Row]) -> dict[str, Any] | None:
    if not rows:
        return None
    match = next(entry for entry in rows if entry["metric"] == "exact_match")
    low, high = wilson(match["total"] or 0.0, match["count"] or 0)
    return {
        **{entry["metric"]: value(entry) for entry in rows},
        "exact_match_low": low,
        "exact_match_high": high,
        "prompt_tokens": (match["extra"] or {})["prompt_tokens"],
        "prompts": int(match["count"] or 0),
    }
