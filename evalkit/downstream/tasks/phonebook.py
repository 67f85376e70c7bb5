"""Phonebook lookup as a task of lm-eval, for any of its models: greedy text against the number."""

from collections.abc import Mapping, Sequence
from typing import Any

from datasets import Dataset
from lm_eval.api.task import ConfigurableTask

from evalkit.core.errors import UserError
from evalkit.tasks.phonebook import Phonebook

METRICS = ("exact_match", "digit_accuracy")


class PhonebookLookup(ConfigurableTask):
    """Exact match and digit accuracy, a metric of each for every size of the book: `exact_match@100`."""

    def __init__(self, config: dict[str, Any]) -> None:
        settings = {name: value for name, value in config.items() if name != "class"}
        settings["metric_list"] = [
            {"metric": f"{metric}@{size}", "aggregation": "mean", "higher_is_better": True}
            for size in sizes(settings["metadata"]["entries"])
            for metric in METRICS
        ]
        super().__init__(config=settings)


def documents(
    entries: int | Sequence[int],
    prompts: int = 400,
    variant: str = "jelassi",
    depth: float | None = None,
    seed: int = 0,
    **_: Any,
) -> dict[str, Dataset]:
    """Lookups in books of each number of `entries`, `prompts` of each.

    lm-eval gives all of its metadata, of which the rest is not read. Raises UserError for a value that cannot be.
    """
    if prompts < 1:
        raise UserError(f"prompts={prompts}; allowed: 1 or more")
    try:
        book = Phonebook(variant=variant, depth=depth, seed=seed)
        lookups = [book.example(size, index) for size in sizes(entries) for index in range(prompts)]
    except ValueError as error:
        raise UserError(f"task griffin_phonebook: {error}") from error
    return {"test": Dataset.from_list([lookup._asdict() for lookup in lookups])}


def lookups(doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, float]:
    """The metrics of one lookup: what is said before the first newline, stripped, against the number."""
    said = results[0].partition("\n")[0].strip()
    right = sum(said[place : place + 1] == digit for place, digit in enumerate(doc["answer"]))
    values = (float(said == doc["answer"]), right / len(doc["answer"]))
    return {f"{metric}@{doc['entries']}": value for metric, value in zip(METRICS, values, strict=True)}


def sizes(entries: int | Sequence[int]) -> list[int]:
    """The numbers of entries, of which one may stand alone."""
    return [entries] if isinstance(entries, int) else list(entries)
