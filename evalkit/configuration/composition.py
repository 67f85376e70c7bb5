"""Hydra: from overrides as they are typed to one composed configuration, its errors as one line each."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from evalkit.configuration import catalogue
from evalkit.configuration.schema import nearest
from evalkit.core.errors import UserError

GROUPS = ("task", "model", "preset", "eval", "experiment", "recipe")
NAMES = ("task_name", "model_name")

# Hydra's defaults list, which picks the recipe, follows options of groups and no values. So each preset is an option
# without a file, which sets the plain key `preset` to its name.
for _preset in catalogue.PRESETS:
    ConfigStore.instance().store(group="preset", name=_preset, node={"preset": _preset}, package="_global_")


def compose(overrides: Sequence[str]) -> DictConfig:
    """The composed configuration with Hydra's own part and the choices' names, values unchecked; raises UserError."""
    with one_line(), initialize_config_dir(version_base="1.3", config_dir=str(catalogue.directory())):
        config = hydra_compose("config", overrides=list(overrides), return_hydra_config=True)
        _refuse_recipe_of_no_preset(config, overrides)
    for group, name in zip(("task", "model"), NAMES, strict=True):
        config[name] = config.hydra.runtime.choices.get(group)
    return config


def _refuse_recipe_of_no_preset(config: DictConfig, overrides: Sequence[str]) -> None:
    """Raises UserError for a recipe in the folder of no preset, where Hydra would not see it."""
    chosen = config.hydra.runtime.choices
    task, model, preset = chosen.get("task"), chosen.get("model"), chosen.get("preset")

    def options(group: str) -> list[str]:
        loader = GlobalHydra.instance().config_loader()
        return loader.get_group_options(group, config_name="config", overrides=list(overrides))

    if model in options(f"recipe/{task}") and model not in options("preset"):
        raise UserError(
            f"recipe/{task}/{model}.yaml is a recipe of no preset; move it to recipe/{task}/{preset}/{model}.yaml"
        )


def parse(overrides: Sequence[str]) -> list[Override]:
    """Each override in Hydra's grammar; raises UserError."""
    with one_line():
        return OverridesParser.create().parse_overrides(list(overrides))


def combinations(overrides: Sequence[str]) -> list[list[str]]:
    """The runs of a sweep, as Hydra's own sweeper forms them."""
    with one_line(), initialize_config_dir(version_base="1.3", config_dir=str(catalogue.directory())):
        parser = OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())
        return BasicSweeper.split_arguments(parser.parse_overrides(list(overrides)), None)[0]


def forced(overrides: Sequence[str]) -> list[str]:
    """`key=value` and `+key=value` as `++key=value`: the constructor says which keys exist, not what YAML lists."""
    return [
        text if is_choice(override) or override.is_hydra_override() or override.is_delete() else f"++{text.lstrip('+')}"
        for text, override in zip(overrides, parse(overrides), strict=True)
    ]


def is_choice(override: Override) -> bool:
    """Whether it picks an option of a group, not a value; `+name=option` is how a user's own group is added."""
    key = override.key_or_group
    own = override.is_add() and "." not in key and key not in OmegaConf.load(catalogue.directory() / "config.yaml")
    is_group = key in GROUPS or "/" in key or override.package is not None or own
    return is_group and not isinstance(override.value(), dict)


def chooses(override: Override) -> bool:
    """Whether it says which files are composed: a choice, or where else to look for them."""
    return is_choice(override) or override.key_or_group == "hydra.searchpath"


def refuse_unknown_hydra_keys(parsed: Sequence[Override], base: DictConfig) -> None:
    """Raises UserError for a `hydra.` key that the composed `base` has not."""
    valid = list(_paths(OmegaConf.to_container(base.hydra, resolve=False), "hydra"))
    for override in parsed:
        key = override.key_or_group
        if key.startswith("hydra.") and override.type is OverrideType.CHANGE and key not in valid:
            raise UserError(f"unknown key {key!r}; the nearest valid one is {nearest(key, valid)!r}")


def _paths(node: Any, path: str) -> Iterator[str]:
    for name, value in node.items():
        yield f"{path}.{name}"
        if isinstance(value, dict):
            yield from _paths(value, f"{path}.{name}")


def set_values(config: DictConfig, values: Sequence[Override]) -> None:
    """Sets each value, known key or not, for the schema to judge; raises UserError."""
    for override in values:
        if override.is_sweep_override() or override.is_delete():
            raise UserError(f"{override.input_line!r}: give one value here, as key=value")
        with one_line():
            OmegaConf.update(config, override.key_or_group, override.value(), force_add=True)


def plain(config: DictConfig) -> dict[str, Any]:
    """As plain resolved data; raises UserError."""
    with one_line():
        content = OmegaConf.to_container(config, resolve=True)
    assert isinstance(content, dict)
    return {str(name): value for name, value in content.items()}


@contextmanager
def one_line() -> Iterator[None]:
    """Hydra's and OmegaConf's errors as one line."""
    try:
        yield
    except MissingConfigException as error:
        group, _, name = str(error.missing_cfg_file).rpartition("/")
        raise UserError(f"{group}={name} does not exist; choose one of {', '.join(error.options or [])}") from error
    except OverrideParseException as error:
        raise UserError(f"cannot read {error.override!r}; give key=value, special characters in quotes") from error
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(str(error).splitlines()[0]) from error
