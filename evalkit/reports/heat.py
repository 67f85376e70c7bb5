"""A figure of values by two things at once: a square for each pair, darker for more, with its number."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from evalkit.reports.canvas import GRID, NOTE_CHARACTERS, STYLE, canvas, finish

COLOURS = "Blues"
"""A scale whose order is seen in grey, and by people who do not see red and green apart."""
FRAME = "#e09f1f"
"""Of a framed square: seen on the darkest one, too."""
DARK = 0.55
MANY = 14
"""Columns or rows beyond which no number fits a square."""
WIDEST, SMALL = 80, 6
"""Column names of more letters in all, each counted as the longest, would overlap: they are small, broken at `_`."""


@dataclass(frozen=True)
class Square:
    """What a square shows: how dark it is, from 0 to 1, its number, a smaller line below it, and a frame."""

    share: float
    number: str
    below: str = ""
    is_framed: bool = False


def heat_figure(
    squares: Mapping[tuple[str, str], Square],
    columns: Sequence[str],
    rows: Sequence[str],
    axes_labels: tuple[str, str],
    shades: Mapping[str, float],
    title: str = "",
    notes: Sequence[str] = (),
    framed: str = "",
) -> Figure:
    """Squares by (column, row), the first row on top; a pair that has none is empty.

    The legend says what the `shades` mean, and what a square is that is `framed`.
    """
    with matplotlib.rc_context(STYLE):
        figure, axes = canvas()
        axes.grid(visible=False)
        axes.set(xlabel=axes_labels[0], ylabel=axes_labels[1])
        axes.set_xlim(-0.5, len(columns) - 0.5)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        is_wide = len(columns) * max(map(len, columns), default=0) > WIDEST
        axes.set_xticks(range(len(columns)), [name.replace("_", "_\n") if is_wide else name for name in columns])
        if is_wide:
            axes.tick_params(axis="x", labelsize=SMALL)
        axes.set_yticks(range(len(rows)), rows)
        is_told = max(len(columns), len(rows)) <= MANY
        for x, column in enumerate(columns):
            for y, row in enumerate(rows):
                _draw(axes, x, y, squares.get((column, row)), is_told=is_told)
        wide = NOTE_CHARACTERS - max(map(len, rows), default=0)  # the notes begin where the squares do
        lines = [line for note in notes for line in textwrap.wrap(note, wide)]
        finish(axes, title, lines, _keys(shades, framed) if squares else [])
        return figure


def _draw(axes: Axes, x: int, y: int, square: Square | None, *, is_told: bool) -> None:
    colour = "none" if square is None else matplotlib.colormaps[COLOURS](square.share)
    axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=colour, edgecolor=GRID, lw=0.6))
    if square is None:
        return
    if square.is_framed:
        axes.add_patch(Rectangle((x - 0.46, y - 0.44), 0.92, 0.88, facecolor="none", edgecolor=FRAME, lw=1.2))
    if is_told:
        ink = "white" if square.share > DARK else "black"
        up = 0.12 if square.below else 0.0
        axes.text(x, y - up, square.number, ha="center", va="center", fontsize=7, color=ink)
        axes.text(x, y + 0.26, square.below, ha="center", va="center", fontsize=4.2, color=ink)


def _keys(shades: Mapping[str, float], framed: str) -> list[Line2D]:
    colours = matplotlib.colormaps[COLOURS]
    keys = [
        Line2D([], [], marker="s", lw=0, ms=7, mec=GRID, color=colours(share), label=meaning)
        for meaning, share in shades.items()
    ]
    frame = Line2D([], [], marker="s", lw=0, ms=6, mew=1.2, mfc="none", mec=FRAME, label=framed)
    return [*keys, *([frame] if framed else [])]
