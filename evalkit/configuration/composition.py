"""From words to one composed configuration: what Hydra composes, recipes over it, and the typed values last."""

import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict
from omegaconf.errors import GrammarParseError

from evalkit.checks import fits
from evalkit.configuration import catalogue, hydra_private, recipes
from evalkit.configuration.grammar import (
    CHECKPOINT,
    GROUPS,
    LOG,
    NAMES,
    OURS,
    RUN_FOLDER,
    Words,
    chooses,
    is_choice,
    is_none,
    keys_of,
    own_folder,
    own_folders,
    parse,
    refuse_shadowed,
    refuse_unfit,
    sinks_of,
    text_of,
    value_of,
)
from evalkit.configuration.nodes import leaves, one_line, paths, plain
from evalkit.configuration.schema import INSTRUCTIONS, completed, settings_of, unknown
from evalkit.core.errors import UserError, typed_path

# References to Hydra's own part, `${hydra:…}` in any value and `${hydra.…}` within that part alone: it is removed
# before a run begins.
OF_HYDRA, OF_NODE = re.compile(r"(?<!\\)\$\{hydra:"), re.compile(r"(?<!\\)\$\{hydra\.")
FOLDERS = (RUN_FOLDER, "hydra.sweep.dir")
# The word for a mixer of the user's own, from the folder --config-dir, and the model that is built around it.
MIXER, AROUND = "+mixer=", "around/mixer"
PACKAGE = re.compile(r"^# *@package +(\S+)", re.MULTILINE)
"""Where Hydra puts the settings of a file, as its head says."""
# What only a run that trains has; the parameters of a checkpoint are trained already.
OF_TRAINING = (
    "experiment",
    "model",
    "scale",
    "preset",
    "train",
    "seed",
    "seeds",
    "runs",
    "controls",
    "suite",
    "selected_by",
)
# What is measured while a model trains.
LOOKS = ("eval.during", "lookup.during", "downstream.during")
# A task's defaults list may pick its preset. So each preset is an option without a file, which sets the plain key
# `preset` to its name.
for _preset in catalogue.PRESETS:
    ConfigStore.instance().store(group="preset", name=_preset, node={"preset": _preset}, package="_global_")


class Composed(NamedTuple):
    """One composed configuration.

    `config` has no part of Hydra's own. `base` is the same as plain data, without the values that the user typed.
    `folder` is where a run of it would write, and `sweep` a sweep; `choices` are the options that were taken, by group.
    `hydra` is Hydra's own part, as plain data; `typed` the keys of the values that the user gave.
    """

    config: DictConfig
    base: dict[str, Any]
    folder: Path
    sweep: Path
    choices: Mapping[str, Any]
    hydra: Mapping[str, Any]
    typed: frozenset[str]


def compose(words: Words, *, job: int | None = None, named_by: Words | None = None) -> Composed:
    """The configuration that `words` describe, keys and types not yet checked; raises UserError.

    Hydra composes once, with the options alone, and the layers of recipes follow. The values are set last, so that the
    valid keys are known and a misspelt one can be refused. `job` is the run's number in a sweep; `named_by` are the
    words that name its folder, if they differ.
    """
    parsed = parse(words)
    config, base = _whole(parsed)
    with one_line():
        hydra_private.describe(config, parsed if named_by is None else parse(named_by))
        hydra_private.place(config, job)
        _settle(config)
        folder, sweep = Path(config.hydra.run.dir), Path(config.hydra.sweep.dir)
    choices = dict(config.hydra.runtime.choices)
    hydra = plain(config.hydra, resolve=False)
    with open_dict(config):
        del config["hydra"]
    values = frozenset(key for override in parsed if not chooses(override) for key in keys_of(override))
    return Composed(config, base, folder, sweep, choices, hydra, values)


def whole(words: Words) -> DictConfig:
    """As `compose`, but with Hydra's own part, which a launcher of Hydra's needs for a job of these words.

    References to Hydra's own part are not replaced, since the launcher numbers the job and gives it a folder.
    """
    parsed = parse(words)
    config = _whole(parsed)[0]
    hydra_private.describe(config, parsed)
    return config


