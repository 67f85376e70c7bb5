"""From the rows of a recall evaluation to numbers: accuracy by distance, and what the state forgets of a fact."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.optimize import root_scalar

from evalkit.core.rows import Record, Row, value
from evalkit.core.statistics import spread, wilson
from evalkit.record import recall_rows
from evalkit.reports.kinds import facts_of, last_step

SCHEMA = 1
CARRYING = 8
TINY = 1e-30
FAR = 2.0**40


def summarise(record: Record) -> dict[str, Any]:
    """The content of `results.json`.

    `recalled`: a record a seed, distance and number of tokens before the fact, with its 95% Wilson interval.
    `by_reach`: median and range over seeds of the mean accuracy over distances within the model's window, and beyond.
    `half_way`: a seed's first distance whose accuracy is no more than half-way between 1 and chance (null: none).
    `by_answer`: at a seed's furthest distance, what was `right` of what was `asked` by the fact's answer; the answers
    `lost`, right less often than half-way, and the accuracy of the `others` (null: there are none).
    `forgetting`: a record a seed and block: the tokens in which the difference that a fact makes to the state falls to
    1/e, `predicted` by the decay of its channels, each as much as it carries, and `measured` (null: not within the
    contexts), and the channels `carrying` most of it; behind the first block that carries it, the blocks before go on
    telling of it, and `measured` is longer. At the end of the contexts `moved` is how far the other tokens have moved
    it meanwhile, in differences (null: not looked at); what is kept may be buried under it.
    `differences` and `drifts`: a record a seed, block and distance, both relative to the first difference.
    `restored`: the accuracy by seed and distance with what is `undone`, in one `block` or (null) in every block.
    """
    rows, header = record.rows, record.header
    records = [{**_record(entry), "before": entry["extra"]["before"]} for entry in _of(rows, recall_rows.RECALLED)]
    return {
        "schema": SCHEMA,
        **facts_of(record),
        "step": last_step(record),
        "recalled": records,
        "by_reach": _by_reach(records, header.window),
        "half_way": _half_way(records, header.chance),
        "by_answer": _by_answer(rows, header.chance),
        "forgetting": _forgetting(rows),
        "differences": _looks(rows, recall_rows.DIFFERENCE),
        "drifts": _looks(rows, recall_rows.DRIFT),
        "restored": [_restored(entry) for entry in _of(rows, recall_rows.RESTORED)],
    }


def decayed(channels: Sequence[tuple[float, float]], tokens: float) -> float:
    """What is left of a difference after so many tokens: a norm over channels, each (δ, share of the square)."""
    return math.sqrt(math.fsum(share * math.exp(-2 * delta * tokens) for delta, share in channels))


def channels(rows: Sequence[Row], seed: int, block: int) -> list[tuple[float, float]]:
    """δ and share of each channel of a block."""
    return [
        (value(entry), entry["extra"]["share"])
        for entry in _of(rows, recall_rows.FORGETTING)
        if ((entry["seed"] or 0), entry["extra"]["block"]) == (seed, block)
    ]


def _record(entry: Row) -> dict[str, Any]:
    low, high = wilson(entry["total"] or 0.0, entry["count"] or 0.0)
    return {
        "seed": entry["seed"] or 0,
        "distance": entry["position"],
        "accuracy": value(entry),
        "low": low,
        "high": high,
        "sequences": entry["count"],
    }


def _restored(entry: Row) -> dict[str, Any]:
    return {**_record(entry), "undone": entry["extra"]["undone"], "block": entry["extra"]["block"]}


def _by_reach(records: Sequence[dict[str, Any]], window: int | None) -> list[dict[str, Any]]:
    result = []
    for before in sorted({record["before"] for record in records}):
        for reach in ("within", "beyond"):
            means: dict[int, list[float]] = {}
            for record in records:
                inside = window is None or record["distance"] <= window
                if record["before"] == before and inside is (reach == "within"):
                    means.setdefault(record["seed"], []).append(record["accuracy"])
            if means:
                over_seeds = spread(float(np.mean(found)) for found in means.values())
                result.append({"before": before, "reach": reach, **over_seeds})
    return result


def _half_way(records: Sequence[dict[str, Any]], chance: float | None) -> list[dict[str, Any]]:
    middle = _middle(chance)
    result = []
    for before in sorted({record["before"] for record in records}):
        for seed in sorted({record["seed"] for record in records}):
            own = [record for record in records if (record["before"], record["seed"]) == (before, seed)]
            fallen = [record["distance"] for record in own if record["accuracy"] <= middle]
            result.append({"before": before, "seed": seed, "distance": min(fallen, default=None)})
    return result


def _by_answer(rows: Sequence[Row], chance: float | None) -> list[dict[str, Any]]:
    furthest: dict[tuple[int, int], Row] = {}
    for entry in sorted(_of(rows, recall_rows.RECALLED), key=lambda entry: entry["position"] or 0):
        furthest[entry["extra"]["before"], entry["seed"] or 0] = entry
    result = []
    for (before, seed), entry in sorted(furthest.items(), key=lambda item: item[0]):
        right, asked = (np.asarray(entry["extra"][name]) for name in ("right", "asked"))
        lost = right < asked * _middle(chance)
        others = int(asked[~lost].sum())
        result.append(
            {
                "before": before,
                "seed": seed,
                "distance": entry["position"],
                "right": right.tolist(),
                "asked": asked.tolist(),
                "lost": np.flatnonzero(lost).tolist(),
                "others": int(right[~lost].sum()) / others if others else None,
            }
        )
    return result


def _middle(chance: float | None) -> float:
    """Half-way between 1 and chance."""
    return (1 + (chance or 0.0)) / 2


def _forgetting(rows: Sequence[Row]) -> list[dict[str, Any]]:
    found = _of(rows, recall_rows.FORGETTING)
    result = []
    for seed, block in sorted({(entry["seed"] or 0, entry["extra"]["block"]) for entry in found}):
        own = channels(rows, seed, block)
        result.append(
            {
                "seed": seed,
                "block": block,
                "predicted": _to_1_over_e(own),
                "measured": _measured(rows, seed, block),
                "moved": next(
                    (moved for _, moved in reversed(_by_distance(rows, recall_rows.DRIFT, seed, block))), None
                ),
                "channels": len(own),
                "slowest": min(delta for delta, _ in own),
                "carrying": [
                    {"channel": channel, "decay": delta, "share": share}
                    for channel, (delta, share) in sorted(enumerate(own), key=lambda item: -item[1][1])[:CARRYING]
                ],
            }
        )
    return result


def _looks(rows: Sequence[Row], metric: str) -> list[dict[str, Any]]:
    return [
        {
            "seed": entry["seed"],
            "block": entry["extra"]["block"],
            "distance": entry["position"],
            "relative": value(entry),
        }
        for entry in _of(rows, metric)
    ]


def _to_1_over_e(own: Sequence[tuple[float, float]]) -> float | None:
    """Where `decayed` is 1/e, None beyond 2^40 tokens."""

    def above(tokens: float) -> float:
        return decayed(own, tokens) - math.exp(-1)

    if above(FAR) > 0:
        return None
    # A difference that no channel carries is below from the start, where there is no change of sign to be found.
    return root_scalar(above, bracket=(0.0, FAR), method="brentq", maxiter=1000).root if above(0.0) > 0 else 0.0


def _measured(rows: Sequence[Row], seed: int, block: int) -> float | None:
    """The tokens in which the difference falls to 1/e of what it was, None if it does not.

    Between two distances at which it was looked at it falls exponentially.
    """
    found = _by_distance(rows, recall_rows.DIFFERENCE, seed, block)
    for (start, above), (stop, below) in pairwise(found):
        if below < math.exp(-1) <= above:
            part = (math.log(above) + 1) / (math.log(above) - math.log(max(below, TINY)))
            return start + (stop - start) * part
    return None


def _by_distance(rows: Sequence[Row], metric: str, seed: int, block: int) -> list[tuple[int, float]]:
    """Tokens since the first look, nearest first, and the value there."""
    return sorted(
        ((entry["position"] or 0) - entry["extra"]["first"], value(entry))
        for entry in _of(rows, metric)
        if ((entry["seed"] or 0), entry["extra"]["block"]) == (seed, block)
    )


def _of(rows: Sequence[Row], metric: str) -> list[Row]:
    return [entry for entry in rows if entry["metric"] == metric and entry["count"]]
