"""Writes our files as a whole, and reads a user's texts, which are UTF-8 and nothing else.

A reader of a file that we write finds the old content or the new one, whatever ends the writing process. A text may
begin with a byte order mark; the error for a file that is no text says what it is instead.
"""

import codecs
import os
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

UNFINISHED = ".new"
MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)  # UTF-32's other mark begins with UTF-16's
POINTER = b"version https://git-lfs.github.com/spec/"


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


def text_of(path: Path) -> str:
    """The text of a file; raises OSError, or ValueError that names the line where it is no UTF-8."""
    return decoded(path.read_bytes(), path)


def decoded(content: bytes, path: Path) -> str:
    """The text in the content of the file at `path`; raises ValueError as `text_of`."""
    refuse_other(content, path)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = content[: error.start].replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        raise not_utf8(path, before.count(b"\n"), error) from error


def refuse_other(head: bytes, path: Path) -> None:
    """Raises ValueError for a file that begins as UTF-16 and UTF-32 do, or stands for a text that is elsewhere."""
    is_wide = len(head) >= 4 and not all((head[0] | head[2], head[1] | head[3]))  # no mark, but every second byte is 0
    if is_wide or head.startswith(MARKS):
        raise ValueError(f"{path}, line 1, is UTF-16 or UTF-32 and not UTF-8; convert it, or leave it out")
    if head.startswith(POINTER):
        raise ValueError(f"{path} is a pointer of Git LFS and not the text; fetch it (git lfs pull), or leave it out")


def not_utf8(path: Path, line: int, error: UnicodeDecodeError) -> ValueError:
    """What is wrong with a line, counted from 0."""
    return ValueError(f"{path}, line {line + 1}, is not UTF-8 at byte {error.start}; convert it, or leave it out")
