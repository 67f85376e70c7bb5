"""The tables and the CSV of recall evaluations, of one or of several."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from evalkit.evaluations.recall.curves import DISTANCE
from evalkit.evaluations.recall.curves import figures as figures
from evalkit.evaluations.recall.rows import DRIFT_SHAM, DRIFT_UNDONE, FORGETTING_SHAM, FORGETTING_UNDONE, NOTHING_UNDONE
from evalkit.evaluations.recall.summary import summarise as summarise
from evalkit.reports.kinds import COSTS, Table, costs_of
from evalkit.reports.numbers import between, grouped, shown
from evalkit.reports.pooling import Line

Rows = list[list[str]]
WHOLE = (NOTHING_UNDONE, DRIFT_UNDONE, DRIFT_SHAM, FORGETTING_UNDONE, FORGETTING_SHAM)
"""What is done to every block at once; records of before the shams have none."""


def tables(lines: Sequence[Line]) -> list[Table]:
    """Accuracy within the window and beyond, where it is lost, which answers are; of one run also how long each block
    holds a fact."""
    found = [(line, summarise(line.record)) for line in lines]
    single = lines[0].alone

    def table(heading: str, header: Sequence[str], rows_of: Callable[[Mapping[str, Any]], Rows]) -> Table:
        if single:
            return Table(heading, header, rows_of(found[0][1]))
        cells = [[line.label, *row] for line, summary in found for row in rows_of(summary)]
        return Table(heading, ["model", *header], cells)

    before, by_seed = "tokens before the fact", ["seed", "half-way to chance at distance"]
    lost = ["seed", "distance", "answers lost", "accuracy of the others"]
    shared = [
        table(DISTANCE, [before, "distance from the window", "mean accuracy", "range over seeds", "seeds"], _reach),
        table("Where accuracy is lost", [before, *by_seed], _half_way),
        table("Which answers are lost", [before, *lost], _answers),
    ]
    whole = ["as it is", "drift undone", "its sham", "forgetting undone", "its sham"]
    kept = ["seed", "block", "tokens to 1/e, by its decay", "measured", "drift"]
    inside = [
        table("What lost the answers", ["seed", "at distance", *whole, "in one block", "best sham of one"], _restored),
        table("What the state holds of the fact", kept, _forgetting),
    ]
    costs = Table("What the models cost", ["model", *COSTS], [[line.label, *costs_of(line.header)] for line in lines])
    return [*shared, *inside] if single else [*shared, costs]


def records(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """A record a run, seed, distance and number of tokens before the fact."""
    names = ("seed", "before", "distance", "accuracy", "low", "high", "sequences")
    return [
        {"run": run.header.run, "model": line.label, **{name: record[name] for name in names}}
        for line in lines
        for run in line.runs
        for record in summarise(run.record)["recalled"]
    ]


def _reach(summary: Mapping[str, Any]) -> Rows:
    return [
        [
            f"{found['before']:,}",
            found["reach"] if summary["window"] else "any",
            shown(found["median"]),
            between(found["min"], found["max"]),
            str(found["seeds"]),
        ]
        for found in summary["by_reach"]
    ]


def _half_way(summary: Mapping[str, Any]) -> Rows:
    return [
        [f"{found['before']:,}", str(found["seed"]), "never" if found["distance"] is None else f"{found['distance']:,}"]
        for found in summary["half_way"]
    ]


def _answers(summary: Mapping[str, Any]) -> Rows:
    return [
        [
            f"{found['before']:,}",
            str(found["seed"]),
            f"{found['distance']:,}",
            ", ".join(map(str, found["lost"])) or "none",
            shown(found["others"]),
        ]
        for found in summary["by_answer"]
    ]


def _forgetting(summary: Mapping[str, Any]) -> Rows:
    return [
        [
            str(found["seed"]),
            str(found["block"] + 1),
            _tokens(found["predicted"], "no end"),
            _tokens(found["measured"], "longer than the contexts"),
            shown(found["moved"], ".1f"),
        ]
        for found in summary["forgetting"]
    ]


def _restored(summary: Mapping[str, Any]) -> Rows:
    """By seed at the furthest distance. `in one block` is the block whose forgetting, undone alone, restores most.

    It is the best of several, and so is the sham beside it.
    """
    lines = []
    for seed, own in sorted(grouped((record["seed"], record) for record in summary["restored"]).items()):
        last = max(record["distance"] for record in own)
        found = {(r["undone"], r["block"]): r["accuracy"] for r in own if r["distance"] == last}
        whole = [shown(found.get((what, None))) for what in WHOLE]
        alone = {at: right for (what, at), right in found.items() if what == FORGETTING_UNDONE and at is not None}
        best = max(alone, key=lambda block: alone[block])
        shams = [right for (what, at), right in found.items() if what == FORGETTING_SHAM and at is not None]
        lines.append(
            [str(seed), f"{last:,}", *whole, f"{best + 1}: {alone[best]:.3f}", shown(max(shams, default=None))]
        )
    return lines


def _tokens(number: float | None, otherwise: str) -> str:
    return otherwise if number is None else f"{number:,.0f}"
