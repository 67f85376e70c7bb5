"""Needles as a task of lm-eval, for any of its models: the hidden values are looked for in greedy text."""

from collections.abc import Mapping, Sequence
from typing import Any, get_type_hints

from datasets import Dataset
from lm_eval.api.task import ConfigurableTask

from evalkit.checks import refuse_below_1, refuse_other_types
from evalkit.core.errors import UserError
from evalkit.evaluations.downstream.tasks.phonebook import sizes
from evalkit.evaluations.needle.rows import ALL, FOUND, share_found
from evalkit.tasks.needle import Needle

TASK = "griffin_needle"
HINTS = {"sentences": int | list[int], "prompts": int, **get_type_hints(Needle)}


class Needles(ConfigurableTask):
    """Measures the share of hidden values that were found at every size of the text, such as `found@200`."""

    def __init__(self, config: dict[str, Any]) -> None:
        settings = {name: value for name, value in config.items() if name != "class"}
        sentences = settings["metadata"]["sentences"]
        refuse({"sentences": sentences})
        settings["metric_list"] = [
            {"metric": f"{metric}@{size}", "aggregation": "mean", "higher_is_better": True}
            for size in sizes(sentences)
            for metric in (FOUND, ALL)
        ]
        super().__init__(config=settings)


def documents(sentences: int | Sequence[int], prompts: int = 100, **stated: Any) -> dict[str, Dataset]:
    """Makes `prompts` prompts for each number of `sentences`; lm-eval passes all metadata. Raises UserError."""
    own = {name: value for name, value in stated.items() if name in HINTS}
    refuse({"sentences": sentences, "prompts": prompts, **own})
    try:
        refuse_below_1(prompts=prompts)
        needle = Needle(**own)
        made = [needle.example(size, index) for size in sizes(sentences) for index in range(prompts)]
    except ValueError as error:
        raise UserError(f"task {TASK}: {error}") from error
    return {"test": Dataset.from_list([{**hidden._asdict(), "answers": list(hidden.answers)} for hidden in made])}


def refuse(stated: Mapping[str, Any]) -> None:
    """Raises UserError for a value of the wrong type: lm-eval passes values of a command line on as they are."""
    try:
        refuse_other_types(stated, HINTS)
    except ValueError as error:
        raise UserError(f"task {TASK}: {error}") from error


def scores(doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, float]:
    """Returns the metrics of one prompt, from the first line of the reply."""
    share = share_found(results[0].partition("\n")[0], doc["answers"])
    return {f"{FOUND}@{doc['sentences']}": share, f"{ALL}@{doc['sentences']}": float(share == 1)}
