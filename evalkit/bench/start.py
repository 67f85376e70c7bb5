"""`bench start`: from the command to the first training step, as a user waits for it."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from evalkit.bench.stopwatch import spread
from evalkit.core.errors import UserError


def measure(overrides: Sequence[str], repeats: int) -> dict[str, Any]:
    """Seconds from starting the command to the line that reports its first step, of `repeats` fresh processes."""
    start = spread([_first_step(overrides) for _ in range(repeats)])
    return {"command_to_first_step_s": start.median, "quartiles_s": [start.low, start.high]}


def _first_step(overrides: Sequence[str]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        every_step = [f"train.{name}_every=1" for name in ("log", "eval", "checkpoint")]
        words = [*overrides, *every_step, "wandb.mode=disabled", "quiet=false", f"hydra.run.dir={folder}/run"]
        command = [sys.executable, "-m", "evalkit", *words]
        began = time.perf_counter()
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            assert process.stdout is not None
            line = ""
            for line in process.stdout:
                if line.startswith("training: step 1/"):
                    seconds = time.perf_counter() - began
                    process.kill()
                    return seconds
        raise UserError(f"the command ended before its first step: {line.strip()}")
