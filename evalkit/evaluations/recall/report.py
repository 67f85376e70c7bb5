"""The tables, figures and CSV of recall evaluations, of one or of several: accuracy by distance, what loses answers."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from evalkit.core.rows import Row
from evalkit.evaluations.recall import rows as recall_rows
from evalkit.evaluations.recall.summary import channels, decayed
from evalkit.evaluations.recall.summary import summarise as summarise
from evalkit.reports.curves import COLOURS, Frame, frame_of, length_figure, seed_figure
from evalkit.reports.kinds import COSTS, Drawing, Table, costs_of
from evalkit.reports.numbers import Curve, Point, between, grouped, shown
from evalkit.reports.pooling import Line

Entry = Mapping[str, Any]
Columns = Mapping[str, Callable[[Entry], str]]
"""How a column shows a record of the summary, by its heading."""
WHOLE = (
    recall_rows.NOTHING_UNDONE,
    recall_rows.DRIFT_UNDONE,
    recall_rows.DRIFT_SHAM,
    recall_rows.FORGETTING_UNDONE,
    recall_rows.FORGETTING_SHAM,
)
"""The interventions on all blocks at once; records from before there were shams have no shams."""
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


def _tokens(number: float | None, otherwise: str) -> str:
    return otherwise if number is None else f"{number:,.0f}"


BEFORE: Columns = {"tokens before the fact": lambda entry: f"{entry['before']:,}"}
SEED: Columns = {"seed": lambda entry: str(entry["seed"])}
REACH: Columns = {
    **BEFORE,
    "distance from the window": lambda entry: entry["reach"] if entry["window"] else "any",
    "mean accuracy": lambda entry: shown(entry["median"]),
    "range over seeds": lambda entry: between(entry["min"], entry["max"]),
    "seeds": lambda entry: str(entry["seeds"]),
}
HALF_WAY: Columns = {
    **BEFORE,
    **SEED,
    "half-way to chance at distance": lambda entry: _tokens(entry["distance"], "never"),
}
ANSWERS: Columns = {
    **BEFORE,
    **SEED,
    "distance": lambda entry: f"{entry['distance']:,}",
    "answers lost": lambda entry: ", ".join(map(str, entry["lost"])) or "none",
    "accuracy of the others": lambda entry: shown(entry["others"]),
}
FORGETTING: Columns = {
    **SEED,
    "block": lambda entry: str(entry["block"] + 1),
    "tokens to 1/e, by its decay": lambda entry: _tokens(entry["predicted"], "no end"),
    "measured": lambda entry: _tokens(entry["measured"], "longer than the contexts"),
    "drift": lambda entry: shown(entry["moved"], ".1f"),
}


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


def tables(lines: Sequence[Line]) -> list[Table]:
    """Accuracy within and beyond the window, and where and for which answers it is lost.

    For one run also what lost the answers, and how long each block holds a fact.
    """
    single, summaries = lines[0].alone, [summarise(line.record) for line in lines]

    def table(heading: str, part: str, columns: Columns) -> Table:
        cells = [
            [
                *([] if single else [line.label]),
                *(cell({"window": summary["window"], **record}) for cell in columns.values()),
            ]
            for line, summary in zip(lines, summaries, strict=True)
            for record in summary[part]
        ]
        return Table(heading, [*([] if single else ["model"]), *columns], cells)

    shared = [
        table(DISTANCE, "by_reach", REACH),
        table("Where accuracy is lost", "half_way", HALF_WAY),
        table("Which answers are lost", "by_answer", ANSWERS),
    ]
    if not single:
        costs = [[line.label, *costs_of(line.header)] for line in lines]
        return [*shared, Table("What the models cost", ["model", *COSTS], costs)]
    whole = ["as it is", "drift undone", "its sham", "forgetting undone", "its sham"]
    header = ["seed", "at distance", *whole, "in one block", "best sham of one"]
    restored = Table("What lost the answers", header, _restored_lines(summaries[0]))
    return [*shared, restored, table("What the state holds of the fact", "forgetting", FORGETTING)]


def records(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """A record a run, seed, distance and number of tokens before the fact."""
    names = ("seed", "before", "distance", "accuracy", "low", "high", "sequences")
    return [
        {"run": run.header.run, "model": line.label, **{name: record[name] for name in names}}
        for line in lines
        for run in line.runs
        for record in summarise(run.record)["recalled"]
    ]


def _of_one(
    summary: Mapping[str, Any], rows: Sequence[Row], frame: Frame, title: str, notes: Sequence[str]
) -> dict[str, Drawing]:
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
        # The drift at the first checkpoint is 0, which a log scale cannot show.
        moved = _by_block(entry for entry in summary["drifts"] if entry["relative"] > 0)
        by_then = replace(since, y="moved, in differences", scale="log")
        named = f"{title}: what moves the state meanwhile"
        figure = seed_figure(list(moved.values()), by_then, named, [*notes, DRIFTED])
        drawn["drift"] = Drawing("What moves the state meanwhile", "Above 1, the other tokens did more.", figure)
    if summary["restored"]:
        named = f"{title}: what lost the answers"
        # In every block at once: as it is, with drift or forgetting undone, and with their shams.
        whole = grouped((record["undone"], record) for record in summary["restored"] if record["block"] is None)
        curves = [_curve(label, whole[undone]) for undone, label in LABELS.items() if undone in whole]
        figure = length_figure(curves, replace(frame, windows=()), named, [*notes, UNDONE])
        drawn["restored"] = Drawing("What lost the answers", "Accuracy with a part of the state put back.", figure)
    return drawn


def _curve(label: str, records: Iterable[Mapping[str, Any]]) -> Curve:
    names = ("distance", "accuracy", "low", "high", "sequences")
    return Curve(label, grouped((record["seed"], Point(*(record[name] for name in names))) for record in records))


def _by_block(records: Iterable[Mapping[str, Any]]) -> dict[int, Curve]:
    blocks = grouped((one["block"], (one["seed"], Point(one["distance"], one["relative"]))) for one in records)
    return {block: Curve(f"block {block + 1}", grouped(blocks[block])) for block in sorted(blocks)}


def _decay(block: int, measured: Curve, rows: Sequence[Row]) -> Curve:
    """The curve of a block's difference if only the decay of its channels acted on it; it is not in the legend."""
    seeds, of_block = {}, channels(rows)
    for seed, points in measured.seeds.items():
        own = of_block.get((seed, block), ())
        seeds[seed] = [Point(point.x, decayed(own, point.x - points[0].x)) for point in points]
    return Curve("", seeds)


def _restored_lines(summary: Entry) -> list[list[str]]:
    """One line per seed, at the furthest distance, of the accuracy with each part of the state restored.

    `in one block` is the block whose forgetting, undone alone, restores most. It is the best of several blocks, and so
    is the sham beside it.
    """
    lines = []
    for seed, own in sorted(grouped((record["seed"], record) for record in summary["restored"]).items()):
        last = max(record["distance"] for record in own)
        accuracies = {(r["undone"], r["block"]): r["accuracy"] for r in own if r["distance"] == last}
        whole = [shown(accuracies.get((what, None))) for what in WHOLE]
        undone, shams = (
            {block: right for (what, block), right in accuracies.items() if what == part and block is not None}
            for part in (recall_rows.FORGETTING_UNDONE, recall_rows.FORGETTING_SHAM)
        )
        best = max(undone, key=lambda block: undone[block])
        sham = shown(max(shams.values(), default=None))
        lines.append([str(seed), f"{last:,}", *whole, f"{best + 1}: {undone[best]:.3f}", sham])
    return lines
