"""The constructor is the schema: a configuration is held to the signatures of its `_target_`s, names and types.

What the YAML leaves out has its constructor's default; `completed` writes that in.
"""

import dataclasses
import difflib
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from evalkit.checks import SIMPLE, describe, fits
from evalkit.configuration import catalogue
from evalkit.configuration.habits import HABITS
from evalkit.core.errors import UserError, first_line, place_of
from evalkit.core.trust import imported, refuse_borrowed

Node = Mapping[str, Any]
Settings = Mapping[str, Any]
"""What a constructor takes: annotations by name; `**` stands for any other name."""

PARTS = (
    "evalkit.evaluations",
    "evalkit.models",
    "evalkit.record",
    "evalkit.tasks",
    "evalkit.training.settings",
)
"""The modules of evalkit whose classes a configuration may name."""
INSTRUCTIONS = ("_target_", "_partial_", "_convert_", "_recursive_", "_args_")
CALLED_WITH = {
    "model": ("vocab_size",),
    "train.optimizer": ("learning_rate",),
    "train.average": ("state", "params"),
}
"""The arguments with which evalkit calls a partial, by the partial's key; a mixer gets a width and random numbers."""


def verify(config: Node, base: Node, root: Settings) -> None:
    """Checks every key and simple type of `config`, whose first level takes the settings `root`.

    `base` is the same configuration without the values that the user gave: where there is no constructor, its keys are
    the known ones. Raises UserError that names the nearest valid key, or the value and what is allowed.
    """
    _verify_node(config, base, "", root, lambda: list(_dotted(base, "", root)))


def unknown(key: str, valid: Sequence[str], giver: str = "") -> str:
    """The message for a key that is none of the `valid` ones: the key that is likely meant, or why there is none.

    `giver` says where the key comes from, if the user did not type it.
    """
    name = key.rpartition(".")[2]
    meant = HABITS.get(key) or HABITS.get(name, "")
    if " " in meant:
        return f"unknown key {key!r}{giver}; {meant}"
    held = meant if meant in valid or meant.startswith("hydra.") else ""
    return f"unknown key {key!r}{giver}; the nearest valid one is {held or nearest(key, valid)!r}"


def nearest(key: str, valid: Sequence[str]) -> str:
    """The most similar of the `valid` dotted keys; `steps` alone is meant as the `steps` of something."""

    def likeness(candidate: str) -> float:
        same_name = candidate.rpartition(".")[2] == key.rpartition(".")[2]
        return difflib.SequenceMatcher(None, key, candidate).ratio() + same_name * (0.2 if "." in key else 1.0)

    others = [candidate for candidate in valid if candidate != key and not key.startswith(f"{candidate}.")]
    return max(others or valid, key=likeness)


def locate(node: Node, path: str, message: str) -> str:
    """A constructor's `message` with the dotted key in each `name=value`; with none in it, `path` stands before it."""
    keys = list(_dotted(node, path, settings_of(node, path)))
    by_name = {key.rpartition(".")[2]: key for key in reversed(keys)}

    def typed(match: re.Match[str]) -> str:
        return f"{by_name.get(match[1], match[1])}="

    located = re.sub(r"(?<![\w.])(\w+)=", typed, message)
    return located if located != message else f"{path}: {message}"


def _verify_node(node: Node, base: Any, path: str, settings: Settings | None, valid: Callable[[], list[str]]) -> None:
    """Checks one mapping; `settings` are those of its constructor, None where it has none."""
    known = base if isinstance(base, Mapping) else {}
    for name, value in node.items():
        key = f"{path}.{name}" if path else name
        if name in INSTRUCTIONS:
            continue
        is_built = _is_built(value)
        if not (name in known or is_built if settings is None else name in settings or "**" in settings):
            raise UserError(unknown(key, valid(), ", which a chosen YAML file gives" if name in known else ""))
        annotation = (settings or {}).get(name, Any)
        _verify_value(key, value, known.get(name), annotation)
        if isinstance(value, Mapping) and not _is_plain(annotation):
            inner = settings_of(value, key) if is_built else None
            if is_built:
                _refuse_missing(value, key)
            _verify_node(value, known.get(name), key, inner, valid)


