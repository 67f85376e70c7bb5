"""Hydra's and OmegaConf's configurations as plain data, and their errors as one line each."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import (
    InterpolationKeyError,
    InterpolationResolutionError,
    InterpolationToMissingValueError,
    OmegaConfBaseException,
)
from yaml import MarkedYAMLError, YAMLError

from evalkit.core.errors import UserError, first_line


def plain(config: DictConfig, *, resolve: bool = True) -> dict[str, Any]:
    """The configuration as plain data; raises UserError for an interpolation that leads nowhere."""
    with one_line():
        content = OmegaConf.to_container(config, resolve=resolve, enum_to_str=True)
    assert isinstance(content, dict)
    return {str(name): value for name, value in content.items()}


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
    except InterpolationToMissingValueError as error:
        remedy = "only a job of a sweep has a number, and no folder its own name in it: write a value in its place"
        raise UserError(f"{error.full_key}: {_cause(error)}; {remedy}") from error
    except (InterpolationResolutionError, InterpolationKeyError) as error:
        raise UserError(f"{error.full_key}: {_cause(error)}; write a value in its place") from error
    except (HydraException, OmegaConfBaseException, YAMLError, ValueError) as error:
        raise UserError(first_line(error)) from error


def _cause(error: OmegaConfBaseException) -> str:
    """What OmegaConf says of an interpolation, without the classes of the errors."""
    return first_line(error).rpartition("interpolation: ")[2].strip("'\"")


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
