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
        one_step = [
            "train.log_every=1",
            "train.eval_every=1",
            "train.checkpoint_every=1",
            "wandb.mode=disabled",
            "quiet=false",
        ]
        command = [sys.executable, "-m", "evalkit", *overrides, *one_step, f"hydra.run.dir={folder}/run"]
        began = time.perf_counter()
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            assert process.stdout is not None
            said = []
            for line in process.stdout:
                said.append(line)
                if line.startswith("training: step 1/"):
                    seconds = time.perf_counter() - began
                    process.kill()
                    return seconds
        raise UserError(f"the command ended before its first step: {''.join(said[-1:]).strip()}")
