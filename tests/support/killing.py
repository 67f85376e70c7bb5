"""A process that starts runs and ends each at a chosen moment, by SIGKILL or SIGTERM.

The moment is a call of a function, or some milliseconds after the start. The process imports evalkit once and forks for
every run, before JAX has threads: starting a process costs four seconds, and a campaign needs a hundred.
`python -m support.killing` reads an `Attempt` from each line, as JSON, and answers with its exit code.
"""

import functools
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from support import tiny


@dataclass(frozen=True)
class Attempt:
    """A command and its end: at the `nth` call of `function` (a dotted name), or `milliseconds` after it began.

    With both, it ends `milliseconds` after that call began, from another thread. With neither, it ends by itself. With
    `half` the function is `RowLog._append`, and half of its line is on the disk by then.
    """

    words: Sequence[str]
    function: str | None = None
    nth: int = 1
    milliseconds: float | None = None
    number: int = signal.SIGKILL
    half: bool = False


class Driver:
    """The process that starts the runs; what they print is appended to `log`."""

    def __init__(self, log: Path):
        command = [sys.executable, "-m", "support.killing", str(log)]
        environment = tiny.environment()
        environment["PYTHONPATH"] = f"{tiny.ROOT / 'tests'}:{tiny.ROOT}"
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def __call__(self, attempt: Attempt) -> int:
        """Starts a run, waits for its end and returns its exit code, negative after a signal."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(asdict(attempt)) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(60)


def serve(log: Path) -> None:
    """Forks for every attempt that is read."""
    for name in ("evalkit.session.run", "evalkit.session.experiments", "evalkit.checkpoints.loading", "wandb"):
        importlib.import_module(name)  # which each run would import
    from support import sharing

    with sharing.blank_figures():
        for line in sys.stdin:
            attempt = Attempt(**json.loads(line))
            child = os.fork()
            if child == 0:
                _run(attempt, log)
            print(_ended(child, attempt), flush=True)


def _ended(child: int, attempt: Attempt) -> int:
    """The exit code of a run, which this function ends if the attempt gives `milliseconds` alone."""
    if attempt.function is None and attempt.milliseconds is not None:
        last = time.monotonic() + attempt.milliseconds / 1000
        while time.monotonic() < last:
            found, status = os.waitpid(child, os.WNOHANG)
            if found:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.01)
        os.kill(child, attempt.number)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _run(attempt: Attempt, log: Path) -> None:
    """The run's own process, from which nothing returns."""
    with log.open("ab", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    print(f"--- {attempt}", flush=True)
    code = 70  # of what should not be
    try:
        if attempt.function is not None:
            _plant(attempt, attempt.function)
        from evalkit.__main__ import main

        code = main(list(attempt.words))
        sys.stdout.flush()
    finally:
        os._exit(code)


def _plant(attempt: Attempt, function: str) -> None:
    """Has the process end itself at a call of `function`."""
    owner, name = _owner(function)
    original: Callable[..., Any] = getattr(owner, name)
    calls = 0

    @functools.wraps(original)
    def ending(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == attempt.nth:
            if attempt.half:
                log, text = arguments
                log._file.write(text.encode()[: len(text) // 2])
            if attempt.milliseconds is None:
                os.kill(os.getpid(), attempt.number)
            else:
                threading.Timer(attempt.milliseconds / 1000, os.kill, (os.getpid(), attempt.number)).start()
        return original(*arguments, **named)

    setattr(owner, name, ending)


def _owner(function: str) -> tuple[Any, str]:
    """The module or class that a dotted name's function is of, and the function's own name."""
    path, _, name = function.rpartition(".")
    try:
        return importlib.import_module(path), name
    except ModuleNotFoundError:
        module, _, owner = path.rpartition(".")
        return getattr(importlib.import_module(module), owner), name


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
