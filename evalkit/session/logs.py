"""What is logged: warnings to the console, each once, and everything to a run's `evalkit.log`.

Runs in several threads log at once, each what its own thread says.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from threading import Lock

from rich.console import Console
from rich.logging import RichHandler

from evalkit.core.credentials import masked

_OWN: ContextVar[object] = ContextVar("the block of `shown` in which a record is logged", default=None)
_CHANGING = Lock()


class _Masked(logging.Formatter):
    """Leaves keys and tokens out, of tracebacks too."""

    def format(self, record: logging.LogRecord) -> str:
        return masked(super().format(record))


class _File(logging.FileHandler):
    """Ignores a full disk, which is reported once, by the code whose file could not be written."""

    def handleError(self, record: logging.LogRecord) -> None:
        pass


@contextmanager
def shown(console: Console) -> Iterator[None]:
    """Shows each warning once, until the block ends; within another such block, that one goes on."""
    if _OWN.get() is not None:
        yield
        return
    block, shown_already = object(), set[str]()

    def is_new(record: logging.LogRecord) -> bool:
        new = record.getMessage() not in shown_already
        shown_already.add(record.getMessage())
        return new

    handler = RichHandler(logging.WARNING, console, show_path=False, show_time=False)
    handler.addFilter(is_new)
    # Orbax logs a traceback of what it also raises.
    absl, grave = logging.getLogger("absl"), lambda record: record.levelno >= logging.CRITICAL
    absl.addFilter(grave)
    of_block = _OWN.set(block)
    try:
        with _added(handler, block):
            yield
    finally:
        absl.removeFilter(grave)
        _OWN.reset(of_block)


@contextmanager
def kept(file: Path) -> Iterator[None]:
    """Appends to `file` what is logged in the block of `shown` around this one."""
    handler = _File(file, encoding="utf-8")
    handler.setFormatter(_Masked("%(asctime)s %(levelname)s %(name)s %(message)s"))
    try:
        with _added(handler, _OWN.get()):
            yield
    finally:
        handler.close()


@contextmanager
def _added(handler: logging.Handler, block: object) -> Iterator[None]:
    """Gives the handler what is logged in this block, and what threads of libraries log, which belong to no block.

    The logger's own settings are restored when its last handler of ours is removed.
    """
    logger = logging.getLogger("evalkit")
    handler.addFilter(lambda record: _OWN.get() in (None, block))
    with _CHANGING:
        logger.addHandler(handler)
        # A library that gives the root logger a handler would have each warning printed twice.
        logger.propagate = False
        logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        with _CHANGING:
            logger.removeHandler(handler)
            if not any(isinstance(other, RichHandler | _File) for other in logger.handlers):
                logger.propagate = True
                logger.setLevel(logging.NOTSET)
