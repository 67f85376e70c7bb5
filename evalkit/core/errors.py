"""Errors meant for the person at the keyboard: one line, no traceback."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class UserError(Exception):
    """One line: what was given, what is allowed, what to do. Commands print it and exit with `exit_code`."""

    exit_code: int = 2


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's message, or the error's type where there is no message.

    >>> first_line(ValueError("no such file\\nTraceback …")), first_line(KeyboardInterrupt())
    ('no such file', 'KeyboardInterrupt')
    """
    return (str(error).splitlines() or [type(error).__name__])[0]


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns an `OSError` in the block (a full disk, no permission) into a `UserError` naming `path` and the reason."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(f"cannot write {path}: {reason}; free space or choose another folder") from error
