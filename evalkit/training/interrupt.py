"""SIGINT and SIGTERM become a flag that the loop reads between dispatches, so that it can save first."""

import signal
import threading
from types import FrameType
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(Exception):
    """The user or the scheduler asked to stop."""

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


class Watch:
    """While open, the first signal is noted; a second one of the same kind acts as it did before.

    In another thread than the main one, which alone may ask for signals, none is noted.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in SIGNALS if threading.current_thread() is threading.main_thread() else ():
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def check(self) -> None:
        """Raises Interrupted if a signal has come."""
        if self.received is not None:
            raise Interrupted(self.received)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.received = number
        signal.signal(number, self._before[number])
