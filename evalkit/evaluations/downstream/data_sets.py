"""Finds the data sets of lm-eval's tasks, in a local folder or on the hub; a silent hub is reported at once."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets
import datasets.config
import huggingface_hub.constants
import lm_eval.tasks
import yaml
from lm_eval.tasks import TaskManager

from evalkit.core.errors import UserError
from evalkit.core.network import Refused, Silent, ask_hub

TASKS = Path(__file__).parent / "tasks"
LM_EVAL_TASKS = Path(lm_eval.tasks.__file__).parent
TABLE1 = ("arc", "hellaswag", "mmlu/continuation", "mmlu/default", "piqa", "winogrande")
SPLITS = ("training_split", "validation_split", "test_split")
BUILDERS = {".jsonl": "json", ".json": "json", ".parquet": "parquet", ".csv": "csv"}
ANSWER_SECONDS = 1.0

Configs = Mapping[str, Mapping[str, Any]]
"""The configuration of each of lm-eval's tasks by its name, with functions unresolved."""


def manager(names: Sequence[str], metadata: Mapping[str, Any], also: Sequence[Path] = ()) -> TaskManager:
    """Returns an index of lm-eval's tasks, of ours and of those below the folders `also`; the last of one name wins.

    Indexing lm-eval's 13,000 tasks takes 5 s. So only the folders that `names` suggest are indexed, and all of them if
    a name is not found there. Raises UserError for an unknown name.
    """
    narrow = TaskManager(include_path=[*_folders(names), TASKS, *also], include_defaults=False, metadata=dict(metadata))
    # A tag may have tasks in many folders, of which the narrow index has a few.
    entries = [narrow.task_index.get(name) for name in names]
    if all(entry is not None and not (entry.tags and entry.yaml_path is None) for entry in entries):
        return narrow
    whole = TaskManager(include_path=[TASKS, *also], metadata=dict(metadata))
    for name in names:
        if name not in whole.task_index:
            raise _unknown(name)
    return whole


def needed(index: TaskManager, names: Sequence[str]) -> dict[str, Mapping[str, Any]]:
    """Returns the configuration of every task that `names` stand for: names of tasks, groups and tags."""
    return {task: index.task_index[task].cfg or {} for name in names for task in _leaves(index, name)}


def refuse_unreachable(tasks: Configs, folder: str = "data.path=FOLDER") -> None:
    """Raises UserError if a task's data set is on the hub, not in the cache, and the hub does not answer.

    If the hub does not answer, it also makes the process offline: later requests are served by the cache or fail at
    once. `folder` is how the user says where data sets are.
    """
    remote = {task: config for task, config in tasks.items() if _is_remote(config)}
    reason = _why_not(remote, folder) if remote else None
    if reason is None:
        return
    huggingface_hub.constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
    for task, config in remote.items():
        try:
            datasets.load_dataset_builder(config["dataset_path"], config.get("dataset_name"))
        except (ConnectionError, FileNotFoundError, ValueError) as error:
            name = config["dataset_path"]
            raise UserError(
                f"task {task} reads the data set {name}, which is not in the cache, and {reason}; give {folder} with a "
                "copy of it, bring the cache of a machine that has it (HF_HOME), or set HF_ENDPOINT to a mirror"
            ) from error


def _why_not(remote: Configs, folder: str) -> str | None:
    """Why the hub does not give the first task's data now, None if it does; raises UserError if it refuses for good."""
    task, config = next(iter(remote.items()))
    name = config["dataset_path"]
    try:
        ask_hub(name, "dataset", ANSWER_SECONDS)
    except Silent as error:
        return str(error)
    except Refused as refusal:
        if refusal.is_passing:
            return f"{name} {refusal}"
        raise UserError(f"task {task} reads the data set {name}, which {refusal}; or give {folder}") from refusal
    return None


