"""Errors meant for the person at the keyboard: one line, no traceback."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from traceback import extract_tb

from evalkit.core.credentials import masked
from evalkit.disk.places import expanded

# The package, and the folders beside it in a checkout; a line elsewhere is the user's own.
_PACKAGE = Path(__file__).resolve().parent.parent
OURS = tuple(
    f"{folder}/" for folder in (_PACKAGE, *((_PACKAGE / name).resolve() for name in ("models", "tasks", "kernels")))
)
LONGEST = 2000
"""Characters of a line; beyond them its middle is left out."""
LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python", "<")


class UserError(Exception):
    """One line: what was given, what is allowed, what to do. Commands print it and exit with `exit_code`.

    Text from a file or another library cannot break the line: line breaks become spaces, and a long line is cut.
    """

    exit_code: int = 2

    def __init__(self, message: object = ""):
        super().__init__(_readable(str(message)))


class Unavailable(UserError):
    """What may be possible later, with the same words: a full disk, another process's folder, a silent server."""


def _readable(text: str) -> str:
    shown = "".join(char if char.isprintable() else " " if char.isspace() else ascii(char)[1:-1] for char in text)
    return shown if len(shown) <= LONGEST else f"{shown[: LONGEST // 2]} … {shown[-LONGEST // 2 :]}"


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's message without keys and tokens, or the error's type if it has no message.

    >>> first_line(ValueError("no such file\\nTraceback …")), first_line(KeyboardInterrupt())
    ('no such file', 'KeyboardInterrupt')
    """
    return masked((str(error).splitlines() or [type(error).__name__])[0])


def place_of(error: BaseException) -> str:
    """The last line of the user's own code in an error's traceback, such as " (mixers.py:12)"; "" if there is none.

    A line of ours or of a library, called from there, may have raised the error; the user's line is named all the same.
    """
    for frame in reversed(extract_tb(error.__traceback__)):
        if not frame.filename.startswith(OURS) and not any(word in frame.filename for word in LIBRARIES):
            return f" ({Path(frame.filename).name}:{frame.lineno})"
    return ""


@contextmanager
def place_told() -> Iterator[None]:
    """Raises UserError, with the line of the user's own code, in place of an error that this line led to.

    What the device says is left as it is, and so is an error without such a line.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        place = "" if type(error).__name__ == "JaxRuntimeError" else place_of(error)
        if not place:
            raise
        raise UserError(f"{type(error).__name__}: {first_line(error)}{place}") from error


def typed_path(path: str | PathLike[str]) -> Path:
    """A path that a user typed, with `~` replaced; raises UserError where the home is not known."""
    try:
        return expanded(path)
    except ValueError as error:
        raise UserError(str(error)) from error


def refuse_bytes(text: str) -> None:
    """Raises UserError for text with bytes that the system's encoding cannot decode: no file of a run can hold it."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        encoding = sys.getfilesystemencoding()
        raise UserError(
            f"{text} has bytes that are no {encoding}; write it in {encoding}, or set PYTHONUTF8=1 if it is UTF-8"
        ) from error


@contextmanager
def said_of(name: str) -> Iterator[None]:
    """Puts `name`, which of several things failed, before the message of a `UserError` in the block."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{name}: {error}") from error


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turns an `OSError` in the block (no permission, no such file) into a `UserError` naming `path` and the reason."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(f"cannot read {path}: {reason}; bring it back, or give a folder that may be read") from error


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns an `OSError` in the block (a full disk, no permission) into a `UserError` naming `path` and the reason."""
    try:
        yield
    except OSError as error:
        if isinstance(error, FileExistsError | NotADirectoryError):
            raise UserError(f"cannot write {path}: {error.filename or path} is a file; give a folder") from error
        if isinstance(error, IsADirectoryError):
            raise UserError(f"cannot write {path}: it is a folder; give a file") from error
        reason = error.strerror or str(error)
        remedy = "make the folder that it names" if isinstance(error, FileNotFoundError) else "free space"
        raise Unavailable(f"cannot write {path}: {reason}; {remedy} or choose another folder") from error
