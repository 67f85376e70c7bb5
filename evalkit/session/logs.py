"""What is logged: warnings to the console, each once, and everything to a run's `evalkit.log`."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.logging import RichHandler

from evalkit.core.credentials import masked


class _Once(logging.Filter):
    """Lets each message pass once."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        new = record.getMessage() not in self._seen
        self._seen.add(record.getMessage())
        return new


class _Masked(logging.Formatter):
    """Leaves keys and tokens out, of tracebacks too."""

    def format(self, record: logging.LogRecord) -> str:
        return masked(super().format(record))


@contextmanager
def shown(console: Console) -> Iterator[None]:
    """Shows each warning once, until the block ends; within another such block, that one goes on."""
    logger = logging.getLogger("evalkit")
    if any(isinstance(handler, RichHandler) for handler in logger.handlers):
        yield
        return
    # Orbax logs a traceback of what it also raises.
    logging.getLogger("absl").setLevel(logging.CRITICAL)
    handler = RichHandler(logging.WARNING, console, show_path=False, show_time=False)
    handler.addFilter(_Once())
    logger.addHandler(handler)
    # A library that gives the root logger a handler would have each warning printed twice.
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = True


@contextmanager
def kept(file: Path) -> Iterator[None]:
    """Appends to `file` what is logged in the block."""
    # A full disk is told once, by what could not be written; the log itself must not add its own tracebacks.
    logging.raiseExceptions = False
    logger = logging.getLogger("evalkit")
    logger.setLevel(logging.INFO)
    handler = logging.FileHandler(file, encoding="utf-8")
    handler.setFormatter(_Masked("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.close()
