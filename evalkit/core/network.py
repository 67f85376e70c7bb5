"""Asks a server whether it is there, before anything waits for it."""

import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

Answer = TypeVar("Answer")


def within(seconds: float, ask: Callable[[], Answer]) -> Answer:
    """Returns `ask()`, or raises what it raises; raises TimeoutError if it takes longer than `seconds`.

    >>> within(1.0, lambda: 2)
    2
    """
    answer: Future[Answer] = Future()

    def run() -> None:
        try:
            answer.set_result(ask())
        except Exception as error:
            answer.set_exception(error)

    # A thread, because a name look-up has no time-out of its own. It is a daemon, so that no process waits for it at
    # its end; the threads of an executor are joined there.
    threading.Thread(target=run, daemon=True).start()
    return answer.result(seconds)


def answers(url: str, seconds: float) -> bool:
    """Returns whether any HTTP server answers at `url` within `seconds`, name look-up included."""

    def ask() -> None:
        try:
            urllib.request.urlopen(url, timeout=seconds).close()
        except urllib.error.HTTPError as refusal:  # a server that refuses is a server
            refusal.close()

    try:
        within(seconds, ask)
    except Exception:
        return False
    return True
