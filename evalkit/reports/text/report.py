"""The report of one run on text, from its rows alone: `results.json`, three figures, an HTML page, tables."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from rich.console import Console
from rich.text import Text

from evalkit.core.rows import Row
from evalkit.record.files import write_results, write_text
from evalkit.reports import page
from evalkit.reports.curves import draw
from evalkit.reports.terminal import print_table
from evalkit.reports.text.figures import Subject, context_figure, position_figure, validation_figure
from evalkit.reports.text.summary import summarise

DASH = "–"
CAPTIONS = {
    "positions": ("Loss by token position", "Held-out documents; the band is a 95% interval over documents."),
    "context": ("What more context changes", "The same passages after more or less of their own document."),
    "training": ("While training", "Loss on the ends of the training documents, which are kept from training."),
}


def report(folder: Path, rows: Sequence[Row], console: Console) -> dict[str, Any]:
    """Writes `results.json`, `positions.png`, `context.png`, `training.png` and `report.html` into a run's folder.

    Prints the tables and returns the summary.
    """
    summary = summarise(rows)
    figures = figures_of([Subject(str(summary["model"]), rows)], _title(summary), summary["notes"])
    drawings = draw(figures, folder)
    write_results(folder, summary)
    write_text(folder / "report.html", _html(folder, summary, drawings))
    print_summary(summary, console)
    return summary


def figures_of(subjects: Sequence[Subject], title: str, notes: Sequence[str]) -> dict[str, Figure]:
    """The figures by file name."""
    return {
        "positions": position_figure(subjects, title, notes),
        "context": context_figure(subjects, f"{title}: more context", notes),
        "training": validation_figure(subjects, f"{title} while training", notes),
    }


def print_summary(summary: Mapping[str, Any], console: Console) -> None:
    """Prints what the run shows: the text, validation, loss by position, what more context changes, the controls."""
    console.print(Text(_title(summary), style="bold"), Text(summary["text"]["used"], style="dim"), soft_wrap=True)
    for note in summary["notes"]:
        console.print(Text(f"note: {note}", style="yellow"))
    for header, lines in tables(summary):
        if lines:
            print_table(console, header, lines)
    for line in left_out(summary):
        console.print(Text(line, style="dim"), soft_wrap=True)


def tables(summary: Mapping[str, Any]) -> list[tuple[list[str], list[list[str]]]]:
    """Headers and lines: validation by seed, loss by octave, the paired difference, the controls."""
    losses, bits = summary["validation"]["loss"], summary["validation"]["bits_per_byte"]
    octaves = [found for found in summary["by_position"] if found["position"].bit_count() == 1]
    return [
        (
            ["seed", "validation, nats a token", "bits a byte"],
            [[str(seed), f"{losses[seed]:.4f}", f"{bits[seed]:.4f}"] for seed in losses],
        ),
        (
            ["position", "loss", "95% interval", "documents", "bits a byte"],
            [[*_cells(found, ".4f"), f"{found['bits_per_byte']:.4f}"] for found in octaves],
        ),
        _contexts(summary["paired"]),
        _contexts(summary["paired_after_a_window"]),
        (["control", "tokens", "difference of loss", "95% interval", "documents"], _controls(summary)),
    ]


def _contexts(paired: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """The difference to one context; nothing is decided of shorter ones."""
    against = paired["against"]
    header = ["context", f"loss minus that after {against}", "95% interval", "documents", "so more context"]
    lines = [
        [*_cells(found, "+.4f"), found["verdict"] if found["position"] > against else DASH]
        for found in paired["difference"]
    ]
    return header, lines


def left_out(summary: Mapping[str, Any]) -> list[str]:
    """One line a document that was too short, or a control that could not be."""
    found = {
        (entry.get("document", "far context from another document"), entry["not_run"]) for entry in summary["not_run"]
    }
    return [f"left out: {document} ({reason})" for document, reason in sorted(found)]


def _controls(summary: Mapping[str, Any]) -> list[list[str]]:
    names = {
        "foreign": "far context from another document, minus its own",
        "repeated": "a passage seen before, minus one not seen",
        "helped": "tokens that long context helps most, long minus short",
    }
    return [_control(words, found) for name, words in names.items() for found in summary[name]]


def _control(words: str, found: Mapping[str, Any]) -> list[str]:
    """A line; tokens that were chosen by the very losses they are judged by prove nothing, so without an interval."""
    if found.get("chosen_by") != "itself":
        return [words, *_cells(found, "+.4f")]
    bare = _cells({**found, "low": None, "high": None}, "+.4f")
    return [f"{words} (chosen by the same losses: below 0 by construction)", *bare]


def _cells(found: Mapping[str, Any], form: str) -> list[str]:
    """Position, mean, interval and number of documents."""
    low, high = found["low"], found["high"]
    interval = DASH if low is None else f"{low:{form}} {DASH} {high:{form}}"
    return [f"{found['position']:,}", f"{found['mean']:{form}}", interval, str(found["documents"])]


def _html(folder: Path, summary: Mapping[str, Any], drawings: Mapping[str, str]) -> str:
    config = folder / "config.yaml"
    parts = [page.notes([summary["text"]["used"], *summary["notes"], *left_out(summary)])]
    for name, (heading, caption) in CAPTIONS.items():
        parts += [page.heading(heading), page.figure(drawings[name], caption)]
    parts += [page.table(*found) for found in tables(summary) if found[1]]
    parts += [page.details("configuration", config.read_text(encoding="utf-8")) if config.is_file() else ""]
    return page.page(_title(summary), summary["text"]["used"], parts, summary)


def _title(summary: Mapping[str, Any]) -> str:
    return f"{page.spoken(str(summary['task']))} · {summary['model']}"
