"""The figures of text runs: loss by position (figs. 5 and 10), what a longer context changes, loss while training."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator, ScalarFormatter

from evalkit.core.rows import Row, value
from evalkit.record import text_rows
from evalkit.reports.accuracy.summary import run_facts
from evalkit.reports.canvas import (
    MUTED,
    STYLE,
    canvas,
    legend,
    length_axis,
    length_label,
    mark_lengths,
    raised,
    step_axis,
)
from evalkit.reports.curves import COLOURS, MARKERS
from evalkit.reports.text.summary import (
    Estimate,
    alike,
    base_context,
    bits_per_byte,
    bytes_per_token,
    differences,
    levels,
    table_of,
    validation,
)

SMALL = 0.1
FIRST_DRAWN = 16
"""Positions before it have so little context that they would take most of the figure's height."""


@dataclass(frozen=True)
class Subject:
    """What one line of a figure shows: the rows of one run, or of several that differ in their seeds alone."""

    label: str
    rows: Sequence[Row]


def position_figure(subjects: Sequence[Subject], title: str, notes: Sequence[str]) -> Figure:
    """Mean loss by position with its 95% interval over documents, training lengths and windows marked.

    Nats a token by tokens; where the subjects' tokens are not alike, bits a byte by bytes.
    """
    same = alike([subject.rows for subject in subjects])

    def of(subject: Subject) -> list[Estimate]:
        found = levels(table_of(subject.rows, text_rows.LOSS, value if same else bits_per_byte))
        return [one for one in _in_bytes(found, subject, same) if one.position >= FIRST_DRAWN]

    figure = _figure(subjects, of, title, notes, f"mean loss ({unit(same)})", marked=same)
    figure.axes[0].set_xlabel("token position" if same else "position (bytes)")
    return figure


def unit(same: bool) -> str:
    """What losses are in where the tokens are the same, and where they are not."""
    return "nats a token" if same else "bits a byte"


def _in_bytes(found: Sequence[Estimate], subject: Subject, same: bool) -> list[Estimate]:
    """Positions as they are where the tokens are the `same`, else as so many bytes."""
    ratio = 1.0 if same else bytes_per_token(subject.rows)
    return [replace(one, position=round(one.position * ratio)) for one in found]


def context_figure(subjects: Sequence[Subject], title: str, notes: Sequence[str]) -> Figure:
    """The same passages after more or less context: the difference to the training window's, with its 95% interval."""
    same = alike([subject.rows for subject in subjects])

    def of(subject: Subject) -> list[Estimate]:
        table = table_of(subject.rows, text_rows.PAIRED, value if same else bits_per_byte)
        base = base_context(subject.rows)
        return [] if base is None else _in_bytes(differences(table, table, base), subject, same)

    figure = _figure(subjects, of, title, notes, f"change of loss ({unit(same)})", marked=same)
    _in_thousandths(figure.axes[0], unit(same))
    figure.axes[0].axhline(0, color=MUTED, linewidth=0.8, zorder=1.5)
    figure.axes[0].set_xlabel("tokens of context" if same else "context (bytes)")
    return figure


def _in_thousandths(axes: Axes, of: str) -> None:
    """Small numbers take the room of their own label."""
    if max(map(abs, axes.get_ylim())) < SMALL:
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{1000 * y:g}"))
        axes.set_ylabel(f"change of loss (thousandths, {of})")


def validation_figure(subjects: Sequence[Subject], title: str, notes: Sequence[str]) -> Figure:
    """Validation loss in bits a byte against training steps: a thin line a seed, a thick one for their mean."""
    with matplotlib.rc_context(STYLE):
        figure, axes = canvas(title, notes, [subject.label for subject in subjects])
        found = [validation(subject.rows)["bits_per_byte"] for subject in subjects]
        steps = [step for seeds in found for points in seeds.values() for step, _ in points]
        step_axis(axes, max(steps, default=1))
        for index, seeds in enumerate(found):
            _draw_seeds(axes, seeds, COLOURS[index % len(COLOURS)])
        _fit(
            axes,
            [loss for seeds in found for points in seeds.values() for step, loss in points if step > max(steps) / 20],
        )
        axes.set_ylabel("validation loss (bits a byte)")
        legend(axes, [_key(index, subject.label) for index, subject in enumerate(subjects)] if steps else [])
        return figure


def _figure(
    subjects: Sequence[Subject],
    of: Callable[[Subject], list[Estimate]],
    title: str,
    notes: Sequence[str],
    measure: str,
    *,
    marked: bool,
) -> Figure:
    facts = [run_facts(subject.rows) for subject in subjects]
    trained = sorted({fact["train_length"] for fact in facts if fact["train_length"]}) if marked else []
    windows = sorted({fact["window"] for fact in facts if fact["window"]}) if marked else []
    drawn = [(subject.label, of(subject)) for subject in subjects]
    with matplotlib.rc_context(STYLE):
        figure, axes = canvas(title, notes, [label for label, _ in drawn], labels=len(trained) + len(windows))
        axes.set_ylabel(measure, labelpad=1)  # numbers below 0 leave little room
        length_axis(axes, [*trained, *windows, *(found.position for _, line in drawn for found in line)])
        marks = [(length, f"trained at {raised(length_label(length))}", "dashed") for length in trained]
        marks += [(window, f"window {raised(length_label(window))}", "dotted") for window in windows]
        mark_lengths(axes, sorted(marks))
        for index, (_, line) in enumerate(drawn):
            _draw(axes, line, index)
        _fit(axes, [end for _, line in drawn for found in line for end in (found.mean, found.low, found.high)])
        keys = [_key(index, label) for index, (label, line) in enumerate(drawn) if line]
        legend(axes, keys, len(marks))
        return figure


def _draw(axes: Axes, line: Sequence[Estimate], index: int) -> None:
    colour, marker = COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)]
    x, means = [found.position for found in line], [found.mean for found in line]
    axes.plot(x, means, color=colour, marker=marker, ms=3.4, mec="white", mew=0.5, lw=1.5, zorder=3 + 0.1 * index)
    low, high = [found.low for found in line], [found.high for found in line]
    axes.fill_between(x, low, high, color=colour, alpha=0.13, linewidth=0, zorder=2)


def _draw_seeds(axes: Axes, seeds: dict[int, list[tuple[int, float]]], colour: str) -> None:
    for points in seeds.values():
        axes.plot(*zip(*points, strict=True), color=colour, lw=0.8 if len(seeds) > 1 else 1.8, alpha=0.6)
    common = set.intersection(*({step for step, _ in points} for points in seeds.values())) if seeds else set()
    means = [(step, sum(dict(points)[step] for points in seeds.values()) / len(seeds)) for step in sorted(common)]
    if means:
        axes.plot(*zip(*means, strict=True), color=colour, lw=1.8, zorder=3)


def _fit(axes: Axes, values: Sequence[float]) -> None:
    """The y axis around what is drawn; accuracy's, from 0 to 1, otherwise."""
    finite = [number for number in values if math.isfinite(number)]
    if not finite:
        return
    low, high = min(finite), max(finite)
    margin = max(0.06 * (high - low), 1e-3)
    axes.set_ylim(low - margin, high + margin)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=6))
    axes.yaxis.set_major_formatter(ScalarFormatter(useOffset=False))


def _key(index: int, label: str) -> Line2D:
    colour, marker = COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)]
    return Line2D([], [], color=colour, marker=marker, ms=4.2, mec="white", mew=0.5, lw=1.5, label=label)
