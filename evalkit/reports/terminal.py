"""Tables on a terminal: whole cells, whatever its width."""

from collections.abc import Mapping, Sequence
from textwrap import wrap

from rich.console import Console
from rich.table import Table
from rich.text import Text

GAP = 2
HEADER_LINES = 3


def print_table(
    console: Console, header: Sequence[str], lines: Sequence[Sequence[str]], heading: str | None = None
) -> None:
    """Prints a table whose first column is text and whose others are numbers, under its heading.

    Where it is too wide, the words of the header and of the first column are wrapped. Columns that still do not fit go
    to further tables below, each under the heading again and beginning with the first column.
    """
    widths = _widths(console.width, header, lines)
    first = _first_width([header[0], *(line[0] for line in lines)], console.width - sum(widths[1:]), console.width)
    widths[0] = first
    blocks, used = [[0]], first
    for index in range(1, len(header)):
        if len(blocks[-1]) > 1 and used + widths[index] > console.width + GAP:
            blocks.append([0])
            used = first
        blocks[-1].append(index)
        used += widths[index]
    for number, block in enumerate(blocks):
        console.print()
        if heading:
            console.print(Text(f"{heading} (continued)" if number else heading))
        _print_columns(console, header, lines, {index: widths[index] - GAP for index in block})


def _widths(room: int, header: Sequence[str], lines: Sequence[Sequence[str]]) -> list[int]:
    """What each column takes with the gap after it, its header in as few lines as there is room for."""
    cells = [max(map(len, column)) for column in zip(*lines, strict=True)] or [0] * len(header)
    for most in range(1, HEADER_LINES + 1):
        widths = [max(cell, _wrapped(name, most)) + GAP for cell, name in zip(cells, header, strict=True)]
        if sum(widths) <= room + GAP:
            break
    return widths


def _wrapped(name: str, most: int) -> int:
    """The least width in which a name takes at most `most` lines; if there is none, the width of its longest word."""
    longest = max(map(len, name.split()), default=0)
    fitting = (width for width in range(max(longest, 1), len(name) + 1) if len(wrap(name, width)) <= most)
    return next(fitting, longest)


def _first_width(texts: Sequence[str], room: int, whole: int) -> int:
    """The first column's width: the `room` beside the others if no word breaks in it, else at most half the `whole`."""
    longest = max(map(len, texts)) + GAP
    word = max(len(word) for text in texts for word in text.split() or [""]) + GAP
    return min(longest, room if room >= max(word, whole // 4) else max(word, whole // 2))


def _print_columns(
    console: Console, header: Sequence[str], lines: Sequence[Sequence[str]], widths: Mapping[int, int]
) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    for index, width in widths.items():
        table.add_column(Text(header[index]), width=width, justify="right" if index else "left", vertical="top")
    for line in lines:
        table.add_row(*[Text(line[index]) for index in widths])
    console.print(table)
