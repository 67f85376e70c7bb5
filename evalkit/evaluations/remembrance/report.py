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
    """By tokens kept: for one run a curve per length, and its states; for several a curve per line, at one length."""
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
    curves = [_changed(line.record, at, _label(line, at, lines)) for line, at in _compared(lines)]
    return {"compare": Drawing(HEADING, CAPTION, length_figure(curves, frame, title, notes))}


def tables(lines: Sequence[Line]) -> list[Table]:
    """Total variation by the tokens kept, a row a length or a run; of one run the norms of its states by length."""
    if lines[0].alone:
        record = lines[0].record
        rows = {f"{length:,} tokens": _medians(_changed(record, length, "")) for length in _lengths(record)}
        states = {curve.label: _medians(curve, ".3g") for curve in _states(record)}
        listed = [by_column(f"{HEADING}, by the last tokens kept", "sequences of", rows)]
        return [*listed, *([by_column(STATES, "block", states)] if states else [])]
    rows = {_label(line, at, lines): _medians(_changed(line.record, at, "")) for line, at in _compared(lines)}
    shared = {at for _, at in _compared(lines)}
    of_length = f" of sequences of {min(shared):,}" if len(shared) == 1 else ""
    return [by_column(f"{HEADING}, by the last tokens kept{of_length}", "model", rows, lines)]


def _compared(lines: Sequence[Line]) -> list[tuple[Line, int]]:
    """Each line with the length at which it is compared: the longest that all share, or where there is none its own."""
    lengths = [(line, set(own)) for line in lines if (own := _lengths(line.record))]
    shared = set.intersection(*(own for _, own in lengths)) if lengths else set[int]()
    return [(line, max(shared or own)) for line, own in lengths]


def _label(line: Line, at: int, lines: Sequence[Line]) -> str:
    """Its label, with the length where others are at another one."""
    return line.label if len({other for _, other in _compared(lines)}) == 1 else f"{line.label}, of {at:,} tokens"


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
