"""The figures of recall evaluations: accuracy by distance, and of one run what loses an answer."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from evalkit.core.rows import Row
from evalkit.evaluations.recall import rows as recall_rows
from evalkit.evaluations.recall.summary import channels, decayed, summarise
from evalkit.reports.curves import COLOURS, Frame, frame_of, length_figure, seed_figure
from evalkit.reports.kinds import Drawing
from evalkit.reports.numbers import grouped
from evalkit.reports.points import Curve, Point
from evalkit.reports.pooling import Line

DISTANCE = "Accuracy by distance"
LABELS = {
    recall_rows.NOTHING_UNDONE: "as it is",
    recall_rows.DRIFT_UNDONE: "drift undone",
    recall_rows.FORGETTING_UNDONE: "forgetting undone",
    recall_rows.DRIFT_SHAM: "drift, sham",
    recall_rows.FORGETTING_SHAM: "forgetting, sham",
}
SOLID = "Solid: measured. Dashed: by the decay of the channels that carry the fact. Thin: a seed. Thick: their median."
UNDONE = (
    "Undone: the other tokens' part (drift) or the fact's (forgetting) of each state as it was soon after the fact. "
    "Sham: each channel moved as far, up or down by chance."
)
DRIFTED = "How far the other tokens have moved the state, in differences that the fact makes. Thick: the median."


def figures(lines: Sequence[Line], title: str, notes: Sequence[str]) -> dict[str, Drawing]:
    """Accuracy against the distance between fact and question; of one run also what the state holds of the fact."""
    frame = frame_of((line.header for line in lines), "distance from the fact to the question (tokens)")
    summaries = {line.label: summarise(line.record) for line in lines}
    single = lines[0].alone
    by_distance = [
        _curve(("" if single else f"{label}, ") + f"{before:,} tokens before the fact", records)
        for label, summary in summaries.items()
        for before, records in sorted(grouped((one["before"], one) for one in summary["recalled"]).items())
    ]
    figure = length_figure(by_distance, frame, f"{title}: by distance", notes)
    drawn = {"distance": Drawing(DISTANCE, "Median and range over seeds; a single seed with its 95% interval.", figure)}
    return drawn | _of_one(summaries[lines[0].label], lines[0].record.rows, frame, title, notes) if single else drawn


def _of_one(
    summary: Mapping[str, Any], rows: Sequence[Row], frame: Frame, title: str, notes: Sequence[str]
) -> dict[str, Drawing]:
    """What was looked at in the states: forgetting, drift, and which of them loses the answers."""
    drawn = {}
    since = Frame("tokens since the fact")
    if summary["forgetting"]:
        measured = _by_block(summary["differences"])
        predicted = [_decay(block, curve, rows) for block, curve in measured.items()]
        inside = replace(since, y="difference in the state, relative")
        named = f"{title}: what the state holds of the fact"
        figure = seed_figure(list(measured.values()), inside, named, [*notes, SOLID], predicted, COLOURS)
        drawn["forgetting"] = Drawing("What the state holds of the fact", "Measured, and by its decay alone.", figure)
    if summary["drifts"]:
        # The first look is where the state moves from.
        moved = _by_block(entry for entry in summary["drifts"] if entry["relative"] > 0)
        by_then = replace(since, y="moved, in differences", scale="log")
        named = f"{title}: what moves the state meanwhile"
        figure = seed_figure(list(moved.values()), by_then, named, [*notes, DRIFTED])
        drawn["drift"] = Drawing("What moves the state meanwhile", "Above 1, the other tokens did more.", figure)
    if summary["restored"]:
        named = f"{title}: what lost the answers"
        figure = length_figure(_restored(summary), replace(frame, windows=()), named, [*notes, UNDONE])
        drawn["restored"] = Drawing("What lost the answers", "Accuracy with a part of the state put back.", figure)
    return drawn


def _restored(summary: Mapping[str, Any]) -> list[Curve]:
    """Accuracy against distance as it is, and with drift or forgetting undone in every block, or its sham."""
    whole = grouped((record["undone"], record) for record in summary["restored"] if record["block"] is None)
    return [_curve(label, whole[undone]) for undone, label in LABELS.items() if undone in whole]


def _curve(label: str, records: Iterable[Mapping[str, Any]]) -> Curve:
    names = ("distance", "accuracy", "low", "high", "sequences")
    return Curve(label, grouped((record["seed"], Point(*(record[name] for name in names))) for record in records))


def _by_block(found: Iterable[Mapping[str, Any]]) -> dict[int, Curve]:
    """What was found at each distance, a curve a block."""
    blocks = grouped((one["block"], (one["seed"], Point(one["distance"], one["relative"]))) for one in found)
    return {block: Curve(f"block {block + 1}", grouped(blocks[block])) for block in sorted(blocks)}


def _decay(block: int, measured: Curve, rows: Sequence[Row]) -> Curve:
    """What the decay of its channels alone would leave of a block's first difference, not in the legend."""
    seeds, of_block = {}, channels(rows)
    for seed, points in measured.seeds.items():
        left = ((point.x, decayed(of_block.get((seed, block), ()), point.x - points[0].x)) for point in points)
        seeds[seed] = [Point(x, value) for x, value in left]
    return Curve("", seeds)
