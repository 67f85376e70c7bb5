"""Settings as Python has them, written as the command line's overrides, value for value."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from hydra.core.override_parser.types import Quote, QuotedString

from evalkit.core.errors import UserError

KEY = re.compile(r"\+?\w[\w.@/-]*", re.ASCII)
WORD = re.compile(r"[A-Za-z_][\w./-]*", re.ASCII)
# Words that Hydra reads as something else than text.
READ_OTHERWISE = ("true", "false", "null", "nan", "inf")


def overrides_of(settings: Mapping[str, Any]) -> list[str]:
    """The overrides that set exactly these values; a mapping stands for the settings below its key.

    Values are numbers, text, paths, None, and lists or mappings of these, NumPy's among them. Raises UserError for
    what is no key and what is no value; whether a key exists is for the configuration to say.

    >>> overrides_of({"task": "books", "train": {"steps": 10, "learning_rate": 1e-3}, "eval.lengths": [64, 128]})
    ['task=books', 'train.steps=10', 'train.learning_rate=0.001', 'eval.lengths=[64,128]']
    >>> overrides_of({"wandb.notes": "it's 3", "data": {"path": None}})
    ["wandb.notes='it\\\\'s 3'", 'data.path=null']
    >>> overrides_of({"+mixer": "theirs"})
    ['+mixer=theirs']
    """
    return [f"{key}={_written(value, key)}" for key, value in _flat(settings, "")]


def _flat(settings: Mapping[Any, Any], above: str) -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        key = f"{above}{_key(name)}"
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{key}.")
        else:
            yield key, value


def _key(name: Any) -> str:
    if not isinstance(name, str) or not KEY.fullmatch(name):
        raise UserError(f"{name!r} is no name of a setting; give names as on the command line, such as 'train.steps'")
    return name


def _written(value: Any, key: str) -> str:
    """One value in Hydra's grammar."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str | os.PathLike):
        return _text(os.fspath(value))
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{_key(name)}:{_written(inner, key)}" for name, inner in value.items()) + "}"
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return "[" + ",".join(_written(inner, key) for inner in value) + "]"
    raise UserError(f"{key}={value!r}; allowed: numbers, text, None, and lists or mappings of these")


def _text(text: str) -> str:
    if WORD.fullmatch(text) and text.lower() not in READ_OTHERWISE:
        return text
    return QuotedString(text=text, quote=Quote.single).with_quotes()
