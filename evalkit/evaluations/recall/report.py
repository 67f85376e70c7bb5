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

Found = Mapping[str, Any]
Columns = Mapping[str, Callable[[Found], str]]
"""How a column shows a record of the summary, by its heading."""
WHOLE = (NOTHING_UNDONE, DRIFT_UNDONE, DRIFT_SHAM, FORGETTING_UNDONE, FORGETTING_SHAM)
"""What is done to every block at once; records of before the shams have none."""


def _tokens(number: float | None, otherwise: str) -> str:
    return otherwise if number is None else f"{number:,.0f}"


BEFORE: Columns = {"tokens before the fact": lambda found: f"{found['before']:,}"}
SEED: Columns = {"seed": lambda found: str(found["seed"])}
REACH: Columns = {
    **BEFORE,
    "distance from the window": lambda found: found["reach"] if found["window"] else "any",
    "mean accuracy": lambda found: shown(found["median"]),
    "range over seeds": lambda found: between(found["min"], found["max"]),
    "seeds": lambda found: str(found["seeds"]),
}
HALF_WAY: Columns = {
    **BEFORE,
    **SEED,
    "half-way to chance at distance": lambda found: _tokens(found["distance"], "never"),
}
ANSWERS: Columns = {
    **BEFORE,
    **SEED,
    "distance": lambda found: f"{found['distance']:,}",
    "answers lost": lambda found: ", ".join(map(str, found["lost"])) or "none",
    "accuracy of the others": lambda found: shown(found["others"]),
}
FORGETTING: Columns = {
    **SEED,
    "block": lambda found: str(found["block"] + 1),
    "tokens to 1/e, by its decay": lambda found: _tokens(found["predicted"], "no end"),
    "measured": lambda found: _tokens(found["measured"], "longer than the contexts"),
    "drift": lambda found: shown(found["moved"], ".1f"),
}


def tables(lines: Sequence[Line]) -> list[Table]:
    """Accuracy within the window and beyond, where it is lost, which answers are; of one run also how long each block
    holds a fact."""
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
    restored = Table("What lost the answers", header, _restored(summaries[0]))
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


def _restored(summary: Found) -> list[list[str]]:
    """By seed at the furthest distance. `in one block` is the block whose forgetting, undone alone, restores most.

    It is the best of several, and so is the sham beside it.
    """
    lines = []
    for seed, own in sorted(grouped((record["seed"], record) for record in summary["restored"]).items()):
        last = max(record["distance"] for record in own)
        accuracies = {(r["undone"], r["block"]): r["accuracy"] for r in own if r["distance"] == last}
        whole = [shown(accuracies.get((what, None))) for what in WHOLE]
        alone = {at: right for (what, at), right in accuracies.items() if what == FORGETTING_UNDONE and at is not None}
        best = max(alone, key=lambda block: alone[block])
        shams = [right for (what, at), right in accuracies.items() if what == FORGETTING_SHAM and at is not None]
        lines.append(
            [str(seed), f"{last:,}", *whole, f"{best + 1}: {alone[best]:.3f}", shown(max(shams, default=None))]
        )
    return lines
