"""Hydra: from words as they are typed to one composed configuration; its errors as one line each."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from yaml import MarkedYAMLError, YAMLError

from evalkit.configuration import catalogue, hydra_private
from evalkit.configuration.schema import INSTRUCTIONS, settings_of, unknown
from evalkit.core.errors import UserError, first_line

GROUPS = ("task", "model", "scale", "preset", "eval", "experiment", "recipe", "on_checkpoint")
NAMES = ("task_name", "model_name")
CHECKPOINT, ALLOW, SEARCHPATH = "checkpoint", "allow_targets", "hydra.searchpath"
# A mixer alone, of the folder of --config-dir, and the blocks that are built around it.
MIXER, AROUND = "+mixer=", "around/mixer"
LOG = "log"
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
# Hydra's defaults list, which picks the recipe, follows options of groups and no values. So each preset is an option
# without a file, which sets the plain key `preset` to its name.
for _preset in catalogue.PRESETS:
    ConfigStore.instance().store(group="preset", name=_preset, node={"preset": _preset}, package="_global_")


Words = Sequence[str | Override]
"""What is typed, as text or as `parse` made of it; a command parses its words once and passes them on."""


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


def compose(words: Words) -> Composed:
    """The configuration that `words` describe, keys and types not yet checked; raises UserError.

    Hydra composes once, with the options alone. The values are set afterwards, so that what was there before them is
    known: a misspelt key is told by that.
    """
    parsed = parse(words)
    for override in parsed:
        _refuse_unfit(override)
    sinks = sinks_of(parsed)
    _refuse_shadowed([*parsed, *parse(sinks)])
    config = _hydra([*_options(parsed), *sinks])
    values = [override for override in parsed if not chooses(override)]
    of_hydra = [override for override in values if override.is_hydra_override()]
    _refuse_unknown_hydra_keys(of_hydra, config)
    if any(override.key_or_group == "eval" for override in parsed if is_choice(override)):
        _leave_out_of_other_evaluations(config)
    base = plain(OmegaConf.masked_copy(config, [str(name) for name in config if name != "hydra"]), resolve=False)
    apply(config, values)
    _name(config)
    _settle(config)
    with one_line():
        folder, sweep = Path(config.hydra.run.dir), Path(config.hydra.sweep.dir)
    choices = dict(config.hydra.runtime.choices)
    hydra = plain(OmegaConf.masked_copy(config, "hydra"), resolve=False)["hydra"]
    with open_dict(config):
        del config["hydra"]
    return Composed(config, base, folder, sweep, choices, hydra, frozenset(value.key_or_group for value in values))


def parse(words: Words) -> list[Override]:
    """Each word in Hydra's grammar, those that are parsed already as they are; raises UserError."""
    texts = [word for word in words if isinstance(word, str)]
    with one_line():
        parsed = iter(OverridesParser.create().parse_overrides(texts) if texts else ())
        return [next(parsed) if isinstance(word, str) else word for word in words]


def text_of(override: Override) -> str:
    """The word as it was typed."""
    return str(override.input_line)


def own_folder(words: Words) -> Path | None:
    """The folder of the user's own YAML that these words name, if any."""
    places = [override.value() for override in parse(words) if override.key_or_group == SEARCHPATH]
    found = [place for each in places if isinstance(each, list) for place in each]
    return Path(str(found[0]).removeprefix("file://")) if found else None


def typed(words: Words) -> list[str]:
    """The keys that these words set."""
    return [override.key_or_group for override in parse(words)]


def value_of(words: Words, key: str, default: Any) -> Any:
    """What these words set `key` to, the last of them; else the default."""
    values = [override.value() for override in parse(words) if override.key_or_group == key]
    return values[-1] if values else default


def trusted(words: Words) -> list[str]:
    """The packages whose code the user named: by `allow_targets=`, and in the YAML of a folder of their own."""
    parsed, named = parse(words), list[str]()
    for value in (override.value() for override in parsed if override.key_or_group == ALLOW):
        if not isinstance(value, list):
            raise UserError(f"{ALLOW}={value}; give a list of packages, such as {ALLOW}=[{value}]")
        named += map(str, value)
    folder = own_folder(parsed)
    return sorted({*named, *(catalogue.packages(folder) if folder is not None else ())})


