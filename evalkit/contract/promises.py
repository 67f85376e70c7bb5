"""A promise: its name, what is promised, and a function that checks it."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from evalkit.core.errors import UserError, first_line, place_of

READ_ON = "docs/extending.md"


class Promise(NamedTuple):
    """A promise, which `check(subject)` tests: it returns the violation in words, or None if the promise is kept."""

    name: str
    text: str
    check: Callable[[Any], str | None]

    def violation(self, subject: Any) -> str | None:
        """The violation in words, None if the promise is kept; an error that the subject raises is a violation, too."""
        try:
            return self.check(subject)
        except Exception as error:  # whatever code that we did not write may raise
            return f"it raises {type(error).__name__}: {first_line(error)}{place_of(error)}"


class BrokenPromise(UserError):
    """One line: who promised what, what was found, and where to read on."""

    def __init__(self, subject: str, promise: Promise, violation: str):
        super().__init__(f"{subject} breaks {promise.name!r}: {promise.text}, but {violation}; {READ_ON} says more")
        self.promise = promise


def promised(name: str, text: str) -> Callable[[Callable[[Any], str | None]], Promise]:
    """Makes a promise of a function that checks whether it is kept.

    >>> @promised("even", "it is even")
    ... def even(number):
    ...     return f"it is {number}" if number % 2 else None
    >>> even.violation(3), even.violation(4)
    ('it is 3', None)
    """
    return lambda check: Promise(name, text, check)


def not_callable(subject: Any, methods: Mapping[str, int]) -> str | None:
    """Says which of `methods` cannot be called with its number of arguments; None where all can."""
    for name, count in methods.items():
        try:
            inspect.signature(getattr(subject, name)).bind(*range(count))
        except TypeError as error:
            return f"{name} cannot be called with {count} argument{'s' * (count != 1)}: {error}"
    return None


def broken(subject: str, groups: Sequence[Sequence[Promise]], under_check: Any) -> Iterator[BrokenPromise]:
    """The broken promises, in order; a group is checked only if all groups before it are kept."""
    for group in groups:
        kept = True
        for promise in group:
            violation = promise.violation(under_check)
            if violation is not None:
                kept = False
                yield BrokenPromise(subject, promise, violation)
        if not kept:
            return
