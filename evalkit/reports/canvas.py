"""The paper the figures are drawn on: style, layout, the axes and what is marked on them."""

import math
import re
import textwrap
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.text import Annotation
from matplotlib.ticker import (
    EngFormatter,
    FixedLocator,
    FuncFormatter,
    LogLocator,
    MaxNLocator,
    NullLocator,
    ScalarFormatter,
)
from matplotlib.transforms import ScaledTranslation, Transform

# Lower case, as SVG has them: a page replaces them by its own, which follow its light or dark mode.
INK, MUTED, GRID, AXIS = "#1f2328", "#6a737d", "#e4e7eb", "#9aa2ab"
WIDTH, HEIGHT = 6.4, 3.4
LEGEND_ROW, LABEL_ROW, NOTE_ROW = 13, 11, 10  # points
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
    "legend.loc": "lower left",
    "legend.frameon": False,
    "legend.borderpad": 0,
    "legend.borderaxespad": 0,
    "legend.columnspacing": 1.6,
    "legend.labelspacing": 0.35,
    "svg.fonttype": "path",
    "svg.hashsalt": "evalkit",
}


def canvas() -> tuple[Figure, Axes]:
    """A figure with axes from 0 to 1; `finish` lays it out."""
    figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_ylim(-0.03, 1.05)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", "0.25", "0.5", "0.75", "1"])
    axes.grid(color=GRID, linewidth=0.6)
    return figure, axes


def finish(axes: Axes, title: str, notes: Sequence[str], keys: Sequence[Line2D], marks: int = 0) -> None:
    """Puts the legend and the title above the axes and its rows of `marks`, and the notes below, with room for all."""
    longest = max((len(str(key.get_label())) for key in keys), default=0)
    columns = max(1, min(LEGEND_COLUMNS, LEGEND_CHARACTERS // (longest + 6)))
    lines = [line for note in notes for line in textwrap.wrap(note, NOTE_CHARACTERS)]
    first, legend = 5 + LABEL_ROW * marks, LEGEND_ROW * math.ceil(len(keys) / columns)
    if keys:
        axes.legend(
            handles=list(keys),
            ncols=columns,
            bbox_to_anchor=(0, 1),
            bbox_transform=shifted(axes, axes.transAxes, up=first),
        )
    else:
        axes.text(0.5, 0.5, "nothing was measured", transform=axes.transAxes, ha="center", color=MUTED)
    place: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points"}
    texts = [
        axes.annotate(title, (0, 1), (0, first + legend + 5), fontsize=10, fontweight="bold", **place),
        axes.annotate("\n".join(lines), (0, 0), (0, -35), va="top", fontsize=6.8, color=MUTED, **place),
    ]
    key = axes.get_legend()
    for words in (*texts, *(() if key is None else key.get_texts())):
        words.set_parse_math(False)  # a dollar in somebody's name is no formula
    # Were these part of the layout, one long line of them would leave the axes no width.
    for part in (*texts, key):
        if part is not None:
            part.set_in_layout(False)
    figure = figure_of(axes)
    engine = figure.get_layout_engine()
    assert isinstance(engine, ConstrainedLayoutEngine)
    above, below = (legend + 24 * bool(title)) / 72, (NOTE_ROW * len(lines) + 4 * bool(lines)) / 72
    height = HEIGHT + LABEL_ROW * marks / 72 + above + below
    figure.set_size_inches(WIDTH, height)
    engine.set(rect=(0, below / height, 1, 1 - (above + below) / height))


def settle(figure: Figure) -> None:
    """Fixes the layout, which would depend on the resolution, so that a figure's bytes never vary."""
    if figure.get_layout_engine() is not None:
        figure.draw_without_rendering()
        figure.set_layout_engine("none")


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


def step_axis(axes: Axes, last: int) -> None:
    """Training steps, or what grows with them, from 0 to `last`; millions and more by their prefix."""
    axes.set_xlim(0, max(last, 1) * 1.02)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 2.5, 5, 10], integer=True))
    large = EngFormatter() if last >= 1e6 else None
    axes.xaxis.set_major_formatter(large or FuncFormatter(lambda x, _: f"{x:,.0f}"))


