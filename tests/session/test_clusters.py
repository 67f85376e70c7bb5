"""Jobs of Slurm: a stand-in for it runs, on this machine, the script of `docs/clusters.md` and what submitit writes."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from evalkit.core.rows import read
from evalkit.record import history
from support import tiny

pytestmark = pytest.mark.slow
needs_submitit = pytest.mark.skipif(find_spec("submitit") is None, reason="needs hydra-submitit-launcher")
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
WORDS = (
    *(text for text in tiny.OVERRIDES if "attention" not in text),
    "model.pattern=[recurrent]",
    f"train.steps={STEPS}",
    f"train.checkpoint_every={STEPS}",
    "train.eval_every=20",
)

COMMANDS = {
    # The shell script and its array; `$SLURM_FOLDER` keeps the script, the process of each task, and what is requeued.
    "sbatch": """
cp "$1" "$SLURM_FOLDER/script.sh"
last=$(sed -n 's/^#SBATCH --array=0-\\([0-9]*\\)%.*/\\1/p' "$1")
export SLURM_JOB_ID=100 SLURM_NTASKS=1 SLURM_JOB_NUM_NODES=1 SLURM_NODEID=0 SLURM_PROCID=0 SLURM_LOCALID=0
(
    for task in $(seq 0 "${last:-0}"); do
        if [ -n "$last" ]; then export SLURM_ARRAY_JOB_ID=100 SLURM_ARRAY_TASK_ID=$task; fi
        echo "$task" >> "$SLURM_FOLDER/started"
        bash "$SLURM_FOLDER/script.sh"
        while [ -e "$SLURM_FOLDER/requeue" ]; do
            rm "$SLURM_FOLDER/requeue"
            echo "$task" >> "$SLURM_FOLDER/started"
            bash "$SLURM_FOLDER/script.sh"
        done
    done
    touch "$SLURM_FOLDER/ended"
) > "$SLURM_FOLDER/output" 2>&1 &
echo "Submitted batch job 100"
""",
    "srun": """
while [ "${1#--}" != "$1" ]; do
    case "$1" in
        --output) out=$2; shift 2;;
        --error) err=$2; shift 2;;
        *) shift;;
    esac
done
name() { echo "${1:-/dev/stdout}" | sed "s/%A/100/g; s/%a/$SLURM_ARRAY_TASK_ID/g; s/%j/100/g; s/%t/0/g"; }
echo $$ > "$SLURM_FOLDER/process"
exec "$@" >> "$(name "$out")" 2>> "$(name "$err")"
""",
    "scontrol": 'echo "$@" >> "$SLURM_FOLDER/scontrol"\ntouch "$SLURM_FOLDER/requeue"\n',
    "sacct": 'echo "JobID|State|NodeList"\n',
}
"""Stand-ins for Slurm's: jobs of an array run here one after the other, a requeued one again."""


def slurm_in(folder: Path) -> dict[str, str]:
    """Writes the commands into `folder/bin`, and returns the environment that finds them."""
    (folder / "bin").mkdir(parents=True)
    for name, script in COMMANDS.items():
        command = folder / "bin" / name
        command.write_text(f"#!/bin/bash\n{script}")
        command.chmod(0o755)
    environment = tiny.environment()
    return environment | {"SLURM_FOLDER": str(folder), "PATH": f"{folder / 'bin'}:{environment['PATH']}"}


def until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + tiny.HANGS
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def warn(cluster: Path, log: str, number: int, trains: Callable[[Path], bool] | None = None) -> None:
    """Sends a signal to the job that works, as soon as the run that has this log trains."""
    trains = trains or (lambda path: tiny.last_step(read(path.parent).rows) >= 2)

    def begun() -> bool:
        assert not (cluster / "slurm" / "ended").exists(), (cluster / "slurm" / "output").read_text()
        return any(trains(path) for path in cluster.glob(log))

    until(begun)
    os.kill(int((cluster / "slurm" / "process").read_text()), number)


