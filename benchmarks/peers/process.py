"""A peer's process, from both ends, with the standard library alone: it is imported in every environment.

`compare.py` starts a `Process`; the script that this runs, `run_<name>.py`, is `called` there and does `serve`.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

HERE = Path(__file__).parent


class Process:
    """One implementation, compiled and waiting: `run_<name>.py <what>`, in the virtual environment `folder/<name>`."""

    def __init__(self, name: str, what: str, folder: Path, case: dict):
        python = sys.executable if name == "ours" else str(folder / name / "bin" / "python")
        if not Path(python).exists():
            raise SystemExit(f"{python} does not exist; run: python benchmarks/peers/compare.py setup {folder}")
        # transformers takes any module `kernels` that it finds for one of its own, so a peer does not see our folders.
        seen = {key: value for key, value in os.environ.items() if name == "ours" or key != "PYTHONPATH"}
        self.process = subprocess.Popen(
            [python, str(HERE / f"run_{name}.py"), what, json.dumps(case)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=seen,
            text=True,
        )
        self.facts = self._read()

    def times(self, count: int) -> float:
        """Milliseconds of one of `count` steps or calls in a row."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        return self._read()["ms"]

    def stop(self) -> None:
        """Ends the process."""
        self.process.kill()
        self.process.wait()

    def _read(self) -> dict:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise SystemExit(f"{self.process.args} ended with code {self.process.wait()}")


def called(timed: Mapping[str, Callable[[dict], None]], other: Mapping[str, Callable[[Path], None]]) -> None:
    """Does what the command line names: what is timed with a case as JSON, anything else with a folder."""
    known = [*timed, *other]
    if len(sys.argv) != 3 or sys.argv[1] not in known:
        sys.exit(f"usage: {Path(sys.argv[0]).name} {'|'.join(known)} CASE or FOLDER")
    what, given = sys.argv[1:]
    if what in timed:
        timed[what](json.loads(given))
    else:
        other[what](Path(given))


def serve(take: Callable[[int], None], parameters: int, answer: Callable[[], dict] = dict) -> None:
    """One step to compile, then for each line of stdin, a number of steps to take, a line with milliseconds a step.

    So only one process runs at a time. `answer` is asked after the first step; what it gives is said with the number
    of parameters.
    """
    began = time.perf_counter()
    take(1)
    _say({"parameters": parameters, "first_step_s": time.perf_counter() - began, **answer()})
    for line in sys.stdin:
        steps = int(line)
        began = time.perf_counter()
        take(steps)
        _say({"ms": (time.perf_counter() - began) / steps * 1e3})


def _say(facts: dict) -> None:
    """One line of JSON."""
    print(json.dumps(facts), flush=True)
