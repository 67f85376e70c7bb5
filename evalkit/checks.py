"""Range checks of settings: each raises ValueError in one line, with what was given and what is allowed."""

import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

SIMPLE: Mapping[Any, tuple[type, ...]] = {int: (int,), float: (int, float), str: (str,), bool: (bool,)}


def at_least(settings: Any, least: int, *names: str) -> None:
    """Raises ValueError for the first of the attributes `names` that is below `least`."""
    for name in names:
        if getattr(settings, name) < least:
            raise ValueError(f"{name}={getattr(settings, name)}; allowed: {least} or more")


def at_least_or_null(settings: Any, least: int, *names: str) -> None:
    """As `at_least`, but None is allowed too."""
    for name in names:
        value = getattr(settings, name)
        if value is not None and value < least:
            raise ValueError(f"{name}={value}; allowed: {least} or more, or null")


def at_least_or(settings: Any, word: str, least: int, *names: str) -> None:
    """As `at_least`, but the `word` is allowed too."""
    for name in names:
        value = getattr(settings, name)
        if value != word and (isinstance(value, str) or value < least):
            raise ValueError(f"{name}={value}; allowed: {least} or more, or {word}")


def above(settings: Any, bound: float, *names: str) -> None:
    """Raises ValueError for the first of the attributes `names` that is not above `bound`, NaN included."""
    for name in names:
        if not getattr(settings, name) > bound:
            raise ValueError(f"{name}={getattr(settings, name)}; allowed: above {bound}")


def between_or_null(settings: Any, low: float, high: float, *names: str) -> None:
    """Raises ValueError for the first of the attributes `names` that is neither None nor strictly between the two."""
    for name in names:
        value = getattr(settings, name)
        if value is not None and not low < value < high:
            raise ValueError(f"{name}={value}; allowed: between {low} and {high}, or null")


def one_of(settings: Any, name: str, allowed: tuple[str, ...]) -> None:
    """Raises ValueError if the attribute `name` is none of the words that are `allowed`."""
    refuse_other(name, getattr(settings, name), allowed)


def refuse_other(name: str, value: Any, allowed: Iterable[str]) -> None:
    """Raises ValueError for a value that is none of the words that are `allowed`."""
    if value not in allowed:
        raise ValueError(f"{name}={value!r}; allowed: {', '.join(allowed)}")


def refuse_other_types(values: Mapping[str, Any], hints: Mapping[str, Any]) -> None:
    """Raises ValueError for the first value that is not of its hint's type; an int is a float, a bool no number."""
    for name, value in values.items():
        if not fits(value, hints[name]):
            raise ValueError(f"{name}={value!r}; allowed: {describe(hints[name])}")


def refuse_below_1(**sizes: int) -> None:
    """Raises ValueError for the first of the sizes that is below 1."""
    for name, value in sizes.items():
        if value < 1:
            raise ValueError(f"{name}={value}; allowed: 1 or more")


def fits(value: Any, annotation: Any) -> bool:
    """Whether `value`, as YAML gives it, has the annotated type; True for annotations that are not simple."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, argument) for argument in arguments)
    if annotation in (None, type(None)):
        return value is None
    if annotation in SIMPLE:
        return isinstance(value, SIMPLE[annotation]) and (annotation is bool or not isinstance(value, bool))
    if origin is typing.Literal:
        return value in arguments
    kind = origin or annotation
    if not inspect.isclass(kind) or typing.is_typeddict(kind):
        return True
    if kind is not str and issubclass(kind, Sequence):
        return isinstance(value, Sequence) and not isinstance(value, str) and _elements_fit(value, kind, arguments)
    if issubclass(kind, Mapping):
        return isinstance(value, Mapping) and all(fits(v, (*arguments, Any)[1]) for v in value.values() if arguments)
    return True


def _elements_fit(values: Sequence[Any], kind: type, arguments: tuple[Any, ...]) -> bool:
    if not arguments:
        return True
    if kind is tuple and Ellipsis not in arguments:
        return len(values) == len(arguments) and all(map(fits, values, arguments))
    return all(fits(value, arguments[0]) for value in values)


def describe(annotation: Any) -> str:
    """An annotation in the words of YAML: `int or null`."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(map(describe, typing.get_args(annotation))))
    if annotation in (None, type(None)):
        return "null"
    if annotation in SIMPLE:
        return annotation.__name__
    arguments = [describe(argument) for argument in typing.get_args(annotation) if argument is not Ellipsis]
    if not arguments:
        return str(getattr(annotation, "__name__", annotation))
    kind = typing.get_origin(annotation)
    if kind is Callable:
        return "nodes with _target_"
    if inspect.isclass(kind) and issubclass(kind, Mapping):
        return "a mapping" if arguments[-1] == "object" else f"a mapping of {arguments[-1]}"
    return f"a list of {', '.join(dict.fromkeys(arguments))}"
