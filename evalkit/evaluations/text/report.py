"""The tables, figures and CSV of text runs: loss by position (figs. 5 and 10), by context, and while training."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from matplotlib.ticker import FuncFormatter

from evalkit.core.rows import value
from evalkit.evaluations.text import rows as text_rows
from evalkit.evaluations.text.summary import (
    Estimate,
    base_context,
    bits_per_byte,
    bytes_by_document,
    bytes_per_token,
    differences,
    levels,
    table_of,
    validation,
)
from evalkit.evaluations.text.summary import summarise as summarise
from evalkit.reports import during
from evalkit.reports.along import WORDS, along, omitted
from evalkit.reports.canvas import MUTED
from evalkit.reports.curves import Frame, frame_of, length_figure, seed_figure
from evalkit.reports.kinds import Drawing, Table, by_column
from evalkit.reports.numbers import DASH, Curve, Point, between, shown
from evalkit.reports.pooling import Line

POSITIONS, CONTEXT, TRAINING = "Loss by token position", "What more context changes", "While training"
SMALL = 0.1
FIRST_DRAWN = 16
"""Positions before it have so little context that they would take most of the figure's height."""
SHOWN_FROM = 128
CONTROLS = {
    "foreign": "far context from another document, minus its own",
    "repeated": "a passage seen before, minus one not seen",
    "helped": "tokens that long context helps most, long minus short",
}


