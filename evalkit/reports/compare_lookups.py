"""Several models' phonebook lookups in one figure (De et al. 2024, fig. 6c), with a table."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from evalkit.record.files import write_text
from evalkit.reports.accuracy.report import DASH
from evalkit.reports.accuracy.summary import Curve
from evalkit.reports.curves import extrapolation_figure, length_label, save
from evalkit.reports.phonebook import AXIS, lookup_curve
from evalkit.reports.pooling import Run
from evalkit.reports.terminal import print_table

TITLE = "Phonebook lookup"


def compare(runs: Sequence[Run], out: Path, console: Console) -> None:
    """Writes `compare.png` and `compare.csv` to `out` and prints the table: a line a run, a column a length."""
    curves = _labelled(runs)
    trained = sorted({run.summary["train_length"] for run in runs if run.summary["train_length"]})
    windows = [run.summary["window"] for run in runs]
    save(extrapolation_figure(curves, trained, windows, title=TITLE, measure=AXIS), out / "compare.png")
    write_text(out / "compare.csv", _csv(curves))
    console.print(Text(TITLE, style="bold"))
    print_table(console, *_table(curves))
    console.print(Text(f"wrote {out / 'compare.png'}, compare.csv", style="dim"), soft_wrap=True)


def _labelled(runs: Sequence[Run]) -> list[Curve]:
    """A curve a run under the model's name, with the run's where two have one."""
    names = [str(run.summary["model"]) for run in runs]
    labels = [
        name if names.count(name) == 1 else f"{name} · {run.summary['run']}"
        for name, run in zip(names, runs, strict=True)
    ]
    return [lookup_curve(run.rows).relabel(label) for label, run in zip(labels, runs, strict=True)]


def _table(curves: Sequence[Curve]) -> tuple[list[str], list[list[str]]]:
    lengths = sorted({point.x for curve in curves for point in curve.seeds[0]})
    lines = []
    for curve in curves:
        found = {point.x: f"{point.value:.3f}" for point in curve.seeds[0]}
        lines.append([curve.label, *(found.get(length, DASH) for length in lengths)])
    return ["model", *map(length_label, lengths)], lines


def _csv(curves: Sequence[Curve]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["model", "length", "exact_match", "low", "high", "prompts"])
    for curve in curves:
        writer.writerows(
            [curve.label, point.x, point.value, point.low, point.high, f"{point.count:g}"] for point in curve.seeds[0]
        )
    return text.getvalue()
