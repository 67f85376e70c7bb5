"""The figures of text runs: loss by position (figs. 5 and 10), what a longer context changes, loss while training."""

from collections.abc import Sequence
from dataclasses import replace

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from evalkit.core.rows import value
from evalkit.evaluations.text import rows as text_rows
from evalkit.evaluations.text.summary import (
    Estimate,
    Table,
    base_context,
    bits_per_byte,
    bytes_per_token,
    differences,
    levels,
    table_of,
    validation,
)
from evalkit.reports.canvas import MUTED
from evalkit.reports.curves import Frame, frame_of, length_figure, seed_figure
from evalkit.reports.kinds import Drawing
from evalkit.reports.points import Curve, Point
from evalkit.reports.pooling import Line

POSITIONS, CONTEXT, TRAINING = "Loss by token position", "What more context changes", "While training"
SMALL = 0.1
FIRST_DRAWN = 16
"""Positions before it have so little context that they would take most of the figure's height."""


def figures(lines: Sequence[Line], title: str, notes: Sequence[str]) -> dict[str, Drawing]:
    """Loss by position, by context and while training; the last only where there is more than one point to draw.

    In nats a token by tokens; where the lines' tokens are not alike, in bits a byte by bytes.
    """
    same = tokens_are_alike(lines)
    frame = replace(frame_of(line.header for line in lines if same), scale="fitted", chance=None)
    by_position = length_figure(
        [_curve(line, [one for one in losses(line, same) if one.position >= FIRST_DRAWN], same) for line in lines],
        replace(frame, x="token position" if same else "position (bytes)", y=f"mean loss ({unit(same)})"),
        title,
        notes,
    )
    by_context = length_figure(
        [_curve(line, changes(line, same), same) for line in lines],
        replace(frame, x="tokens of context" if same else "context (bytes)", y=f"change of loss ({unit(same)})"),
        f"{title}: more context",
        notes,
    )
    by_context.axes[0].axhline(0, color=MUTED, linewidth=0.8, zorder=1.5)
    _in_thousandths(by_context.axes[0], unit(same))
    drawn = {
        "positions": Drawing(POSITIONS, "Held-out documents; the band is a 95% interval over documents.", by_position),
        "context": Drawing(CONTEXT, "The same passages after more or less of their own document.", by_context),
    }
    learning = [_learning(line) for line in lines]
    if any(len(points) > 1 for curve in learning for points in curve.seeds.values()):
        while_training = Frame(y="validation loss (bits a byte)", scale="fitted").while_training()
        training = seed_figure(learning, while_training, f"{title} while training", notes)
        kept = "Loss on the ends of the training documents, which are kept from training."
        drawn["training"] = Drawing(TRAINING, kept, training)
    return drawn


def tokens_are_alike(lines: Sequence[Line]) -> bool:
    """Whether the lines' tokens are as long, so that losses a token compare."""
    ratios = [bytes_per_token(line.record.rows) for line in lines]
    return max(ratios) - min(ratios) < 1e-6


def unit(same: bool) -> str:
    """What losses are in where the tokens are the same, and where they are not."""
    return "nats a token" if same else "bits a byte"


def losses(line: Line, same: bool) -> list[Estimate]:
    """The mean loss at each position."""
    return levels(_measured(line, text_rows.LOSS, same))


def changes(line: Line, same: bool) -> list[Estimate]:
    """What every context changes against the one that fits into a training window."""
    table, base = _measured(line, text_rows.PAIRED, same), base_context(line.record)
    return [] if base is None else differences(table, table, base)


def _measured(line: Line, metric: str, same: bool) -> Table:
    return table_of(line.record.rows, metric, value if same else bits_per_byte)


def _curve(line: Line, found: Sequence[Estimate], same: bool) -> Curve:
    """Positions as they are where the tokens are the `same`, else as so many bytes."""
    ratio = 1.0 if same else bytes_per_token(line.record.rows)
    points = [Point(round(one.position * ratio), one.mean, one.low, one.high, one.documents) for one in found]
    return Curve(line.label, {0: points} if points else {}, banded=True)


def _learning(line: Line) -> Curve:
    seeds = validation(line.record.rows)["bits_per_byte"]
    return Curve(line.label, {seed: [Point(step, loss) for step, loss in found] for seed, found in seeds.items()})


def _in_thousandths(axes: Axes, of: str) -> None:
    """Small numbers take the room of their own label."""
    if max(map(abs, axes.get_ylim())) < SMALL:
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{1000 * y:g}"))
        axes.set_ylabel(f"change of loss (thousandths, {of})")
