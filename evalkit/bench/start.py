"""`bench start`: from the command to the first training step, and what is compiled until then."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from evalkit.bench import programs
from evalkit.bench.programs import Program
from evalkit.bench.stopwatch import quartiles
from evalkit.core.errors import UserError


def measure(overrides: Sequence[str], repeats: int) -> dict[str, Any]:
    """Seconds from starting the command to the line that reports its first step, of fresh processes.

    The processes are started in pairs, `repeats` times: the first has an empty compilation cache, and the second has
    the cache that the first one filled. The programs listed are those of the first process of the last pair.
    """
    firsts, seconds_again, compiled = list[float](), list[float](), list[Program]()
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            seconds, compiled = _first_step(overrides, f"{folder}/cache")
            firsts.append(seconds)
            seconds_again.append(_first_step(overrides, f"{folder}/cache")[0])
    first, again = quartiles(firsts), quartiles(seconds_again)
    return {
        "command_to_first_step_s": first.median,
        "quartiles_s": [first.low, first.high],
        "with_filled_cache_s": again.median,
        "with_filled_cache_quartiles_s": [again.low, again.high],
        **programs.totals(compiled),
        "rows": programs.table(compiled),
    }


def _first_step(overrides: Sequence[str], cache: str) -> tuple[float, list[Program]]:
    with tempfile.TemporaryDirectory() as folder:
        every_step = [f"train.{name}_every=1" for name in ("log", "eval", "checkpoint")]
        own = ["wandb.mode=disabled", "quiet=false", f"hydra.run.dir={folder}/run", f"compilation_cache={cache}"]
        command = [sys.executable, "-m", programs.__name__, *overrides, *every_step, *own]
        began = time.perf_counter()
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            assert process.stdout is not None
            line, compiled = "", list[Program]()
            for line in process.stdout:
                if program := programs.read(line):
                    compiled.append(program)
                elif line.startswith("training: step 1/"):
                    seconds = time.perf_counter() - began
                    process.kill()
                    return seconds, compiled
        raise UserError(f"the command ended before its first step: {line.strip()}")
