"""What command line and Python do alike around whatever a user calls, so that the machine's own habits end no run."""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import extract_tb

from evalkit.core.errors import UserError, first_line
from evalkit.numerics import fixed


@contextmanager
def door() -> Iterator[None]:
    """Within, JAX's flags are evalkit's, every text can be printed, and a variable that JAX refuses is one line."""
    with fixed(), _printable(), _naming_variables():
        yield


@contextmanager
def _printable() -> Iterator[None]:
    """A character that the terminal cannot show is replaced within."""
    streams = [stream for stream in (sys.stdout, sys.stderr) if isinstance(stream, io.TextIOWrapper)]
    before = {stream: stream.errors for stream in streams if stream.errors in ("strict", "surrogateescape")}
    for stream in before:
        stream.reconfigure(errors="replace")
    try:
        yield
    finally:
        for stream, errors in before.items():
            if not stream.closed:
                stream.reconfigure(errors=errors)


@contextmanager
def _naming_variables() -> Iterator[None]:
    """Turns what JAX raises of its environment variables into a UserError that names them."""
    try:
        yield
    except (AssertionError, RuntimeError, TypeError, ValueError) as error:
        blamed = _unread(error) or _without_device()
        if not blamed:
            raise
        reason = f" ({first_line(error).partition(' (set JAX_')[0]})" if str(error) else ""
        raise UserError(f"{blamed}: JAX cannot have it{reason}; unset it, and JAX takes what it finds") from error


def _unread(error: Exception) -> str | None:
    """The variable that JAX could not read when it was imported; None where the error is another."""
    if not Path(extract_tb(error.__traceback__)[-1].filename).as_posix().endswith("jax/_src/config.py"):
        return None
    named = [name for name in os.environ if name.startswith("JAX_") and name.lower() in str(error).lower()]
    return f"{max(named, key=len)}={os.environ[max(named, key=len)]}" if named else None


def _without_device() -> str | None:
    """The variable that keeps JAX from every device; None where it has one."""
    platforms = os.environ.get("JAX_PLATFORMS")
    if not platforms or "jax" not in sys.modules:
        return None
    import jax

    try:
        jax.devices()
    except (AssertionError, RuntimeError):
        return f"JAX_PLATFORMS={platforms}"
    return None