def cost_axis(axes: Axes, costs: Sequence[float], unit: str) -> None:
    """A logarithmic axis around `costs`, in thousands, millions, … of `unit`."""
    low, high = min(costs, default=1), max(costs, default=10)
    axes.set_xscale("log")
    axes.set_xlim(low / 1.6, high * 1.6)
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 1000 * low else (1,)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(EngFormatter(unit))


def fit(axes: Axes, values: Sequence[float]) -> None:
    """The y axis around what is drawn."""
    finite = [number for number in values if math.isfinite(number)]
    if finite:
        margin = max(0.06 * (max(finite) - min(finite)), 1e-3)
        axes.set_ylim(min(finite) - margin, max(finite) + margin)
        axes.yaxis.set_major_locator(MaxNLocator(nbins=6))
        axes.yaxis.set_major_formatter(ScalarFormatter(useOffset=False))


def fit_log(axes: Axes, values: Sequence[float]) -> None:
    """A logarithmic y axis around 1 and what is drawn, with a line at 1."""
    seen = [1.0, *(number for number in values if number > 0)]
    axes.set_yscale("log")
    axes.set_ylim(min(seen) / 1.5, max(seen) * 1.5)
    axes.yaxis.set_major_locator(LogLocator())
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,g}"))
    axes.axhline(1, color=INK, lw=0.9, ls="dashed", zorder=1.6)


def mark_chance(axes: Axes, chance: float | None) -> None:
    """A dotted line where guessing lands, named in the right margin."""
    if chance is None:
        return
    axes.axhline(chance, color=MUTED, linewidth=0.8, linestyle=(0, (1, 2)), zorder=1.5)
    place = axes.get_yaxis_transform()
    axes.annotate(
        f"chance\n{chance:.2g}", (1, chance), (4, 0), place, "offset points", va="center", fontsize=7, color=MUTED
    )


def mark_lengths(axes: Axes, trained: Sequence[int], windows: Sequence[int]) -> int:
    """Vertical lines with a word above the axes; a word that would touch another moves up. Returns the rows taken."""
    marks = [(length, "trained at", "dashed", INK) for length in trained]
    marks += [(length, "window", "dotted", MUTED) for length in windows]
    labels: list[Annotation] = []
    for index, (length, word, style, colour) in enumerate(sorted(marks)):
        axes.axvline(length, color=colour, linewidth=0.9, linestyle=style, zorder=1.6)
        leftmost = index == 0 and len(marks) > 1
        label = f"{word} {raised(length_label(length))}"
        place, side = ((3, 3), "right") if leftmost else ((-3, 3), "left")
        words: dict[str, Any] = {"ha": side, "fontsize": 7, "color": colour}
        labels.append(axes.annotate(label, (length, 1), place, axes.get_xaxis_transform(), "offset points", **words))
    ends: list[float] = []
    for label in labels:
        extent = label.get_window_extent()
        row = next((row for row, end in enumerate(ends) if end + 6 < extent.x0), len(ends))
        ends[row : row + 1] = [extent.x1]
        label.set_position((label.get_position()[0], 3 + row * LABEL_ROW))
    return len(ends)


def length_label(length: float) -> str:
    """A length as axes and tables show it: 64, 256, 1K, 16K, 2^20."""
    if length >= 2**20 and math.log2(length).is_integer():
        return f"2^{int(math.log2(length))}"
    if length >= 1024 and length % 1024 == 0:
        return f"{int(length) // 1024}K"
    return f"{length:g}" if length < 10_000 else f"{length:,.0f}"


def raised(label: str) -> str:
    """`label` with its exponent as a superscript."""
    return re.sub(r"\^(\d+)", r"$^{\1}$", label)


def shifted(axes: Axes, base: Transform, right: float = 0, up: float = 0) -> Transform:
    """`base`, with so many points to the right and up."""
    return base + ScaledTranslation(right / 72, up / 72, figure_of(axes).dpi_scale_trans)


def figure_of(axes: Axes) -> Figure:
    """The figure that the axes are in."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    return figure
