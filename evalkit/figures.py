"""The two figures: accuracy against evaluation length (fig. 6b's axes) and against training steps (fig. 6a's)."""

import io
import math
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from matplotlib.text import Annotation
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator
from matplotlib.transforms import ScaledTranslation, Transform

from evalkit.errors import writing
from evalkit.summary import Curve, Point

# Okabe and Ito's colours, which colour-blind readers tell apart; markers differ too, for print in grey.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#6B6B6B")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
PROBES = ("#6A51A3", "#9E3D8F", "#CF4D6F", "#EC7A4E", "#F0AE3C")
INK, MUTED, GRID = "#1F2328", "#6A737D", "#E4E7EB"
WIDTH, AXES_HEIGHT, LEFT, RIGHT, BOTTOM = 6.4, 2.75, 0.62, 0.66, 0.52
TITLE, LEGEND_ROW, LABEL_ROW, NOTE_ROW = 0.30, 0.21, 0.15, 0.145
LEGEND_COLUMNS, NOTE_CHARACTERS = 4, 112
STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 8.5,
    "axes.edgecolor": "#9AA2AB",
    "axes.linewidth": 0.7,
    "axes.labelcolor": INK,
    "axes.labelsize": 8.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "text.color": INK,
    "xtick.color": "#9AA2AB",
    "ytick.color": "#9AA2AB",
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.major.size": 3,
    "ytick.major.size": 3,
    "lines.solid_capstyle": "round",
    "lines.solid_joinstyle": "round",
    "svg.fonttype": "path",
    "svg.hashsalt": "evalkit",
}


def extrapolation_figure(
    curves: Sequence[Curve],
    train_length: int | Sequence[int] | None,
    windows: Iterable[int | None] = (),
    chance: float | None = None,
    title: str = "",
    notes: Sequence[str] = (),
) -> Figure:
    """Accuracy against evaluation length on a log2 axis, one line a curve: mean and range over seeds.

    A curve of one seed carries its 95 % Wilson intervals instead. Training lengths, attention windows and chance are
    marked; a hollow end marker says that longer lengths were not run.
    """
    trained = [train_length] if isinstance(train_length, int) else sorted(set(train_length or ()))
    bounded = sorted({window for window in windows if window})
    with matplotlib.rc_context(STYLE):
        figure, axes = _canvas(title, notes, legend=len(curves))
        _length_axis(axes, [*trained, *bounded, *(x for curve in curves for x, *_ in curve.over_seeds())])
        _mark_chance(axes, chance)
        marks = [(length, f"trained at {length_label(length)}", "dashed") for length in trained]
        marks += [(window, f"window {length_label(window)}", "dotted") for window in bounded]
        _mark_lengths(axes, sorted(marks))
        for index, curve in enumerate(curves):
            _draw_ladder(axes, curve, index, shift=_shift(axes, index, len(curves)))
        _legend(axes, [_key(index, curve.label) for index, curve in enumerate(curves)])
        return figure


def learning_figure(
    curves: Sequence[Curve],
    probes: Sequence[Curve] = (),
    chance: float | None = None,
    title: str = "",
    notes: Sequence[str] = (),
) -> Figure:
    """Validation accuracy against training steps: a thin line a seed, a thick one for their mean.

    `probes` are evaluations at other lengths while training, drawn dashed.
    """
    with matplotlib.rc_context(STYLE):
        figure, axes = _canvas(title, notes, legend=len(curves) + len(probes))
        steps = [x for curve in [*curves, *probes] for x, *_ in curve.over_seeds()]
        axes.set_xlim(0, max(steps, default=1) * 1.02)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
        axes.set_xlabel("training step")
        _mark_chance(axes, chance)
        keys = []
        for index, probe in enumerate(probes):
            colour = PROBES[index % len(PROBES)]
            keys.append(_draw_learning(axes, probe, colour, width=1.2, dashes=(0, (3.2, 1.6))))
        for index, curve in enumerate(curves):
            keys.insert(index, _draw_learning(axes, curve, COLOURS[index % len(COLOURS)], width=1.9))
        _legend(axes, keys)
        return figure


def save(figure: Figure, path: Path) -> None:
    """Writes `figure` as its suffix says (.png at 300 dots an inch, .svg), the same bytes each time it is drawn.

    Raises `UserError` if the file cannot be written.
    """
    data = svg(figure).encode() if path.suffix == ".svg" else _rendered(figure, "png", {"Software": None})
    with writing(path):
        path.write_bytes(data)


def svg(figure: Figure, prefix: str = "") -> str:
    """`figure` as one `<svg>` element to be set into a page; `prefix` keeps the ids of several figures apart."""
    text = _rendered(figure, "svg", {"Date": None, "Creator": None}).decode()
    text = re.sub(r"\s*<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    return re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{prefix}", text) if prefix else text


def length_label(length: float) -> str:
    """A length as axes and tables show it: 64, 256, 1K, 16K, 2^20."""
    if length >= 2**20 and math.log2(length).is_integer():
        return f"$2^{{{int(math.log2(length))}}}$"
    if length >= 1024 and length % 1024 == 0:
        return f"{int(length) // 1024}K"
    return f"{length:g}" if length < 10_000 else f"{length:,.0f}"


def _rendered(figure: Figure, kind: str, metadata: Mapping[str, str | None]) -> bytes:
    buffer = io.BytesIO()
    with matplotlib.rc_context(STYLE):
        figure.savefig(buffer, format=kind, dpi=300, metadata=metadata, facecolor="white" if kind == "png" else "none")
    return buffer.getvalue()


