"""Tables on a terminal: whole cells, whatever its width."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

GAP = 2


def print_table(console: Console, header: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    """Prints a table whose first column is text and whose others are numbers.

    Columns that do not fit go to further tables below, each beginning with the first column again.
    """
    widths = [max(map(len, column)) + GAP for column in zip(header, *lines, strict=True)]
    block, used = [0], widths[0]
    for index in range(1, len(header)):
        if len(block) > 1 and used + widths[index] > console.width:
            _print_columns(console, header, lines, block)
            block, used = [0], widths[0]
        block.append(index)
        used += widths[index]
    _print_columns(console, header, lines, block)


def _print_columns(
    console: Console, header: Sequence[str], lines: Sequence[Sequence[str]], columns: Sequence[int]
) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    for index in columns:
        table.add_column(header[index], justify="left" if index == 0 else "right", no_wrap=True)
    for line in lines:
        table.add_row(*[Text(line[index]) for index in columns])
    console.print()
    console.print(table)
