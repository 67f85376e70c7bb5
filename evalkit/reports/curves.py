"""The two figures: accuracy against evaluation length (fig. 6b's axes) and against training steps (fig. 6a's)."""

import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from matplotlib.transforms import ScaledTranslation, Transform

from evalkit.core.errors import writing
from evalkit.reports.accuracy.summary import Curve, Point
from evalkit.reports.canvas import (
    STYLE,
    canvas,
    legend,
    length_axis,
    length_label,
    mark_chance,
    mark_lengths,
    raised,
    step_axis,
)

Dashes = str | tuple[int, tuple[float, ...]]
# Okabe and Ito's colours, which colour-blind readers tell apart; markers differ too, for print in grey.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#6B6B6B")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
# What tells the eighth curve from the first: a search has dozens.
DASHES: tuple[Dashes, ...] = ("solid", (0, (4, 1.6)), (0, (1, 1.5)), (0, (6, 1.4, 1, 1.4)), (0, (2, 1, 2, 3)))
PROBES = ("#6A51A3", "#9E3D8F", "#CF4D6F", "#EC7A4E", "#F0AE3C")


def extrapolation_figure(
    curves: Sequence[Curve],
    train_length: int | Sequence[int] | None,
    windows: Iterable[int | None] = (),
    chance: float | None = None,
    title: str = "",
    notes: Sequence[str] = (),
    measure: str = "accuracy",
) -> Figure:
    """Accuracy, or another `measure` up to 1, against length (log2): a line a curve, median and range over seeds.

    A curve of one seed carries its 95% Wilson intervals instead. Training lengths, attention windows and chance are
    marked; a hollow end marker says that longer lengths were not run.
    """
    trained = [train_length] if isinstance(train_length, int) else sorted(set(train_length or ()))
    bounded = sorted({window for window in windows if window})
    with matplotlib.rc_context(STYLE):
        figure, axes = canvas(title, notes, [curve.label for curve in curves], labels=len(trained) + len(bounded))
        axes.set_ylabel(measure)
        length_axis(axes, [*trained, *bounded, *(x for curve in curves for x, *_ in curve.over_seeds())])
        mark_chance(axes, chance)
        marks = [(length, f"trained at {raised(length_label(length))}", "dashed") for length in trained]
        marks += [(window, f"window {raised(length_label(window))}", "dotted") for window in bounded]
        mark_lengths(axes, sorted(marks))
        for index, curve in enumerate(curves):
            _draw_ladder(axes, curve, index, shift=_shift(axes, index, len(curves)))
        legend(axes, [_key(index, curve.label) for index, curve in enumerate(curves)], len(marks))
        return figure


def learning_figure(
    curves: Sequence[Curve],
    probes: Sequence[Curve] = (),
    chance: float | None = None,
    title: str = "",
    notes: Sequence[str] = (),
) -> Figure:
    """Validation accuracy against training steps: a thin line a seed, a thick one for their median.

    `probes` are evaluations at other lengths while training, drawn dashed. No other curve takes the colour of one
    without points.
    """
    with matplotlib.rc_context(STYLE):
        figure, axes = canvas(title, notes, [curve.label for curve in [*curves, *probes]])
        steps = [x for curve in [*curves, *probes] for x, *_ in curve.over_seeds()]
        step_axis(axes, max(steps, default=1))
        mark_chance(axes, chance)
        looks = [
            _draw_learning(axes, probe, PROBES[index % len(PROBES)], width=1.2, dashes=(0, (3.2, 1.6)))
            for index, probe in enumerate(probes)
        ]
        keys = [
            _draw_learning(axes, curve, _colour(index), width=1.9, dashes=_dashes(index))
            for index, curve in enumerate(curves)
            if curve.seeds
        ]
        legend(axes, [*keys, *looks])
        return figure


def save(figure: Figure, path: Path) -> None:
    """Writes `figure` as its suffix says (.png at 300 dots an inch, .svg), the same bytes each time it is drawn.

    Raises `UserError` if the file cannot be written.
    """
    data = svg(figure).encode() if path.suffix == ".svg" else _rendered(figure, "png", {"Software": None})
    with writing(path):
        path.write_bytes(data)


def draw(figures: Mapping[str, Figure], folder: Path) -> dict[str, str]:
    """Saves each figure as `<name>.png`, and returns it as SVG for a page."""
    for name, figure in figures.items():
        save(figure, folder / f"{name}.png")
    return {name: svg(figure, prefix=f"{name}-") for name, figure in figures.items()}


