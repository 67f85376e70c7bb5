"""A sweep as jobs of Slurm, by submitit: a stand-in for Slurm runs on this machine what it is given."""

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from evalkit.core.rows import read
from support import slurm, tiny

pytest.importorskip("hydra_plugins.hydra_submitit_launcher", reason="needs hydra-submitit-launcher")

SWEEP = (
    "-m",
    "hydra/launcher=submitit_slurm",
    "hydra.launcher.partition=gpu",
    "hydra.launcher.gpus_per_node=1",
    "hydra.launcher.timeout_min=240",
    "hydra.launcher.max_num_timeout=3",
    "hydra.launcher.array_parallelism=2",
)
STEPS = 400
LONG = (f"train.steps={STEPS}", f"train.checkpoint_every={STEPS}", "train.eval_every=20", "model.pattern=[recurrent]")


@pytest.fixture(scope="module")
def preempted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a sweep over two seeds, of which the first is preempted, and what its command printed."""
    folder = tmp_path_factory.mktemp("cluster")
    environment = slurm.installed(folder / "slurm")
    words = [text for text in tiny.OVERRIDES if "attention" not in text and not text.startswith("model.pattern")]
    command = tiny.command(*SWEEP, *words, *LONG, "seed=0,1", "hydra.sweep.dir=sweep")
    with subprocess.Popen(
        command, env=environment, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as sweep:
        while sweep.poll() is None:
            logs = list(folder.glob("sweep/*/*/*_0/metrics.jsonl"))
            if logs and tiny.last_step(read(logs[0].parent).rows) >= 2:
                os.kill(int((folder / "slurm" / "process").read_text()), signal.SIGUSR2)
                break
            time.sleep(0.05)
        printed, _ = sweep.communicate(timeout=500)
    assert sweep.returncode == 0, printed
    return folder, printed


@pytest.mark.slow
def test_a_sweep_is_an_array_of_jobs(preempted: tuple[Path, str]) -> None:
    folder, printed = preempted
    script = (folder / "slurm" / "script.sh").read_text()
    asked = re.findall("#SBATCH --(.+)", script)
    wanted = {"array=0-1%2", "partition=gpu", "gpus-per-node=1", "time=240", "nodes=1", "signal=USR2@120"}
    assert wanted <= set(asked)
    assert "2 runs of this sweep, in sweep/induction_heads/griffin" in printed
    assert sorted(path.name[-2:] for path in folder.glob("sweep/*/*/*")) == ["_0", "_1"]
    (page,) = folder.glob("runs/compare/*/compare.html")
    assert page.is_file()


@pytest.mark.slow
def test_a_job_that_is_preempted_saves_is_requeued_and_goes_on(preempted: tuple[Path, str]) -> None:
    folder, _ = preempted
    assert (folder / "slurm" / "scontrol").read_text() == "requeue 100_0\n"
    assert (folder / "slurm" / "started").read_text().split() == ["0", "0", "1"]
    (run,) = folder.glob("sweep/*/*/*_0")
    (other,) = folder.glob("sweep/*/*/*_1")
    words = re.findall(r'"step": (\d+)', (run / "history.json").read_text())
    assert words[0] == "0" and 0 < int(words[1]) < STEPS, "it began anew"
    assert "python -m evalkit -m hydra/launcher=submitit_slurm" in (run / "history.json").read_text()
    steps = [entry["step"] for entry in read(run).rows if entry["metric"] == "loss"]
    assert steps == [entry["step"] for entry in read(other).rows if entry["metric"] == "loss"]
