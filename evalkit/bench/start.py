"""`bench start`: from the command to the first training step, and what is compiled until then."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from evalkit.bench import programs
from evalkit.bench.programs import Program
from evalkit.bench.stopwatch import spread
from evalkit.core.errors import UserError


def measure(overrides: Sequence[str], repeats: int) -> dict[str, Any]:
    """Seconds from starting the command to the line that reports its first step, of `repeats` fresh processes.

    The programs are those of the last process.
    """
    starts = [_first_step(overrides) for _ in range(repeats)]
    start, compiled = spread([seconds for seconds, _ in starts]), starts[-1][1]
    result = {"command_to_first_step_s": start.median, "quartiles_s": [start.low, start.high]}
    return {**result, **programs.totals(compiled), "rows": programs.table(compiled)}


def _first_step(overrides: Sequence[str]) -> tuple[float, list[Program]]:
    with tempfile.TemporaryDirectory() as folder:
        every_step = [f"train.{name}_every=1" for name in ("log", "eval", "checkpoint")]
        words = [*overrides, *every_step, "wandb.mode=disabled", "quiet=false", f"hydra.run.dir={folder}/run"]
        command = [sys.executable, "-m", programs.__name__, *words]
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
