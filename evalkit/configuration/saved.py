"""A run's saved `config.yaml`: writing it, reading it, and what may be changed of it when the run goes on."""

from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import yaml
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import AliasEvent, YAMLError

from evalkit.configuration import composition
from evalkit.configuration.composition import ALLOW, NAMES, SEARCHPATH, Words
from evalkit.configuration.experiment import (
    SETTINGS,
    Experiment,
    admit,
    build,
    evaluated_experiment,
    experiment,
    hold,
)
from evalkit.core import studies, trust
from evalkit.core.errors import UserError, first_line
from evalkit.core.moved import renamed
from evalkit.disk.files import write_whole

RESUMABLE = ("log", "sinks", "wandb", "eval", "train.steps", "mesh", "distributed", "format", "quiet", ALLOW)
EVALUABLE = ("eval", "task", "data", "log", "sinks", "wandb", "format", "quiet", "parameters", ALLOW)
"""What may be changed of a run that goes on, and of one that is evaluated again."""

PARTS: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("task", "eval", "wandb", "sinks", "data", "paper", "runs", "controls", "suite"), (Mapping,)),
    **dict.fromkeys(("model", "train"), (Mapping, type(None))),
}
"""What has settings in a saved configuration."""
LATER: Mapping[str, Any] = {
    "data": {"path": None},
    "runs": {},
    "controls": {},
    "suite": {},
    "scale": {},
    "selected_by": None,
    "checkpoint": None,
    "dtype": "float32",
    "quiet": False,
    ALLOW: [],
    "parameters": "average",
    "mesh": "auto",
    "distributed": False,
    "log": ["wandb"],
    "sinks": {},
}
"""Those that the configurations of older runs lack, with what they stood for."""


def from_file(path: Path, words: Words = (), allowed: Sequence[str] = (), packages: Sequence[str] = ()) -> Experiment:
    """The experiment of a run's saved `config.yaml`, with `words` as `changed` takes them; raises UserError.

    It may be a stranger's: code of packages that are neither evalkit, nor among `packages` or those that `words`
    name, is refused before it is imported.
    """
    parsed = composition.parse(words)
    return _changed(_load(path, [*packages, *composition.trusted(parsed)]), parsed, allowed)


def changed(config: Mapping[str, Any], words: Words, allowed: Sequence[str]) -> Experiment:
    """The experiment of `Experiment.config`, with `words` of keys that begin with one of `allowed`.

    An option that the run has already (`model=` its own model) may always be given. Raises UserError.
    """
    return _changed(DictConfig(dict(config)), composition.parse(words), allowed)


def checkpoint_of(path: Path) -> str | None:
    """The checkpoint that a saved run measured, None for a run that trained; raises UserError for what is no run."""
    return _read(path).checkpoint


def plain_of(path: Path, packages: Sequence[str] = ()) -> dict[str, Any]:
    """A run's saved configuration as plain data, as if saved today; `packages` as `from_file`. Raises UserError."""
    return composition.plain(_load(path, packages))


def save(config: Mapping[str, Any], path: Path) -> None:
    """Writes `Experiment.config` as the YAML that `from_file` reads; a full disk leaves an earlier one as it was."""
    write_whole(path, OmegaConf.to_yaml(OmegaConf.create(dict(config))))


def _changed(config: DictConfig, words: Sequence[Override], allowed: Sequence[str]) -> Experiment:
    choices = {"task": config.task_name, "model": config.model_name, "preset": config.preset}
    search = [word for word in words if word.key_or_group == SEARCHPATH]
    parsed = [word for word in words if word.key_or_group not in (SEARCHPATH, ALLOW)]
    changes = [o for o in parsed if o.key_or_group not in choices or o.value() != choices[o.key_or_group]]
    trained_on = composition.plain(config.task)
    config.distributed = False  # how processes were started says nothing about how they are now
    for override in changes:
        if override.is_hydra_override():
            raise UserError(f"{override.input_line} is of a new run; this one has its folder: leave it out")
    for override in filter(composition.is_choice, changes):
        _refuse_fixed(override, choices, allowed)
        _choose(config, override, search)
    for option in composition.sinks_of(words):
        name = option.rpartition("=")[2]
        if name not in config.sinks:
            config.sinks[name] = composition.compose([option, *search]).config.sinks[name]
    base = composition.plain(config)
    values = [override for override in changes if not composition.is_choice(override)]
    for override in values:
        if override.is_delete():
            raise UserError(f"{override.input_line!r}: give one value here, as key=value")
    composition.apply(config, values)
    if "path" in config.task and any(override.key_or_group == "data.path" for override in values):
        config.task.path = config.data.path  # as in conf/task, where the one stands for the other
    admit(config, [*config[ALLOW], *composition.trusted(words)])
    hold(config, base)
    trust.remember(trust.strangers(composition.plain(config)).values())
    for override in values:
        _refuse_fixed(override, choices, allowed)
    # A run of a larger machine is read on any; what is asked for anew must fit.
    result = evaluated_experiment(config) if values else experiment(config)
    if result.config["task"] != trained_on:
        _refuse_other_vocabulary(trained_on, result)
    return result