def figures(lines: Sequence[Line], title: str, notes: Sequence[str]) -> dict[str, Drawing]:
    """Loss by position, by context and while training; the last only where there is more than one point to draw.

    The units are nats per token, by tokens; if the lines' tokens differ in length, bits per byte, by bytes.
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
    if max(map(abs, by_context.axes[0].get_ylim())) < SMALL:  # long tick labels would take the room of the axis label
        by_context.axes[0].yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{1000 * y:g}"))
        by_context.axes[0].set_ylabel(f"change of loss (thousandths, {unit(same)})")
    drawn = {
        "positions": Drawing(POSITIONS, "Held-out documents; the band is a 95% interval over documents.", by_position),
        "context": Drawing(CONTEXT, "The same passages after more or less of their own document.", by_context),
    }
    learning = []
    for line in lines:
        seeds = validation(line.record.rows)["bits_per_byte"]
        points = {seed: [Point(step, loss) for step, loss in curve] for seed, curve in seeds.items()}
        learning.append(along(Curve(line.label, points), line))
    if any(len(points) > 1 for curve in learning for points in curve.seeds.values()):
        while_training = Frame(y="validation loss (bits a byte)", scale="fitted").while_training(WORDS[lines[0].by])
        training = seed_figure(learning, while_training, f"{title} while training", [*notes, *omitted(lines)])
        kept = "Loss on the ends of the training documents, which are kept from training."
        drawn["training"] = Drawing(TRAINING, kept, training)
    return drawn | during.figures(lines, title, notes, same)


def tokens_are_alike(lines: Sequence[Line]) -> bool:
    """Whether all lines have as many bytes per token, so that losses per token can be compared.

    The documents that all of them measured say so; where there is none, the means over each line's own.
    """
    by_document = [bytes_by_document(line.record.rows) for line in lines]
    shared = set.intersection(*map(set, by_document))
    ratios = [[of_line[name] for of_line in by_document] for name in shared]
    ratios = ratios or [[bytes_per_token(line.record.rows) for line in lines]]
    return all(max(of_one) - min(of_one) < 1e-6 for of_one in ratios)


def unit(same: bool) -> str:
    """The unit of losses: nats a token if all lines have the `same` tokens, else bits a byte."""
    return "nats a token" if same else "bits a byte"


def losses(line: Line, same: bool) -> list[Estimate]:
    """The mean loss at each position."""
    return levels(table_of(line.record.rows, text_rows.LOSS, value if same else bits_per_byte))


def changes(line: Line, same: bool) -> list[Estimate]:
    """The change of loss after every context, against the context that fits into a training window."""
    base = base_context(line.record)
    table = table_of(line.record.rows, text_rows.PAIRED, value if same else bits_per_byte)
    return [] if base is None else differences(table, table, base)


def _curve(line: Line, estimates: Sequence[Estimate], same: bool) -> Curve:
    """The curve by position: in tokens if these are the `same` for all lines, else in bytes."""
    ratio = 1.0 if same else bytes_per_token(line.record.rows)
    points = [Point(round(one.position * ratio), one.mean, one.low, one.high, one.documents) for one in estimates]
    return Curve(line.label, {0: points} if points else {}, banded=True)


def tables(lines: Sequence[Line]) -> list[Table]:
    """Of one run every interval, and the controls; of several a row each."""
    own = _of_one(summarise(lines[0].record)) if lines[0].alone else _of_several(lines)
    return [*own, *during.tables(lines)]


def records(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """One record per line and position, of the loss and of its change with more context than a training window has."""
    same = tokens_are_alike(lines)
    return [
        {"model": line.label, "measure": measure, "unit": unit(same), **asdict(one)}
        for line in lines
        for measure, estimates in (("loss", losses(line, same)), ("more_context", _longer(line, same)))
        for one in estimates
    ]


def _of_one(summary: Mapping[str, Any]) -> list[Table]:
    nats, bits = summary["validation"]["loss"], summary["validation"]["bits_per_byte"]
    octaves = [record for record in summary["by_position"] if record["position"].bit_count() == 1]
    return [
        Table(
            POSITIONS,
            ["position", "loss", "95% interval", "documents", "bits a byte"],
            [[*_cells(record, ".4f"), shown(record["bits_per_byte"], ".4f")] for record in octaves],
        ),
        _contexts(CONTEXT, summary["paired"]),
        _contexts("More context than a training window", summary["paired_after_a_window"]),
        Table(
            "Controls",
            ["control", "tokens", "difference of loss", "95% interval", "documents"],
            [_control(words, record) for name, words in CONTROLS.items() for record in summary[name]],
        ),
        Table(
            TRAINING,
            ["seed", "validation, nats a token", "bits a byte"],
            [[str(seed), shown(nats[seed], ".4f"), shown(bits[seed], ".4f")] for seed in nats],
        ),
    ]


def _of_several(lines: Sequence[Line]) -> list[Table]:
    """Mean loss at powers of two, and what more context changes, with half the width of its interval."""
    same = tokens_are_alike(lines)
    level = {
        line.label: {one.position: shown(one.mean, ".4f") for one in _octaves(losses(line, same))} for line in lines
    }
    changed = {
        f"{line.label}, against {base_context(line.record) or DASH}": {
            one.position: _with_half_width(one) for one in _octaves(_longer(line, same))
        }
        for line in lines
    }
    return [
        by_column(POSITIONS, f"loss ({unit(same)}) at position", level, lines),
        by_column(CONTEXT, f"after more context ({unit(same)})", changed),
    ]


def _octaves(estimates: Iterable[Estimate]) -> list[Estimate]:
    return [one for one in estimates if one.position.bit_count() == 1 and one.position >= SHOWN_FROM]


def _with_half_width(estimate: Estimate) -> str:
    """A mean with half the width of its interval, which a single document has not."""
    half = estimate.high - estimate.mean
    return shown(estimate.mean, "+.4f") + (f" ± {half:.4f}" if math.isfinite(half) else "")


def _longer(line: Line, same: bool) -> list[Estimate]:
    """The changes of loss after contexts longer than the one that they are compared with."""
    base = base_context(line.record)
    return [] if base is None else [one for one in changes(line, same) if one.position > base]


def _contexts(heading: str, paired: Mapping[str, Any]) -> Table:
    """A table of the differences to one context; shorter contexts get no verdict."""
    against = paired["against"]
    header = ["context", f"loss minus that after {against}", "95% interval", "documents", "so more context"]
    lines = [
        [*_cells(record, "+.4f"), record["verdict"] if record["position"] > against else DASH]
        for record in paired["difference"]
    ]
    return Table(heading, header, lines)


def _control(words: str, record: Mapping[str, Any]) -> list[str]:
    """A table line, without an interval if its tokens were chosen by the losses shown, which then prove nothing."""
    if record.get("chosen_by") != "itself":
        return [words, *_cells(record, "+.4f")]
    bare = _cells({**record, "low": None, "high": None}, "+.4f")
    return [f"{words} (chosen by the same losses: below 0 by construction)", *bare]


def _cells(record: Mapping[str, Any], form: str) -> list[str]:
    interval = between(record["low"], record["high"], form)
    return [f"{record['position']:,}", shown(record["mean"], form), interval, str(record["documents"])]
