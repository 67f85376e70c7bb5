"""What a process compiles: the name of each of XLA's programs and its seconds, by JAX's own events.

`python -m evalkit.bench.programs …` is the command `python -m evalkit …` with a line for each program on stdout.
"""

import runpy
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from evalkit.numerics import fix_process

COMPILED = "/jax/core/compile/backend_compile_duration"
"""The event that JAX records for each program, also for one from its compilation cache."""
SLOW_S = 0.5
PREFIX = "compiled: "


class Program(NamedTuple):
    """A program: the name of the function that it was compiled from, and the seconds until it was there."""

    name: str
    seconds: float


@contextmanager
def programs() -> Iterator[list[Program]]:
    """Collects what any thread of this process compiles until the block ends."""
    compiled: list[Program] = []
    with _noting(compiled.append):
        yield compiled


def table(compiled: Iterable[Program]) -> list[dict[str, Any]]:
    """A row for each name: how often it was compiled, and the seconds of all; the longest first."""
    rows: dict[str, dict[str, Any]] = {}
    for name, seconds in compiled:
        row = rows.setdefault(name, {"program": name, "times": 0, "seconds": 0.0})
        row["times"] += 1
        row["seconds"] += seconds
    return sorted(rows.values(), key=lambda row: -row["seconds"])


def totals(compiled: Iterable[Program]) -> dict[str, Any]:
    """How many programs, and their seconds; of all, and of those that took more than half a second."""
    every = [program.seconds for program in compiled]
    slow = [seconds for seconds in every if seconds > SLOW_S]
    return {"programs": len(every), "programs_s": sum(every), "slow_programs": len(slow), "slow_programs_s": sum(slow)}


def read(line: str) -> Program | None:
    """The program that a line of `python -m evalkit.bench.programs` names; None for any other line."""
    if not line.startswith(PREFIX):
        return None
    seconds, _, name = line.removeprefix(PREFIX).strip().partition(" s ")
    return Program(name, float(seconds))


@contextmanager
def _noting(note: Callable[[Program], Any]) -> Iterator[None]:
    """Calls `note` with each program that is compiled within the block."""
    from jax import monitoring

    def listen(event: str, duration_secs: float, **facts: Any) -> None:
        if event == COMPILED:
            note(Program(facts["fun_name"].removeprefix("jit(").removesuffix(")"), duration_secs))

    monitoring.register_event_duration_secs_listener(listen)
    try:
        yield
    finally:
        monitoring.unregister_event_duration_listener(listen)


if __name__ == "__main__":
    fix_process()  # before JAX is imported
    with _noting(lambda program: print(f"{PREFIX}{program.seconds:.6f} s {program.name}", flush=True)):
        runpy.run_module("evalkit", run_name="__main__", alter_sys=True)
