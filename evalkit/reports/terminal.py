"""Tables on a terminal: whole cells, whatever its width."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

GAP = 2


def print_table(
    console: Console, header: Sequence[str], lines: Sequence[Sequence[str]], heading: str | None = None
) -> None:
    """Prints a table whose first column is text and whose others are numbers, under its heading.

    Where it is too wide, the words of the first column are wrapped. Columns that still do not fit go to further tables
    below, each beginning with the first column again.
    """
    widths = [max(map(len, column)) + GAP for column in zip(header, *lines, strict=True)]
    first = _first_width([header[0], *(line[0] for line in lines)], console.width - sum(widths[1:]), console.width)
    blocks, used = [[0]], first
    for index in range(1, len(header)):
        if len(blocks[-1]) > 1 and used + widths[index] > console.width:
            blocks.append([0])
            used = first
        blocks[-1].append(index)
        used += widths[index]
    for number, block in enumerate(blocks):
        console.print()
        if heading and not number:
            console.print(Text(heading))
        _print_columns(console, header, lines, block, first)


def _first_width(texts: Sequence[str], room: int, whole: int) -> int:
    """The `room` beside all other columns if no word of the first breaks in it, else at most half the `whole`."""
    longest = max(map(len, texts)) + GAP
    word = max(len(word) for text in texts for word in text.split() or [""]) + GAP
    return min(longest, room if room >= max(word, whole // 4) else max(word, whole // 2))


def _print_columns(
    console: Console, header: Sequence[str], lines: Sequence[Sequence[str]], columns: Sequence[int], first: int
) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    for index in columns:
        if index == 0:
            table.add_column(header[index], width=first - GAP)
        else:
            table.add_column(header[index], justify="right", no_wrap=True)
    for line in lines:
        table.add_row(*[Text(line[index]) for index in columns])
    console.print(table)