def apply(config: DictConfig, values: Sequence[Override]) -> None:
    """Sets each value, known key or not, or deletes it; `schema.verify` judges the keys."""
    for override in values:
        if override.is_sweep_override():
            raise UserError(f"{override.input_line!r}: give one value here, as key=value")
        with one_line(), open_dict(config):
            if override.is_delete():
                _delete(config, override)
                continue
            key, value = override.key_or_group, override.value()
            if isinstance(value, list) and isinstance(OmegaConf.select(config, key), DictConfig):  # cannot be merged
                raise UserError(f"{override.input_line}: {key} is a mapping, not a list; give '{key}={{a: 1}}'")
            if isinstance(value, dict) and isinstance(OmegaConf.select(config, key), ListConfig):
                raise UserError(f"{override.input_line}: {key} is a list, not a mapping; give '{key}=[a]'")
            try:
                OmegaConf.update(config, key, value, force_add=True)
            except GrammarParseError as error:
                raise UserError(f"{override.input_line}: what begins with ${{ is no ${{key}}; write a value") from error


def _whole(parsed: Sequence[Override]) -> tuple[DictConfig, dict[str, Any]]:
    """The configuration with Hydra's own part, and the same as plain data without the values that the user gave."""
    own = own_folder(parsed)
    for override in parsed:
        refuse_unfit(override, own)
    if own is not None:
        catalogue.refuse_other_encodings(own)
    sinks = parse(sinks_of(parsed))
    refuse_shadowed([*parsed, *sinks], own)
    with one_line():
        config, planned = _with_layers([*parsed, *sinks], own)
    values = [override for override in parsed if not chooses(override)]
    of_hydra = [override for override in values if override.is_hydra_override()]
    _refuse_unknown_hydra_keys(of_hydra, config)
    if any(override.key_or_group == "eval" for override in parsed if is_choice(override)):
        _leave_out_of_other_evaluations(config)
    _complete(config)
    base = {name: value for name, value in plain(config, resolve=False).items() if name != "hydra"}
    apply(config, values)
    if planned is not None and config.get("selected_by") == "":
        _refuse_no_recipe(planned, config, own)
    for key, text in _texts(config):
        if key.startswith("hydra.") and OF_HYDRA.search(text):
            OmegaConf.update(config, key, OF_HYDRA.sub("${hydra.", text))
        if key in FOLDERS and text.startswith("~"):  # which Hydra takes for the name of a folder
            OmegaConf.update(config, key, str(typed_path(text)))
    with one_line():
        _settle(config, [CHECKPOINT])  # by which the model is named
        _name(config)
    return config, base


def _with_layers(parsed: Sequence[Override], own: Path | None) -> tuple[DictConfig, recipes.Planned | None]:
    """What Hydra composes of the options, and over it recipe, experiment and scale; with the experiment, if any."""
    chosen = {word.key_or_group: word.value() for word in parsed if is_choice(word) and not is_none(word)}
    planned = recipes.experiment(str(chosen["experiment"]), own) if "experiment" in chosen else None
    measured = _on_checkpoint(parsed, own)
    implied = {**(planned.options if planned is not None else {}), **measured.get("options", {})}
    left_out = {*OURS, *(["task"] if measured else [])}
    options = [word for word in parsed if chooses(word) and not is_none(word) and word.key_or_group not in left_out]
    typed = {word.key_or_group for word in options} | set(OURS)
    texts = [*_around_mixer(options), *(f"{key}={name}" for key, name in implied.items() if key not in typed)]
    config = _hydra(texts, own_folders(parsed))
    choices = config.hydra.runtime.choices
    task, model, preset, scale = (
        choices.task,
        _model_of(choices),
        config.preset,
        chosen.get("scale", implied.get("scale")),
    )
    layers = recipes.recipe(task, preset, model, own) if task is not None else []
    if planned is not None:
        shared = recipes.of_every_model(planned, preset)
        layers += [planned.settings, shared]
        if planned.recipes is not None and model is not None:  # no trial was selected where the protocol has none
            fixed = recipes.fixed(planned, preset, model, own)
            layers.append({"selected_by": ""} if fixed is None and not shared else fixed or {})
    if scale is not None:
        layers += _sizes(str(scale), choices.model, own)
    if measured:
        layers.append({**measured, "model": None, "train": None})
    before = plain(config, resolve=False)
    with open_dict(config):
        layer = functools.reduce(recipes.merged, layers, {})
        config.merge_with({name: value for name, value in layer.items() if name != "options"})
        for word in (word for word in options if _adds_own(word)):
            _put_last(config, before, word, own)
        on_checkpoint = chosen.get("task") if measured else None
        choices.update(experiment=planned and planned.name, scale=scale, on_checkpoint=on_checkpoint)
    return config, planned


def _adds_own(word: Override) -> bool:
    """Whether a word adds an option of a group of the user's own, as `+optimizer@train.optimizer=mine` does."""
    return word.is_add() and word.key_or_group not in (*GROUPS, LOG, "mixer")


