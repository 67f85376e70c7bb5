"""Several runs on text in one figure each: loss by position, what more context changes, loss while training."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from evalkit.core.rows import value
from evalkit.record import text_rows
from evalkit.record.files import write_text
from evalkit.reports import page
from evalkit.reports.accuracy.report import DASH
from evalkit.reports.canvas import length_label
from evalkit.reports.curves import draw
from evalkit.reports.pooling import Line
from evalkit.reports.terminal import print_table
from evalkit.reports.text.figures import Subject, unit
from evalkit.reports.text.report import CAPTIONS, figures_of
from evalkit.reports.text.summary import Estimate, alike, base_context, bits_per_byte, differences, levels, table_of

SHOWN_FROM = 128


def compare(task: str, lines: Sequence[Line], notes: Sequence[str], out: Path, console: Console) -> None:
    """Writes `compare.html` with its figures, each a PNG too, and `compare.csv` to `out`; prints the tables."""
    subjects = [Subject(line.label, [row for run in line.runs for row in run.rows]) for line in lines]
    title, notes = page.spoken(task), [*_text_notes(subjects), *notes]
    figures = figures_of(subjects, title, notes)
    drawings = draw(figures, out)
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
    same = _same(subjects)
    found = {subject.label: _levels(subject, same) for subject in subjects}
    shown = {label: {one.position: f"{one.mean:.4f}" for one in line} for label, line in found.items()}
    return _table(f"loss ({unit(same)}) at position", shown)


def by_context(subjects: Sequence[Subject]) -> tuple[list[str], list[list[str]]]:
    """What more context than a training window's changes, with half the width of its interval."""
    same = _same(subjects)
    shown = {
        f"{subject.label}, against {base_context(subject.rows) or DASH}": {
            one.position: f"{one.mean:+.4f} ± {one.high - one.mean:.4f}" for one in _changes(subject, same)
        }
        for subject in subjects
    }
    return _table(f"after more context ({unit(same)})", shown)


def _same(subjects: Sequence[Subject]) -> bool:
    return alike([subject.rows for subject in subjects])


def _levels(subject: Subject, same: bool) -> list[Estimate]:
    return levels(table_of(subject.rows, text_rows.LOSS, value if same else bits_per_byte))


def _changes(subject: Subject, same: bool) -> list[Estimate]:
    table = table_of(subject.rows, text_rows.PAIRED, value if same else bits_per_byte)
    base = base_context(subject.rows)
    return [] if base is None else [found for found in differences(table, table, base) if found.position > base]


def _text_notes(subjects: Sequence[Subject]) -> list[str]:
    """Where the lines were not drawn on the same held-out texts."""
    texts = {}
    for subject in subjects:
        first = next(entry for entry in subject.rows if entry["metric"] == "parameters")
        text = (first["extra"] or {})["text"]
        texts.setdefault(text.get("held_out", text["digest"]), []).append(subject.label)
    if len(texts) == 1:
        return []
    return [f"The held-out texts differ, so the lines do not compare: {'; '.join(map(', '.join, texts.values()))}."]


def _table(name: str, shown: Mapping[str, Mapping[int, str]]) -> tuple[list[str], list[list[str]]]:
    positions = sorted({place for line in shown.values() for place in line if place.bit_count() == 1})
    drawn = [position for position in positions if position >= SHOWN_FROM]
    header = [name, *map(length_label, drawn)]
    return header, [[label, *(line.get(position, DASH) for position in drawn)] for label, line in shown.items()]


def _csv(subjects: Sequence[Subject]) -> str:
    text, same = io.StringIO(), _same(subjects)
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["model", "measure", "unit", "position", "mean", "low", "high", "documents"])
    for subject in subjects:
        measured = {"loss": _levels(subject, same), "more_context": _changes(subject, same)}
        for measure, found in measured.items():
            writer.writerows(
                [subject.label, measure, unit(same), one.position, one.mean, one.low, one.high, one.documents]
                for one in found
            )
    return text.getvalue()
