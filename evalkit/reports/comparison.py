"""Overlays several runs of one task and one kind of report: figures, a table, `compare.csv` and `compare.html`."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

from rich.console import Console

from evalkit.core.errors import UserError, writing
from evalkit.core.rows import RECALL
from evalkit.core.tidy import as_csv
from evalkit.record.files import write_text
from evalkit.reports import page
from evalkit.reports.kinds import kind_of
from evalkit.reports.notes import notes_of
from evalkit.reports.pooling import Run, find_runs, inner_runs, load, pool
from evalkit.reports.writer import print_report, say, sections

SCHEMA = 1


def compare(
    folders: Sequence[Path], out: Path | None, console: Console, names: Mapping[Path, str] | None = None
) -> Path:
    """Writes the comparison of the runs found in `folders` to `out`, prints its tables and returns `out`.

    `out` defaults to `runs/compare/<task>-<timestamp>`. `names` are what runs are called, by folder, instead of after
    their models. Of a folder of runs, evaluations within a run and runs without rows are left out, and said to be; so
    are runs of another kind of report than the first. Raises `UserError` for a folder without rows and for runs of
    different tasks.
    """
    loaded = _loaded(folders, names or {}, console)
    runs = _of_one_kind(loaded)
    task, kind = runs[0].header.task, kind_of(runs[0].header.kind)
    for run in loaded:
        if run not in runs:
            say(console, f"left out, for its report is of another kind ({run.header.kind}): {run.folder}")
    lines = pool(runs)
    notes, title = notes_of(lines), page.display_name(task)
    tables = [table for table in kind.tables(lines) if table.lines]
    drawings = kind.figures(lines, title, notes)
    out = out or Path("runs", "compare", f"{task}-{datetime.now():%Y-%m-%d_%H-%M-%S}")
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
    members = [[line.label, run.header.run, ", ".join(map(str, run.seeds))] for line in lines for run in line.runs]
    table = page.table(["model", "run", "seeds"], members)
    parts = [page.notes(notes), *sections(drawings, out, tables), page.heading("Runs"), table]
    summaries = [kind.summarise(run.record) for line in lines for run in line.runs]
    data = {"schema": SCHEMA, "task": task, "notes": notes, "runs": summaries}
    labels = ", ".join(line.label for line in lines)
    write_text(out / "compare.html", page.page(f"{title}: {labels}", f"{len(runs)} runs compared", parts, data))
    write_text(out / "compare.csv", as_csv(kind.records(lines)))
    print_report(console, title, notes, tables)
    say(console, f"wrote {out / 'compare.html'}, {', '.join(f'{name}.png' for name in drawings)}, compare.csv")
    return out


def _loaded(folders: Sequence[Path], names: Mapping[Path, str], console: Console) -> list[Run]:
    """The runs in `folders`, what is left out of them said."""
    loaded: list[Run] = []
    problems: list[UserError] = []
    for folder in find_runs(folders):
        try:
            loaded.append(load(folder, names.get(folder)))
        except UserError as error:
            if folder in folders:
                raise
            problems.append(error)
    if not loaded:
        raise problems[0]
    for error in problems:
        say(console, f"left out: {error}")
    for folder in inner_runs(folders):
        say(console, f"left out, for it is an evaluation within a run (give its folder to compare it): {folder}")
    return loaded


def _of_one_kind(loaded: Sequence[Run]) -> list[Run]:
    """The runs of the first one's kind. Raises `UserError` where what is left has several tasks.

    Recall asks again of runs that are trained and reported otherwise: beside these it never comes first.
    """
    others = [run for run in loaded if run.header.kind != RECALL] or list(loaded)
    tasks: dict[str, Path] = {}
    for run in others:
        tasks.setdefault(run.header.task, run.folder)
    if len(tasks) > 1:
        found = ", ".join(f"{task} ({folder})" for task, folder in tasks.items())
        raise UserError(f"runs of different tasks do not compare: {found}; give runs of one task")
    return [run for run in others if run.header.kind == others[0].header.kind]
