"""Where a user's folders are: what `~` stands for, and where evalkit keeps what outlives a run."""

import os
from pathlib import Path


def expanded(path: str | os.PathLike[str], remedy: str = "give the whole path") -> Path:
    """A path with `~` replaced; raises ValueError, in one line, where the home that it stands for is not known."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:  # a user without a name and HOME, as in many containers, or no such user
        raise ValueError(f"{path}: the home that ~ stands for is not known; set HOME, or {remedy}") from error


def kept_below(variable: str, usual: str) -> Path:
    """The folder that the environment's `variable` names, or else the `usual` one; raises ValueError as `expanded`."""
    return expanded(os.environ.get(variable) or usual, f"set {variable} to a folder")
