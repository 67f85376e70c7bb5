"""Writes the tables of `studies/suite/suite.md`, and its board, as the suite's report does, of the cells that are kept.

From the root: `python -m tests.support.suite_page`. With the folder of a suite, `… suite_page runs/suite/cpu`, its
finished cells are kept first, in place of the kept ones of the same task and model.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from PIL import Image

from evalkit.reports.curves import save
from evalkit.reports.kinds import Table
from evalkit.reports.suite.board import Board, picture
from evalkit.reports.suite.cells import KEPT, as_json, beside, finished_cells, kept
from evalkit.reports.suite.report import LEGEND, tables, trained_otherwise

PAGE = Path(__file__).parents[2] / "studies" / "suite" / "suite.md"
ROOT = PAGE.parents[2]
SUITE = ROOT / "conf" / "experiment" / "suite.yaml"
COUNTED = (PAGE, ROOT / "studies" / "README.md", ROOT / "docs" / "suite.md", ROOT / "README.md")
"""Pages that say how many cells are kept."""
COUNT = re.compile(r"\d+( of 120 cells are)")
COLOURS = 96
"""As many as leave each square the shade that it has; the picture then takes a third of the room."""
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


def _suite() -> dict[str, Any]:
    return yaml.safe_load(SUITE.read_text(encoding="utf-8"))["suite"]


def board() -> Board:
    """The board of the suite's own tasks and models."""
    suite = _suite()
    wanted = [(task, model) for task in suite["tasks"]["cpu"] for model in suite["models"]]
    command = "python -m evalkit experiment=suite"
    return Board(kept("cpu"), wanted, suite["floors"]["cpu"], command, controls=suite["controls"])


def keep(folder: Path) -> None:
    """Keeps the finished cells of a suite's folder, in the order of the suite.

    Raises ValueError for cells that were trained by other words, or otherwise than the kept cells of their task.
    """
    own, suite = finished_cells(folder), _suite()
    otherwise = next((cell for cell in own if cell.typed or cell.preset != "cpu"), None)
    if otherwise is not None:
        raise ValueError(f"{otherwise.task} of {otherwise.model} was trained by other words: {otherwise.typed}")
    for sentence in trained_otherwise(own, [*own, *kept("cpu")]):
        raise ValueError(sentence)
    tasks, models = list(suite["tasks"]["cpu"]), list(suite["models"])
    cells = sorted(beside(own, kept("cpu")), key=lambda cell: (tasks.index(cell.task), models.index(cell.model)))
    KEPT.write_text(as_json(cells), encoding="utf-8")
    squares = sum(cell.size is None for cell in cells)
    for page in COUNTED:
        text = page.read_text(encoding="utf-8")
        page.write_text(COUNT.sub(rf"{squares}\1", text), encoding="utf-8")


def main() -> None:
    """Keeps what the folder has, and writes the page and the picture."""
    for folder in sys.argv[1:]:
        keep(Path(folder))
    image = PAGE.with_name("figures") / "board.png"
    save(picture(board()), image)
    every = Image.open(image).convert("RGB")
    every.quantize(COLOURS, Image.Quantize.MEDIANCUT, kmeans=2, dither=Image.Dither.NONE).save(image, optimize=True)
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
