"""Every number in a table of `studies/` is what the rows and cells that are kept say, rounded to the digits shown."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from support.kept_tables import Cell, Table, Wrong, changed, tables_of
from support.suite_page import PAGE, written

RESULTS = Path(__file__).parent.parent / "studies"
# What was decided before the runs has no result.
PAGES = sorted(page for page in RESULTS.rglob("*.md") if page.name != "protocol.md")
MARK = "put `<!-- rows … -->` before it, as tests/support/kept_tables.py says, or `<!-- not rows: WHY -->`"


def _tables() -> Iterator[Table]:
    return (table for page in PAGES for table in tables_of(page))


def test_every_table_says_where_its_numbers_come_from() -> None:
    assert [f"{table.page.name}:{table.line}: {MARK}" for table in _tables() if table.source is None] == []


@pytest.mark.slow
def test_pages_show_what_the_rows_say_and_a_wrong_last_digit_is_found() -> None:
    """Each number of each table in turn; most numbers are held to rows, not excused from it."""
    wrong, held, missed = list[str](), 0, 0
    for cell in (cell for table in _tables() if table.of_rows for cell in table.cells()):
        try:
            texts = list(changed(cell.text)) if cell.check() else []
        except Wrong as error:
            wrong.append(str(error))
            continue
        held += len(texts)
        missed += sum(_passes(replace(cell, text=text)) for text in texts)
    assert wrong == []
    assert missed == 0 and held > 900


def _passes(cell: Cell) -> bool:
    try:
        return bool(cell.check())
    except Wrong:
        return False


def test_the_tables_are_those_of_the_cells_that_are_kept() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == written(text), "write them anew: python -m tests.support.suite_page"
