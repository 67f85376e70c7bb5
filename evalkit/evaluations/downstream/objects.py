"""lm-eval's task objects: reads them with their data sets, and refuses what cannot be run before weights are read."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from datasets.exceptions import DatasetsError
from lm_eval.api.group import Group
from lm_eval.api.task import ConfigurableTask
from lm_eval.tasks import TaskManager

from evalkit.core.errors import UserError, first_line

IMAGES = ("doc_to_image", "doc_to_audio")
UNSAFE = "unsafe_code"


def read(index: TaskManager, names: Sequence[Any], folder: str = "data.path=FOLDER") -> list[Any]:
    """lm-eval's objects of these benchmarks, their data sets read; a member of a group is in its group alone.

    Raises UserError for data that cannot be read; `folder` is how the user says where data sets are.
    """
    try:
        loaded = index.load(list(names))
    except (DatasetsError, OSError, ValueError, KeyError) as error:
        reason = first_line(error.__cause__ or error)
        raise UserError(f"a data set of the tasks cannot be read ({reason}); mend it, or give {folder}") from error
    children = {name for names in loaded.get("group_map", {}).values() for name in names}
    objects = [*loaded.get("groups", {}).items(), *loaded["tasks"].items()]
    return [loaded_task for name, loaded_task in objects if name not in children]


def tasks_of(objects: Sequence[Any]) -> Iterator[Any]:
    """The tasks among lm-eval's objects, those in groups too."""
    for each in objects:
        yield from each.get_all_tasks() if isinstance(each, Group) else [each]


def refuse_other_input(name: str, config: Mapping[str, Any]) -> None:
    """Raises UserError for a task that shows images or sounds, which no model here reads."""
    if any(config.get(key) for key in IMAGES):
        raise UserError(f"task {name} shows images or sounds, and these models read text alone; leave it out")


def refuse_examples(objects: Sequence[Any], shots: int | None) -> None:
    """Raises UserError for a task that is to show more examples than there are.

    `shots` is the number for every task but those that say 0; None: as each task says.
    """
    for task in tasks_of(objects):
        if not isinstance(task, ConfigurableTask):
            continue
        own = task.get_config("num_fewshot")
        wanted = own if shots is None or own == 0 else shots
        if not wanted:
            continue
        # Of examples from the questions themselves, the question that is asked is not shown.
        there = len(task.sampler.df) - (task.fewshot_cfg.split == task.config.test_split)
        if wanted > there:
            raise UserError(
                f"task {task.config.task} is to show {wanted} examples; allowed: num_fewshot of 0 to {there}"
            )
