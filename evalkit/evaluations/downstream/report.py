"""lm-eval's benchmarks, a metric of a task each: a kind of report."""

from collections.abc import Sequence
from typing import Any

from evalkit.core.rows import Record, value
from evalkit.reports.kinds import COSTS, Drawing, Table, costs_of, facts_of
from evalkit.reports.numbers import finite, shown
from evalkit.reports.pooling import Line

SCHEMA = 1
SPLIT = "benchmark"


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
    """A row a metric, a column a model; of several models what each costs comes first."""
    by_line = [_results(line.record) for line in lines]
    metrics = list(dict.fromkeys(metric for results in by_line for metric in results))
    cells = [[metric, *(shown(results.get(metric), ".4g") for results in by_line)] for metric in metrics]
    costs = [] if lines[0].alone else list(zip(COSTS, *(costs_of(line.header) for line in lines), strict=True))
    return [Table("Benchmarks", ["metric", *(line.label for line in lines)], [*costs, *cells])]


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
