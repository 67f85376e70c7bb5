"""Overlays several runs of one task and one kind of report: figures, a table, `compare.csv` and `compare.html`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from evalkit.core.errors import UserError, writing
from evalkit.core.moved import RECALL
from evalkit.core.rows import Header
from evalkit.core.tidy import as_csv
from evalkit.record import variables
from evalkit.record.files import EARLIER, write_text
from evalkit.reports import page
from evalkit.reports.kinds import Costed, Drawing, Kind, explained, kind_of
from evalkit.reports.numbers import finite_throughout
from evalkit.reports.pooling import STEPS, Line, Run, find_runs, inner_runs, load, notes_of, pool
from evalkit.reports.writer import print_report, say, sections

SCHEMA = 1
X = ("cache_bytes", "flops")
Complete = Callable[[Sequence[tuple[Path, Header]], int | None], Sequence[Header]]
"""The headers of older runs with what their models cost, and with the bytes of their states at one more length."""


class Against(NamedTuple):
    """A figure more: accuracy at the length `at`, by default the training length, against one of `X`."""

    x: str
    at: int | None = None


def compare(
    folders: Sequence[Path],
    out: Path | None,
    console: Console,
    names: Mapping[Path, str] | None = None,
    *,
    against: Against | None = None,
    complete: Complete | None = None,
    by: str = STEPS,
) -> Path:
    """Writes the comparison of the runs found in `folders` to `out`, prints its tables and returns `out`.

    `out` defaults to `runs/compare/<task>-<timestamp>`. `names` maps folders to labels; other runs are called after
    their models. `complete` fills in what older runs did not record of their models. Training curves are drawn against
    `by`: steps, tokens, flops or seconds. A printed line says what is left out. Raises `UserError` for a folder without
    rows, runs of different tasks, and a figure `against` a cost that is not known.
    """
    loaded = _loaded(folders, names or {}, console)
    runs = _of_one_kind(loaded)
    task, kind = runs[0].header.task, kind_of(runs[0].header.kind)
    for run in loaded:
        if run not in runs:
            say(console, f"left out, for its report is of another kind ({run.header.kind}): {run.folder}")
    out = out or Path("runs", "compare", f"{Path(task).name}-{datetime.now():%Y-%m-%d_%H-%M-%S}")
    with explained(", ".join(str(run.folder) for run in runs)):
        _draw(runs, kind, out, console, against, complete, by)
    return out


def _draw(
    runs: Sequence[Run],
    kind: Kind,
    out: Path,
    console: Console,
    against: Against | None,
    complete: Complete | None,
    by: str,
) -> None:
    task = runs[0].header.task
    at = None if against is None else against.at or runs[0].header.train_length
    lines = [replace(line, by=by) for line in pool(runs if complete is None else _completed(runs, complete, at))]
    notes, title = notes_of(lines), page.display_name(task)
    said = [*notes, *variables.differing([run.folder for run in runs])]  # a figure has no room for these
    tables = [table for table in kind.tables(lines) if table.lines]
    drawings = {**kind.figures(lines, title, notes), **_against(kind, lines, against, at, title, notes)}
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
    members = [[line.label, run.header.run, ", ".join(map(str, run.seeds))] for line in lines for run in line.runs]
    table = page.table(["model", "run", "seeds"], members)
    parts = [page.notes(said), *sections(drawings, out, tables), page.heading("Runs"), table]
    summaries = [kind.summarise(run.record) for line in lines for run in line.runs]
    data = finite_throughout({"schema": SCHEMA, "task": task, "notes": said, "runs": summaries})
    labels = ", ".join(line.label for line in lines)
    write_text(out / "compare.html", page.page(f"{title}: {labels}", f"{len(runs)} runs compared", parts, data))
    write_text(out / "compare.csv", as_csv(kind.records(lines)))
    print_report(console, title, said, tables)
    files = [str(out / "compare.html"), *(f"{name}.png" for name in drawings), "compare.csv"]
    say(console, f"wrote {', '.join(files)}")


def _completed(runs: Sequence[Run], complete: Complete, at: int | None) -> list[Run]:
    """The runs, with the costs that some headers lack."""
    lacking = [run for run in runs if run.header.flops_per_token is None or run.header.state_bytes(at) is None]
    headers = complete([(run.folder, run.header) for run in lacking], at) if lacking else []
    by_folder = {run.folder: header for run, header in zip(lacking, headers, strict=True)}
    return [replace(run, record=run.record._replace(header=by_folder.get(run.folder, run.header))) for run in runs]


def _against(
    kind: Kind, lines: Sequence[Line], against: Against | None, at: int | None, title: str, notes: Sequence[str]
) -> Mapping[str, Drawing]:
    """The figure that was asked for besides; raises UserError where these runs have none."""
    if against is None:
        return {}
    if not isinstance(kind, Costed):
        raise UserError(f"--x={against.x} draws accuracy at a length, which these runs do not measure; leave it out")
    if at is None:
        raise UserError(f"--x={against.x}: the training length is not known; give a length, --at=LENGTH")
    return {f"accuracy-{against.x}": kind.against(lines, against.x, at, title, notes)}


def _loaded(folders: Sequence[Path], names: Mapping[Path, str], console: Console) -> list[Run]:
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
        what = "a shorter training of a run" if folder.parent.name == EARLIER else "an evaluation within a run"
        say(console, f"left out, for it is {what} (give its folder to compare it): {folder}")
    return loaded


def _of_one_kind(loaded: Sequence[Run]) -> list[Run]:
    """The runs of the first run's kind; recall only if all runs are recall. Raises `UserError` for several tasks."""
    others = [run for run in loaded if run.header.kind != RECALL] or list(loaded)
    tasks: dict[str, Path] = {}
    for run in others:
        tasks.setdefault(run.header.task, run.folder)
    if len(tasks) > 1:
        names = ", ".join(f"{task} ({folder})" for task, folder in tasks.items())
        raise UserError(f"runs of different tasks do not compare: {names}; give runs of one task")
    return [run for run in others if run.header.kind == others[0].header.kind]
