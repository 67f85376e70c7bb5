"""Accuracy at one length against what a model costs: the bytes of its state, or its computation."""

from collections.abc import Sequence
from dataclasses import replace

from evalkit.core.errors import UserError
from evalkit.evaluations.extrapolation.summary import extrapolation_curve
from evalkit.reports.curves import cost_figure, frame_of
from evalkit.reports.kinds import Drawing
from evalkit.reports.pooling import Line

CAPTION = "A point a model: median and range over seeds; a single seed with its 95% interval."


def against(lines: Sequence[Line], x: str, at: int, title: str, notes: Sequence[str]) -> Drawing:
    """Accuracy at the length `at` against the bytes of state there (`cache_bytes`), or FLOPs a token (`flops`).

    Raises UserError where no run was measured at that length, and where no run says what its model costs.
    """
    ladders = {line.label: extrapolation_curve(line.record) for line in lines}
    measured = {point.x for curve in ladders.values() for points in curve.seeds.values() for point in points}
    if at not in measured:
        raise UserError(f"--at={at}: nothing was measured there; measured: {', '.join(map(str, sorted(measured)))}")
    of_state = x == "cache_bytes"
    costs = {line.label: line.header.state_bytes(at) if of_state else line.header.flops_per_token for line in lines}
    unknown = [label for label, cost in costs.items() if cost is None]
    if len(unknown) == len(lines):
        raise UserError(f"--x={x} is known of none of these runs, whose configurations cannot be built; leave it out")
    curves = []
    for label, curve in ladders.items():
        if (cost := costs[label]) is not None:
            seeds = {seed: [replace(p, x=cost) for p in points if p.x == at] for seed, points in curve.seeds.items()}
            curves.append(replace(curve, label=label, seeds={seed: points for seed, points in seeds.items() if points}))
    words = f"state of one sequence of {at:,} tokens" if of_state else "FLOPs a token, at the training length"
    said = [f"Left out, for what it costs is not known: {', '.join(unknown)}."] if unknown else []
    frame = frame_of([line.header for line in lines], words, f"accuracy at {at:,} tokens")
    figure = cost_figure(curves, frame, "B" if of_state else "", title, [*notes, *said])
    return Drawing(f"Accuracy at {at:,} tokens against cost", CAPTION, figure)
