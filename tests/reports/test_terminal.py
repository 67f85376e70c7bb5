"""Tables on a terminal: no cell loses a letter, and one that fits when its words are wrapped stays one table."""

from io import StringIO

import pytest
from rich.console import Console

from evalkit.reports.terminal import print_table

HEADER = ["control", "to", "difference", "95% interval", "documents"]
LINES = [
    ["far context from another document, minus its own", "8,192", "+0.0007", "-0.0042 – +0.0055", "10"],
    ["tokens that long context helps most (chosen by the same losses)", "8,192", "-0.3059", "–", "10"],
]


STEPS = ["seed", "steps to 90%", "steps to 99%", "steps to 100%", "last accuracy", "last loss", "at step"]


def printed(width: int, header: list[str], lines: list[list[str]], heading: str | None = None) -> str:
    console = Console(file=StringIO(), width=width)
    print_table(console, header, lines, heading)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
def test_every_word_of_every_cell_is_printed_whole(width: int) -> None:
    text = printed(width, HEADER, LINES)
    assert "…" not in text
    for word in " ".join([*HEADER, *LINES[0], *LINES[1]]).split():
        assert word in text, word


def test_words_are_wrapped_before_columns_go_elsewhere() -> None:
    assert printed(80, HEADER, LINES).count("control") == 1
    assert printed(60, HEADER, LINES).count("control") == 2


def test_a_table_that_fits_is_not_wrapped() -> None:
    assert LINES[0][0] in printed(200, HEADER, LINES)


def test_a_name_is_never_broken() -> None:
    name = "induction_heads_griffin_long"
    assert printed(40, ["run", *"abcdefgh"], [[name, *["0.5000"] * 8]]).count(name) > 1


def test_words_of_the_header_are_wrapped_before_columns_go_elsewhere() -> None:
    text = printed(80, STEPS, [["0", "> 1,500", "> 1,500", "> 1,500", "0.000", "2.69", "1,500"]], "While training")
    assert text.count("While training") == 1 and "to 100%" in text and "steps to 100%" not in text
    wide = printed(120, STEPS, [["0", "> 1,500", "> 1,500", "> 1,500", "0.000", "2.69", "1,500"]])
    assert all(name in wide for name in STEPS)


@pytest.mark.parametrize("width", [40, 60, 80])
def test_no_table_is_without_a_heading_or_wider_than_the_terminal(width: int) -> None:
    header = ["model", *[f"{2**power}K" for power in range(20)]]
    text = printed(width, header, [["griffin · 1,500 steps", *["0.500"] * 20]], "Accuracy")
    assert max(map(len, text.splitlines())) <= width
    tables = text.strip().split("\n\n")
    assert len(tables) > 1
    assert [table.splitlines()[0] for table in tables] == ["Accuracy", *["Accuracy (continued)"] * (len(tables) - 1)]
