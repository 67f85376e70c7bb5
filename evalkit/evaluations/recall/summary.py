"""From the rows of a recall evaluation to numbers: accuracy by distance, and what the state forgets of a fact."""

import math
from collections.abc import Sequence
from itertools import pairwise, product
from typing import Any

import numpy as np
from scipy.optimize import root_scalar

from evalkit.core.rows import Record, Row, value
from evalkit.core.statistics import spread
from evalkit.evaluations.recall import rows as recall_rows
from evalkit.reports.kinds import facts_of, last_step
from evalkit.reports.numbers import grouped, interval

SCHEMA = 1
CARRYING = 8
TINY = 1e-30
FAR = 2.0**40


def summarise(record: Record) -> dict[str, Any]:
    """The content of `results.json`.

    `recalled`: one record per seed, distance and number of tokens before the fact, with its 95% Wilson interval.
    `by_reach`: median and range over seeds of the mean accuracy over distances within the model's window, and beyond.
    `half_way`: a seed's first distance whose accuracy is no more than half-way between 1 and chance (null: none).
    `by_answer`: at a seed's furthest distance, how many questions were `asked` and how many were `right`, by the fact's
    answer; the answers `lost`, whose accuracy is below half-way; and the accuracy of the `others` (null: none).
    `forgetting`: one record per seed and block, with the tokens in which the difference that a fact makes to the state
    falls to 1/e: `predicted` from the decay of its channels, weighted by their shares, and `measured` (null: not within
    the contexts). `carrying` lists the channels with the largest shares. In blocks after the first one that carries the
    fact, `measured` is longer, as earlier blocks keep passing the fact on. `moved` is how far the other tokens have
    moved the state by the end of the contexts, in units of the first difference (null: not measured); a large drift may
    hide a fact that is kept.
    `differences` and `drifts`: one record per seed, block and distance, both relative to the first difference.
    `restored`: the accuracy by seed and distance, with the part that is `undone` and the `block` (null: every block).
    """
    rows, header = record.rows, record.header
    records = _records(rows, recall_rows.RECALLED, "before")
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
        "restored": _records(rows, recall_rows.RESTORED, "undone", "block"),
    }


def decayed(channels: Sequence[tuple[float, float]], tokens: float) -> float:
    """What is left of a difference after so many tokens: a norm over channels, each (δ, share of the square)."""
    return math.sqrt(math.fsum(share * math.exp(-2 * delta * tokens) for delta, share in channels))


def channels(rows: Sequence[Row]) -> dict[tuple[int, int], list[tuple[float, float]]]:
    """δ and share of each channel, by seed and block; without those of which one is no number."""
    looks = _of(rows, recall_rows.FORGETTING)
    pairs = ((_place(entry), (value(entry), float(entry["extra"]["share"]))) for entry in looks)
    return grouped((place, pair) for place, pair in pairs if all(map(math.isfinite, pair)))


def _records(rows: Sequence[Row], metric: str, *more: str) -> list[dict[str, Any]]:
    """One record per row, with its accuracy; `more` names the fields of `extra` that the record has too."""
    records = []
    for entry in _of(rows, metric):
        low, high = interval(entry)
        measured = {"accuracy": value(entry), "low": low, "high": high, "sequences": entry["count"]}
        more_of_it = {name: entry["extra"][name] for name in more}
        records.append({"seed": entry["seed"] or 0, "distance": entry["position"], **measured, **more_of_it})
    return records


def _by_reach(records: Sequence[dict[str, Any]], window: int | None) -> list[dict[str, Any]]:
    by_seed = grouped(
        ((record["before"], window is not None and record["distance"] > window, record["seed"]), record["accuracy"])
        for record in records
    )
    means = grouped(((before, beyond), float(np.mean(values))) for (before, beyond, _), values in by_seed.items())
    return [
        {"before": before, "reach": "beyond" if beyond else "within", **spread(means[before, beyond])}
        for before, beyond in sorted(means)
    ]


def _half_way(records: Sequence[dict[str, Any]], chance: float | None) -> list[dict[str, Any]]:
    fallen = grouped(
        ((record["before"], record["seed"]), record["distance"])
        for record in records
        if record["accuracy"] <= _middle(chance)
    )
    befores, seeds = (sorted({record[name] for record in records}) for name in ("before", "seed"))
    return [
        {"before": before, "seed": seed, "distance": min(fallen.get((before, seed), ()), default=None)}
        for before, seed in product(befores, seeds)
    ]


def _by_answer(rows: Sequence[Row], chance: float | None) -> list[dict[str, Any]]:
    asked_at = sorted(_of(rows, recall_rows.RECALLED), key=lambda entry: entry["position"] or 0)
    furthest = {(entry["extra"]["before"], entry["seed"] or 0): entry for entry in asked_at}
    result = []
    for before, seed in sorted(furthest):
        entry = furthest[before, seed]
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
    differences, drifts = (_by_distance(rows, metric) for metric in (recall_rows.DIFFERENCE, recall_rows.DRIFT))
    records = []
    for (seed, block), own in sorted(channels(rows).items()):
        by_share = sorted(enumerate(own), key=lambda item: -item[1][1])
        drift = drifts.get((seed, block))
        carrying = by_share[:CARRYING]
        record = {
            "seed": seed,
            "block": block,
            "predicted": _to_1_over_e(own),
            "measured": _measured(differences.get((seed, block), ())),
            "moved": drift[-1][1] if drift else None,
            "channels": len(own),
            "slowest": min(delta for delta, _ in own),
            "carrying": [{"channel": at, "decay": delta, "share": share} for at, (delta, share) in carrying],
        }
        records.append(record)
    return records


def _looks(rows: Sequence[Row], metric: str) -> list[dict[str, Any]]:
    looks = ((entry, entry["extra"]["block"]) for entry in _of(rows, metric))
    return [
        {"seed": entry["seed"], "block": block, "distance": entry["position"], "relative": value(entry)}
        for entry, block in looks
    ]


def _to_1_over_e(own: Sequence[tuple[float, float]]) -> float | None:
    """Where `decayed` is 1/e, None beyond 2^40 tokens."""

    def above(tokens: float) -> float:
        return decayed(own, tokens) - math.exp(-1)

    if above(FAR) > 0:
        return None
    # If no channel carries a difference, `above` is negative from the start and has no root.
    return root_scalar(above, bracket=(0.0, FAR), method="brentq", maxiter=1000).root if above(0.0) > 0 else 0.0


def _measured(looks: Sequence[tuple[int, float]]) -> float | None:
    """The tokens in which the difference falls to 1/e, interpolated exponentially; None if it does not."""
    for (start, above), (stop, below) in pairwise(looks):
        if below < math.exp(-1) <= above:
            part = (math.log(above) + 1) / (math.log(above) - math.log(max(below, TINY)))
            return start + (stop - start) * part
    return None


def _by_distance(rows: Sequence[Row], metric: str) -> dict[tuple[int, int], list[tuple[int, float]]]:
    """By seed and block, pairs of the tokens since the first checkpoint and the value there, nearest first."""
    entries = _of(rows, metric)
    looks = grouped((_place(one), ((one["position"] or 0) - one["extra"]["first"], value(one))) for one in entries)
    return {place: sorted(own) for place, own in looks.items()}


def _place(entry: Row) -> tuple[int, int]:
    return entry["seed"] or 0, entry["extra"]["block"]


def _of(rows: Sequence[Row], metric: str) -> list[Row]:
    return [entry for entry in rows if entry["metric"] == metric and entry["count"]]
