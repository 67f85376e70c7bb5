"""A long run in a process of its own, looked at whenever it writes a checkpoint.

`python -m support.soaking FOLDER OUT key=value …` writes what was seen into OUT, as JSON: a `Look` for each checkpoint.
"""

import gc
import json
import os
import resource
import sys
from pathlib import Path
from typing import Any, NamedTuple


class Look(NamedTuple):
    """What the process holds and has spent when a checkpoint was written."""

    step: int
    kilobytes: int
    handles: int
    threads: int
    cpu: float


def look(step: int) -> Look:
    gc.collect()  # objects in a reference cycle are no leak
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    used = resource.getrusage(resource.RUSAGE_SELF)
    return Look(
        step,
        int(status["VmRSS"].split()[0]),
        len(os.listdir("/proc/self/fd")),
        int(status["Threads"]),
        used.ru_utime + used.ru_stime,
    )


def main(folder: str, out: str, *words: str) -> int:
    """Trains, looks, and returns the run's exit code."""
    from evalkit.__main__ import main as evalkit
    from evalkit.training.checkpoints import Checkpoints

    looks: list[Look] = []
    save = Checkpoints.save

    def saved(self: Checkpoints, state: Any, step: int, meta: dict[str, Any]) -> None:
        save(self, state, step, meta)
        looks.append(look(step))

    Checkpoints.save = saved
    code = evalkit([*words, f"hydra.run.dir={folder}"])
    Path(out).write_text(json.dumps(looks))
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