def combinations(words: Words) -> list[list[str]]:
    """The runs of a sweep: each value of each word that has several, with each of the others'."""
    swept: dict[str, list[str]] = {}
    with one_line():
        for override in parse(words):
            key, values = override.get_key_element(), [text_of(override)]
            if override.is_sweep_override():
                if not override.is_discrete_sweep():
                    raise UserError(f"{text_of(override)} has no end; give its values, as key=1,2")
                # It knows the options that `model=*` stands for.
                override.config_loader = hydra_private.loader(catalogue.directory())
                values = [f"{key}={value}" for value in override.sweep_string_iterator()]
            swept[key] = values
    return [list(combination) for combination in itertools.product(*swept.values())]


def forced(words: Words) -> list[str]:
    """`key=value` and `+key=value` as `++key=value`, for a sweep, which Hydra composes by itself.

    The constructor says which keys exist, not what YAML lists.
    """
    parsed = parse(words)
    texts = map(text_of, parsed)
    return [
        text if is_choice(override) or override.is_hydra_override() or override.is_delete() else f"++{text.lstrip('+')}"
        for text, override in zip(texts, parsed, strict=True)
    ]


def is_choice(override: Override) -> bool:
    """Whether it picks an option of a group, not a value; `+name=option` is how a user's own group is added."""
    key = override.key_or_group
    own = override.is_add() and "." not in key and key not in OmegaConf.load(catalogue.directory() / "config.yaml")
    is_group = key in GROUPS or "/" in key or override.package is not None or own
    return is_group and not isinstance(override.value(), dict)


def chooses(override: Override) -> bool:
    """Whether it says which files are composed: a choice, or where else to look for them."""
    return is_choice(override) or override.key_or_group == SEARCHPATH


def apply(config: DictConfig, values: Sequence[Override]) -> None:
    """Sets each value, known key or not, or deletes it; `schema.verify` judges the keys."""
    for override in values:
        if override.is_sweep_override():
            raise UserError(f"{override.input_line!r}: give one value here, as key=value")
        with one_line(), open_dict(config):
            if override.is_delete():
                _delete(config, override)
            else:
                _refuse_list_of_keys(config, override)
                OmegaConf.update(config, override.key_or_group, override.value(), force_add=True)


def plain(config: DictConfig, *, resolve: bool = True) -> dict[str, Any]:
    """The configuration as plain data; raises UserError for an interpolation that leads nowhere."""
    with one_line():
        found = OmegaConf.to_container(config, resolve=resolve)
    assert isinstance(found, dict)
    return {str(name): value for name, value in found.items()}


@contextmanager
def one_line() -> Iterator[None]:
    """Hydra's and OmegaConf's errors as one line."""
    try:
        yield
    except MissingConfigException as error:
        group, _, name = str(error.missing_cfg_file).rpartition("/")
        own = ", or give a mixer of your own as +mixer=NAME" if group == "model" else ""
        options = ", ".join(error.options or [])
        raise UserError(f"{group}={name} does not exist; choose one of {options}{own}") from error
    except OverrideParseException as error:
        raise UserError(f"cannot read {error.override!r}; {_as_it_is_typed(str(error.override))}") from error
    except MarkedYAMLError as error:
        mark = error.problem_mark
        place = "" if mark is None else f"{mark.name}:{mark.line + 1}: "
        raise UserError(f"{place}{error.problem or first_line(error)}; mend this YAML") from error
    except (HydraException, OmegaConfBaseException, YAMLError, ValueError) as error:
        raise UserError(first_line(error)) from error


def _as_it_is_typed(word: str) -> str:
    """How a word that cannot be read is typed, the quotes that the shell takes away included."""
    key, equals, value = word.partition("=")
    if not equals or not key:
        return "give key=value"
    if value.startswith("[") and value.endswith("]") and "=" in value:
        return f'in a list a word with an equals sign takes quotes, as in \'{key}=["a=1","b=2"]\''
    if value[:1] in "[{" and value:
        return f"a list is '{key}=[a,b]', a mapping '{key}={{a: 1}}', with both brackets"
    quotes = {"'", '"'} & set(value)
    return "every quote needs its other half" if quotes else f"type '{key}=\"{value}\"', quotes within quotes"


def _hydra(options: Sequence[str]) -> DictConfig:
    """What Hydra composes of these options, its own part included."""
    with one_line():
        config = hydra_private.loaded(catalogue.directory(), list(options))
        _refuse_recipe_of_no_preset(config, options)
        return config