def svg(figure: Figure, prefix: str = "") -> str:
    """`figure` as one `<svg>` element to be set into a page; `prefix` keeps the ids of several figures apart."""
    text = _rendered(figure, "svg", {"Date": None, "Creator": None}).decode()
    text = re.sub(r"\s*<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    return re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{prefix}", text) if prefix else text


def _rendered(figure: Figure, kind: str, metadata: Mapping[str, str | None]) -> bytes:
    buffer = io.BytesIO()
    with matplotlib.rc_context(STYLE):
        figure.savefig(buffer, format=kind, dpi=300, metadata=metadata, facecolor="white" if kind == "png" else "none")
    return buffer.getvalue()


def _shift(axes: Axes, index: int, curves: int) -> Transform:
    """Points of different curves at one length stand side by side, so that none hides another."""
    points = (index - (curves - 1) / 2) * min(2.4, 17 / curves)
    figure = axes.get_figure(root=True)
    assert figure is not None
    return axes.transData + ScaledTranslation(points / 72, 0, figure.dpi_scale_trans)


def _draw_ladder(axes: Axes, curve: Curve, index: int, shift: Transform) -> None:
    across = curve.over_seeds()
    if not across:
        return
    colour, marker = _colour(index), MARKERS[index % len(MARKERS)]
    x, middle, low, high = zip(*across, strict=True)
    style = {"color": colour, "ls": _dashes(index), "transform": shift, "zorder": 3 + 0.1 * index}
    axes.plot(x, middle, marker=marker, markersize=4.6, markeredgecolor="white", markeredgewidth=0.6, lw=1.6, **style)
    if len(curve.seeds) > 1:
        axes.fill_between(x, low, high, color=colour, alpha=0.17, linewidth=0, transform=shift, zorder=2)
    else:
        _draw_intervals(axes, next(iter(curve.seeds.values())), colour, shift)
    beyond = [length for length in curve.not_run if length > x[-1]]
    if beyond:
        face = {"markerfacecolor": "white", "markeredgecolor": colour, "markeredgewidth": 1.3}
        axes.plot(x[-1:], middle[-1:], marker=marker, markersize=5.6, **face, **{**style, "zorder": 4})
        _say_not_run(axes, x[-1], middle[-1], colour, length_label(x[-1]))


def _draw_intervals(axes: Axes, points: Sequence[Point], colour: str, shift: Transform) -> None:
    for point in points:
        ends = (point.low, point.high)
        axes.plot((point.x, point.x), ends, color=colour, lw=1.0, alpha=0.65, transform=shift, zorder=2.5)
        for end in ends:
            axes.plot(point.x, end, marker="_", ms=4, mew=1.0, color=colour, alpha=0.65, transform=shift, zorder=2.5)


def _say_not_run(axes: Axes, x: float, y: float, colour: str, last: str) -> None:
    at_right_edge = axes.transLimits.transform((math.log2(x), y))[0] > 0.75
    axes.annotate(
        f"not run beyond {raised(last)}",
        (x, y),
        (-8 if at_right_edge else 8, -12 if at_right_edge or y > 0.5 else 5),
        textcoords="offset points",
        ha="right" if at_right_edge else "left",
        fontsize=7,
        color=colour,
        path_effects=[withStroke(linewidth=2.5, foreground="white")],
        zorder=6,
    )


def _draw_learning(axes: Axes, curve: Curve, colour: str, width: float, dashes: Dashes = "solid") -> Line2D:
    for points in curve.seeds.values():
        steps, values = [point.x for point in points], [point.value for point in points]
        axes.plot(steps, values, color=colour, lw=0.8 if len(curve.seeds) > 1 else width, alpha=0.45, ls=dashes)
    across = curve.over_seeds(complete=True)
    steps, middles = [x for x, *_ in across], [middle for _, middle, *_ in across]
    marker = "o" if len(steps) == 1 else ""  # a line through one point is not seen
    axes.plot(steps, middles, color=colour, lw=width, ls=dashes, marker=marker, ms=4.6, zorder=3)
    return Line2D([], [], color=colour, lw=width, ls=dashes, label=curve.label)


def _key(index: int, label: str) -> Line2D:
    marker, drawn = MARKERS[index % len(MARKERS)], {"color": _colour(index), "ls": _dashes(index), "lw": 1.6}
    return Line2D([], [], marker=marker, ms=4.6, mec="white", mew=0.6, label=label, **drawn)


def _colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]


def _dashes(index: int) -> Dashes:
    return DASHES[index // len(COLOURS) % len(DASHES)]
