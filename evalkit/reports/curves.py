"""Figures of curves: a ladder of lengths (fig. 6b's axes), or a line a seed by training step (fig. 6a's) or length."""

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from matplotlib.transforms import Transform

from evalkit.core.errors import writing
from evalkit.core.rows import Header
from evalkit.disk.files import write_whole
from evalkit.reports.canvas import (
    STYLE,
    canvas,
    cost_axis,
    finish,
    fit,
    fit_log,
    length_axis,
    length_label,
    mark_chance,
    mark_lengths,
    raised,
    settle,
    shifted,
    step_axis,
)
from evalkit.reports.numbers import Curve, Point

LINE = 9.5
"""What a line of a small label takes, in points."""
Dashes = str | tuple[int, tuple[float, ...]]
# Okabe and Ito's colours, which colour-blind readers tell apart; markers differ too, for print in grey.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#6B6B6B")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
# What tells the eighth curve from the first: a search has dozens.
DASHES: tuple[Dashes, ...] = ("solid", (0, (4, 1.6)), (0, (1, 1.5)), (0, (6, 1.4, 1, 1.4)), (0, (2, 1, 2, 3)))
PROBES = ("#6A51A3", "#9E3D8F", "#CF4D6F", "#EC7A4E", "#F0AE3C")
DASHED: Dashes = (0, (3.2, 1.6))


@dataclass(frozen=True)
class Frame:
    """What the axes of a figure say and mark; values from 0 to 1 unless `scale` fits the axis to what is drawn."""

    x: str = "evaluation length (tokens)"
    y: str = "accuracy"
    trained: Sequence[int] = ()
    windows: Sequence[int] = ()
    chance: float | None = None
    scale: Literal["unit", "fitted", "log"] = "unit"
    steps: bool = False
    """Whether `x` counts training steps, or what grows with them, not lengths."""

    def while_training(self, x: str = "training step") -> "Frame":
        """The same values by training step, or by the `x` that grows with it."""
        return replace(self, x=x, steps=True)


def frame_of(headers: Iterable[Header], x: str = Frame.x, y: str = Frame.y) -> Frame:
    """Training lengths and windows of these runs are marked, and chance if it is the same for all."""
    known = list(headers)
    chances = {header.chance for header in known}
    return Frame(
        x,
        y,
        sorted({header.train_length for header in known if header.train_length}),
        sorted({header.window for header in known if header.window}),
        chances.pop() if len(chances) == 1 else None,
    )


def length_figure(curves: Sequence[Curve], frame: Frame, title: str = "", notes: Sequence[str] = ()) -> Figure:
    """Values against length (log2): a line a curve, median and range over seeds.

    A curve of one seed carries its 95% intervals instead. A hollow end marker says that longer lengths were not run.
    """
    with matplotlib.rc_context(STYLE):
        figure, axes = _framed(frame)
        lengths = [x for curve in curves for x, *_ in curve.over_seeds()]
        length_axis(axes, [*frame.trained, *frame.windows, *lengths])
        rows = mark_lengths(axes, frame.trained, frame.windows)
        points = [point for curve in curves for of_seed in curve.seeds.values() for point in of_seed]
        _scale(axes, frame, [end for point in points for end in (point.low, point.value, point.high)])
        for index, curve in enumerate(curves):
            _draw_ladder(axes, curve, index, shift=axes.transData if curve.banded else _shift(axes, index, len(curves)))
        _say_not_run(axes, [(end, _look(index)["color"]) for index, curve in enumerate(curves) for end in _ends(curve)])
        finish(axes, title, notes, [_key(index, curve.label) for index, curve in enumerate(curves)], rows)
        return figure


def cost_figure(curves: Sequence[Curve], frame: Frame, unit: str, title: str = "", notes: Sequence[str] = ()) -> Figure:
    """Values against a cost in `unit` (log): median and range over seeds, a single seed with its 95% interval."""
    with matplotlib.rc_context(STYLE):
        figure, axes = _framed(frame)
        cost_axis(axes, [x for curve in curves for x, *_ in curve.over_seeds()], unit)
        for index, curve in enumerate(curves):
            across = [Point(*of_seed) for of_seed in curve.over_seeds()]
            bars = across if len(curve.seeds) > 1 else [point for of_seed in curve.seeds.values() for point in of_seed]
            look = {**_look(index), "marker": _marker(index), "zorder": 3 + 0.1 * index}
            _draw_intervals(axes, bars, look["color"], axes.transData)
            axes.plot([point.x for point in across], [point.value for point in across], ms=6, lw=1.2, **look)
        finish(axes, title, notes, [_key(index, curve.label) for index, curve in enumerate(curves)])
        return figure