def _canvas(title: str, notes: Sequence[str], legend: int) -> tuple[Figure, Axes]:
    """A figure laid out by hand, in inches: title, legend, labels of marks, axes, notes. So its bytes never vary."""
    lines = [line for note in notes for line in textwrap.wrap(note, NOTE_CHARACTERS)]
    legend_rows = math.ceil(legend / LEGEND_COLUMNS)
    top = TITLE * bool(title) + LEGEND_ROW * legend_rows + 2 * LABEL_ROW + 0.12
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


def _length_axis(axes: Axes, lengths: Sequence[int]) -> None:
    low, high = (math.log2(min(lengths)), math.log2(max(lengths))) if lengths else (6.0, 8.0)
    margin = max(0.35, 0.035 * (high - low))
    axes.set_xscale("log", base=2)
    axes.set_xlim(2 ** (low - margin), 2 ** (high + margin))
    stride = 1 if high - low <= 8 else 2
    first = math.ceil(low / stride) * stride
    axes.xaxis.set_major_locator(FixedLocator([2.0**power for power in range(first, math.floor(high) + 1, stride)]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: length_label(x)))
    axes.set_xlabel("evaluation length (tokens)")


def _mark_chance(axes: Axes, chance: float | None) -> None:
    if chance is None:
        return
    axes.axhline(chance, color=MUTED, linewidth=0.8, linestyle=(0, (1, 2)), zorder=1.5)
    place = axes.get_yaxis_transform()
    axes.annotate(
        f"chance {chance:.2g}", (1, chance), (4, 0), place, "offset points", va="center", fontsize=7, color=MUTED
    )


def _mark_lengths(axes: Axes, marks: Sequence[tuple[int, str, str]]) -> None:
    """Vertical lines with a word above the axes; a word that would touch its neighbour moves up a row."""
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
    extents = [label.get_window_extent() for label in labels]
    for (left, right), label in zip(pairwise(extents), labels[1:], strict=True):
        if left.x1 + 4 > right.x0:
            label.set_position((-3, 3 + LABEL_ROW * 72))


def _shift(axes: Axes, index: int, curves: int) -> Transform:
    """Points of different curves at one length stand side by side, so that none hides another."""
    points = (index - (curves - 1) / 2) * 2.4
    figure = axes.get_figure(root=True)
    assert figure is not None
    return axes.transData + ScaledTranslation(points / 72, 0, figure.dpi_scale_trans)


def _draw_ladder(axes: Axes, curve: Curve, index: int, shift: Transform) -> None:
    across = curve.over_seeds()
    if not across:
        return
    colour, marker = COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)]
    x, mean, low, high = zip(*across, strict=True)
    style = {"color": colour, "transform": shift, "zorder": 3 + 0.1 * index}
    axes.plot(x, mean, marker=marker, markersize=4.6, markeredgecolor="white", markeredgewidth=0.6, lw=1.6, **style)
    if len(curve.seeds) > 1:
        axes.fill_between(x, low, high, color=colour, alpha=0.17, linewidth=0, transform=shift, zorder=2)
    else:
        _draw_intervals(axes, next(iter(curve.seeds.values())), colour, shift)
    beyond = [length for length in curve.not_run if length > x[-1]]
    if beyond:
        face = {"markerfacecolor": "white", "markeredgecolor": colour, "markeredgewidth": 1.3}
        axes.plot(x[-1:], mean[-1:], marker=marker, markersize=5.6, **face, **{**style, "zorder": 4})
        _say_not_run(axes, x[-1], mean[-1], colour, length_label(x[-1]))


def _draw_intervals(axes: Axes, points: Sequence[Point], colour: str, shift: Transform) -> None:
    for point in points:
        ends = (point.low, point.high)
        axes.plot((point.x, point.x), ends, color=colour, lw=1.0, alpha=0.65, transform=shift, zorder=2.5)
        for end in ends:
            axes.plot(point.x, end, marker="_", ms=4, mew=1.0, color=colour, alpha=0.65, transform=shift, zorder=2.5)


def _say_not_run(axes: Axes, x: float, y: float, colour: str, last: str) -> None:
    axes.annotate(
        f"not run beyond {last}",
        (x, y),
        (8, 5 if y < 0.5 else -11),
        textcoords="offset points",
        fontsize=7,
        color=colour,
        path_effects=[withStroke(linewidth=2.5, foreground="white")],
        zorder=6,
    )


def _draw_learning(
    axes: Axes, curve: Curve, colour: str, width: float, dashes: str | tuple[int, tuple[float, ...]] = "solid"
) -> Line2D:
    for points in curve.seeds.values():
        steps, values = [point.x for point in points], [point.value for point in points]
        axes.plot(steps, values, color=colour, lw=0.8 if len(curve.seeds) > 1 else width, alpha=0.45, ls=dashes)
    across = curve.over_seeds(complete=True)
    axes.plot([x for x, *_ in across], [mean for _, mean, *_ in across], color=colour, lw=width, ls=dashes, zorder=3)
    return Line2D([], [], color=colour, lw=width, ls=dashes, label=curve.label)


def _key(index: int, label: str) -> Line2D:
    colour, marker = COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)]
    return Line2D([], [], color=colour, marker=marker, ms=4.6, mec="white", mew=0.6, lw=1.6, label=label)


def _legend(axes: Axes, keys: Sequence[Line2D]) -> None:
    if not keys:
        axes.text(0.5, 0.5, "nothing was measured", transform=axes.transAxes, ha="center", color=MUTED)
        return
    axes.legend(
        handles=list(keys),
        loc="lower left",
        bbox_to_anchor=(0, 1 + (2 * LABEL_ROW) / AXES_HEIGHT),
        ncols=LEGEND_COLUMNS,
        frameon=False,
        borderpad=0,
        borderaxespad=0,
        handlelength=2.0,
        columnspacing=1.6,
        labelspacing=0.35,
    )
