"""A hundred thousand steps take no more memory, handles or time than ten thousand."""

import json
import math
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest

from support import faults, tiny
from support.soaking import Look

pytestmark = [pytest.mark.fault, pytest.mark.slow]
SETTINGS = (
    *tiny.OVERRIDES[:-1],
    "task.length=16",
    "model.pattern=[recurrent]",
    "model.width=8",
    "model.mixers.recurrent.width_rnn=8",
    "train.batch_size=1",
    "train.log_every=20",
    "eval.lengths=[16]",
    "eval.sequences=4",
    "eval.batch_size=1",
    "train.validation_sequences=1",
    "wandb.mode=offline",
)


# With fewer steps what is not yet settled weighs more: the programs of the first evaluation, Python's own pools.
# A look's time is a third of a second there, which whatever else the machine does can double: the long run judges it.
@pytest.mark.parametrize(
    ("steps", "count", "most", "slower"),
    [
        pytest.param(480, 12, 0.05, math.inf, marks=pytest.mark.exhaustive),
        pytest.param(100_000, 100, 0.02, 1.15, marks=faults.ALL_COUNTS),
    ],
)
def test_memory_handles_and_the_time_of_a_step_stay(
    tmp_path: Path, steps: int, count: int, most: float, slower: float
) -> None:
    """`count` looks, one at each checkpoint; `most` is how much memory may grow after the first tenth.

    A step may take `slower` times as long.
    """
    every = [f"train.{name}_every={steps // count}" for name in ("eval", "checkpoint")]
    out, words = tmp_path / "looks.json", [*SETTINGS, *every, f"train.steps={steps}"]
    command = [sys.executable, "-m", "support.soaking", str(tmp_path / "run"), str(out), *words]
    environment = {**tiny.environment(), "PYTHONPATH": f"{tiny.ROOT / 'tests'}:{tiny.ROOT}"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    looks = [Look(*one) for one in json.loads(out.read_text())]
    assert looks[-1].step == steps and len(looks) == count
    tenth = count // 10
    first, rest = looks[tenth - 1], looks[tenth:]
    grown = max(one.kilobytes for one in rest) / first.kilobytes - 1
    early, late = median(spent(looks[tenth - 1 : 3 * tenth])), median(spent(looks[-2 * tenth :]))
    print(f"\n{steps:,} steps: memory {first.kilobytes:,} kB {grown:+.2%}; handles {first.handles}, {rest[-1].handles}")
    print(f"threads {first.threads}, {rest[-1].threads}; CPU of {steps // count} steps {early:.3f} s, {late:.3f} s")
    assert grown <= most
    assert max(one.handles for one in rest) <= first.handles + 1
    # XLA and TensorStore begin some threads of their pools late; one a checkpoint would be a leak.
    assert max(one.threads for one in rest) <= first.threads + count // 4
    assert late <= slower * early
    assert tiny.last_step(tiny.read(tmp_path / "run").rows) == steps


def spent(looks: list[Look]) -> list[float]:
    """The CPU seconds between one look and the next."""
    return [later.cpu - earlier.cpu for earlier, later in pairwise(looks)]
