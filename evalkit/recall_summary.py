"""From the rows of a recall evaluation to numbers: accuracy by distance, and what the state forgets of a fact."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from evalkit import recall_rows
from evalkit.rows import Row, value
from evalkit.statistics import wilson
from evalkit.summary import run_facts

SCHEMA = 1


def is_recall(rows: Sequence[Row]) -> bool:
    """Whether these are the rows of a recall evaluation."""
    return any(entry["metric"] in recall_rows.RAW for entry in rows)


def summarise(rows: Sequence[Row]) -> dict[str, Any]:
    """The content of `results.json`.

    `recalled`: a record a seed, length and octave of distance (more than half of `distance`, at most `distance`).
    `by_reach`: a record a length, distances within the model's window and beyond it apart, all seeds together.
    `forgetting`: a record a seed and block: `predicted`, 1 / (mean δ of its channels, each as much as it carries of the
    fact), and `measured`, the tokens in which the difference that the fact makes to the state falls to 1/e (null: not
    within the contexts), both in tokens.
    """
    facts = run_facts(rows)
    return {
        "schema": SCHEMA,
        **facts,
        "step": max((entry["step"] for entry in rows if entry["step"] is not None), default=None),
        "recalled": [_record(entry) for entry in _of(rows, recall_rows.RECALLED)],
        "by_reach": _by_reach(rows, facts["window"]),
        "forgetting": _forgetting(rows),
        "differences": [
            {
                "seed": entry["seed"],
                "block": (entry["extra"] or {})["block"],
                "distance": entry["position"],
                "relative": value(entry),
            }
            for entry in _of(rows, recall_rows.DIFFERENCE)
        ],
    }


def pooled(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Accuracy and its 95% Wilson interval over all sequences of several records."""
    total, count = math.fsum(record["total"] for record in records), sum(record["sequences"] for record in records)
    low, high = wilson(min(total, count), count)
    return {"accuracy": total / count, "low": low, "high": high, "sequences": count}


def _record(entry: Row) -> dict[str, Any]:
    return {
        "seed": entry["seed"],
        "length": entry["length"],
        "distance": entry["position"],
        "total": entry["total"],
        "sequences": entry["count"],
    }


def _by_reach(rows: Sequence[Row], window: int | None) -> list[dict[str, Any]]:
    records = [_record(entry) for entry in _of(rows, recall_rows.RECALLED)]
    result = []
    for length in sorted({record["length"] for record in records}):
        there = [record for record in records if record["length"] == length]
        for reach, wanted in (("within", True), ("beyond", False)):
            found = [record for record in there if (window is None or record["distance"] <= window) is wanted]
            if found:
                result.append({"length": length, "reach": reach, **pooled(found)})
    return result


def _forgetting(rows: Sequence[Row]) -> list[dict[str, Any]]:
    result = []
    found = _of(rows, recall_rows.FORGETTING)
    for seed, block in sorted({(entry["seed"] or 0, (entry["extra"] or {})["block"]) for entry in found}):
        own = [entry for entry in found if (entry["seed"], (entry["extra"] or {})["block"]) == (seed, block)]
        delta = math.fsum(value(entry) * (entry["extra"] or {})["share"] for entry in own)
        result.append(
            {
                "seed": seed,
                "block": block,
                "predicted": 1 / delta if delta > 0 else None,
                "measured": _to_a_third(rows, seed, block),
                "channels": len(own),
                "slowest": min(value(entry) for entry in own),
            }
        )
    return result


def _to_a_third(rows: Sequence[Row], seed: int, block: int) -> float | None:
    """The tokens in which the difference falls to 1/e of what it was, None if it does not."""
    points = [
        (entry["position"], value(entry), (entry["extra"] or {})["first"])
        for entry in _of(rows, recall_rows.DIFFERENCE)
        if (entry["seed"], (entry["extra"] or {})["block"]) == (seed, block)
    ]
    below = [(distance, first) for distance, relative, first in points if relative < math.exp(-1)]
    return float(below[0][0] - below[0][1]) if below else None


def _of(rows: Sequence[Row], metric: str) -> list[Any]:
    return [entry for entry in rows if entry["metric"] == metric and entry["count"]]
