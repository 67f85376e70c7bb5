"""The setup around every call from the command line or Python, so that no setting of the machine ends a run."""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from traceback import extract_tb

from evalkit.core.errors import UserError, first_line
from evalkit.numerics import FLAGS, fixed

HARMLESS = ("backslashreplace", "ignore", "namereplace", "replace", "xmlcharrefreplace")
"""How a stream may treat a character that it cannot show, so that no text ends a run; others raise, or do not exist."""
OF_DEVICES = ("JAX_DEFAULT_DEVICE", "JAX_NUM_CPU_DEVICES", "JAX_PLATFORMS", "JAX_PLATFORM_NAME")


@contextmanager
def door() -> Iterator[None]:
    """Within, JAX's flags are evalkit's, every text can be printed, and a variable that JAX refuses is one line."""
    with fixed(), _printable(), _naming_variables():
        yield


@contextmanager
def _printable() -> Iterator[None]:
    """A character that the terminal cannot show is replaced within."""
    streams = [stream for stream in (sys.stdout, sys.stderr) if isinstance(stream, io.TextIOWrapper)]
    before = {stream: stream.errors for stream in streams if stream.errors not in HARMLESS}
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
        blamed = _named_in(error) or _without_device()
        if not blamed:
            raise
        reason = f" ({first_line(error).partition(' (set JAX_')[0]})" if str(error) else ""
        raise UserError(f"{blamed}: JAX cannot work with it{reason}; unset it, and JAX takes what it finds") from error


def _named_in(error: Exception) -> str | None:
    """The JAX variable whose name or value is in an error of JAX; None if there is none."""
    frames = [Path(frame.filename).as_posix() for frame in extract_tb(error.__traceback__)]
    if not any("/jax/" in frame for frame in frames) and not any("JAX" in note for note in _notes(error)):
        return None
    message = str(error).lower()
    of_jax = {name: value for name, value in os.environ.items() if name.startswith("JAX_") and name not in FLAGS}
    for name, value in sorted(of_jax.items(), key=lambda pair: -len(pair[0])):
        is_word = value.isalpha() and len(value) > len("false")
        short = name.removeprefix("JAX_").lower()
        is_named = short in message if "_" in short else name.lower() in message  # "platforms" alone is any word
        if is_named or (is_word and value.lower() in message):
            return f"{name}={value}"
    return None


def _notes(error: Exception) -> list[str]:
    """The notes that JAX adds to an error when it removes its own lines from the traceback."""
    return getattr(error, "__notes__", [])


def _without_device() -> str | None:
    """The variables that keep JAX from its device; None where it has one."""
    set_here = [f"{name}={os.environ[name]}" for name in OF_DEVICES if os.environ.get(name)]
    if not set_here or "jax" not in sys.modules:
        return None
    import jax

    with suppress(AssertionError, RuntimeError, ValueError):
        jax.device_put(0)
        return None
    return ", ".join(set_here)
