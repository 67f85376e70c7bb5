"""lm-eval's benchmarks, a metric of a task each: a kind of report."""

from collections.abc import Sequence
from typing import Any

from evalkit.core.rows import Record, Row, value
from evalkit.reports.kinds import COSTS, Drawing, Table, costs_of, facts_of
from evalkit.reports.numbers import DASH, between, finite, interval, shown
from evalkit.reports.pooling import Line

SCHEMA = 1
SPLIT = "benchmark"
HEADING, FORM = "Benchmarks", ".4g"
SHARES = ("acc", "acc_norm", "exact_match")
"""Metrics that are the share of documents which are right."""


def summarise(record: Record) -> dict[str, Any]:
    """The content of `results.json`: the value of each metric, by benchmark."""
    results: dict[str, dict[str, float | None]] = {}
    for name, number in _results(record).items():
        benchmark, _, metric = name.partition("/")
        results.setdefault(benchmark, {})[metric] = number
    return {"schema": SCHEMA, **facts_of(record), "results": results}


def figures(lines: Sequence[Line], title: str, notes: Sequence[str]) -> dict[str, Drawing]:
    """None: tasks have no order to be drawn in."""
    return {}


def tables(lines: Sequence[Line]) -> list[Table]:
    """A row a metric; of one model with its interval and documents, of several a column each, and first its costs."""
    by_line = [{entry["metric"]: entry for entry in line.record.rows if entry["split"] == SPLIT} for line in lines]
    metrics = list(dict.fromkeys(metric for entries in by_line for metric in entries))
    if lines[0].alone:
        cells = [[name, *_told(by_line[0][name])] for name in metrics]
        return [Table(HEADING, ["metric", lines[0].label, "95% interval", "documents"], cells)]
    cells = [[name, *_compared([entries.get(name) for entries in by_line])] for name in metrics]
    costs = zip(COSTS, *(costs_of(line.header) for line in lines), strict=True)
    return [Table(HEADING, ["metric", *(line.label for line in lines)], [*costs, *cells])]


def _told(entry: Row) -> list[str]:
    """The value, the 95% interval of a share of the documents, and how many these are."""
    is_share = entry["metric"].partition("/")[2].split("/")[0] in SHARES
    low, high = interval(entry) if is_share else (None, None)
    return [shown(value(entry), FORM), between(low, high), f"{entry['count'] or 0:,g}"]


def _compared(entries: Sequence[Row | None]) -> list[str]:
    """A metric of each model; with the number of documents where these differ, as with `task.limit`."""
    differ = len({entry["count"] for entry in entries if entry is not None}) > 1
    return [
        DASH
        if entry is None
        else shown(value(entry), FORM) + (f" ({entry['count'] or 0:,g} documents)" if differ else "")
        for entry in entries
    ]


def records(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """A record a run and metric."""
    return [
        {
            "run": entry["run"],
            "model": line.label,
            "metric": entry["metric"],
            "value": value(entry),
            "documents": entry["count"],
            "num_fewshot": entry["extra"].get("num_fewshot"),
        }
        for line in lines
        for entry in line.record.rows
        if entry["split"] == SPLIT
    ]


def _results(record: Record) -> dict[str, float | None]:
    return {entry["metric"]: finite(value(entry)) for entry in record.rows if entry["split"] == SPLIT}
