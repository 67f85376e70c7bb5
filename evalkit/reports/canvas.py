"""The paper the figures are drawn on: style, a layout in inches, the axes and what is marked on them."""

import math
import re
import textwrap
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Annotation
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

# Lower case, as SVG has them: a page replaces them by its own, which follow its light or dark mode.
INK, MUTED, GRID, AXIS = "#1f2328", "#6a737d", "#e4e7eb", "#9aa2ab"
WIDTH, AXES_HEIGHT, LEFT, RIGHT, BOTTOM = 6.4, 2.75, 0.62, 0.56, 0.52
TITLE, LEGEND_ROW, LABEL_ROW, NOTE_ROW = 0.27, 0.165, 0.15, 0.145
LEGEND_COLUMNS, LEGEND_CHARACTERS, NOTE_CHARACTERS = 4, 92, 112
STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 8.5,
    "axes.facecolor": "none",
    "axes.edgecolor": AXIS,
    "axes.linewidth": 0.7,
    "axes.labelcolor": INK,
    "axes.labelsize": 8.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "text.color": INK,
    "xtick.color": AXIS,
    "ytick.color": AXIS,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.major.size": 3,
    "ytick.major.size": 3,
    "lines.solid_capstyle": "round",
    "lines.solid_joinstyle": "round",
    "svg.fonttype": "path",
    "svg.hashsalt": "evalkit",
}


def canvas(title: str, notes: Sequence[str], keys: Sequence[str], labels: int = 0) -> tuple[Figure, Axes]:
    """A figure laid out by hand, in inches: title, legend, labels of marks, axes, notes. So its bytes never vary."""
    lines = [line for note in notes for line in textwrap.wrap(note, NOTE_CHARACTERS)]
    legend_height = LEGEND_ROW * math.ceil(len(keys) / _columns(keys)) + 0.045  # and what parts it from the title
    label_height = LABEL_ROW * _label_rows(labels)
    top = TITLE * bool(title) + legend_height + label_height + 0.12
    bottom = BOTTOM + NOTE_ROW * len(lines) + 0.08 * bool(lines)
    height = top + AXES_HEIGHT + bottom
    figure = Figure(figsize=(WIDTH, height))
    FigureCanvasAgg(figure)
    span = (WIDTH - LEFT - RIGHT) / WIDTH
    axes = figure.add_axes((LEFT / WIDTH, bottom / height, span, AXES_HEIGHT / height))
    axes.set_ylim(-0.03, 1.05)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", "0.25", "0.5", "0.75", "1"])
    axes.set_ylabel("accuracy")
    axes.grid(color=GRID, linewidth=0.6)
    if title:
        figure.text(LEFT / WIDTH, 1 - 0.09 / height, title, va="top", fontsize=10, fontweight="bold")
    for number, line in enumerate(reversed(lines)):
        figure.text(LEFT / WIDTH, (0.08 + number * NOTE_ROW) / height, line, va="bottom", fontsize=6.8, color=MUTED)
    return figure, axes


def length_axis(axes: Axes, lengths: Sequence[int]) -> None:
    """A log2 axis that spans `lengths`, with powers of two as ticks."""
    low, high = (math.log2(min(lengths)), math.log2(max(lengths))) if lengths else (6.0, 8.0)
    margin = max(0.35, 0.035 * (high - low))
    axes.set_xscale("log", base=2)
    axes.set_xlim(2 ** (low - margin), 2 ** (high + margin))
    stride = 1 if high - low <= 8 else 2
    first = math.ceil(low / stride) * stride
    axes.xaxis.set_major_locator(FixedLocator([2.0**power for power in range(first, math.floor(high) + 1, stride)]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: raised(length_label(x))))
    axes.set_xlabel("evaluation length (tokens)")


def step_axis(axes: Axes, last: int) -> None:
    """Training steps, from 0 to `last`."""
    axes.set_xlim(0, max(last, 1) * 1.02)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 2.5, 5, 10], integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
    axes.set_xlabel("training step")


def mark_chance(axes: Axes, chance: float | None) -> None:
    """A dotted line where guessing lands, named in the right margin."""
    if chance is None:
        return
    axes.axhline(chance, color=MUTED, linewidth=0.8, linestyle=(0, (1, 2)), zorder=1.5)
    place = axes.get_yaxis_transform()
    axes.annotate(
        f"chance\n{chance:.2g}", (1, chance), (4, 0), place, "offset points", va="center", fontsize=7, color=MUTED
    )


def mark_lengths(axes: Axes, marks: Sequence[tuple[int, str, str]]) -> None:
    """Vertical lines with a word above the axes; a word that would touch another moves up a row."""
    labels: list[Annotation] = []
    for index, (length, word, style) in enumerate(marks):
        axes.axvline(length, color=INK if style == "dashed" else MUTED, linewidth=0.9, linestyle=style, zorder=1.6)
        leftmost = index == 0 and len(marks) > 1
        labels.append(
            axes.annotate(
                word,
                (length, 1),
                (3 if leftmost else -3, 3),
                axes.get_xaxis_transform(),
                "offset points",
                ha="right" if leftmost else "left",
                fontsize=7,
                color=INK if style == "dashed" else MUTED,
            )
        )
    ends: list[float] = []
    for label in labels:
        extent = label.get_window_extent()
        row = next((row for row, end in enumerate(ends) if end + 6 < extent.x0), len(ends))
        ends[row : row + 1] = [extent.x1]
        label.set_position((label.get_position()[0], 3 + row * LABEL_ROW * 72))


def legend(axes: Axes, keys: Sequence[Line2D], labels: int = 0) -> None:
    """The names of the lines, above the axes and above `labels` words that mark lengths."""
    if not keys:
        axes.text(0.5, 0.5, "nothing was measured", transform=axes.transAxes, ha="center", color=MUTED)
        return
    axes.legend(
        handles=list(keys),
        loc="lower left",
        bbox_to_anchor=(0, 1 + (LABEL_ROW * _label_rows(labels) + 0.07) / AXES_HEIGHT),
        ncols=_columns([str(key.get_label()) for key in keys]),
        frameon=False,
        borderpad=0,
        borderaxespad=0,
        handlelength=2.0,
        columnspacing=1.6,
        labelspacing=0.35,
    )


def length_label(length: float) -> str:
    """A length as axes and tables show it: 64, 256, 1K, 16K, 2^20."""
    if length >= 2**20 and math.log2(length).is_integer():
        return f"2^{int(math.log2(length))}"
    if length >= 1024 and length % 1024 == 0:
        return f"{int(length) // 1024}K"
    return f"{length:g}" if length < 10_000 else f"{length:,.0f}"


def raised(label: str) -> str:
    """`label` with its exponent set as one."""
    return re.sub(r"\^(\d+)", r"$^{\1}$", label)


def _columns(keys: Sequence[str]) -> int:
    longest = max((len(key) for key in keys), default=0) + 6
    return max(1, min(LEGEND_COLUMNS, LEGEND_CHARACTERS // longest))


def _label_rows(labels: int) -> int:
    return max(labels - 1, min(labels, 1))