def _settle(config: DictConfig) -> None:
    """Gives each value with `${hydra:…}` what that stands for, while Hydra's own part is there."""
    for key, value in list(leaves(plain(config, resolve=False))):
        if isinstance(value, str) and "${hydra:" in value:
            with one_line(), open_dict(config):
                OmegaConf.update(config, key, value.replace("${hydra:", "${hydra."))
                if not key.startswith("hydra."):
                    OmegaConf.update(config, key, OmegaConf.select(config, key))


def _refuse_recipe_of_no_preset(config: DictConfig, options: Sequence[str]) -> None:
    """Raises UserError for a recipe in the folder of no preset, where Hydra would not see it."""
    chosen = config.hydra.runtime.choices
    task, model, preset = chosen.get("task"), chosen.get("model"), chosen.get("preset")
    loader = hydra_private.loader(catalogue.directory())

    def found(group: str) -> list[str]:
        return loader.get_group_options(group, config_name="config", overrides=list(options))

    if model in found(f"recipe/{task}") and model not in found("preset"):
        raise UserError(
            f"recipe/{task}/{model}.yaml is a recipe of no preset; move it to recipe/{task}/{preset}/{model}.yaml"
        )


def _options(typed: Sequence[Override]) -> list[str]:
    """The words that pick options. With a checkpoint, the task says what is measured on one (`conf/on_checkpoint`)."""
    options = [override for override in typed if chooses(override) and not _is_none(override)]
    tasks = [override for override in options if override.key_or_group == "task"]
    given = [override.value() for override in typed if override.key_or_group == CHECKPOINT]
    on_checkpoint = catalogue.options("on_checkpoint")
    if not given or given[-1] in (None, ""):
        if tasks and tasks[-1].value() in set(on_checkpoint) - set(catalogue.options("task")):
            raise UserError("checkpoint is missing; give checkpoint=FOLDER, such as runs/<task>/<model>/<time>")
        return [*_around_mixer(options), *_scaled(options)]
    _refuse_training(typed, given[-1])
    if not tasks or tasks[-1].value() not in on_checkpoint:
        known = ", ".join(f"task={name}" for name in on_checkpoint)
        wrong = tasks[-1].input_line if tasks else "no task"
        raise UserError(f"checkpoint= goes with {known}, not with {wrong}; give one of them")
    rest = [text_of(override) for override in options if override not in tasks]
    return [*rest, f"on_checkpoint={tasks[-1].value()}"]


def sinks_of(words: Words) -> list[str]:
    """The options that `log=` takes from `conf/log` and the user's own folder, as Hydra composes several of a group.

    The part `wandb` is there in any case.

    >>> sinks_of(["log=[wandb,tensorboard]"])
    ['+log@sinks.tensorboard=tensorboard']
    """
    names = value_of(words, LOG, [])
    others = [name for name in names if name != "wandb"] if isinstance(names, list) else []
    return [f"+{LOG}@sinks.{name}={name}" for name in dict.fromkeys(others)]


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
        found = " or ".join(f"{MIXER}{option}" for option in catalogue.options("mixer", folder))
        raise UserError(f"{mixers[-1]}: {folder} has no mixer/{name}.yaml; give {found or 'that file'}")
    rest = [text for text in texts if text not in mixers]
    return [*rest, f"model={AROUND}", f"+mixer@model.mixers.mixer={name}"]


def _scaled(options: Sequence[Override]) -> list[str]:
    """With `scale=`, the file of `conf/model/scaled` by which this family takes its sizes from it."""
    typed = {override.key_or_group: override.value() for override in options if is_choice(override)}
    if "scale" not in typed or "model" not in typed:
        return []
    model, known = typed["model"], catalogue.options("model/scaled", own_folder(options))
    if model not in known:
        raise UserError(
            f"model={model} has no model/scaled/{model}.yaml, by which it takes its sizes from scale={typed['scale']}; "
            f"choose one of {', '.join(known)}, or give its sizes one by one"
        )
    return [f"+model/scaled@model={model}"]


def _refuse_training(parsed: Sequence[Override], checkpoint: Any) -> None:
    for override in parsed:
        if override.key_or_group.partition(".")[0] in OF_TRAINING:
            raise UserError(
                f"{override.input_line}, but checkpoint={checkpoint} is trained already; leave one of the two out"
            )


def _is_none(override: Override) -> bool:
    """Whether it picks no option of a group."""
    return is_choice(override) and not override.is_delete() and override.value() is None


