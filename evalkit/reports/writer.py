"""The report of one run, from its rows alone: `results.json`, figures, an HTML page, tables on the terminal."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from evalkit.core.rows import Header
from evalkit.record import history
from evalkit.record.files import write_results, write_text
from evalkit.reports import page
from evalkit.reports.curves import save, svg
from evalkit.reports.kinds import Drawing, Table, kind_of, last_step
from evalkit.reports.numbers import finite_throughout, grouped
from evalkit.reports.pooling import Line, Run, left_out, notes_of
from evalkit.reports.terminal import print_table

PAGE = "report.html"


def report(
    folder: Path, console: Console, before_results: Callable[[Mapping[str, Any]], object] = lambda summary: None
) -> dict[str, Any]:
    """Writes `results.json`, the figures of the run's kind and `report.html` into its folder, and prints the tables.

    Returns the summary. A run with `results.json` is finished, so `before_results` is called with the summary just
    before that file is written, for all else that ends a run. Raises `UserError` for a folder without rows, an unknown
    kind of report, and files that cannot be written.
    """
    record = history.record_of(folder)
    header, kind = record.header, kind_of(record.header.kind)
    lines = [Line(header.model or "unknown model", [Run(folder, record, {})], alone=True)]
    title = f"{page.display_name(header.task or 'run')} · {lines[0].label}"
    notes, skipped = notes_of(lines), left_out(lines[0])
    summary, tables = finite_throughout(kind.summarise(record)), [table for table in kind.tables(lines) if table.lines]
    if extended := history.extensions(folder, record):
        summary["extended"] = [one._asdict() for one in extended]
    drawings = kind.figures(lines, title, notes)
    parts = [
        page.notes([*notes, *skipped]),
        page.facts(_facts(lines[0], last_step(record))),
        *sections(drawings, folder, tables),
        *_how_it_was_made(folder),
    ]
    write_text(folder / PAGE, page.page(title, lead(header), parts, summary))
    before_results(summary)
    write_results(folder, summary)
    print_report(console, title, notes, tables, lead(header))
    for line in skipped or ([] if tables else ["nothing was measured at the end of this run"]):
        say(console, line)
    return summary


def sections(drawings: Mapping[str, Drawing], folder: Path, tables: Sequence[Table]) -> list[str]:
    """The body of a page: under each heading its figures, each saved as `<name>.png` too, then its tables."""
    parts_by_heading: list[tuple[str, str]] = []
    for name, drawing in drawings.items():
        save(drawing.figure, folder / f"{name}.png")
        parts_by_heading.append((drawing.heading, page.figure(svg(drawing.figure, f"{name}-"), drawing.caption)))
    parts_by_heading += [(table.heading, page.table(table.header, table.lines)) for table in tables]
    return [part for heading, parts in grouped(parts_by_heading).items() for part in (page.heading(heading), *parts)]


def say(console: Console, line: str) -> None:
    """Prints what is beside the numbers."""
    console.print(Text(line, style="dim"), soft_wrap=True)


def print_report(console: Console, title: str, notes: Sequence[str], tables: Sequence[Table], about: str = "") -> None:
    """Prints a title, the notes, and the tables under their headings."""
    console.print(Text(title, style="bold"), Text(about, style="dim"), soft_wrap=True)
    for note in notes:
        console.print(Text(f"note: {note}", style="yellow"))
    for table in tables:
        print_table(console, table.header, table.lines, table.heading)


def lead(header: Header) -> str:
    """The run in one line, below the title."""
    untold = "not trained" if header.source is None else "training length not known"
    trained = untold if header.train_length is None else f"trained at length {header.train_length:,}"
    costs = {
        "parameters": header.parameters,
        "bytes of state": header.state_bytes(),
        "FLOPs a token": header.flops_per_token,
    }
    counted = ", ".join([*(f"{number:,} {name}" for name, number in costs.items() if number), trained])
    return f"{counted}; {header.text['used']}" if header.text else counted


def _facts(line: Line, step: int | None) -> list[tuple[str, str]]:
    header = line.header
    sizes = sorted((header.cache_bytes or {}).items(), key=lambda size: int(size[0]))
    numbers = {
        "parameters": header.parameters,
        "training length": header.train_length,
        "window": header.window,
        "training steps": step,
    }
    words = {
        "bytes of state": "; ".join(f"{size:,} at length {int(at):,}" for at, size in sizes),
        "FLOPs a token": f"{header.flops_per_token:,}" if header.flops_per_token else None,
        "seeds": ", ".join(map(str, line.seeds)),
        "preset": header.preset,
        "chance": f"{header.chance:.3g}" if header.chance else None,
        "checkpoint": header.source,
    }
    facts = {**{name: f"{number:,}" for name, number in numbers.items() if number}, **words}
    return [(name, shown) for name, shown in facts.items() if shown]


def _how_it_was_made(folder: Path) -> list[str]:
    """Every command, the environment and the configuration, as far as the folder has them."""
    environment, config = _environment(folder / "environment.json"), folder / "config.yaml"
    last = environment.pop("command", None)
    begun = (
        f"{work.command}  # from step {work.step:,}" if work.step else work.command for work in history.read(folder)
    )
    commands = "\n".join(begun) or last
    parts = [
        page.code(commands) if commands else "",
        page.details("environment", json.dumps(environment, indent=2)) if environment else "",
        page.details("configuration", config.read_text(encoding="utf-8", errors="replace")) if config.is_file() else "",
    ]
    return [page.heading("How it was made"), *parts] if any(parts) else []


def _environment(path: Path) -> dict[str, Any]:
    content: Any = {}
    with suppress(ValueError, RecursionError):  # what was damaged is not shown
        content = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    if not isinstance(content, dict):
        return {"environment": content}
    command = content.get("command")
    words = command if isinstance(command, list) else [] if command is None else [command]
    return {**content, "command": " ".join(map(str, words))}
