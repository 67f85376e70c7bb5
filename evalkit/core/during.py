"""The rows of whole evaluations that are made while a model trains, and the curves that they make by step."""

from collections.abc import Iterable

from evalkit.core.rows import Row, value

DURING = "during"
"""The split of these rows; else they are those of `evaluate RUN step=N`."""
ALL = "all"
"""The value of `extra.answer` in a row over all prompts, wherever the answer lies."""


def name_of(entry: Row) -> str:
    """The curve that such a row belongs to: its metric, and where it was measured, such as `loss@1024`."""
    place = entry["length"] if entry["position"] is None else entry["position"]
    which = entry["extra"].get("answer", ALL)
    return f"{entry['metric']}{'' if place is None else f'@{place}'}{'' if which == ALL else f'/{which}'}"


def curves(rows: Iterable[Row]) -> dict[str, dict[int, dict[int, float]]]:
    """The value at each step, by curve and seed: the mean over the documents that have rows."""
    values: dict[str, dict[int, dict[int, list[float]]]] = {}
    for entry in rows:
        if entry["split"] == DURING and entry["count"] and entry["total"] is not None:
            of_seed = values.setdefault(name_of(entry), {}).setdefault(entry["seed"] or 0, {})
            of_seed.setdefault(entry["step"] or 0, []).append(value(entry))
    return {
        name: {seed: {step: sum(each) / len(each) for step, each in steps.items()} for seed, steps in seeds.items()}
        for name, seeds in values.items()
    }
