"""A run's saved `config.yaml`: writing it, reading it, and what may be changed of it when the run goes on."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from evalkit.configuration import composition, grammar, nodes
from evalkit.configuration.experiment import SETTINGS, Experiment, admitted, build, written
from evalkit.configuration.grammar import ALLOW, NAMES, SEARCHPATH
from evalkit.configuration.schema import completed, verify
from evalkit.core import studies, trust
from evalkit.core.errors import UserError, first_line
from evalkit.core.moved import renamed
from evalkit.disk.files import write_whole
from evalkit.record import history

CONFIG_FILE = "config.yaml"
OF_PROCESS = ("format", "quiet", "compilation_cache", ALLOW)
POST_TRAINING = ("train.steps", "train.state_passing", "train.first_states")
"""Settings of training that `resume` may change: more steps, and states that are passed in them (2507.02782)."""
WHILE_TRAINING = ("downstream", "lookup")
"""The settings of benchmarks that are run while the model trains."""
OF_MACHINE = ("train.microbatch", "train.gather", "train.keep_every")
"""Settings of training that decide how much memory and disk it takes, and no number."""
RESUMABLE = (
    *("log", "sinks", "wandb", "eval", *WHILE_TRAINING, *POST_TRAINING),
    *("train.skip_nonfinite", *OF_MACHINE, "mesh", "distributed", *OF_PROCESS),
)
EVALUABLE = ("eval", "task", "data", "log", "sinks", "wandb", "parameters", *OF_PROCESS)
"""What may be changed of a run that goes on, and of one that is evaluated again."""

# What decides the numbers of a run; where it logs to, and how, does not.
DECIDING = ("task", "model", "train", "eval", "downstream", "lookup", "seed", "seeds", "parameters", "matmul_precision")
PARTS: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(
        ("task", "eval", "wandb", "sinks", "data", "downstream", "lookup", "paper", "runs", "controls", "suite"),
        (Mapping,),
    ),
    **dict.fromkeys(("model", "train"), (Mapping, type(None))),
}
"""The parts of a saved configuration that hold settings, with the types that each may have."""
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
    "compilation_cache": "auto",
    "mesh": "auto",
    "distributed": False,
    "log": ["wandb"],
    "sinks": {},
    "downstream": {"_target_": "evalkit.evaluations.during.Benchmarked"},
    "lookup": {"_target_": "evalkit.evaluations.during.LookedUp"},
}
"""Those that the configurations of older runs lack, with what they stood for."""


def checkpoint_of(path: Path) -> str | None:
    """The checkpoint that a saved run measured, None for a run that trained; raises UserError for what is no run."""
    return _read(path)["checkpoint"]


def plain_of(path: Path, packages: Iterable[str] = ()) -> dict[str, Any]:
    """A run's saved configuration in today's form; raises UserError for names that would lead out of the run's folder.

    The run may be a stranger's, so code of packages that the user did not name is refused too.
    """
    plain = _read(path)
    plain[ALLOW] = admitted(plain, packages, f"{path}: ")
    for name in NAMES:
        if plain[name] is not None and (plain[name] == ".." or Path(str(plain[name])).name != plain[name]):
            raise UserError(f"{path}: {name}={plain[name]} is no name; mend it, so that it has no slash")
    return plain


def begun_with_other(run: Path, wanted: Mapping[str, Any], packages: Iterable[str]) -> str | None:
    """The first setting that decides a run's numbers and differs between the saved run and the configuration `wanted`.

    None if there is none. A saved run that was given more steps since still counts as the same. The batch size of the
    evaluation and what `OF_MACHINE` names decide no number. The run's code may come from `packages`. Settings that
    either of the two leaves out have their constructor's default.
    """
    begun, new = (
        completed({key: plain[key] for key in DECIDING}) for plain in (plain_of(run / CONFIG_FILE, packages), wanted)
    )
    saved, steps = ((plain["train"] or {}).pop("steps", 0) for plain in (begun, new))
    trained_to = {work.steps for work in history.read(run) if work.step is not None} or {min(saved, steps)}
    for plain in (begun, new):
        (plain["eval"] or {}).pop("batch_size", None)
        for setting in OF_MACHINE:
            (plain["train"] or {}).pop(setting.partition(".")[2], None)
    other = [key for key in DECIDING if begun[key] != new[key]]
    return next(iter(other), None if steps in trained_to | {saved} else "train.steps")


def save(config: Mapping[str, Any], path: Path) -> None:
    """Writes `Spec.plain` as the YAML that `plain_of` reads; a full disk leaves an earlier one as it was."""
    write_whole(path, OmegaConf.to_yaml(OmegaConf.create(dict(config))))


def changed(
    before: Mapping[str, Any], words: Sequence[Override], allowed: Sequence[str]
) -> tuple[dict[str, Any], bool]:
    """A run's plain configuration with these words, as `Spec.changed` takes them, and whether they change any."""
    choices = {"task": before["task_name"], "model": before["model_name"], "preset": before["preset"]}
    search = [word for word in words if word.key_or_group == SEARCHPATH]
    rest = [word for word in words if word.key_or_group not in (SEARCHPATH, ALLOW)]
    changes = [word for word in rest if word.key_or_group not in choices or word.value() != choices[word.key_or_group]]
    for word in changes:
        if word.is_hydra_override():
            raise UserError(f"{word.input_line} is of a new run; this one has its folder: leave it out")
    # How the saved run's processes were started says nothing about those of this one.
    config = DictConfig({**before, "distributed": False})
    for word in filter(grammar.is_choice, changes):
        _refuse_fixed(word, choices, allowed)
        _choose(config, word, search)
    sinks = [option for option in grammar.sinks_of(words) if option.rpartition("=")[2] not in config.sinks]
    for option in sinks:
        name = option.rpartition("=")[2]
        config.sinks[name] = composition.compose([option, *search]).config.sinks[name]
    values = [word for word in changes if not grammar.is_choice(word)]
    for word in values:
        if word.is_delete():
            raise UserError(f"{word.input_line!r}: give one value here, as key=value")
        if composition.OF_HYDRA.search(grammar.text_of(word)):
            raise UserError(f"{word.input_line}: a run that is there has nothing of Hydra's; give the value itself")
    base = nodes.plain(config) if len(values) < len(changes) or sinks else {**before, "distributed": False}
    composition.apply(config, values)
    if "path" in config.task and any(word.key_or_group == "data.path" for word in values):
        config.task.path = config.data.path  # as in conf/task, where the one stands for the other
    plain = nodes.plain(config) if changes else dict(base)
    plain[ALLOW] = admitted(plain, [*before[ALLOW], *grammar.trusted(words)])
    verify(plain, base, SETTINGS)
    for word in values:
        _refuse_fixed(word, choices, allowed)
    trust.remember(trust.strangers(plain).values())
    given = {word.key_or_group for word in values}
    trust.remember_folders({key: folder for key, folder in written(plain).items() if key in given})
    return plain, bool(changes)