def _put_last(config: DictConfig, before: Mapping[str, Any], word: Override, own: Path | None) -> None:
    """Lays what such a word chose over the layers of recipes, which were laid over it: a command wins over a recipe.

    `before` is the configuration without these layers.
    """
    file = catalogue.file(word.key_or_group, str(word.value()), own)
    header = PACKAGE.search(file.read_text(encoding="utf-8")) if file is not None else None
    place = word.package or (header[1] if header is not None else word.key_or_group.replace("/", "."))
    if place == "_global_" and file is not None:
        config.merge_with({name: value for name, value in recipes.read(file).items() if name != "defaults"})
        return
    chosen: Any = before
    for name in place.split("."):
        chosen = chosen.get(name) if isinstance(chosen, Mapping) else None
    if chosen is not None:
        OmegaConf.update(config, place, chosen, merge=False)


def _refuse_no_recipe(planned: recipes.Planned, config: DictConfig, own: Path | None) -> None:
    """Raises UserError for a model for which the protocol of an experiment chose no recipe."""
    model = _model_of(config.hydra.runtime.choices)
    known = [f"preset={at} with model={' or '.join(of)}" for at, of in recipes.models_by_preset(planned, own).items()]
    raise UserError(
        f"{planned.name} has no recipe of model={model} at preset={config.preset}, which its protocol chooses; "
        f"give {', or '.join([*known, 'your own settings and selected_by=…'])}"
    )


def _complete(config: DictConfig) -> None:
    """Writes out what constructors of evalkit's take by default, so that a saved run says it whatever it becomes.

    Code of others is not imported here: whether the user trusts it is not known yet.
    """
    with open_dict(config):
        for part in ("task", "train", "eval", "wandb"):
            node = config.get(part)
            if isinstance(node, DictConfig) and str(node.get("_target_")).startswith("evalkit."):
                config[part] = completed(plain(node, resolve=False), part)


def _hydra(options: Sequence[str], folders: Sequence[Path]) -> DictConfig:
    """What Hydra composes of these options and the user's own folders, its own part included."""
    stamps = tuple(stamp for folder in folders for stamp in catalogue.stamps(folder))
    with one_line():
        return hydra_private.loaded(catalogue.directory(), options, stamps)


def _settle(config: DictConfig, keys: Sequence[str] | None = None) -> None:
    """Replaces `${hydra:…}` in each value, or in those of `keys`, while Hydra's own part is still there."""
    for key, text in _texts(config):
        if keys is not None and key not in keys:
            continue
        if key.partition(".")[0] in ("hydra", "suite", *recipes.GROUPS):  # words of runs, which have folders of theirs
            continue
        if OF_NODE.search(text):
            raise UserError(f"{key}={text}: a setting names what is Hydra's as ${{hydra:…}}; write it with a colon")
        if OF_HYDRA.search(text):
            with open_dict(config):
                OmegaConf.update(config, key, OF_HYDRA.sub("${hydra.", text))
                OmegaConf.update(config, key, OmegaConf.select(config, key, throw_on_missing=True))


def _texts(config: DictConfig) -> list[tuple[str, str]]:
    return [(key, value) for key, value in leaves(plain(config, resolve=False)) if isinstance(value, str)]


def _on_checkpoint(parsed: Sequence[Override], own: Path | None) -> recipes.Node:
    """What `conf/on_checkpoint.yaml` has for the task that is measured on a checkpoint; empty without a checkpoint."""
    tasks = [override for override in parsed if override.key_or_group == "task" and is_choice(override)]
    checkpoint, known = value_of(parsed, CHECKPOINT, None), catalogue.options("on_checkpoint", own)
    if checkpoint in (None, ""):
        if tasks and tasks[-1].value() in set(known) - set(catalogue.options("task", own)):
            raise UserError("checkpoint is missing; give checkpoint=FOLDER, such as runs/<task>/<model>/<time>")
        return {}
    for override in parsed:
        looks = override.key_or_group in LOOKS and not override.is_delete() and override.value() not in (None, [])
        if looks or override.key_or_group.partition(".")[0] in OF_TRAINING:
            raise UserError(
                f"{override.input_line}, but checkpoint={checkpoint} is trained already; leave one of the two out"
            )
    if not tasks or tasks[-1].value() not in known:
        wrong = tasks[-1].input_line if tasks else "no task"
        raise UserError(
            f"checkpoint= goes with {', '.join(f'task={name}' for name in known)}, not with {wrong}; give one of them"
        )
    return recipes.row("on_checkpoint", str(tasks[-1].value()), own)


