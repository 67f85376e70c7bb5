"""A run that is as small as can be: its overrides, and how the tests start it, here and in a process of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from evalkit.checkpoints import loading
from evalkit.configuration.experiment import Experiment
from evalkit.configuration.request import Request
from evalkit.configuration.saved import EVALUABLE, RESUMABLE
from evalkit.configuration.spec import Spec
from evalkit.core.rows import Row, read
from evalkit.session import run

ROOT = Path(__file__).parents[2]
HANGS = 900
"""Seconds after which a process hangs, on any machine; no test says by a clock how fast something is."""
TASK = ("task=induction_heads", "task.length=32")
MODEL = (
    "model=griffin",
    "model.width=16",
    "model.mlp_expansion=1",
    "model.pattern=[recurrent]",  # every mixer more is half as much again to compile
    "model.mixers.recurrent.width_rnn=16",
    "model.mixers.recurrent.gate_blocks=4",
    "model.mixers.attention.head_dim=4",
    "model.mixers.attention.window=8",
)
# For what is about several blocks, or about attention beside a recurrence.
TWO_BLOCKS = "model.pattern=[recurrent,attention]"
TRAIN = (
    "train.steps=6",
    "train.batch_size=4",
    "train.warmup_steps=1",
    "train.log_every=2",
    "train.eval_every=2",
    "train.checkpoint_every=2",
    "train.validation_sequences=4",
    # The recipe's own would be two programs more to compile in each run.
    "train.state_passing=null",
    "train.average=null",
    "train.schedule=cosine",
)
# As many rows as validation takes at a time: the training length is evaluated by the same program.
EVAL = ("eval.lengths=[16,32]", "eval.sequences=4", "eval.batch_size=8", "eval.during=[]")
OVERRIDES = (*TASK, *MODEL, *TRAIN, *EVAL, "wandb.mode=disabled")


def experiment(*overrides: str) -> Experiment:
    """The tiny run with `overrides` on top."""
    return Spec.of([*OVERRIDES, *overrides]).experiment


def trained(folder: Path, *overrides: str) -> Path:
    """The tiny run, done in `folder` in this process."""
    assert start(folder, *overrides) == 0
    return folder


def start(folder: Path, *overrides: str, of: Sequence[str] = OVERRIDES) -> int:
    """Starts a run in `folder`, by the tiny run's words or other ones, and returns its exit code."""
    return run.start(Spec.of([*of, *overrides], folder=folder)).exit_code


def resume(folder: Path, changes: Sequence[str] = ()) -> int:
    """Resumes the run in `folder` and returns its exit code."""
    return run.resume(Spec.saved(folder, changes, allowed=RESUMABLE)).exit_code


def evaluate(folder: Path, changes: Sequence[str] = (), target: Path | None = None) -> int:
    """Evaluates the run in `folder` once more and returns the exit code; `step=` may be among the changes."""
    request = Request.of([f"evaluate={folder}", *changes])
    return run.evaluate(Spec.saved(folder, request.settings, allowed=EVALUABLE), request.step, target).exit_code


def environment() -> dict[str, str]:
    """The environment of a new process: the code, and from `conftest.py` the CPU and the compiled programs.

    The process does not get the single device of `conftest.py`: like a user's process, it has one for every core.
    """
    flags = [flag for flag in os.environ["XLA_FLAGS"].split() if "device_count" not in flag]
    return {**os.environ, "PYTHONPATH": str(ROOT), "XLA_FLAGS": " ".join(flags)}


def told_by(program: str, *words: str) -> Any:
    """Runs a program in a process of its own, with these words, and returns the JSON in its last line."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, *words],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment(),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def command(*arguments: str) -> list[str]:
    """The command line of evalkit."""
    return [sys.executable, "-m", "evalkit", *arguments]


def new(folder: Path, *overrides: str) -> list[str]:
    """The command line that starts the tiny run in `folder`."""
    return command(*OVERRIDES, *overrides, f"hydra.run.dir={folder}")


def finished(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """The process, when it has ended."""
    return subprocess.run(arguments, env=environment(), capture_output=True, text=True, timeout=HANGS, check=False)


def rows(folder: Path) -> list[dict[str, Any]]:
    """A run's rows without the name of its folder."""
    return [{name: value for name, value in entry.items() if name != "run"} for entry in read(folder).rows]


def last_step(entries: Sequence[Row]) -> int:
    """The last step that training has rows of."""
    return max((entry["step"] or 0 for entry in entries if entry["split"] == "train"), default=0)


def state(folder: Path) -> Any:
    """Everything in a run's newest checkpoint."""
    return loading.restore(Spec.saved(folder).experiment, folder)[0]


def assert_identical(one: Any, other: Any) -> None:
    """Two pytrees of arrays, bit for bit."""
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for mine, theirs in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert mine.dtype == theirs.dtype
        np.testing.assert_array_equal(np.asarray(mine), np.asarray(theirs))


def files(folder: Path) -> dict[str, bytes]:
    """The contents of every file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def results(folder: Path) -> Any:
    """A run's `results.json`."""
    return json.loads((folder / "results.json").read_text())
