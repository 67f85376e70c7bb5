"""Keeps a command running when its output cannot be printed, because the terminal is gone or a disk is full."""

import io
import os
import re
import sys
from pathlib import Path
from typing import Any

from evalkit.core.errors import UserError

SIZES = ("COLUMNS", "LINES")


class Lost(UserError):
    """Something that was printed could not be written."""

    exit_code = 1


class _Taking(io.FileIO):
    """A file descriptor for which no write fails, but where the program that reads it has ended."""

    lost: OSError | None = None

    def write(self, data: Any) -> int | None:
        """Writes, or keeps why it was not possible."""
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            self.lost = error
            return len(data)


def never_failing() -> None:
    """Makes `sys.stdout` and `sys.stderr` streams to which writing never fails."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # the shell closed it: `>&-`
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
        elif stream is getattr(sys, f"__{name}__") and isinstance(stream, io.TextIOWrapper):
            taking = io.BufferedWriter(_Taking(stream.fileno(), "w", closefd=False))
            how = {"encoding": stream.encoding, "errors": stream.errors, "write_through": stream.write_through}
            setattr(sys, name, io.TextIOWrapper(taking, line_buffering=stream.line_buffering, **how))


def drop_sizes_of_nothing() -> None:
    """Unsets COLUMNS and LINES if they are no numbers above 0, as some programs set them: nothing would be printed."""
    for name in SIZES:
        if not re.fullmatch("0*[1-9][0-9]*", os.environ.get(name, "80")):
            del os.environ[name]


def refuse_lost() -> None:
    """Raises Lost if something that was printed could not be written."""
    sys.stdout.flush()
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    if isinstance(raw, _Taking) and raw.lost is not None:
        raise Lost(f"what was printed could not be written ({raw.lost.strerror}); the work itself is done")