def _around_mixer(options: Sequence[Override]) -> list[str]:
    """The options as text, with `+mixer=NAME`, a mixer of the user's own, as the model of five blocks that have it."""
    texts = list(map(text_of, options))
    mixers = [text for text in texts if text.startswith(MIXER)]
    if not mixers:
        return texts
    models = [text for text in texts if text.startswith("model=")]
    if models:
        raise UserError(f"{models[-1]} with {mixers[-1]}; give one of the two")
    name, folder = mixers[-1].removeprefix(MIXER), own_folder(options)
    if folder is None:
        raise UserError(f"{mixers[-1]} is a file of yours, mixer/{name}.yaml; give its folder as --config-dir FOLDER")
    if not (folder / "mixer" / f"{name}.yaml").is_file():
        known = " or ".join(f"{MIXER}{option}" for option in catalogue.options("mixer", folder))
        raise UserError(f"{mixers[-1]}: {folder} has no mixer/{name}.yaml; give {known or 'that file'}")
    rest = [text for text in texts if text not in mixers]
    return [*rest, f"model={AROUND}", f"+mixer@model.mixers.mixer={name}"]


def _sizes(scale: str, model: str | None, own: Path | None) -> list[recipes.Node]:
    """The row of `conf/scale.yaml`, and the file of `conf/model/scaled` by which this family takes its sizes."""
    sizes: recipes.Node = {"scale": recipes.row("scale", scale, own)}
    if model in (None, AROUND):
        return [sizes]
    file = catalogue.file("model/scaled", str(model), own)
    if file is None:
        raise UserError(
            f"model={model} has no model/scaled/{model}.yaml, by which it takes its sizes from scale={scale}; "
            f"choose one of {', '.join(catalogue.options('model/scaled', own))}, or give its sizes one by one"
        )
    return [sizes, {"model": recipes.read(file)}]


def _leave_out_of_other_evaluations(config: DictConfig) -> None:
    """Removes settings that the chosen evaluation lacks: a recipe has them for the task's default evaluation."""
    known = settings_of(config.eval, "eval")
    with open_dict(config.eval):
        for name, value in plain(config.eval, resolve=False).items():
            # `during` is a list of lengths in one evaluation, and settings in another.
            other = name == "during" and not fits(value, known.get(name))
            if name not in INSTRUCTIONS and (name not in known or other):
                del config.eval[name]


def _name(config: DictConfig) -> None:
    """Sets the names of task and model to the chosen options; a model on a checkpoint has the name of its folder."""
    choices, checkpoint = config.hydra.runtime.choices, OmegaConf.select(config, CHECKPOINT)
    with open_dict(config):
        if choices.get("task") is not None or checkpoint is None:
            config.task_name = choices.get("task")
        model = _model_of(choices)
        config.model_name = model if checkpoint is None else _name_of(str(checkpoint))
    for name in NAMES:
        if "/" in str(config[name]):
            # A run is named and found by them, and a folder of runs has one folder for each.
            group = name.removesuffix("_name")
            raise UserError(f"{config[name]!r} has a slash; name a file that lies right in the folder {group}")


def _name_of(checkpoint: str) -> str:
    """The last part of a checkpoint's name on the hub, or of its folder, even where that is typed as `..`."""
    folder = typed_path(checkpoint)
    return (folder.resolve() if folder.is_dir() else folder).name


def _model_of(choices: Mapping[str, Any]) -> str | None:
    """The chosen model, or the user's own mixer in its place."""
    return choices.get("mixer@model.mixers.mixer", choices.get("model"))


def _refuse_unknown_hydra_keys(parsed: Sequence[Override], base: DictConfig) -> None:
    """Raises UserError for a `hydra.` key that the composed `base` has not."""
    valid = list(paths({"hydra": OmegaConf.to_container(base.hydra, resolve=False)}))
    for override in parsed:
        key = override.key_or_group
        if not override.is_add() and not override.is_delete() and key not in valid:
            raise UserError(unknown(key, valid))


def _delete(config: DictConfig, override: Override) -> None:
    parent, _, name = override.key_or_group.rpartition(".")
    node = OmegaConf.select(config, parent) if parent else config
    if not isinstance(node, DictConfig) or name not in node:
        raise UserError(f"{override.input_line} deletes what is not there; leave it out")
    if override.value() not in (None, "", node[name]):
        raise UserError(f"{override.input_line} deletes another value than {name}={node[name]}; leave the value out")
    with open_dict(node):
        del node[name]
