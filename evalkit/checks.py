"""Range checks of settings: each raises ValueError in one line, with what was given and what is allowed."""

from collections.abc import Iterable, Mapping
from types import NoneType
from typing import Any, get_args, get_origin


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
    """Raises ValueError for the first value that is not of its hint's type; whole numbers are numbers, truths not."""
    for name, value in values.items():
        kinds = [get_origin(kind) or kind for kind in get_args(hints[name]) or (hints[name],)]
        if type(value) not in kinds and not (float in kinds and type(value) is int):
            allowed = ", ".join("null" if kind is NoneType else kind.__name__ for kind in kinds)
            raise ValueError(f"{name}={value!r}; allowed: {allowed}")


def refuse_below_1(**sizes: int) -> None:
    """Raises ValueError for the first of the sizes that is below 1."""
    for name, value in sizes.items():
        if value < 1:
            raise ValueError(f"{name}={value}; allowed: 1 or more")