def rate_figure(curves: Sequence[Curve], frame: Frame, rates: Sequence[float], title: str = "") -> Figure:
    """Values by learning rate: one line per curve; the x of a point is an index into `rates`, evenly spaced."""
    with matplotlib.rc_context(STYLE):
        figure, axes = _framed(frame)
        axes.set_xlim(-0.25, len(rates) - 0.75)
        axes.set_xticks(range(len(rates)), [f"{rate:g}" for rate in rates])
        for index, curve in enumerate(curves):
            across = curve.over_seeds()
            look = {**_look(index), "marker": _marker(index), "transform": _shift(axes, index, len(curves))}
            axes.plot([x for x, *_ in across], [value for _, value, *_ in across], ms=5, lw=1.4, **look)
        finish(axes, title, [], [_key(index, curve.label) for index, curve in enumerate(curves)])
        return figure


def seed_figure(
    curves: Sequence[Curve],
    frame: Frame,
    title: str = "",
    notes: Sequence[str] = (),
    dashed: Sequence[Curve] = (),
    colours: Sequence[str] = PROBES,
) -> Figure:
    """A thin line a seed and a thick one for their median, against training steps or length.

    `dashed` curves have `colours` of their own. A curve without points keeps its colour, one without a label is not in
    the legend.
    """
    with matplotlib.rc_context(STYLE):
        figure, axes = _framed(frame)
        points = [point for curve in [*curves, *dashed] for of_seed in curve.seeds.values() for point in of_seed]
        last = max((point.x for point in points), default=1)
        if frame.steps:
            step_axis(axes, last)
        else:
            length_axis(axes, [point.x for point in points])
        # The losses of the first steps would take most of the height.
        _scale(axes, frame, [point.value for point in points if not frame.steps or point.x > last / 20])
        looks = [
            _draw_seeds(axes, curve, lw=1.2, color=colours[index % len(colours)], ls=DASHED)
            for index, curve in enumerate(dashed)
        ]
        keys = [_draw_seeds(axes, curve, lw=1.9, **_look(index)) for index, curve in enumerate(curves) if curve.seeds]
        finish(axes, title, notes, [key for key in [*keys, *looks] if key.get_label()])
        return figure


def save(figure: Figure, path: Path) -> None:
    """Writes `figure` as .png (300 dots an inch) or .svg, the same bytes each time; raises `UserError` if it cannot."""
    data = svg(figure).encode() if path.suffix == ".svg" else _rendered(figure, "png", {"Software": None})
    with writing(path):
        write_whole(path, data)


def svg(figure: Figure, prefix: str = "") -> str:
    """`figure` as one `<svg>` element to be set into a page; `prefix` keeps the ids of several figures apart."""
    text = _rendered(figure, "svg", {"Date": None, "Creator": None}).decode()
    text = re.sub(r"\s*<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    return re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{prefix}", text) if prefix else text


def _rendered(figure: Figure, kind: str, metadata: Mapping[str, str | None]) -> bytes:
    buffer = io.BytesIO()
    with matplotlib.rc_context(STYLE):
        settle(figure)
        figure.savefig(buffer, format=kind, dpi=300, metadata=metadata, facecolor="white" if kind == "png" else "none")
    return buffer.getvalue()


def _framed(frame: Frame) -> tuple[Figure, Axes]:
    figure, axes = canvas()
    axes.set(xlabel=frame.x, ylabel=frame.y)
    mark_chance(axes, frame.chance)
    return figure, axes


def _scale(axes: Axes, frame: Frame, values: Sequence[float]) -> None:
    if frame.scale == "fitted":
        fit(axes, values)
    elif frame.scale == "log":
        fit_log(axes, values)


def _shift(axes: Axes, index: int, curves: int) -> Transform:
    """Points of different curves at one length stand side by side, so that none hides another."""
    return shifted(axes, axes.transData, right=(index - (curves - 1) / 2) * min(2.4, 17 / curves))


