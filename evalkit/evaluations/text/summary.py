"""From the rows of text runs to numbers: loss by position, paired differences, controls for the use of context.

The document is the unit: seeds are averaged within a document first, and every interval counts documents.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from scipy.special import stdtrit

from evalkit.core.during import curves
from evalkit.core.rows import Record, Row, value
from evalkit.evaluations.text import rows as text_rows
from evalkit.reports.kinds import facts_of, last_step
from evalkit.reports.numbers import finite

SCHEMA = 1
Table = Mapping[int, Mapping[str, Mapping[int, float]]]
"""Mean loss by position, document and seed."""


@dataclass(frozen=True)
class Estimate:
    """A mean over `documents` at `position`, with the 95% interval of Student's t; no interval for a single one."""

    position: int
    mean: float
    low: float
    high: float
    documents: int


def bits_per_byte(entry: Row) -> float:
    """A row's loss in bits a byte of its own document, which compares models whose tokens differ."""
    return value(entry) / (math.log(2) * entry["extra"]["bytes_per_token"])


def table_of(rows: Iterable[Row], metric: str, of: Callable[[Row], float] = value) -> Table:
    """The value `of` each row of `metric`, by default its loss in nats a token; of equal rows the last is taken."""
    table: dict[int, dict[str, dict[int, float]]] = {}
    for entry in rows:
        if entry["metric"] == metric and entry["split"] == "test" and entry["position"] is not None and entry["count"]:
            document = str(entry["extra"]["document"])
            table.setdefault(entry["position"], {}).setdefault(document, {})[entry["seed"] or 0] = of(entry)
    return table


def levels(table: Table) -> list[Estimate]:
    """The mean loss at each position; its interval does not go below 0, as no loss does."""
    means = {at: [float(np.mean(list(seeds.values()))) for seeds in table[at].values()] for at in sorted(table)}
    estimates = [_estimate(at, of_documents) for at, of_documents in means.items()]
    # Not `max`, which takes 0 for the interval that a single document has not.
    return [replace(estimate, low=0.0) if estimate.low < 0 else estimate for estimate in estimates]


def differences(table: Table, base: Table, at: int | None = None) -> list[Estimate]:
    """The mean of `table` minus `base`, document by document and seed by seed: at the same position, or at `at`."""
    estimates = []
    for position in sorted(table):
        other = base.get(position if at is None else at, {})
        paired = [
            [losses[seed] - other[document][seed] for seed in losses if seed in other.get(document, {})]
            for document, losses in table[position].items()
        ]
        means = [float(np.mean(of_seeds)) for of_seeds in paired if of_seeds]
        if means:
            estimates.append(_estimate(position, means))
    return estimates


def base_context(record: Record) -> int | None:
    """The context that others are compared with: the longest that, with the passage, fits into a training window."""
    trained = record.header.train_length
    entries = [
        row for row in record.rows if row["metric"] == text_rows.PAIRED and row["split"] == "test" and row["count"]
    ]
    passage = max((entry["extra"].get("passage", 0) for entry in entries), default=0)
    contexts = {entry["position"] for entry in entries if entry["position"] is not None}
    return max((context for context in contexts if trained is None or context + passage <= trained), default=None)


def verdict(estimate: Estimate) -> str:
    """What a difference of losses says of the longer context."""
    if not math.isfinite(estimate.low):
        return "one document alone decides nothing"
    if estimate.high < 0:
        return "improves"
    return "worsens" if estimate.low > 0 else "not decided at this size"


def bytes_by_document(rows: Sequence[Row]) -> dict[str, float]:
    """The bytes per token of each document evaluated."""
    return {
        entry["extra"]["document"]: entry["extra"]["bytes_per_token"]
        for entry in rows
        if entry["metric"] in text_rows.RAW
        and entry["split"] == "test"
        and entry["position"] is not None
        and entry["count"]
    }


