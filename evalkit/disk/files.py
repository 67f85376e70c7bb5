"""Writes a file as a whole: whoever reads it, and whatever ends the process, meets the old content or the new one."""

import os
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

UNFINISHED = ".new"


def remove_unfinished(folder: Path) -> None:
    """Removes what killed processes left of files in `folder`, in which nobody else may write now."""
    for left in folder.glob(f".*{UNFINISHED}"):
        left.unlink(missing_ok=True)


def write_whole(path: Path, content: str | bytes) -> None:
    """Writes `content` beside `path`, and moves it there once it is on the disk; raises OSError.

    A full disk, a kill or a loss of power leaves what was there before.
    """
    data = content.encode() if isinstance(content, str) else content
    if path.exists() and not path.is_file():  # a pipe or a terminal, such as /dev/stdout
        path.write_bytes(data)
        return
    # A name of its own, as several may write into one folder of caches: processes, or containers that count alike.
    new = path.with_name(f".{path.name}.{uuid4().hex}{UNFINISHED}")
    try:
        with new.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except BaseException:
        with suppress(OSError):
            new.unlink(missing_ok=True)
        raise
