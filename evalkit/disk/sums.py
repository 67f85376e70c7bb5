"""SHA-256 sums of a folder's files: what is read again is what was written, or it is refused.

The sums lie in the folder as `SHA256SUMS`, in the format of `sha256sum`: `sha256sum -c SHA256SUMS` checks them too. The
comment in the first line has the number of files, since a list that was cut short must not pass for a shorter one.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path

from evalkit.disk.files import write_whole

FILE = "SHA256SUMS"


class Damaged(ValueError):
    """A file is not what was written; the message is one line."""


def write(folder: Path) -> None:
    """Writes the sums of every file below `folder` into it; raises OSError."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / FILE)
    lines = [f"{_sum(path)}  {path.relative_to(folder).as_posix()}" for path in paths]
    write_whole(folder / FILE, "\n".join([f"# {len(paths)} files", *lines, ""]))


def check(folder: Path) -> bool:
    """Whether `folder` has sums, which older folders lack; raises Damaged, naming the file, if they differ.

    Files that were added later have no sum and are not checked.
    """
    if not (folder / FILE).exists():
        return False
    for name, expected in _read(folder / FILE).items():
        if not (folder / name).resolve().is_relative_to(folder.resolve()):  # a list may have come with the folder
            raise Damaged(f"{FILE} names {name}, which is not in the folder")
        try:
            actual = _sum(folder / name)
        except OSError as error:
            raise Damaged(f"{name}: {error.strerror or error}") from error
        if actual != expected:
            raise Damaged(f"{name} is not what was written: its SHA-256 differs")
    return True


def of_bytes(content: bytes) -> str:
    """The SHA-256 of what is in memory, in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def _sum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read(path: Path) -> Mapping[str, str]:
    """The sum of each file by its name; raises Damaged for a list that is not what `write` writes."""
    try:
        first, *lines = path.read_text(encoding="utf-8").split("\n")
        sums = {name: digest for digest, name in (line.split("  ", 1) for line in lines[:-1])}
    except (OSError, ValueError) as error:
        raise Damaged(f"{FILE} cannot be read: it was damaged or cut short") from error
    if first != f"# {len(sums)} files" or lines[-1:] != [""]:
        raise Damaged(f"{FILE} was damaged or cut short")
    return sums
