"""How much a disk has room for."""

import shutil
from pathlib import Path


def free(path: Path) -> int:
    """The bytes that may still be written where `path` is, or will be; a quota is not known."""
    there = path.absolute()
    while not there.exists():
        there = there.parent
    return shutil.disk_usage(there).free


def used(folder: Path) -> int:
    """The bytes of every file below `folder`, 0 where it is not there."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