def _verify_value(key: str, value: Any, base: Any, annotation: Any) -> None:
    if _is_built(value) and annotation not in SIMPLE:
        return
    if _is_built(base) and str not in typing.get_args(annotation):
        setting = next((name for name in base if name not in INSTRUCTIONS), "_target_")
        raise UserError(f"{key}={value!r}; allowed: its settings, such as {key}.{setting}={base[setting]}")
    if not fits(value, annotation):
        example = f", such as '{key}=[{value}]'" if fits([value], annotation) else ""
        raise UserError(f"{key}={value!r}; allowed: {describe(annotation)}{example}")


def _is_built(value: Any) -> bool:
    return isinstance(value, Mapping) and "_target_" in value


def settings_of(node: Node, path: str) -> Settings:
    """The settings of `node`'s constructor, without those its caller gives; raises UserError for a failed import."""
    later = _given_later(node, path)
    return {name: kind for name, kind in annotations(constructor(node, path)).items() if name not in later}


def constructor(node: Node, path: str) -> Callable[..., Any]:
    """What `node` names by its `_target_`; raises UserError if there is none or it cannot be imported."""
    if "_target_" not in node:
        example = "mine.Mixer" if path.startswith("model.") else "mine.Task"
        example = "evalkit.models.build" if path == "model" else example
        raise UserError(f"{path} has no _target_; name what it builds, such as _target_: {example}")
    target = str(node["_target_"])
    try:
        named = imported(target)
    except (Exception, SystemExit) as error:  # whatever a file of the user's may raise
        meant = catalogue.documented(target)
        if meant is not None:
            raise UserError(f"{path}._target_={target} is not there; it is called {meant}") from error
        raise UserError(f"{path}._target_={target} cannot be imported: {_reason(error)}") from error
    if not callable(named):
        raise UserError(f"{path}._target_={target} is a {type(named).__name__}; name a class or a function in it")
    refuse_borrowed(target, path, named, PARTS)
    return named


def _reason(error: BaseException) -> str:
    """Why an import failed, where in the user's file, and what to do where that is known."""
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error.msg} ({Path(error.filename or '').name}:{error.lineno})"
    reason = first_line(error) + place_of(error)
    if isinstance(error, ModuleNotFoundError):
        return f"{reason}; install it, or stand in its folder"
    is_plain = isinstance(error, ImportError | AttributeError | ValueError)
    return reason if is_plain else f"{type(error).__name__}: {reason}"


def _given_later(node: Node, path: str) -> tuple[str, ...]:
    """What a partial gets when it is called: a mixer the model's width and random numbers, the others as listed."""
    if not node.get("_partial_"):
        return ()
    return CALLED_WITH.get(path, ("width", "rngs"))


def _refuse_missing(node: Node, path: str) -> None:
    """Raises UserError for a setting that has no default and is not there."""
    if "_args_" in node:
        return
    parameters = list(parameters_of(constructor(node, path)).values())
    _refuse_not_given(node, path, parameters)
    for parameter in parameters:
        named = parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if named and parameter.default is parameter.empty and parameter.name not in {*node, *_given_later(node, path)}:
            key = f"{path}.{parameter.name}"
            raise UserError(f"{key} is missing and has no default; give {key}=…")


def _refuse_not_given(node: Node, path: str, parameters: Sequence[inspect.Parameter]) -> None:
    """Raises UserError if a partial does not take the arguments of its call by name, or lacks `_partial_: true`."""
    if path not in CALLED_WITH and not path.startswith("model.mixers."):
        return
    later = _given_later({"_partial_": True}, path)
    takes = [parameter.name for parameter in parameters]
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    if node.get("_partial_") and not takes_any and not set(later) <= set(takes):
        raise UserError(
            f"{path}._target_={node['_target_']} takes {', '.join(takes) or 'nothing'}; it is built with "
            f"{' and '.join(later)}, so name its arguments so"
        )
    needed = {parameter.name for parameter in parameters if parameter.default is parameter.empty}
    optimizer = path in CALLED_WITH and path != "model"
    if not node.get("_partial_") and (optimizer or needed & set(later) - set(node)):
        raise UserError(f"{path} gets {' and '.join(later)} when it is built; add _partial_: true to its YAML")


