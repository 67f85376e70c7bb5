"""Effective remembrance by the tokens that are kept, and states by length: a kind of report."""

from collections.abc import Sequence
from typing import Any

from evalkit.core.rows import Record, Row, value
from evalkit.evaluations.remembrance import CHANGED, STATE_NORM
from evalkit.reports.curves import Frame, frame_of, length_figure
from evalkit.reports.kinds import Drawing, Table, by_column, facts_of
from evalkit.reports.numbers import Curve, Point, grouped, shown
from evalkit.reports.pooling import Line

HEADING, STATES = "What the past still moves", "The size of the state"
CAPTION = (
    "Total variation between the prediction after the last tokens alone and after the whole sequence, at its last "
    "scored position: 0 where what came before them no longer counts. Median and range over seeds."
)
STATE_CAPTION = (
    "Euclidean norm of the state of a block at the last scored position of a sequence of so many tokens. "
    "Median and range over seeds."
)
KEPT_TOKENS = "last tokens that are read alone"


def summarise(record: Record) -> dict[str, Any]:
    """The content of `results.json`: facts of the run, and every measurement."""
    return {**facts_of(record), **{metric: _entries(record, metric) for metric in (CHANGED, STATE_NORM)}}


def figures(lines: Sequence[Line], title: str, notes: Sequence[str]) -> dict[str, Drawing]:
    """By tokens kept: for one run a curve per length, and its states; for several a curve per line at its longest."""
    alone = lines[0].alone
    frame = frame_of([line.header for line in lines], KEPT_TOKENS, "total variation")
    drawn: dict[str, Drawing] = {}
    if alone:
        record = lines[0].record
        curves = [_changed(record, length, f"{length:,} tokens") for length in _lengths(record)]
        drawn["remembrance"] = Drawing(HEADING, CAPTION, length_figure(curves, frame, title, notes))
        if (states := _states(record)) != []:
            sizes = Frame("tokens read", "norm of the state", frame.trained, scale="log")
            drawn["states"] = Drawing(STATES, STATE_CAPTION, length_figure(states, sizes, title, notes))
        return drawn
    curves = [_changed(line.record, max(_lengths(line.record)), line.label) for line in lines]
    return {"compare": Drawing(HEADING, CAPTION, length_figure(curves, frame, title, notes))}


def tables(lines: Sequence[Line]) -> list[Table]:
    """Total variation by the tokens kept, a row a length or a run; of one run the norms of its states by length."""
    if lines[0].alone:
        record = lines[0].record
        rows = {f"{length:,} tokens": _medians(_changed(record, length, "")) for length in _lengths(record)}
        states = {curve.label: _medians(curve, ".3g") for curve in _states(record)}
        listed = [by_column(f"{HEADING}, by the last tokens kept", "sequences of", rows)]
        return [*listed, *([by_column(STATES, "block", states)] if states else [])]
    rows = {line.label: _medians(_changed(line.record, max(_lengths(line.record)), "")) for line in lines}
    return [by_column(f"{HEADING}, by the last tokens kept", "model", rows, lines)]


def records(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """A record a measurement."""
    return [
        {"model": line.label, "metric": metric, **entry}
        for line in lines
        for metric in (CHANGED, STATE_NORM)
        for entry in _entries(line.record, metric)
    ]


def _entries(record: Record, metric: str) -> list[dict[str, Any]]:
    place = "kept" if metric == CHANGED else "block"
    return [
        {
            "length": row["length"],
            place: row["position"] if metric == CHANGED else row["extra"]["block"],
            "seed": row["seed"],
            "mean": value(row),
            "sequences": row["count"],
        }
        for row in _rows(record, metric)
    ]


def _rows(record: Record, metric: str) -> list[Row]:
    return [row for row in record.rows if row["metric"] == metric and row["split"] == "test"]


def _lengths(record: Record) -> list[int]:
    return sorted({row["length"] for row in _rows(record, CHANGED) if row["length"] is not None})


def _changed(record: Record, length: int, label: str) -> Curve:
    rows = [row for row in _rows(record, CHANGED) if row["length"] == length]
    return Curve(label, grouped((row["seed"] or 0, Point(row["position"] or 0, value(row))) for row in rows))


def _states(record: Record) -> list[Curve]:
    by_block = grouped((row["extra"]["block"], row) for row in _rows(record, STATE_NORM))
    return [
        Curve(f"block {block}", grouped((row["seed"] or 0, Point(row["length"] or 0, value(row))) for row in rows))
        for block, rows in sorted(by_block.items())
    ]


def _medians(curve: Curve, form: str = ".3f") -> dict[int, str]:
    return {x: shown(middle, form) for x, middle, *_ in curve.over_seeds()}
