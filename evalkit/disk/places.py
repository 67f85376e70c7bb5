"""Places on a disk: what `~` stands for, where evalkit keeps what outlives a run, and how much room there is."""

import os
import shutil
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


def free(path: Path) -> int:
    """The bytes that may still be written where `path` is, or will be; a quota is not known."""
    there = path.absolute()
    while not there.exists():
        there = there.parent
    return shutil.disk_usage(there).free


def used(folder: Path) -> int:
    """The bytes of every file below `folder`, 0 where it is not there."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