def assert_went_on(cluster: Path, run: Path, job: str) -> None:
    """The job was requeued once, began at the step at which it was stopped, and left every row once."""
    assert (cluster / "slurm" / "scontrol").read_text() == f"requeue {job}\n"
    first, second = [work.step or 0 for work in history.read(run)]
    assert first == 0 < second < STEPS
    trained = [entry["step"] for entry in read(run).rows if entry["split"] == "train" and entry["metric"] == "loss"]
    assert trained == list(range(2, STEPS + 1, 2)) and (run / "report.html").is_file()


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Where a sweep over two seeds ran, of which the first was preempted, and what its command printed."""
    cluster = tmp_path_factory.mktemp("cluster")
    command = tiny.command(*SWEEP, *WORDS, "seed=0,1", "hydra.sweep.dir=sweep")
    environment, out = slurm_in(cluster / "slurm"), subprocess.PIPE
    with subprocess.Popen(command, env=environment, cwd=cluster, stdout=out, stderr=out, text=True) as sweep:
        warn(cluster, "sweep/*/*/*_0/metrics.jsonl", signal.SIGUSR2)
        printed, errors = sweep.communicate(timeout=tiny.HANGS)
    assert sweep.returncode == 0, errors
    return cluster, printed


@needs_submitit
def test_a_sweep_is_an_array_of_jobs(swept: tuple[Path, str]) -> None:
    cluster, printed = swept
    asked = re.findall("#SBATCH --(.+)", (cluster / "slurm" / "script.sh").read_text())
    assert {"array=0-1%2", "partition=gpu", "gpus-per-node=1", "time=240", "nodes=1", "signal=USR2@120"} <= set(asked)
    assert "2 runs of this sweep, in sweep/induction_heads/griffin" in printed
    assert sorted(path.name[-2:] for path in cluster.glob("sweep/induction_heads/griffin/*")) == ["_0", "_1"]
    assert len(list(cluster.glob("runs/compare/*/compare.html"))) == 1


@needs_submitit
def test_a_job_that_is_preempted_goes_on_in_its_folder(swept: tuple[Path, str]) -> None:
    cluster, _ = swept
    (run,) = cluster.glob("sweep/induction_heads/griffin/*_0")
    assert_went_on(cluster, run, "100_0")
    assert (cluster / "slurm" / "started").read_text().split() == ["0", "0", "1"]
    assert {work.command.split(" task=")[0] for work in history.read(run)} == {
        "python -m evalkit -m hydra/launcher=submitit_slurm " + " ".join(SWEEP[2:])
    }


def submit(folder: Path, own: dict[str, str]) -> None:
    """Gives Slurm the page's script, with what is our own in place of what is the page's."""
    page = (tiny.ROOT / "docs" / "clusters.md").read_text(encoding="utf-8")
    script, _ = re.findall(r"```bash\n(.*?)```", page, re.S)
    assert "#SBATCH --signal=USR1@" in script
    for theirs, mine in own.items():
        assert theirs in script
        script = script.replace(theirs, mine)
    (folder / "job.sh").write_text(script)
    subprocess.run(["sbatch", "job.sh"], env=slurm_in(folder / "slurm"), cwd=folder, check=True)


STANDS_IN = """
import signal, sys
from pathlib import Path

if sys.argv[1] == "resume":
    (Path(sys.argv[2]) / "went-on").touch()
    sys.exit()
folder = Path(sys.argv[-1].removeprefix("hydra.run.dir="))
folder.mkdir(parents=True)
(folder / "config.yaml").touch()
signal.signal(signal.SIGUSR1, lambda number, _: sys.exit(128 + number))
(folder / "trains").touch()
signal.pause()
"""
"""In place of a run that is stopped and goes on; that it exits so, tests/parallel/test_parallel.py holds."""


def test_the_script_of_the_page_requeues_what_is_out_of_time(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "selective_copying" / "griffin" / "100"
    (tmp_path / "run.py").write_text(STANDS_IN)
    submit(tmp_path, {"srun python -m evalkit": f"srun {sys.executable} run.py"})
    warn(tmp_path, "runs/*/*/100/trains", signal.SIGUSR1, Path.exists)
    until((tmp_path / "slurm" / "ended").exists)
    assert (run / "went-on").exists(), (tmp_path / "slurm" / "output").read_text()
    assert (tmp_path / "slurm" / "scontrol").read_text() == "requeue 100\n"
    assert (tmp_path / "slurm" / "started").read_text().split() == ["0", "0"]


@pytest.mark.exhaustive
def test_the_script_of_the_page_requeues_a_run_that_is_out_of_time(tmp_path: Path) -> None:
    words = {"task=selective_copying model=griffin": shlex.join(WORDS), "srun python": f"srun {sys.executable}"}
    submit(tmp_path, words)
    warn(tmp_path, "runs/*/*/100/metrics.jsonl", signal.SIGUSR1)
    until((tmp_path / "slurm" / "ended").exists)
    assert_went_on(tmp_path, tmp_path / "runs" / "selective_copying" / "griffin" / "100", "100")