def _draw_ladder(axes: Axes, curve: Curve, index: int, shift: Transform) -> None:
    across = curve.over_seeds(complete=True)  # medians of other seeds at each length would make no curve
    if not across:
        return
    look, marker = _look(index), _marker(index)
    colour = look["color"]
    x, middle, low, high = zip(*across, strict=True)
    style = {**look, "transform": shift, "zorder": 3 + 0.1 * index}
    axes.plot(x, middle, marker=marker, markersize=4.6, markeredgecolor="white", markeredgewidth=0.6, lw=1.6, **style)
    if curve.banded:
        (points,) = curve.seeds.values()
        low, high = [point.low for point in points], [point.high for point in points]
    if len(curve.seeds) > 1 or curve.banded:
        axes.fill_between(x, low, high, color=colour, alpha=0.17, linewidth=0, transform=shift, zorder=2)
    else:
        _draw_intervals(axes, next(iter(curve.seeds.values())), colour, shift)
    for end in _ends(curve):
        face = {"markerfacecolor": "white", "markeredgecolor": colour, "markeredgewidth": 1.3}
        axes.plot(end.x, end.value, marker=marker, markersize=5.6, **face, **{**style, "zorder": 4})


def _draw_intervals(axes: Axes, points: Sequence[Point], colour: str, shift: Transform) -> None:
    for point in points:
        ends = (point.low, point.high)
        axes.plot((point.x, point.x), ends, color=colour, lw=1.0, alpha=0.65, transform=shift, zorder=2.5)
        for end in ends:
            axes.plot(point.x, end, marker="_", ms=4, mew=1.0, color=colour, alpha=0.65, transform=shift, zorder=2.5)


def _ends(curve: Curve) -> list[Point]:
    """The last point of a curve whose longer lengths were not run; empty for any other."""
    last = [Point(*at) for at in curve.over_seeds(complete=True)[-1:]]
    return [point for point in last if any(length > point.x for length in curve.not_run)]


def _say_not_run(axes: Axes, ends: Sequence[tuple[Point, str]]) -> None:
    """Says at each end, in its colour, that the curve was not run beyond it, and not over another such label."""
    height = axes.get_window_extent().height * 72 / axes.figure.dpi  # in points, as the offsets are
    placed: dict[tuple[float, bool], float] = {}
    within = axes.transScale + axes.transLimits
    heights = [float(within.transform((end.x, end.value))[1]) for end, _ in ends]
    for above, (end, colour) in sorted(zip(heights, ends, strict=True), key=lambda end: -abs(end[0] - 0.5)):
        at_right_edge, upper = within.transform((end.x, end.value))[0] > 0.75, above > 0.5
        way = -1 if upper else 1
        place = above * height + (-12 if at_right_edge or upper else 5)
        before = placed.get((end.x, upper))
        place = place if before is None else way * max(way * place, way * before + LINE)
        placed[end.x, upper] = place
        axes.annotate(
            f"not run beyond {raised(length_label(end.x))}",
            (end.x, end.value),
            (-8 if at_right_edge else 8, place - above * height),
            textcoords="offset points",
            ha="right" if at_right_edge else "left",
            fontsize=7,
            color=colour,
            path_effects=[withStroke(linewidth=2.5, foreground="white")],
            zorder=6,
        )


def _draw_seeds(axes: Axes, curve: Curve, lw: float, **look: Any) -> Line2D:
    for points in curve.seeds.values():
        steps, values = [point.x for point in points], [point.value for point in points]
        axes.plot(steps, values, lw=0.8 if len(curve.seeds) > 1 else lw, alpha=0.45, **look)
    across = curve.over_seeds(complete=True)
    steps, middles = [x for x, *_ in across], [middle for _, middle, *_ in across]
    marker = "o" if len(steps) == 1 else ""  # a line through one point is not seen
    axes.plot(steps, middles, lw=lw, marker=marker, ms=4.6, zorder=3, **look)
    return Line2D([], [], lw=lw, label=curve.label, **look)


def _key(index: int, label: str) -> Line2D:
    return Line2D([], [], marker=_marker(index), ms=4.6, mec="white", mew=0.6, lw=1.6, label=label, **_look(index))


def _marker(index: int) -> str:
    return MARKERS[index % len(MARKERS)]


def _look(index: int) -> dict[str, Any]:
    return {"color": COLOURS[index % len(COLOURS)], "ls": DASHES[index // len(COLOURS) % len(DASHES)]}