def _read(path: Path) -> dict[str, Any]:
    """A run's saved configuration, as if saved today, whoever wrote it; raises UserError."""
    try:
        content = studies.content(path)
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read: {first_line(error)}") from error
    if content is None:
        missing = "is a file" if path.parent.is_file() else "does not exist"
        wrong = f"has no {path.name}, so it is no run" if path.parent.is_dir() else missing
        raise UserError(f"{path.parent} {wrong}; give the folder of a run, such as runs/<task>/<model>/<time>")
    if not isinstance(content, dict):
        raise UserError(f"{path} is no run's configuration: it is a list")
    for key, value in nodes.leaves(content):
        if not isinstance(value, str | int | float | bool | None):  # such as bytes, which only C functions take
            kind = type(value).__name__
            raise UserError(f"{path}: {key} is of type {kind}; write text, a number, true, false or null")
        if isinstance(value, str) and "${" in value:  # such as a variable of this machine's environment
            raise UserError(f"{path}: {key}={value} stands for something else; write what was used in its place")
    content = {**LATER, **renamed(_of_a_checkpoint(content))}
    missing = [name for name in SETTINGS if name not in content]
    if missing:
        raise UserError(f"{path} is no run's configuration: it has no {missing[0]!r}")
    for name, kinds in PARTS.items():
        if not isinstance(content[name], kinds):
            raise UserError(f"{path}: {name} is a {type(content[name]).__name__}; it has settings, so mend it")
    if set(content["data"]) != {"path"}:
        raise UserError(f"{path}: data has {', '.join(map(str, content['data'])) or 'nothing'}; it has path alone")
    return content


def _of_a_checkpoint(content: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """Converts the old form of a configuration, in which a run on a checkpoint has other keys; others stay the same."""
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
        if key == "train.state_passing" and override.value() is None:
            raise UserError(f"{override.input_line}: a run that passes states goes on with it; start a new run without")
        return
    if key in choices:
        raise UserError(
            f"{key}={override.value()}, but this run has {key}={choices[key]}; start a new run for another {key}"
        )
    raise UserError(f"{key} is fixed in an existing run; allowed here: {', '.join(allowed)}")


def _choose(config: DictConfig, override: Override, search: Sequence[Override]) -> None:
    """Replaces a whole group by another option; the task keeps the length that the run was trained at."""
    group, option = override.key_or_group, override.value()
    length = config.task.get("length")  # benchmarks have none
    config[group] = composition.compose([f"{group}={option}", *search]).config[group]
    if "length" in config.task and length is not None:
        config.task.length = length
    if f"{group}_name" in NAMES:
        config[f"{group}_name"] = option


def refuse_other_vocabulary(before: Mapping[str, Any], experiment: Experiment) -> None:
    """Raises UserError for a task of another vocabulary than the one `before`, on which the model was trained."""
    size = build({"task": before}, "task").vocab_size
    if size != experiment.task.vocab_size:
        raise UserError(
            f"task {experiment.task_name} has vocab_size={experiment.task.vocab_size}, "
            f"but this run's model was trained on {size}; choose a task of the same vocabulary"
        )
