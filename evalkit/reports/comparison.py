"""`python -m evalkit.compare RUN…`: overlays the curves of several runs of one task, with a table.

Writes `compare.png` (accuracy against length, fig. 6b's axes), `learning.png` (against steps, fig. 6a's),
`growth-*.png` (the same at each longer length that any looked at while training), `compare.csv` (tidy) and
`compare.html` (self-contained); of phonebook lookups `compare.png` (fig. 6c) and `compare.csv`; of text
`positions.png` (figs. 5 and 10), `context.png`, `training.png`, `compare.csv` and `compare.html`.
"""

import argparse
import csv
import io
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from evalkit.core.errors import UserError, writing
from evalkit.core.statistics import censored_spread, spread
from evalkit.record.files import write_text
from evalkit.reports import compare_lookups, page
from evalkit.reports.accuracy.report import DASH, show_steps
from evalkit.reports.accuracy.summary import SCHEMA
from evalkit.reports.curves import draw, extrapolation_figure, learning_figure, length_label
from evalkit.reports.phonebook import TASK as LOOKUP
from evalkit.reports.pooling import Line, Run, find_runs, load, pool
from evalkit.reports.recall.summary import is_recall
from evalkit.reports.terminal import print_table
from evalkit.reports.text import compare as compare_texts
from evalkit.reports.text.summary import is_text

LEVEL = "0.99"
GROWTH = "growth-"
COLUMNS: tuple[str, ...] = (
    "run",
    "model",
    "seed",
    "length",
    "accuracy",
    "low",
    "high",
    "exact_match",
    "loss",
    "sequences",
)


def compare(
    folders: Sequence[Path], out: Path | None, console: Console, names: Mapping[Path, str] | None = None
) -> Path:
    """Writes the comparison of the runs found in `folders` to `out`, prints its table and returns `out`.

    `out` defaults to `runs/compare/<task>-<timestamp>`. `names` are what runs are called, by folder, instead of after
    their models. Raises `UserError` for a folder without rows and for runs of different tasks.
    """
    loaded = [load(folder, (names or {}).get(folder)) for folder in find_runs(folders)]
    runs = [run for run in loaded if not is_recall(run.rows)]
    if not runs:
        raise UserError(f"{loaded[0].folder} asks by distance, which its own report draws; give runs of one task")
    for run in loaded:
        if run not in runs:
            console.print(Text(f"left out, for it asks by distance: {run.folder}", style="dim"), soft_wrap=True)
    task = _one_task(runs)
    out = out or Path("runs", "compare", f"{task}-{datetime.now():%Y-%m-%d_%H-%M-%S}")
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
    if task == LOOKUP:
        compare_lookups.compare(runs, out, console)
        return out
    lines = pool(runs)
    notes = _notes(lines)
    if all(is_text(run.rows) for run in runs):
        compare_texts.compare(task, lines, notes, out, console)
        return out
    header, cells = comparison_table(lines)
    drawings = _draw(task, lines, notes, out)
    write_text(out / "compare.csv", _csv(lines))
    write_text(out / "compare.html", _html(task, lines, notes, drawings, (header, cells)))
    console.print(Text(page.spoken(task), style="bold"))
    for note in notes:
        console.print(Text(f"note: {note}", style="yellow"))
    print_table(console, header, cells)
    wrote = f"wrote {out / 'compare.html'}, {', '.join(f'{name}.png' for name in drawings)}, compare.csv"
    console.print(Text(wrote, style="dim"), soft_wrap=True)
    return out


def comparison_table(lines: Sequence[Line]) -> tuple[list[str], list[list[str]]]:
    """Header and cells: a row a line of the figure, a column a length (median accuracy over seeds)."""
    lengths = sorted({length for line in lines for length in [*line.accuracy, *line.not_run]})
    header = ["model", "parameters", "seeds", "steps to 99%", *map(length_label, lengths)]
    rows = []
    for line in lines:
        parameters = line.runs[0].summary["parameters"]
        rows.append(
            [
                line.label,
                DASH if parameters is None else f"{parameters:,}",
                str(len(line.seeds)),
                _steps_to_level(line),
                *[_accuracy(line, length) for length in lengths],
            ]
        )
    return header, rows


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code, 2 for runs that cannot be compared."""
    parser = argparse.ArgumentParser(
        prog="python -m evalkit.compare", description="Overlay the curves of several runs of one task, with a table."
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run's folder, or a folder that holds runs")
    parser.add_argument("--out", type=Path, metavar="DIR", help="default: runs/compare/<task>-<timestamp>")
    options = parser.parse_args(arguments)
    try:
        compare(options.runs, options.out, Console())
    except UserError as error:
        print(f"evalkit.reports.comparison: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _one_task(runs: Sequence[Run]) -> str:
    tasks: dict[str, Path] = {}
    for run in runs:
        tasks.setdefault(str(run.summary["task"]), run.folder)
    if len(tasks) > 1:
        found = ", ".join(f"{task} ({folder})" for task, folder in tasks.items())
        raise UserError(f"runs of different tasks do not compare: {found}; give runs of one task")
    return next(iter(tasks))


def _notes(lines: Sequence[Line]) -> list[str]:
    """What each line's runs say of themselves, and where the lines were not made alike."""
    notes = []
    for name, field in (("training length", "train_length"), ("chance", "chance"), ("preset", "preset")):
        values = {line.label: line.runs[0].summary[field] for line in lines}
        if len(set(values.values())) > 1:
            shown = ", ".join(f"{label} {_show(value)}" for label, value in values.items())
            notes.append(f"The {name} differs: {shown}.")
    said = {line.label: line.runs[0].summary["notes"] for line in lines}
    shared = [note for note in said[lines[0].label] if all(note in own for own in said.values())]
    own: dict[str, list[str]] = {}  # by note, so that what several say is said once
    for label, noted in said.items():
        for note in noted:
            if note not in shared:
                own.setdefault(note, []).append(label)
    return [*notes, *shared, *(f"{', '.join(labels)}: {note}" for note, labels in own.items())]


