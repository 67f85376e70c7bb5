"""The report of one run, from its rows alone: `results.json`, two figures, an HTML page, a table on the terminal."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from evalkit.core.rows import Row, read
from evalkit.record.files import write_results, write_text
from evalkit.reports import page
from evalkit.reports.accuracy.summary import (
    LEVELS,
    extrapolation_curve,
    learning_curve,
    probe_lengths,
    run_facts,
    summarise,
)
from evalkit.reports.curves import draw, extrapolation_figure, learning_figure, length_label
from evalkit.reports.recall import report as recall_report
from evalkit.reports.recall import summary as recall_summary
from evalkit.reports.terminal import print_table
from evalkit.reports.text import report as text_report
from evalkit.reports.text import summary as text_summary

DASH = "–"


def report(folder: Path, console: Console) -> dict[str, Any]:
    """Writes `results.json`, `extrapolation.png`, `training.png` and `report.html` into a run's folder.

    Prints the tables and returns the summary. Raises `UserError` if the folder has no rows or cannot be written.
    """
    rows = read(folder)
    if text_summary.is_text(rows):
        return text_report.report(folder, rows, console)
    if recall_summary.is_recall(rows):
        return recall_report.report(folder, rows, console)
    summary = summarise(rows)
    figures = run_figures(rows)
    drawings = draw(figures, folder)
    write_results(folder, summary)
    write_text(folder / "report.html", _html(folder, summary, drawings))
    print_summary(summary, console)
    return summary


def run_figures(rows: Sequence[Row]) -> dict[str, Any]:
    """The figures of one run by file name: `extrapolation` (fig. 6b's axes) and `training` (fig. 6a's)."""
    facts = run_facts(rows)
    title = f"{page.spoken(str(facts['task']))} · {facts['model']}"
    ladder, trained = extrapolation_curve(rows), learning_curve(rows)
    probes = [learning_curve(rows, length).relabel(f"at {length_label(length)}") for length in probe_lengths(rows)]
    length = facts["train_length"]
    trained = trained.relabel(f"at {length_label(length)} (training length)") if length else trained
    return {
        "extrapolation": extrapolation_figure(
            [ladder] if ladder.seeds else [], length, [facts["window"]], facts["chance"], title, facts["notes"]
        ),
        "training": learning_figure(
            [trained] if trained.seeds else [],
            [probe for probe in probes if probe.seeds],
            facts["chance"],
            f"{title} while training",
            facts["notes"],
        ),
    }


def print_summary(summary: Mapping[str, Any], console: Console) -> None:
    """Prints what the run shows: notes, steps to 90, 99 and 100 %, and accuracy by length with its interval."""
    console.print(Text(_title(summary), style="bold"), Text(_lead(summary), style="dim"))
    for note in summary["notes"]:
        console.print(Text(f"note: {note}", style="yellow"))
    for header, lines in (steps_table(summary), ladder_table(summary)):
        if lines:
            print_table(console, header, lines)
    for line in not_run_lines(summary):
        console.print(Text(line, style="dim"))
    if not summary["extrapolation"]:
        console.print(Text("no length was evaluated at the end of this run", style="dim"))


def steps_table(summary: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and lines, one a seed: steps to each level at the training length, and the last validation."""
    header = ["seed", *[f"steps to {level:.0%}" for level in LEVELS], "last accuracy", "last loss", "at step"]
    lines = []
    for seed in summary["seeds"]:
        last = seed["validation"]
        if last:
            steps = [show_steps(seed["steps_to"][str(level)], last["step"]) for level in LEVELS]
            final = [_number(last["accuracy"]), _loss(last["loss"]), f"{last['step']:,}"]
            lines.append([str(seed["seed"]), *steps, *final])
    return header, lines


