"""Writes the tables of `studies/suite/suite.md`: those of the suite's report, made of the cells that are kept.

From the root: `python -m tests.support.suite_page`.
"""

from collections.abc import Iterator
from pathlib import Path

from evalkit.reports.kinds import Table
from evalkit.reports.suite.cells import kept
from evalkit.reports.suite.report import LEGEND, tables

PAGE = Path(__file__).parents[2] / "studies" / "suite" / "suite.md"
BEGIN, END = "<!-- begin: tables of the kept cells -->\n", "<!-- end -->\n"
MARK = "<!-- not rows: tables of the suite, held to the kept cells by tests/test_results.py -->"


def written(text: str) -> str:
    """The page with its tables anew."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + "\n".join(_parts()) + END + after


def _parts() -> Iterator[str]:
    yield f"{LEGEND}\n"
    for table in tables(kept("cpu")):
        yield f"### {table.heading}\n\n{MARK}\n{_markdown(table)}"


def _markdown(table: Table) -> str:
    lines = [table.header, ["---"] * len(table.header), *table.lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
