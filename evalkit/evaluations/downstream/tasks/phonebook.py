"""Phonebook lookup as a task of lm-eval, for any of its models: greedy text is compared with the number."""

from collections.abc import Mapping, Sequence
from types import NoneType
from typing import Any

from datasets import Dataset
from lm_eval.api.task import ConfigurableTask

from evalkit.core.errors import UserError
from evalkit.tasks.phonebook import Phonebook

METRICS = ("exact_match", "digit_accuracy")


class PhonebookLookup(ConfigurableTask):
    """Measures exact match and digit accuracy at every size of the book, such as `exact_match@100`."""

    def __init__(self, config: dict[str, Any]) -> None:
        settings = {name: value for name, value in config.items() if name != "class"}
        entries = settings["metadata"]["entries"]
        refuse_types({"entries": entries})
        settings["metric_list"] = [
            {"metric": f"{metric}@{size}", "aggregation": "mean", "higher_is_better": True}
            for size in sizes(entries)
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
    """Makes `prompts` lookups for each number of `entries`; lm-eval passes all metadata. Raises UserError."""
    refuse_types({"entries": entries, "prompts": prompts, "depth": depth, "seed": seed})
    if prompts < 1:
        raise UserError(f"prompts={prompts}; allowed: 1 or more")
    try:
        book = Phonebook(variant=variant, depth=depth, seed=seed)
        lookups = [book.example(size, index) for size in sizes(entries) for index in range(prompts)]
    except ValueError as error:
        raise UserError(f"task griffin_phonebook: {error}") from error
    return {"test": Dataset.from_list([lookup._asdict() for lookup in lookups])}


def lookups(doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, float]:
    """Returns the metrics of one lookup: the text before the first newline, stripped, compared with the number."""
    text = results[0].partition("\n")[0].strip()
    right = sum(text[place : place + 1] == digit for place, digit in enumerate(doc["answer"]))
    values = (float(text == doc["answer"]), right / len(doc["answer"]))
    return {f"{metric}@{doc['entries']}": value for metric, value in zip(METRICS, values, strict=True)}


def refuse_types(stated: Mapping[str, Any]) -> None:
    """Raises UserError for a value that is no number: lm-eval passes values of a command line on as they are."""
    for name, value in stated.items():
        numbers = value if name == "entries" and isinstance(value, Sequence) else [value]
        kinds = (int, float, NoneType) if name == "depth" else (int,)
        if not all(type(number) in kinds for number in numbers):
            allowed = "a number from 0 to 1, or null" if name == "depth" else "whole numbers"
            raise UserError(f"task griffin_phonebook: {name}={value!r}; allowed: {allowed}")


def sizes(entries: int | Sequence[int]) -> list[int]:
    """Returns the numbers of entries as a list; a single number may be given alone."""
    return [entries] if isinstance(entries, int) else list(entries)