def ladder_table(summary: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and lines, one a length: with one seed its 95% interval, with several their median and range."""
    one = len({record["seed"] for record in summary["extrapolation"]}) <= 1
    spread = "95% interval" if one else "range over seeds"
    intervals = {record["length"]: (record["low"], record["high"]) for record in summary["extrapolation"]}
    measured = {}
    for record in summary["aggregate"]["extrapolation"]:
        accuracy = record["accuracy"]
        low, high = intervals[record["length"]] if one else (accuracy["min"], accuracy["max"])
        measured[record["length"]] = [
            _number(accuracy["median"]),
            f"{_number(low)} {DASH} {_number(high)}",
            _number(record["exact_match"]["median"]),
            f"{record['sequences']:,g}",
            _loss(record["loss"]["median"]),
        ]
    skipped = {entry["length"]: ["not run", "", "", "", ""] for entry in summary["not_run"]}
    lines = [
        [_length(length, summary["train_length"]), *cells] for length, cells in sorted({**skipped, **measured}.items())
    ]
    return ["length", "accuracy", spread, "exact match", "sequences", "loss"], lines


def not_run_lines(summary: Mapping[str, Any]) -> list[str]:
    """One line a reason: the lengths that were left out for it."""
    lengths: dict[str, list[str]] = {}
    for entry in summary["not_run"]:
        lengths.setdefault(entry["reason"], []).append(f"{entry['length']:,}")
    return [f"not run ({reason}): {'; '.join(found)}" for reason, found in lengths.items()]


def show_steps(reached: int | None, last: int | None) -> str:
    """Steps to a level; "> last" where it was not reached by the last validation."""
    if reached is not None:
        return f"{reached:,}"
    return DASH if last is None else f"> {last:,}"


def _html(folder: Path, summary: Mapping[str, Any], drawings: Mapping[str, str]) -> str:
    environment = _json(folder / "environment.json")
    config = folder / "config.yaml"
    steps, ladder = steps_table(summary), ladder_table(summary)
    command = environment.pop("command", None)
    return page.page(
        _title(summary),
        _lead(summary),
        [
            page.notes([*summary["notes"], *not_run_lines(summary)]),
            page.facts(_facts(summary)),
            page.heading("Accuracy by evaluation length"),
            page.figure(drawings["extrapolation"], "Accuracy on sequences of each length, after training."),
            page.table(*ladder) if ladder[1] else "",
            page.heading("While training"),
            page.figure(drawings["training"], "Validation accuracy against training steps."),
            page.table(*steps) if steps[1] else "",
            page.heading("How it was made") if command or environment or config.is_file() else "",
            page.code(command if isinstance(command, str) else " ".join(command)) if command else "",
            page.details("environment", json.dumps(environment, indent=2)) if environment else "",
            page.details("configuration", config.read_text(encoding="utf-8")) if config.is_file() else "",
        ],
        summary,
    )


def _facts(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    chance, window = summary["chance"], summary["window"]
    pairs = {
        "parameters": summary["parameters"] and f"{summary['parameters']:,}",
        "training length": summary["train_length"] and f"{summary['train_length']:,}",
        "window": window and f"{window:,}",
        "training steps": summary["step"] and f"{summary['step']:,}",
        "seeds": ", ".join(str(seed["seed"]) for seed in summary["seeds"]),
        "preset": summary["preset"],
        "chance": None if chance is None else f"{chance:.3g}",
    }
    return [(name, str(shown)) for name, shown in pairs.items() if shown]


def _title(summary: Mapping[str, Any]) -> str:
    return f"{page.spoken(summary['task'] or 'run')} · {summary['model'] or 'unknown model'}"


def _lead(summary: Mapping[str, Any]) -> str:
    trained = summary["train_length"]
    told = f"trained at length {trained:,}" if trained else "not trained"
    return f"{summary['parameters']:,} parameters, {told}" if summary["parameters"] else told


def _length(length: int, trained: int | None) -> str:
    label = f"{length:,}" if length < 2**20 else f"{length:,} ({length_label(length)})"
    return f"{label} (trained)" if length == trained else label


def _number(number: float | None) -> str:
    return DASH if number is None else f"{number:.3f}"


def _loss(number: float | None) -> str:
    return DASH if number is None else f"{number:.3g}"


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    content = json.loads(path.read_text(encoding="utf-8"))
    return content if isinstance(content, dict) else {"environment": content}
