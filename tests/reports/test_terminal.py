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


def printed(width: int, header: list[str], lines: list[list[str]]) -> str:
    console = Console(file=StringIO(), width=width)
    print_table(console, header, lines)
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