def _leave_out_of_other_evaluations(config: DictConfig) -> None:
    """Takes from the evaluation that was chosen what a recipe says of the one that its task has by default."""
    known = settings_of(config.eval, "eval")
    with open_dict(config.eval):
        for name in [name for name in config.eval if name not in known and name not in INSTRUCTIONS]:
            del config.eval[name]


def _name(config: DictConfig) -> None:
    """The names of task and model: the options that were taken; on a checkpoint, its own."""
    choices, checkpoint = config.hydra.runtime.choices, OmegaConf.select(config, CHECKPOINT)
    with open_dict(config):
        if choices.get("task") is not None or checkpoint is None:
            config.task_name = choices.get("task")
        model = choices.get("mixer@model.mixers.mixer", choices.get("model"))
        config.model_name = model if checkpoint is None else Path(str(checkpoint)).name
    for name in NAMES:
        if "/" in str(config[name]):
            # A run is named and found by them, and a folder of runs has one folder for each.
            group = name.removesuffix("_name")
            raise UserError(f"{config[name]!r} has a slash; name a file that lies right in the folder {group}")


def _refuse_unfit(override: Override) -> None:
    key = override.key_or_group
    if key in NAMES:
        raise UserError(f"{key} follows from the choice; give {key.removesuffix('_name')}=…")
    if key in ("recipe", "on_checkpoint"):
        raise UserError(f"{key} follows from task, preset and model; leave {override.input_line!r} out")
    if is_choice(override) and not override.is_sweep_override() and not isinstance(override.value(), str | int | None):
        raise UserError(f"{override.input_line} is no name; choose one of {', '.join(catalogue.options(key))}")
    if override.is_delete() and key in GROUPS:
        raise UserError(f"{override.input_line} leaves nothing in its place; give {key}=… or leave it out")
    if _is_none(override) and key != "experiment":
        raise UserError(f"{key}=null picks nothing; choose one of {', '.join(catalogue.options(key))}")
    if override.is_sweep_override():
        raise UserError(f"{override.input_line!r} gives several values; add -m to run each, or write a list as [a,b]")


def _refuse_shadowed(overrides: Sequence[Override]) -> None:
    """Raises UserError for a chosen option that the user's own folder and evalkit both have: Hydra would take ours."""
    folder = own_folder(overrides)
    if folder is None:
        return
    for override in filter(is_choice, overrides):
        group, name = override.key_or_group, override.value()
        if (folder / group / f"{name}.yaml").is_file() and name in catalogue.options(group):
            raise UserError(f"{group}={name} is in {folder} and in evalkit; give yours another name")


def _refuse_unknown_hydra_keys(parsed: Sequence[Override], base: DictConfig) -> None:
    """Raises UserError for a `hydra.` key that the composed `base` has not."""
    valid = list(paths({"hydra": OmegaConf.to_container(base.hydra, resolve=False)}))
    for override in parsed:
        key = override.key_or_group
        if not override.is_add() and not override.is_delete() and key not in valid:
            raise UserError(unknown(key, valid))


def _refuse_list_of_keys(config: DictConfig, override: Override) -> None:
    """Raises UserError for a list in place of a mapping, which OmegaConf cannot merge."""
    key = override.key_or_group
    if isinstance(override.value(), list) and isinstance(OmegaConf.select(config, key), DictConfig):
        raise UserError(f"{override.input_line}: {key} is a mapping, not a list; give '{key}={{a: 1}}'")


def _delete(config: DictConfig, override: Override) -> None:
    parent, _, name = override.key_or_group.rpartition(".")
    node = OmegaConf.select(config, parent) if parent else config
    if not isinstance(node, DictConfig) or name not in node:
        raise UserError(f"{override.input_line} deletes what is not there; leave it out")
    if override.value() not in (None, "", node[name]):
        raise UserError(f"{override.input_line} deletes another value than {name}={node[name]}; leave the value out")
    with open_dict(node):
        del node[name]


def leaves(node: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of plain data that is neither a mapping nor a list, with its dotted key."""
    if isinstance(node, Mapping | list | tuple):
        for name, value in node.items() if isinstance(node, Mapping) else enumerate(node):
            yield from leaves(value, f"{path}.{name}" if path else str(name))
    else:
        yield path, node


def paths(node: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Every dotted key of plain data."""
    for name, value in node.items():
        key = f"{path}.{name}" if path else str(name)
        yield key
        if isinstance(value, Mapping):
            yield from paths(value, key)
