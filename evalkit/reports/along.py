"""What curves of training are drawn against: steps, tokens, FLOPs or seconds. Rows know their steps alone."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from statistics import median

from evalkit.core.errors import UserError
from evalkit.core.rows import Record
from evalkit.record.files import times_of
from evalkit.reports.numbers import Curve, grouped
from evalkit.reports.pooling import STEPS, Line, Run

WORDS = {
    STEPS: "training step",
    "tokens": "training tokens",
    "flops": "training FLOPs",
    "seconds": "seconds of training",
}
"""The label of the axis. A step takes three times the FLOPs of a forward pass; a run's seconds are those of all its
seeds, which are trained together, spread evenly over its tokens."""
FLOPS_OF_A_STEP = 3


def along(curve: Curve, line: Line) -> Curve:
    """A training curve with `line.by` as x in place of steps; points of a run whose x is not known are left out.

    Where runs of one line spent different amounts up to a step, x is their median: a median of accuracies over seeds
    is one of the same step. Of several steps within one second the last one is drawn.
    """
    if line.by == STEPS:
        return curve
    places = {seed: of_run for run in line.runs if (of_run := _places(run, line.by)) for seed in run.seeds}
    of_steps = grouped((step, place) for of_run in places.values() for step, place in of_run.items())
    middle = {step: round(median(of_seeds)) for step, of_seeds in of_steps.items()}
    seeds = {
        seed: {middle[point.x]: point for point in points if point.x in places[seed]}
        for seed, points in curve.seeds.items()
        if seed in places
    }
    return replace(
        curve, seeds={seed: [replace(p, x=x) for x, p in points.items()] for seed, points in seeds.items() if points}
    )


def omitted(lines: Sequence[Line]) -> list[str]:
    """A note that names the lines that curves of training leave out; raises UserError if that is all of them."""
    by = lines[0].by
    if by == STEPS:
        return []
    known = {line.label: [bool(_places(run, by)) for run in line.runs] for line in lines}
    unknown = [label for label, of_runs in known.items() if not any(of_runs)]
    if len(unknown) == len(lines):
        raise UserError(
            f"--by={by}: the {by} of training are known of none of these runs; leave it out, or give another"
        )
    notes = [f"Left out while training, for the {by} are not known: {', '.join(unknown)}."] if unknown else []
    partly = [label for label, of_runs in known.items() if any(of_runs) and not all(of_runs)]
    return [*notes, *(f"{label}: the {by} are not known of some seeds, which are left out." for label in partly)]


def _places(run: Run, by: str) -> Mapping[int, float]:
    """The tokens, FLOPs or seconds (`by`) spent up to each logged training step; empty if they are not known."""
    tokens = tokens_seen(run.record)
    if by == "flops":
        cost = run.header.flops_per_token
        return {} if cost is None else {step: FLOPS_OF_A_STEP * cost * count for step, count in tokens.items()}
    if by == "seconds":
        times = times_of(run.folder)
        seconds = times.get("training")
        seconds = None if seconds is None else seconds - times.get("looks", 0.0)
        last = max(tokens.values(), default=0)
        return {} if seconds is None else {step: seconds * count / last for step, count in tokens.items()}
    return tokens


def tokens_seen(record: Record) -> dict[int, int]:
    """The tokens, answers included, that a seed's model had seen by each step; those of skipped steps do not count."""
    more: dict[int, float] = {}
    for entry in record.rows:
        if entry["split"] == "train" and entry["metric"] == "loss" and entry["step"] is not None:
            length = (entry["length"] or 0) + (record.header.answer_length or 0)
            more[entry["step"]] = max(more.get(entry["step"], 0), (entry["count"] or 0) * length)
    steps = sorted(more)
    tokens = map(int, accumulate(more[step] for step in steps))
    return {0: 0, **dict(zip(steps, tokens, strict=True))} if steps else {}
