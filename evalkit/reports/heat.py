"""A figure of values by two things at once: a cell for each pair, darker for more, with its number."""

from collections.abc import Mapping, Sequence

import matplotlib
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from evalkit.reports.canvas import GRID, STYLE, canvas, finish

COLOURS = "Blues"
"""A scale whose order is seen in grey, and by people who do not see red and green apart."""
DARK = 0.55
MANY = 14
"""Columns or rows beyond which no number fits a cell."""
WIDEST, SMALL = 80, 6
"""Column names of more letters in all, each counted as the longest, would overlap: they are small, broken at `_`."""


def heat_figure(
    values: Mapping[tuple[str, str], float],
    columns: Sequence[str],
    rows: Sequence[str],
    axes_labels: tuple[str, str],
    meaning: str,
    title: str = "",
    notes: Sequence[str] = (),
    words: Mapping[tuple[str, str], str] | None = None,
) -> Figure:
    """Values from 0 to 1 by (column, row), the first row on top; a pair that has none is empty.

    `words` stand in place of the numbers of their pairs.
    """
    with matplotlib.rc_context(STYLE):
        figure, axes = canvas()
        axes.grid(visible=False)
        colours = matplotlib.colormaps[COLOURS]
        axes.set(xlabel=axes_labels[0], ylabel=axes_labels[1])
        axes.set_xlim(-0.5, len(columns) - 0.5)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        is_wide = len(columns) * max(map(len, columns), default=0) > WIDEST
        axes.set_xticks(range(len(columns)), [name.replace("_", "_\n") if is_wide else name for name in columns])
        if is_wide:
            axes.tick_params(axis="x", labelsize=SMALL)
        axes.set_yticks(range(len(rows)), rows)
        for x, column in enumerate(columns):
            for y, row in enumerate(rows):
                value = values.get((column, row))
                colour = "none" if value is None else colours(float(value))
                axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=colour, edgecolor=GRID, lw=0.6))
                if value is not None and max(len(columns), len(rows)) <= MANY:
                    ink = "white" if value > DARK else "black"
                    number = (words or {}).get((column, row), f"{value:.2f}".removeprefix("0"))
                    axes.text(x, y, number, ha="center", va="center", fontsize=7, color=ink)
        key = Line2D([], [], marker="s", lw=0, ms=7, color=colours(1.0), label=meaning)
        finish(axes, title, notes, [key] if values else [])
        return figure
