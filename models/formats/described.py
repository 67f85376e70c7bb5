"""The JSON that describes other projects' files: read as a mapping, however it was damaged."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

AGAIN = "download it again"
SHOWN = 60


def mapping(text: bytes, name: str) -> dict[str, Any]:
    """The JSON object in `text`, the content of the file `name`. Raises ValueError for anything else."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
        raise ValueError(f"{name} is not JSON ({first_line(error)}); {AGAIN}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{name} is no JSON object; {AGAIN}")
    return content


def read(file: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises ValueError for anything else."""
    return mapping(file.read_bytes(), file.name)


def shown(name: object) -> str:
    """A name out of a file, short enough to be read.

    >>> shown("embedding"), shown("a" * 99)[-4:]
    ('embedding', 'aaa…')
    """
    text = str(name)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def whole(number: object, least: int = 0) -> bool:
    """Whether a value out of a file is an integer of at least `least`; True and False are not."""
    return type(number) is int and number >= least


def refuse_unlike(config: Mapping[str, Any], integers: Mapping[str, int], numbers: tuple[str, ...]) -> None:
    """Raises ValueError for a value of `config.json` that is no integer from 1 to its limit, or no positive number.

    Null and missing values are allowed: other code gives them a meaning.
    """
    for key, most in integers.items():
        value = config.get(key)
        if value is not None and not (whole(value, 1) and value <= most):
            raise ValueError(f"config.json has {key}={shown(repr(value))}; allowed: 1 to {most:,}; {AGAIN}")
    for key in numbers:
        value = config.get(key)
        if value is not None and not (type(value) in (int, float) and 0 < value < 1e12):
            raise ValueError(f"config.json has {key}={shown(repr(value))}; allowed: a number above 0; {AGAIN}")


def first_line(error: BaseException) -> str:
    """What an error says, in one line of at most 200 characters."""
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
