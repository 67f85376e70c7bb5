"""Range checks of settings: each raises ValueError in one line, with what was given and what is allowed."""

from typing import Any


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
    if getattr(settings, name) not in allowed:
        raise ValueError(f"{name}={getattr(settings, name)!r}; allowed: {', '.join(allowed)}")