def _load(path: Path, packages: Sequence[str]) -> DictConfig:
    """A run's saved configuration, as if saved today; raises UserError for one that would leave the run's folder.

    It may have come with a stranger's run: code of packages that were not named is refused too.
    """
    config = _read(path)
    content = composition.plain(config)
    admit(config, packages, f"{path}: ")
    for name in NAMES:
        if content[name] is not None and (content[name] == ".." or Path(str(content[name])).name != content[name]):
            raise UserError(f"{path}: {name}={content[name]} is no name; mend it, so that it has no slash")
    return config


def _read(path: Path) -> DictConfig:
    """A run's saved configuration, as if saved today, whoever wrote it; raises UserError."""
    try:
        text = studies.text(path)
        if text is None:
            wrong = f"has no {path.name}, so it is no run" if path.parent.is_dir() else "does not exist"
            raise UserError(f"{path.parent} {wrong}; give the folder of a run, such as runs/<task>/<model>/<time>")
        _refuse_aliases(text)
        content = OmegaConf.to_container(OmegaConf.load(StringIO(text)))
    except (OmegaConfBaseException, YAMLError, OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read: {first_line(error)}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} is no run's configuration: it is a list")
    _refuse_references(content, path)
    content = {**LATER, **renamed(_of_a_checkpoint(content))}
    missing = [name for name in SETTINGS if name not in content]
    if missing:
        raise UserError(f"{path} is no run's configuration: it has no {missing[0]!r}")
    for name, kinds in PARTS.items():
        if not isinstance(content[name], kinds):
            raise UserError(f"{path}: {name} is a {type(content[name]).__name__}; it has settings, so mend it")
    if set(content["data"]) != {"path"}:
        raise UserError(f"{path}: data has {', '.join(map(str, content['data'])) or 'nothing'}; it has path alone")
    return DictConfig(content)


def _refuse_aliases(text: str) -> None:
    """Raises ValueError for YAML in which one part stands for another: a few lines of such fill all memory."""
    if "*" in text and any(isinstance(event, AliasEvent) for event in yaml.parse(text, Loader=yaml.SafeLoader)):
        raise ValueError("it has an alias (*name), which no saved configuration has; write what it stands for")


def _refuse_references(content: Mapping[Any, Any], path: Path) -> None:
    """Raises UserError for a value that stands for another, such as a variable of this machine's environment."""
    for key, value in composition.leaves(content):
        if isinstance(value, str) and "${" in value:
            raise UserError(f"{path}: {key}={value} stands for something else; write what was used in its place")


def _of_a_checkpoint(content: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """The configuration of a run on a checkpoint from before these had a place in the one configuration."""
    if content.get("checkpoint") is None or "train" in content:
        return content
    kept = {name: content[name] for name in ("checkpoint", "dtype", "data", "format", "wandb") if name in content}
    untrained = {"model": None, "train": None, "seed": 0, "seeds": 1, "paper": {}, "preset": "paper"}
    shared = {**untrained, "matmul_precision": "highest", "model_name": Path(content["checkpoint"]).name, **kept}
    if "book" in content:
        names = ("lengths", "prompts", "new_tokens", "batch_size", "chunk", "cache_gib")
        lookup = {"_target_": "evalkit.evaluations.phonebook.measure.Lookup", **{name: content[name] for name in names}}
        return {**shared, "task": content["book"], "eval": lookup, "task_name": "phonebook_lookup"}
    if "tasks" in content:
        path = content["data"]["path"]
        task = {"names": content["tasks"], "path": path, **{name: content[name] for name in ("num_fewshot", "limit")}}
        names = ("max_length", "truncate", "add_bos", "share_prefixes", "calibrate")
        return {
            **shared,
            "data": {"path": path},
            "task": {"_target_": "evalkit.evaluations.downstream.benchmarks.Benchmarks", **task},
            "eval": {
                "_target_": "evalkit.evaluations.downstream.measure.Downstream",
                **{name: content[name] for name in names},
            },
            "task_name": "downstream",
        }
    return {**shared, **content}


def _refuse_fixed(override: Override, choices: Mapping[str, Any], allowed: Sequence[str]) -> None:
    key = override.key_or_group
    if key == "task.length":
        raise UserError("task.length is what this run was trained at; give 'eval.lengths=[…]' or eval.length=…")
    if any(key == prefix or key.startswith(f"{prefix}.") for prefix in allowed):
        return
    if key in choices:
        raise UserError(
            f"{key}={override.value()}, but this run has {key}={choices[key]}; start a new run for another {key}"
        )
    raise UserError(f"{key} is fixed in an existing run; allowed here: {', '.join(allowed)}")


def _choose(config: DictConfig, override: Override, search: Sequence[Override]) -> None:
    """Puts another option in place of a whole group; what a run was trained at stays its length."""
    group, option = override.key_or_group, override.value()
    length = config.task.length
    config[group] = composition.compose([f"{group}={option}", *search]).config[group]
    if "length" in config.task:
        config.task.length = length
    if f"{group}_name" in NAMES:
        config[f"{group}_name"] = option


def _refuse_other_vocabulary(before: Mapping[str, Any], result: Experiment) -> None:
    size = build({"task": before}, "task").vocab_size
    if size != result.task.vocab_size:
        raise UserError(
            f"task {result.task_name} has vocab_size={result.task.vocab_size}, "
            f"but this run's model was trained on {size}; choose a task of the same vocabulary"
        )