def localise(index: TaskManager, tasks: Configs, root: Path, folder: Path, *, shots: int | None = None) -> None:
    """Writes the configurations of the same tasks into `folder`, with data sets from below `root`.

    The files of a data set are `<root>/<its name>[/<its configuration>][/data]/<split>.<jsonl, json, parquet or csv>`,
    or `<split>-00000-of-00001.parquet`, as the hub names them. `shots` is the user's number of examples, else
    it is the task's own: only where some are shown are training examples needed, which lm-eval would take from the
    questions if there were none. Raises UserError for a data set that is not there.
    """
    # lm-eval would warn of each task that it replaces one of lm-eval's own, which is the purpose here.
    logging.getLogger("lm_eval.tasks._index").setLevel(logging.ERROR)
    for task, config in tasks.items():
        if not _is_remote(config):
            continue
        questions = config.get("test_split") or config["validation_split"]
        shown = config.get("num_fewshot") if shots is None else shots
        examples = config.get("fewshot_split") or (config.get("training_split") if shown else None)
        files = _files(task, config, root, [questions] if examples is None else [questions, examples])
        splits = _splits(files)
        absent = [name for name in SPLITS if config.get(name) is not None and config[name] not in splits]
        local = {
            "include": str(index.task_index[task].yaml_path),
            "task": task,
            "dataset_path": BUILDERS[files[0].suffix],
            "dataset_name": None,
            "dataset_kwargs": {"data_files": splits},
            **dict.fromkeys(absent),
        }
        (folder / f"{task}.yaml").write_text(yaml.safe_dump(local), encoding="utf-8")


def _unknown(name: str) -> UserError:
    return UserError(f"task {name!r} is unknown; python -m evalkit lm-eval ls tasks lists them all")


def _folders(names: Sequence[str]) -> list[Path]:
    """Returns the folders of Table 1's tasks, and those whose name begins the name of a task, as most do."""
    folders = [LM_EVAL_TASKS / name for name in TABLE1]
    tops = [path for path in LM_EVAL_TASKS.iterdir() if path.is_dir() and path.name not in ("mmlu", *TABLE1)]
    return folders + sorted(top for top in tops if any(f"{name}_".startswith(f"{top.name}_") for name in names))


def _leaves(index: TaskManager, name: str) -> Iterator[str]:
    entry = index.task_index.get(name)
    if entry is None:
        raise _unknown(name)
    if entry.tags and entry.yaml_path is None:
        for member in sorted(entry.tags):
            yield from _leaves(index, member)
    elif "group" in (entry.cfg or {}):
        yield from _members(index, entry.cfg or {})
    else:
        yield name


def _members(index: TaskManager, group: Mapping[str, Any]) -> Iterator[str]:
    members = group.get("task") or []
    for member in [members] if isinstance(members, str) else members:
        if isinstance(member, str):
            yield from _leaves(index, member)
        elif "group" in member and member["group"] not in index.task_index:
            yield from _members(index, member)
        else:
            yield from _leaves(index, member.get("group", member.get("task")))


def _is_remote(config: Mapping[str, Any]) -> bool:
    path = config.get("dataset_path")
    local = path is None or path in BUILDERS.values() or path in ("text", "arrow") or Path(path).exists()
    return not local and "custom_dataset" not in config


def _files(task: str, config: Mapping[str, Any], root: Path, needed: Sequence[str]) -> list[Path]:
    """Returns the files of a task's data set: all of one kind, with every split that is `needed`."""
    owner_and_name, part = config["dataset_path"], config.get("dataset_name")
    homes = [root / Path(owner_and_name).name, root / owner_and_name]
    sets = [home / part for home in homes] if part else homes
    for place in (folder for home in sets for folder in (home, home / "data")):
        files = sorted(path for path in place.glob("*") if path.suffix in BUILDERS)
        if set(needed) <= set(_splits(files)) and len({path.suffix for path in files}) == 1:
            return files
    raise UserError(
        f"task {task} reads {' and '.join(needed)} of {owner_and_name}, which {root} has not; "
        f"put it at {sets[0] / f'{needed[0]}.jsonl'} (or .parquet, .csv; a folder holds one kind)"
    )


def _splits(files: Sequence[Path]) -> dict[str, list[str]]:
    splits: dict[str, list[str]] = {}
    for path in files:
        splits.setdefault(path.stem.partition("-")[0], []).append(str(path.absolute()))
    return splits