def annotations(function: Callable[..., Any]) -> Settings:
    """The parameters of `function` by name, each with its annotation, Any where there is none."""
    return {
        "**" if parameter.kind is parameter.VAR_KEYWORD else name: (
            Any if parameter.annotation is parameter.empty else parameter.annotation
        )
        for name, parameter in parameters_of(function).items()
        if parameter.kind is not parameter.VAR_POSITIONAL
    }


def parameters_of(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The parameters of `function` by name, without `self`.

    Of a class they are those of `__init__`: Flax hides the constructor's signature behind a metaclass's `__call__`.
    """
    is_class = inspect.isclass(function) and function.__init__ is not object.__init__
    called = function.__init__ if is_class else function
    try:
        parameters = inspect.signature(called, eval_str=True).parameters
    except NameError:  # an annotation that is only there for type checkers
        parameters = inspect.signature(called).parameters
    return dict(list(parameters.items())[is_class:])


def _dotted(node: Node, path: str, settings: Settings | None) -> Iterator[str]:
    """Every valid dotted key below `node`."""
    for name in node if settings is None or "**" in settings else settings:
        if name in INSTRUCTIONS:
            continue
        key = f"{path}.{name}" if path else name
        yield key
        value = node.get(name)
        if isinstance(value, Mapping):
            yield from _dotted(value, key, settings_of(value, key) if _is_built(value) else None)


def _is_plain(annotation: Any) -> bool:
    """Whether it is a mapping whose keys are free: of simple values, or of `object`, whose reader knows the types."""
    arguments = typing.get_args(annotation)
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return any(map(_is_plain, arguments))
    if len(arguments) != 2 or not issubclass(typing.get_origin(annotation) or int, Mapping):
        return False
    return all(each in SIMPLE or each is object for each in typing.get_args(arguments[1]) or (arguments[1],))


def completed(node: Any, path: str = "") -> Any:
    """`node`, plain data, with the defaults of each constructor that it names, but for those that no YAML can say.

    >>> sorted(completed({"_target_": "evalkit.training.settings.Training", "steps": 5}))[:4]
    ['_target_', 'b1', 'b2', 'batch_size']
    """
    if not isinstance(node, Mapping):
        return node
    known = {name: completed(value, f"{path}.{name}" if path else name) for name, value in node.items()}
    if "_target_" not in node:
        return known
    taken, defaults = settings_of(node, path), _defaults(constructor(node, path))
    return known | {name: defaults[name] for name in taken if name in defaults and name not in known}


def _defaults(built: Any) -> dict[str, Any]:
    defaults = {
        name: parameter.default
        for name, parameter in parameters_of(built).items()
        if parameter.default is not parameter.empty and name not in INSTRUCTIONS
    }
    if dataclasses.is_dataclass(built):  # whose signature hides what a factory makes
        factories = [field for field in dataclasses.fields(built) if callable(field.default_factory)]
        defaults |= {field.name: field.default_factory() for field in factories}  # type: ignore[misc]
    plain = {name: _plain(default) for name, default in defaults.items()}
    return {name: value for name, value in plain.items() if value is not NotImplemented}


def _plain(default: Any) -> Any:
    """A default as YAML writes it; NotImplemented where it cannot."""
    if default is None or isinstance(default, str | int | float):
        return default
    if dataclasses.is_dataclass(default) and not isinstance(default, type):
        kind = type(default)
        settings = {field.name: _plain(getattr(default, field.name)) for field in dataclasses.fields(default)}
        return {"_target_": f"{kind.__module__}.{kind.__qualname__}"} | {
            name: value for name, value in settings.items() if value is not NotImplemented
        }
    values = default.values() if isinstance(default, Mapping) else default if isinstance(default, Sequence) else None
    if values is None:
        return NotImplemented
    plain = [_plain(value) for value in values]
    if NotImplemented in plain:
        return NotImplemented
    return dict(zip(default, plain, strict=True)) if isinstance(default, Mapping) else plain