def _draw(task: str, lines: Sequence[Line], notes: Sequence[str], out: Path) -> dict[str, str]:
    """Saves the figures and returns them as SVG for the page."""
    summaries = [line.runs[0].summary for line in lines]
    chances = {summary["chance"] for summary in summaries}
    chance = chances.pop() if len(chances) == 1 else None
    trained = sorted({summary["train_length"] for summary in summaries if summary["train_length"]})
    windows = [summary["window"] for summary in summaries]
    ladders = [line.extrapolation() for line in lines]
    learning = [line.learning() for line in lines]
    figures = {
        "compare": extrapolation_figure(ladders, trained, windows, chance, page.spoken(task), notes),
        "learning": learning_figure(learning, (), chance, f"{page.spoken(task)} while training", notes),
    }
    for at in sorted({length for line in lines for length in line.probes}):
        looked = [line.learning(at) for line in lines]
        title = f"{page.spoken(task)} at {length_label(at)} while training"
        figures[f"{GROWTH}{at}"] = learning_figure(looked, (), chance, title, notes)
    return draw(figures, out)


def _records(lines: Sequence[Line]) -> list[dict[str, Any]]:
    return [
        {"run": run.summary["run"], "model": line.label, **record}
        for line in lines
        for run in line.runs
        for record in run.summary["extrapolation"]
    ]


def _csv(lines: Sequence[Line]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(_records(lines))
    return text.getvalue()


def _html(
    task: str,
    lines: Sequence[Line],
    notes: Sequence[str],
    drawings: Mapping[str, str],
    table: tuple[Sequence[str], Sequence[Sequence[str]]],
) -> str:
    runs = [[line.label, str(run.summary["run"]), run.seeds] for line in lines for run in line.runs]
    grown = [
        page.figure(drawing, f"The same at {int(name.removeprefix(GROWTH)):,} tokens.")
        for name, drawing in drawings.items()
        if name.startswith(GROWTH)
    ]
    return page.page(
        f"{page.spoken(task)}: {', '.join(line.label for line in lines)}",
        f"{sum(len(line.runs) for line in lines)} runs compared; median accuracy over seeds",
        [
            page.notes(notes),
            page.heading("Accuracy by evaluation length"),
            page.figure(drawings["compare"], "Median and range over seeds; a single seed with its 95% interval."),
            page.table(*table),
            page.heading("While training"),
            page.figure(drawings["learning"], "Validation accuracy at the training length against training steps."),
            *grown,
            page.heading("Runs"),
            page.table(["model", "run", "seeds"], runs),
        ],
        {
            "schema": SCHEMA,
            "task": task,
            "notes": list(notes),
            "extrapolation": _records(lines),
            "runs": [run.summary for line in lines for run in line.runs],
        },
    )


def _accuracy(line: Line, length: int) -> str:
    median = spread(line.accuracy.get(length, ()))["median"]
    if median is not None:
        return f"{median:.3f}"
    return "not run" if length in line.not_run else DASH


def _steps_to_level(line: Line) -> str:
    """Median steps to 99 %, or the bound where most seeds did not get there; how many did, where not all."""
    reached = [seed["steps_to"][LEVEL] for seed in line.seeds]
    last = [seed["validation"]["step"] for seed in line.seeds if seed["validation"]]
    median, got = censored_spread(reached)["median"], sum(step is not None for step in reached)
    shown = show_steps(None if median is None else round(median), min(last, default=None))
    return shown if got in (0, len(reached)) else f"{shown} ({got} of {len(reached)} seeds)"


def _show(value: Any) -> str:
    return "unknown" if value is None else f"{value:,.3g}" if isinstance(value, float) else f"{value}"


if __name__ == "__main__":
    sys.exit(main())
