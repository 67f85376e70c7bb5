"""Several runs on text in one figure each: loss by position, what more context changes, loss while training."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from evalkit import page, text_rows
from evalkit.canvas import length_label
from evalkit.figures import save, svg
from evalkit.pooling import Line
from evalkit.report import DASH, spoken, write_text
from evalkit.terminal import print_table
from evalkit.text_figures import Subject
from evalkit.text_report import CAPTIONS, figures_of
from evalkit.text_summary import Estimate, base_context, differences, levels, table_of

SHOWN_FROM = 128


def compare(task: str, lines: Sequence[Line], notes: Sequence[str], out: Path, console: Console) -> None:
    """Writes `compare.html` with its figures, each a PNG too, and `compare.csv` to `out`; prints the tables."""
    subjects = [Subject(line.label, [row for run in line.runs for row in run.rows]) for line in lines]
    title = spoken(task)
    figures = figures_of(subjects, title, notes)
    for name, figure in figures.items():
        save(figure, out / f"{name}.png")
    drawings = {name: svg(figure, prefix=f"{name}-") for name, figure in figures.items()}
    found = [by_position(subjects), by_context(subjects)]
    parts = [page.notes(notes)]
    for name, (heading, caption) in CAPTIONS.items():
        parts += [page.heading(heading), page.figure(drawings[name], caption)]
    parts += [page.table(*table) for table in found]
    summaries = {"task": task, "runs": [run.summary for line in lines for run in line.runs]}
    lead = f"{sum(len(line.runs) for line in lines)} runs compared; held-out documents are the unit"
    whole = page.page(f"{title}: {', '.join(subject.label for subject in subjects)}", lead, parts, summaries)
    write_text(out / "compare.html", whole)
    write_text(out / "compare.csv", _csv(subjects))
    console.print(Text(title, style="bold"))
    for note in notes:
        console.print(Text(f"note: {note}", style="yellow"))
    for table in found:
        print_table(console, *table)
    wrote = f"wrote {out / 'compare.html'}, {', '.join(f'{name}.png' for name in figures)}, compare.csv"
    console.print(Text(wrote, style="dim"), soft_wrap=True)


def by_position(subjects: Sequence[Subject]) -> tuple[list[str], list[list[str]]]:
    """Mean loss at powers of two: a row a line of the figure."""
    found = {subject.label: levels(table_of(subject.rows, text_rows.LOSS)) for subject in subjects}
    shown = {label: {one.position: f"{one.mean:.4f}" for one in line} for label, line in found.items()}
    return _table("loss at position", shown)


def by_context(subjects: Sequence[Subject]) -> tuple[list[str], list[list[str]]]:
    """What more context than the training length's changes, with half the width of its interval."""
    shown = {
        subject.label: {one.position: f"{one.mean:+.4f} ± {one.high - one.mean:.4f}" for one in _changes(subject)}
        for subject in subjects
    }
    return _table("after more context", shown)


def _changes(subject: Subject) -> list[Estimate]:
    table, base = table_of(subject.rows, text_rows.PAIRED), base_context(subject.rows)
    return [] if base is None else [found for found in differences(table, table, base) if found.position > base]


def _table(name: str, shown: Mapping[str, Mapping[int, str]]) -> tuple[list[str], list[list[str]]]:
    positions = sorted({place for line in shown.values() for place in line if place.bit_count() == 1})
    drawn = [position for position in positions if position >= SHOWN_FROM]
    header = [name, *map(length_label, drawn)]
    return header, [[label, *(line.get(position, DASH) for position in drawn)] for label, line in shown.items()]


def _csv(subjects: Sequence[Subject]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["model", "measure", "position", "mean", "low", "high", "documents"])
    for subject in subjects:
        measured = {"loss": levels(table_of(subject.rows, text_rows.LOSS)), "more_context": _changes(subject)}
        for measure, found in measured.items():
            writer.writerows(
                [subject.label, measure, one.position, one.mean, one.low, one.high, one.documents] for one in found
            )
    return text.getvalue()
