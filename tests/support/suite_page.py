"""Writes the tables of `studies/suite/suite.md`, and its board, as the suite's report does, of the cells that are kept.

From the root: `python -m tests.support.suite_page`.
"""

from collections.abc import Iterator
from pathlib import Path

import yaml

from evalkit.reports.curves import save
from evalkit.reports.kinds import Table
from evalkit.reports.suite.board import Board, picture
from evalkit.reports.suite.cells import kept
from evalkit.reports.suite.report import LEGEND, tables

PAGE = Path(__file__).parents[2] / "studies" / "suite" / "suite.md"
SUITE = PAGE.parents[2] / "conf" / "experiment" / "suite.yaml"
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


def board() -> Board:
    """The board of the suite's own tasks and models."""
    suite = yaml.safe_load(SUITE.read_text(encoding="utf-8"))["suite"]
    wanted = [(task, model) for task in suite["tasks"]["cpu"] for model in suite["models"]]
    command = "python -m evalkit experiment=suite"
    return Board(kept("cpu"), wanted, suite["floors"]["cpu"], command, controls=suite["controls"])


if __name__ == "__main__":
    save(picture(board()), PAGE.with_name("figures") / "board.png")
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