def bytes_per_token(rows: Sequence[Row]) -> float:
    """The mean bytes per token of the documents evaluated, each counted once; 1 if none was."""
    by_document = bytes_by_document(rows)
    return float(np.mean(list(by_document.values()))) if by_document else 1.0


def validation(rows: Sequence[Row]) -> dict[str, dict[int, list[tuple[int, float]]]]:
    """By metric and seed: (step, value) while training."""
    curves: dict[str, dict[int, dict[int, float]]] = {"loss": {}, "bits_per_byte": {}}
    for entry in rows:
        if entry["split"] == "validation" and entry["metric"] in curves and entry["count"]:
            curves[entry["metric"]].setdefault(entry["seed"] or 0, {})[entry["step"] or 0] = value(entry)
    return {metric: {seed: sorted(each.items()) for seed, each in seeds.items()} for metric, seeds in curves.items()}


def summarise(record: Record) -> dict[str, Any]:
    """The content of `results.json`; parts that were never run are empty."""
    rows, base, trained = record.rows, base_context(record), record.header.train_length
    tables = {metric: table_of(rows, metric) for metric in text_rows.RAW}
    paired, short, long = (tables[name] for name in (text_rows.PAIRED, text_rows.HELPED_SHORT, text_rows.HELPED_LONG))
    in_bits = levels(table_of(rows, text_rows.LOSS, bits_per_byte))
    last = {metric: {seed: curve[-1][1] for seed, curve in seeds.items()} for metric, seeds in validation(rows).items()}
    helped = (row for row in rows if row["metric"] == text_rows.HELPED_LONG and row["split"] == "test")
    choices = (entry["extra"]["chosen_by"] for entry in helped)
    chosen_by = next(choices, None)  # by whose losses the tokens that long context helps most were chosen
    return {
        "schema": SCHEMA,
        **facts_of(record),
        "text": record.header.text,
        "step": last_step(record),
        "seeds": sorted({entry["seed"] for entry in rows if entry["seed"] is not None}),
        "validation": last,
        "during": {
            name: {seed: steps[max(steps)] for seed, steps in seeds.items()} for name, seeds in curves(rows).items()
        },
        "by_position": [
            {**_record(nats), "bits_per_byte": bits.mean}
            for nats, bits in zip(levels(tables[text_rows.LOSS]), in_bits, strict=True)
        ],
        "paired": {"loss": [_record(one) for one in levels(paired)], **_against(paired, base)},
        # After as many tokens as a training window has: its passages end beyond what was trained.
        "paired_after_a_window": _against(paired, trained),
        # Against the same passages after as many tokens of their own document.
        "foreign": [_record(one) for one in differences(tables[text_rows.FOREIGN], paired)],
        "repeated": [_record(one) for one in differences(tables[text_rows.REPEATED], tables[text_rows.FRESH])],
        "helped": [
            {**_record(one), "chosen_by": chosen_by} for position in short for one in differences(long, short, position)
        ],
        "not_run": [
            {"length": entry["length"], **entry["extra"]}
            for entry in rows
            if entry["split"] == "test" and "not_run" in entry["extra"]
        ],
    }


def _against(paired: Table, context: int | None) -> dict[str, Any]:
    """The difference of every other context to this one, with what it decides."""
    estimates = differences(paired, paired, context) if context in paired else []
    return {
        "against": context,
        "difference": [{**_record(one), "verdict": verdict(one)} for one in estimates if one.position != context],
    }


def _estimate(position: int, of_documents: Sequence[float]) -> Estimate:
    values = np.asarray(of_documents)
    mean, count = float(values.mean()), len(values)
    if count == 1:
        return Estimate(position, mean, math.nan, math.nan, 1)
    half = float(stdtrit(count - 1, 0.975) * values.std(ddof=1) / math.sqrt(count))
    return Estimate(position, mean, mean - half, mean + half, count)


def _record(estimate: Estimate) -> dict[str, Any]:
    return asdict(estimate) | {name: finite(getattr(estimate, name)) for name in ("mean", "low", "high")}
