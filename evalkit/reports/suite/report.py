"""The report of a suite's folder: `suite.html`, its figures, `suite.csv`, `suite.json`, and the tables printed."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from evalkit.core.errors import writing
from evalkit.core.tidy import as_csv
from evalkit.record.files import write_text
from evalkit.reports import page
from evalkit.reports.suite.cells import Cell, as_json, beside, found_in
from evalkit.reports.suite.figures import figures
from evalkit.reports.suite.tables import LEGEND, tables
from evalkit.reports.writer import print_report, say, sections

TITLE = "Suite"


def write(folder: Path, preset: str, console: Console, others: Sequence[Cell]) -> list[Cell]:
    """Writes the report of the finished cells in `folder`, in place of namesakes in `others`; returns all shown."""
    own = found_in(folder)
    if not own:
        say(console, f"no cell of {folder} is finished yet")
        return []
    cells = beside(own, others)
    notes = [LEGEND]
    if len(cells) > len(own):
        notes.append(f"{len(cells) - len(own)} of {len(cells)} cells are results that were kept, not of {folder}.")
    notes += trained_otherwise(own, cells)
    shown, drawn = tables(cells), figures(cells)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    lead = f"{len({cell.task for cell in cells})} tasks, {len({cell.model for cell in cells})} models, preset={preset}"
    parts = [page.notes(notes), *sections(drawn, folder, shown)]
    write_text(folder / "suite.html", page.page(TITLE, lead, parts, [asdict(cell) for cell in cells]))
    write_text(folder / "suite.csv", as_csv(list(_records(cells))))
    write_text(folder / "suite.json", as_json(own))
    print_report(console, TITLE, notes, shown, lead)
    say(console, f"wrote {folder / 'suite.html'}, suite.csv, suite.json and {len(drawn)} figures")
    return cells


def trained_otherwise(own: Sequence[Cell], cells: Sequence[Cell]) -> Iterator[str]:
    """A sentence a cell of `own` that was trained or asked otherwise than one of its task beside it."""
    for cell in own:
        other = next((c for c in cells if c.task == cell.task and c.protocol != cell.protocol), None)
        if other is not None:
            yield (
                f"{cell.task} · {cell.model} was trained otherwise: {_trained(cell)}, where {other.model} has "
                f"{_trained(other)}. They cannot be compared."
            )


def _trained(cell: Cell) -> str:
    """How a cell was trained, in words.

    >>> from evalkit.reports.suite.cells import kept
    >>> _trained(kept("cpu")[0])
    '40 tokens, 1,500 steps, 3 seeds, chance 0.5'
    """
    length, steps, seeds, chance, typed = cell.protocol
    known = [] if chance is None else [f"chance {chance:.3g}"]
    return ", ".join([f"{length:,} tokens", f"{steps:,} steps", f"{seeds} seeds", *known, *typed])


def _records(cells: Sequence[Cell]) -> Iterator[dict[str, Any]]:
    for cell in cells:
        shared = asdict(cell)
        measured, trials = shared.pop("measured"), shared.pop("trials")
        for measurement in measured:
            yield {**shared, "trial": False, **measurement}
        for trial in trials:
            yield {**shared, "trial": True, **trial, "length": cell.train_length}
