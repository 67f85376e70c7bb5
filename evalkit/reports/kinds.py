"""A kind of report: a module with four functions of rows, which a run's header names by its dotted name."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from matplotlib.figure import Figure

from evalkit.core.errors import UserError, first_line, place_of
from evalkit.core.rows import Header, Record, read
from evalkit.core.trust import imported, refuse_unnamed_kind
from evalkit.reports.canvas import length_label
from evalkit.reports.numbers import DASH, shown
from evalkit.reports.pooling import Line, Run

logger = logging.getLogger(__name__)
FACTS = ("preset", "train_length", "answer_length", "window", "chance", "steps")

COSTS = ("parameters", "state bytes", "FLOPs/token")
"""The columns of what a model costs: its state is that of one sequence of the training length."""


@dataclass(frozen=True)
class Table:
    """A table whose first column is text and whose others are numbers."""

    heading: str
    header: Sequence[str]
    lines: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Drawing:
    """A figure, with what stands above and below it on a page."""

    heading: str
    caption: str
    figure: Figure


@runtime_checkable
class Kind(Protocol):
    """The four functions of a kind of report.

    The report of a single run gets one line with one run, and may show more than a report of several lines.
    """

    def summarise(self, record: Record) -> dict[str, Any]:
        """The content of `results.json`; a number that JSON has not is null."""
        ...

    def tables(self, lines: Sequence[Line]) -> list[Table]:
        """The numbers to be read, on the page and on the terminal."""
        ...

    def figures(self, lines: Sequence[Line], title: str, notes: Sequence[str]) -> Mapping[str, Drawing]:
        """The figures by file name, without suffix."""
        ...

    def records(self, lines: Sequence[Line]) -> list[dict[str, Any]]:
        """The measurements as tidy rows, for `compare.csv`."""
        ...


@runtime_checkable
class Costed(Protocol):
    """Optional: a kind that draws a value at one length against what the models cost."""

    def against(self, lines: Sequence[Line], x: str, at: int, title: str, notes: Sequence[str]) -> Drawing:
        """The figure at the length `at`, `x` being `cache_bytes` or `flops`; raises UserError if unknown."""
        ...


def kind_of(name: str) -> Kind:
    """The kind of report with this dotted name. Raises `UserError` if there is none, or if nobody named its package."""
    refuse_unnamed_kind(name)
    try:
        kind = imported(name)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        message = f"the kind of report {name!r} cannot be imported ({error}); put its module on the path"
        raise UserError(message) from error
    if not isinstance(kind, Kind):
        raise UserError(f"{name} is no kind of report; it needs the functions summarise, tables, figures and records")
    return kind


@contextmanager
def explained(where: str) -> Iterator[None]:
    """Turns an error that a kind of report raises on rows it cannot read into one line; the log has the traceback."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        logger.info("rows that their kind of report does not read", exc_info=error)
        reason = f"{type(error).__name__}: {first_line(error)}{place_of(error)}"
        raise UserError(f"the rows of {where} are not what their kind of report reads ({reason})") from error


def records_of(folder: Path) -> list[dict[str, Any]]:
    """The measurements of one run as its kind of report tabulates them; raises `UserError` where there are none."""
    record = read(folder)
    kind = kind_of(record.header.kind)
    with explained(str(folder)):
        return kind.records([Line(record.header.model, [Run(folder, record, {})], alone=True)])


def facts_of(record: Record) -> dict[str, Any]:
    """What every summary says of the run itself."""
    header = record.header
    return {
        "run": header.run,
        "task": header.task or None,
        "model": header.model or None,
        "parameters": header.parameters,
        "cache_bytes": None if header.cache_bytes is None else dict(header.cache_bytes),
        "flops_per_token": header.flops_per_token,
        "notes": list(header.notes),
        **{name: getattr(header, name) for name in FACTS},
    }


def costs_of(header: Header) -> list[str]:
    """The cells below `COSTS`, a dash where something is not known."""
    return [shown(number, ",") for number in (header.parameters, header.state_bytes(), header.flops_per_token)]


def last_step(record: Record) -> int | None:
    """The last training step that a row is of."""
    return max((entry["step"] for entry in record.rows if entry["step"] is not None), default=None)


def by_column(
    heading: str,
    name: str,
    rows: Mapping[str, Mapping[int, str]],
    costed: Sequence[Line] = (),
    label: Callable[[int], str] = length_label,
) -> Table:
    """One row per label, under `name`, one column per length or position; lines `costed` have `COSTS` first."""
    columns = sorted({column for cells in rows.values() for column in cells})
    costs = {line.label: costs_of(line.header) for line in costed}
    lines = [
        [label, *costs.get(label, ()), *(cells.get(column, DASH) for column in columns)]
        for label, cells in rows.items()
    ]
    return Table(heading, [name, *(COSTS if costs else ()), *map(label, columns)], lines)
