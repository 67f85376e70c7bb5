"""Hidden values that were found, by length and depth: a kind of report."""

from collections.abc import Sequence
from typing import Any

from evalkit.core.rows import Record, Row, value
from evalkit.core.statistics import wilson
from evalkit.evaluations.needle.rows import ALL, FOUND
from evalkit.reports.canvas import length_label
from evalkit.reports.curves import frame_of, length_figure
from evalkit.reports.heat import Square, heat_figure
from evalkit.reports.kinds import Drawing, Table, by_column
from evalkit.reports.numbers import Curve, Point, between, grouped, shown
from evalkit.reports.pooling import Line

HEADING, BY_DEPTH = "Hidden values found by length", "Hidden values found by length and depth"
CAPTION = (
    "The share of the values that the answer holds, the mean of all depths; the bar is a 95% interval over prompts."
)
CELL = "share of the hidden values that the answer holds"
FACTS = ("run", "task", "model", "parameters", "cache_bytes", "flops_per_token", "train_length", "window", "source")


def summarise(record: Record) -> dict[str, Any]:
    """The content of `results.json`: what was evaluated, and of each length the mean and the value at each depth."""
    return {name: getattr(record.header, name) for name in FACTS} | {
        "lengths": [
            {
                "length": length,
                "sentences": rows[0]["extra"]["sentences"],
                "prompts": int(sum(entry["count"] or 0 for entry in rows)),
                FOUND: _mean(rows),
                ALL: _mean(_rows(record, ALL)[length]),
                "depths": {_depth(entry): value(entry) for entry in rows},
            }
            for length, rows in _rows(record, FOUND).items()
        ]
    }


def figures(lines: Sequence[Line], title: str, notes: Sequence[str]) -> dict[str, Drawing]:
    """The mean by length, a line a model; and of each model a cell for each length and depth."""
    curves = [Curve(line.label, {0: _points(line.record)}) for line in lines]
    frame = frame_of([line.header for line in lines], y="share of the values found")
    alone = lines[0].alone
    drawn = {"needle" if alone else "compare": Drawing(HEADING, CAPTION, length_figure(curves, frame, title, notes))}
    for number, line in enumerate(lines):
        name = "depths" if alone else f"depths_{number}"
        drawn[name] = Drawing(BY_DEPTH, line.label, _heat(line, title if alone else f"{title}: {line.label}", notes))
    return drawn


def tables(lines: Sequence[Line]) -> list[Table]:
    """Of one run a row a depth; of several a row each; a column a length."""
    if lines[0].alone:
        cells: dict[str, dict[int, str]] = {}
        for length, rows in _rows(lines[0].record, FOUND).items():
            for entry in rows:
                cells.setdefault(_depth(entry), {})[length] = shown(value(entry))
            low, high = wilson(*_of_prompts(rows))
            cells.setdefault("all", {})[length] = shown(_mean(rows))
            cells.setdefault("95% interval", {})[length] = between(low, high)
            cells.setdefault("prompts", {})[length] = f"{_of_prompts(rows)[1]:,g}"
        return [by_column(BY_DEPTH, "depth", cells)]
    means = {line.label: {point.x: shown(point.value) for point in _points(line.record)} for line in lines}
    return [by_column(HEADING, "model", means, lines)]


def records(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """A record a model, length and depth."""
    return [
        {
            "model": line.label,
            "length": length,
            "depth": entry["extra"]["depth"],
            FOUND: value(entry),
            "prompts": int(entry["count"] or 0),
        }
        for line in lines
        for length, rows in _rows(line.record, FOUND).items()
        for entry in rows
    ]


def _rows(record: Record, metric: str) -> dict[int, list[Row]]:
    """The rows of a metric by length, the shortest first, each in the order of depths."""
    rows = [entry for entry in record.rows if entry["metric"] == metric and entry["length"] is not None]
    by_length = grouped((entry["length"] or 0, entry) for entry in rows)
    return {
        length: sorted(by_length[length], key=lambda row: row["extra"]["depth"] or 0.0) for length in sorted(by_length)
    }


def _mean(rows: Sequence[Row]) -> float:
    """The mean over the prompts of all depths."""
    total, count = _sums(rows)
    return total / count


def _sums(rows: Sequence[Row]) -> tuple[float, float]:
    """The sum over the prompts of all depths, each from 0 to 1, and how many these are."""
    return sum(entry["total"] or 0.0 for entry in rows), sum(entry["count"] or 0 for entry in rows)


def _of_prompts(rows: Sequence[Row]) -> tuple[float, float]:
    """The sum over prompts of their mean over depths, and how many these are: a prompt is the same at every depth."""
    total, count = _sums(rows)
    return total / len(rows), count / len(rows)


def _points(record: Record) -> list[Point]:
    return [
        Point(length, _mean(rows), *wilson(*_of_prompts(rows)), _of_prompts(rows)[1])
        for length, rows in _rows(record, FOUND).items()
    ]


def _heat(line: Line, title: str, notes: Sequence[str]) -> Any:
    by_length = _rows(line.record, FOUND)
    shares = {
        (length_label(length), _depth(entry)): value(entry) for length, rows in by_length.items() for entry in rows
    }
    squares = {place: Square(share, f"{share:.2f}".removeprefix("0")) for place, share in shares.items()}
    depths = list(dict.fromkeys(_depth(entry) for rows in by_length.values() for entry in rows))
    labels = ("tokens of the prompt", "depth of the answers")
    trained = line.header.train_length
    told = [*notes, *([] if trained is None else [f"trained at {trained:,} tokens"])]
    return heat_figure(squares, [*map(length_label, by_length)], depths, labels, {CELL: 1.0}, title, told)


def _depth(entry: Row) -> str:
    depth = entry["extra"]["depth"]
    return "anywhere" if depth is None else f"{100 * depth:g}%"
