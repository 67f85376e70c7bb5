"""Signals to stop become a flag that the loop reads between dispatches, so that it can save first."""

import signal
import threading
from types import FrameType
from typing import Any, Self

from evalkit.parallel import peers

# Slurm's `--signal` and submitit warn a job by one of the last two before they end it; Windows has neither.
SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGUSR2") if hasattr(signal, name)]
STOPPED = [128 + number for number in SIGNALS]
"""The exit codes of what a signal stopped."""


class Interrupted(Exception):
    """The user or the scheduler asked to stop."""

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.number = number


class Watch:
    """While open in the main thread, the first signal is noted; a second one of a kind acts as it did before."""

    def __init__(self) -> None:
        self.received: list[int] = []
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in SIGNALS if threading.current_thread() is threading.main_thread() else ():
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def anywhere(self) -> bool:
        """Whether a signal has come to any process of the run; each then acts as if it had got it, at its `check`."""
        number = peers.largest(self.received[0] if self.received else 0)
        if number and not self.received:
            self.received.append(number)
        return bool(number)

    def check(self) -> None:
        """Acts on the signals that have come; call it when the state is saved.

        A handler that a scheduler's library had set gets its signal now. It may end the process, so that the job is
        requeued, or return, and the work goes on. Raises Interrupted for a signal without such a handler.
        """
        while self.received:
            number = self.received[0]
            handler = self._before.get(number)
            if not callable(handler) or handler is signal.default_int_handler:
                raise Interrupted(number)
            handler(number, None)
            self.received.remove(number)
            signal.signal(number, self._note)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.received.append(number)
        signal.signal(number, self._before[number])
