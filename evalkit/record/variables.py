"""Environment variables that change JAX's numbers: those of this process, and where runs had others."""

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from evalkit.core import studies
from evalkit.core.credentials import masked
from evalkit.core.errors import UserError
from evalkit.numerics import FLAGS, IN_ORDER, NOT_TRIED

FILE, FIELD = "environment.json", "variables"
OF_XLA = ("LIBTPU_INIT_ARGS", "NVIDIA_TF32_OVERRIDE", "XLA_FLAGS")
NO_NUMBERS = (
    "CACHE",
    "COORDINATOR",
    "DEBUG",
    "DUMP",
    "LOG",
    "PLATFORM",
    "PROCESS",
    "PROFIL",
    "RANK",
    "TRACEBACK",
    "TRANSFER",
)
"""Words in the names of JAX's variables that change no number; `environment.json` has the device besides."""


def variables() -> dict[str, str]:
    """The variables that are set and change numbers, but for those that evalkit sets itself."""
    values = {name: masked(_typed(value)) for name, value in os.environ.items() if _counts(name)}
    return {name: value for name, value in sorted(values.items()) if value}


def _typed(value: str) -> str:
    """A variable's value without the flags that evalkit itself adds."""
    for own in (IN_ORDER, *NOT_TRIED):
        value = value.replace(own, "")
    return value.strip()


def kept_in(folder: Path, field: str) -> Mapping[str, Any] | None:
    """One mapping of the `environment.json` of the run in `folder`; None where there is none, or it is damaged."""
    content: Any = None
    with suppress(OSError, ValueError, RecursionError, UserError):
        content = studies.content(folder / FILE)
    values = content.get(field) if isinstance(content, Mapping) else None
    return values if isinstance(values, Mapping) else None


def changed(folder: Path) -> str | None:
    """A sentence on the variables that differ between a run and this process; None if none do, or it is unknown."""
    before, now = kept_in(folder, FIELD), variables()
    if before is None or before == now:
        return None
    names = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
    then, here = (", ".join(_shown(values, name) for name in names) for values in (before, now))
    return f"note: {folder} was trained with {then}, and now there is {here}; numbers may differ"


def differing(folders: Iterable[Path]) -> list[str]:
    """A sentence for each variable that the runs in `folders` had otherwise than each other."""
    known = {str(folder): values for folder in folders if (values := kept_in(folder, FIELD)) is not None}
    notes = []
    for name in sorted({name for values in known.values() for name in values}):
        by_value: dict[str, list[str]] = {}
        for run, values in known.items():
            by_value.setdefault(_shown(values, name), []).append(run)
        if len(by_value) > 1:
            settings = "; ".join(f"{value} ({', '.join(names)})" for value, names in by_value.items())
            notes.append(f"The environment variable {name} differs, which may change numbers: {settings}.")
    return notes


def _shown(values: Mapping[str, Any], name: str) -> str:
    """A variable as a shell sets it, or that it is not set."""
    return f"{name}={values[name]}" if name in values else f"no {name}"


def _counts(name: str) -> bool:
    of_jax = name.startswith("JAX_") and name not in FLAGS and not any(word in name for word in NO_NUMBERS)
    return of_jax or name in OF_XLA
