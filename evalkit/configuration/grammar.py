"""Words as they are typed, in Hydra's grammar: what each says by itself, before anything is composed."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import OmegaConf

from evalkit.configuration import catalogue
from evalkit.configuration.nodes import one_line, paths
from evalkit.core.errors import UserError

GROUPS = ("task", "model", "scale", "preset", "eval", "experiment", "recipe", "on_checkpoint")
OURS = ("experiment", "scale")
"""The groups, and those that Hydra does not know: their files are layers over what it composes."""
NAMES = ("task_name", "model_name")
RUN_FOLDER, SEARCHPATH = "hydra.run.dir", "hydra.searchpath"
CHECKPOINT, ALLOW, LOG = "checkpoint", "allow_targets", "log"
"""The keys of settings that are asked for before anything is composed."""

Words = Sequence[str | Override]
"""What is typed, as text or as `parse` made of it; a command parses its words once and passes them on."""


def parse(words: Words) -> list[Override]:
    """Each word in Hydra's grammar, those that are parsed already as they are; raises UserError."""
    texts = [word for word in words if isinstance(word, str)]
    with one_line():
        parsed = iter(OverridesParser.create().parse_overrides(texts) if texts else ())
        return [next(parsed) if isinstance(word, str) else word for word in words]


def text_of(override: Override) -> str:
    """The word as it was typed."""
    return str(override.input_line)


def keys_of(override: Override) -> list[str]:
    """The key that a word sets, and each below it where its value is a mapping."""
    key, value = override.key_or_group, None if override.is_sweep_override() else override.value()
    below = paths({str(name): node for name, node in value.items()}, key) if isinstance(value, Mapping) else ()
    return [key, *below]


def value_of(words: Words, key: str, default: Any) -> Any:
    """What these words set `key` to, the last of them; else the default."""
    values = [override.value() for override in parse(words) if override.key_or_group == key]
    return values[-1] if values else default


def own_folder(words: Words) -> Path | None:
    """The folder of the user's own YAML that these words name, if any."""
    return next(iter(own_folders(words)), None)


def own_folders(words: Words) -> list[Path]:
    places = [override.value() for override in parse(words) if override.key_or_group == SEARCHPATH]
    folders = [folder for place in places if isinstance(place, list) for folder in place]
    return [Path(str(folder).removeprefix("file://")) for folder in folders]


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
    parsed, swept = parse(words), dict[str, list[str]]()
    own = own_folder(parsed)
    for override in parsed:
        key, values = override.get_key_element(), [text_of(override)]
        if override.is_sweep_override():
            if not override.is_discrete_sweep():
                raise UserError(
                    f"{text_of(override)} has no end; give its values, as key=1,2, or search: evalkit search"
                )
            values = [f"{key}={value}" for value in choices_of(override, own)]
        swept[key] = values
    return [list(combination) for combination in itertools.product(*swept.values())]


def choices_of(override: Override, own: Path | None) -> list[str]:
    """The values of a word that has several, as they are typed; `own` is the user's folder of YAML."""
    known = SimpleNamespace(get_group_options=lambda group, **_: catalogue.options(group, own))  # for model=*
    with one_line():
        override.config_loader = known  # type: ignore[assignment]
        return [str(value) for value in override.sweep_string_iterator()]


def sinks_of(words: Words) -> list[str]:
    """The options that `log=` takes from `conf/log` and the user's own folder, as Hydra composes several of a group.

    The part `wandb` is there in any case.

    >>> sinks_of(["log=[wandb,tensorboard]"])
    ['+log@sinks.tensorboard=tensorboard']
    """
    names = value_of(words, LOG, [])
    others = [name for name in names if name != "wandb"] if isinstance(names, list) else []
    return [f"+{LOG}@sinks.{name}={name}" for name in dict.fromkeys(others)]


def for_hydra(words: Words) -> list[str]:
    """These words as Hydra itself can compose them, to say how it finds the files: values become `++key=value`.

    With `++` Hydra accepts keys that no YAML lists: here the constructors say which keys exist.
    """
    composed = [word for word in parse(words) if not (is_choice(word) and word.key_or_group in OURS)]
    return [
        text_of(word)
        if chooses(word) or word.is_hydra_override() or word.is_delete()
        else f"++{text_of(word).lstrip('+')}"
        for word in composed
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


def is_none(override: Override) -> bool:
    """Whether it picks no option of a group."""
    return is_choice(override) and not override.is_delete() and override.value() is None


def refuse_unfit(override: Override, own: Path | None) -> None:
    key = override.key_or_group
    if key in NAMES:
        raise UserError(f"{key} follows from the choice; give {key.removesuffix('_name')}=…")
    if key in ("recipe", "on_checkpoint"):
        raise UserError(f"{key} follows from task, preset and model; leave {override.input_line!r} out")
    if is_choice(override) and not override.is_sweep_override() and not isinstance(override.value(), str | int | None):
        known = catalogue.options(key, own)
        if not known and "/" not in key and override.package is None:  # no group at all: a setting that is not there
            raise UserError(f"unknown key {key!r}; give a setting's whole key, such as train.learning_rate=1e-3")
        raise UserError(f"{override.input_line} is no name; choose one of {', '.join(known)}")
    if override.is_delete() and key in GROUPS:
        raise UserError(f"{override.input_line} leaves nothing in its place; give {key}=… or leave it out")
    if is_none(override) and key != "experiment":
        raise UserError(f"{key}=null picks nothing; choose one of {', '.join(catalogue.options(key))}")
    if override.is_sweep_override():
        raise UserError(f"{override.input_line!r} gives several values; add -m to run each, or write a list as [a,b]")


def refuse_shadowed(overrides: Sequence[Override], folder: Path | None) -> None:
    """Raises UserError for a chosen option that the user's own folder and evalkit both have: Hydra would take ours."""
    if folder is None:
        return
    for override in filter(is_choice, overrides):
        group, name = override.key_or_group, override.value()
        if (folder / group / f"{name}.yaml").is_file() and name in catalogue.options(group):
            raise UserError(f"{group}={name} is in {folder} and in evalkit; give yours another name")
