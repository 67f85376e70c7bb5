"""Several processes train one model as one process does; what ends one ends all, with one line and nothing lost."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

from evalkit.__main__ import main
from evalkit.core.errors import UserError
from evalkit.core.rows import value
from evalkit.parallel import last_words, peers
from evalkit.parallel.interrupt import Watch
from evalkit.parallel.layouts import connection
from support import faults, tiny

STEPS = ("train.schedule=constant", "train.batch_size=8", "train.checkpoint_every=10", "train.eval_every=10")
Process = subprocess.Popen[str]
DEVICES = 4
"""Of each process."""


def environment(devices: int, **more: str) -> dict[str, str]:
    return {**tiny.environment(), "JAX_NUM_CPU_DEVICES": str(devices), **more}


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def by_hand(port: int, index: int) -> tuple[str, dict[str, str]]:
    """The word that tells a process of the other, and the variables that it needs."""
    return f"distributed={{coordinator: 127.0.0.1:{port}, count: 2, index: {index}}}", {}


def by_slurm(port: int, index: int) -> tuple[str, dict[str, str]]:
    """As `by_hand`, where Slurm has started both; JAX makes the port of the job's number."""
    job = {"SLURM_JOB_ID": str(port % 2**12), "SLURM_STEP_NODELIST": "localhost", "SLURM_NTASKS": "2"}
    return "distributed=true", {**job, "SLURM_PROCID": str(index), "SLURM_LOCALID": str(index)}


@contextmanager
def two(
    *words: str, told: Callable[[int, int], tuple[str, dict[str, str]]] = by_hand, devices: int = DEVICES
) -> Iterator[list[Process]]:
    """Two processes on this machine, each with the same words, which find each other at a free port."""
    port, started = free_port(), []
    for index in range(2):
        word, variables = told(port, index)
        started.append(
            subprocess.Popen(
                tiny.command(*words, word),
                env=environment(devices, **variables),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    try:
        yield started
    finally:
        for process in started:
            with suppress(ProcessLookupError):
                process.kill()
            process.communicate()


def done(started: Sequence[Process]) -> list[tuple[int, str]]:
    """The exit code of each, and its stderr, when both have ended."""
    told = [process.communicate(timeout=tiny.HANGS)[1] for process in started]
    return [(process.returncode, text) for process, text in zip(started, told, strict=True)]


def until(path: Path, started: Sequence[Process]) -> None:
    """Waits for a file or folder that the processes make."""
    while not path.exists():
        assert all(process.poll() is None for process in started), [process.communicate() for process in started]
        time.sleep(0.05)


def words(folder: Path, steps: int, *more: str, task: Sequence[str] = (*tiny.TASK, *tiny.EVAL)) -> list[str]:
    fixed = (*task, *tiny.MODEL, *tiny.TRAIN, *STEPS, "wandb.mode=disabled")
    return [*fixed, f"train.steps={steps}", f"hydra.run.dir={folder}", *more]


def of_text(folder: Path) -> list[str]:
    """The settings of a run on a small text, in which some windows cross the end of a document and others do not."""
    folder.mkdir()
    for index, length in enumerate((60, 6000, 40)):
        text = " ".join(("the", "state", "of", "a", "gate")[(number * number + index) % 5] for number in range(length))
        (folder / f"train-{index}.txt").write_text(text)
    (folder / "heldout-0.txt").write_text("the state of a gate " * 400)
    measured = ("eval.length=64", "eval.contexts=[16,32]", "eval.passage=8", "eval.gaps=[16]", "eval.passages=2")
    return ["task=books", f"data.path={folder}", "task.length=32", *measured]


def alone(*arguments: str) -> None:
    """One process with as many devices as two have."""
    told = subprocess.run(
        tiny.command(*arguments), env=environment(2 * DEVICES), capture_output=True, text=True, check=False
    )
    assert told.returncode == 0, told.stderr


def here(*arguments: str) -> None:
    """This process, which has one device."""
    assert main(list(arguments)) == 0


def losses(folder: Path, split: str = "train") -> dict[tuple[int, int | None], float | None]:
    """The loss by step and length."""
    found = [entry for entry in tiny.read(folder).rows if entry["metric"] == "loss" and entry["split"] == split]
    return {(entry["step"], entry["length"]): value(entry) for entry in found}


@pytest.mark.slow
@pytest.mark.usefixtures("shared", "blank_figures")
@pytest.mark.parametrize("mesh", faults.counts("mesh=auto", "mesh={data: 4, model: 2}"))
def test_two_processes_train_as_one_does_and_each_goes_on_with_the_others_run(tmp_path: Path, mesh: str) -> None:
    """Slurm's variables tell those that go on of each other, and a signal to either saves and ends both."""
    one, both = tmp_path / "one", tmp_path / "both"
    automatic = mesh == "mesh=auto"
    task = (*tiny.TASK, *tiny.EVAL) if automatic else of_text(tmp_path / "texts")
    steps, more, by_one, devices = (10, 20, here, 2) if automatic else (20, 30, alone, DEVICES)
    by_one(*words(one, steps, mesh, task=task))
    with two(*words(both, steps, mesh, task=task), devices=devices) as started:
        assert [code for code, _ in done(started)] == [0, 0]
    for split in ("train", "validation", "test"):
        assert losses(both, split) == pytest.approx(losses(one, split), rel=1e-5), split
    assert {path.name for path in both.iterdir()} == {path.name for path in one.iterdir()}
    for begun in (one, both):
        shutil.copytree(begun, tmp_path / f"{begun.name} goes on")
    by_two, alone_again = tmp_path / "one goes on", tmp_path / "both goes on"
    with two(f"resume={by_two}", "train.steps=2000", told=by_slurm, devices=devices) as started:
        until(by_two / "checkpoints" / str(more), started)
        started[1].send_signal(signal.SIGTERM)
        assert [code for code, _ in done(started)] == [128 + signal.SIGTERM] * 2
    assert (by_two / "checkpoints" / str(tiny.last_step(tiny.read(by_two).rows))).is_dir()
    by_one(f"resume={alone_again}", f"train.steps={more}")
    found = {(step, length): loss for (step, length), loss in losses(by_two).items() if step <= more}
    assert found == pytest.approx(losses(alone_again), rel=1e-5)


@pytest.mark.slow
@pytest.mark.fault
@pytest.mark.exhaustive  # a signal to either process ends both above
@pytest.mark.parametrize("killed", faults.counts(1, 0))
def test_a_process_that_is_killed_ends_the_other_with_one_line(tmp_path: Path, killed: int) -> None:
    """Within a minute: a process that has not been heard for that long is taken for dead."""
    assert connection.HEARTBEAT_SECONDS < 60
    folder = tmp_path / "run"
    with two(*words(folder, 2000)) as started:
        until(folder / "checkpoints" / "10", started)
        started[killed].kill()
        code, told = done(started)[1 - killed]
    assert code != 0
    assert told.splitlines()[-1].startswith(last_words.LINE)  # what was met, in brackets, if an exception told it
    assert "Traceback" not in told
    kept = max(int(path.name) for path in (folder / "checkpoints").iterdir() if path.name.isdecimal())
    alone(f"resume={folder}", f"train.steps={kept + 10}")
    assert tiny.last_step(tiny.read(folder).rows) == kept + 10


@pytest.mark.slow
@pytest.mark.fault
@pytest.mark.exhaustive  # a signal ends two that go on with a run above
def test_a_signal_to_either_process_saves_and_ends_both(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with two(*words(folder, 2000), told=by_slurm) as started:
        until(folder / "checkpoints" / "10", started)
        started[1].send_signal(signal.SIGTERM)
        codes = [code for code, _ in done(started)]
    assert codes == [128 + signal.SIGTERM] * 2
    reached = tiny.last_step(tiny.read(folder).rows)
    assert (folder / "checkpoints" / str(reached)).is_dir()


@pytest.mark.slow
def test_what_only_the_first_may_refuse_ends_both(tmp_path: Path) -> None:
    used = tmp_path / "used"
    used.mkdir()
    (used / "metrics.jsonl").write_text('{"run": "another"}\n')
    with two(*words(used, 10)) as started:
        (code, told), (other, why) = done(started)
    assert code == 2 and other != 0
    assert told.splitlines()[-1].startswith(f"evalkit: process 0: {used} holds a run already")
    assert why.splitlines()[-1].startswith(last_words.LINE)


@pytest.mark.parametrize(
    "setting",
    [
        "yes",
        {},
        {"coordinator": "localhost:1", "count": 2},
        2,
        {"coordinator": "localhost", "count": 2, "index": 0},
        {"coordinator": ":1", "count": 2, "index": 0},
        {"coordinator": "localhost:65536", "count": 2, "index": 0},
        {"coordinator": "localhost:1", "count": 2, "index": 2},
        {"coordinator": "localhost:1", "count": 2, "index": -1},
        {"coordinator": "localhost:1", "count": "2", "index": 0},
    ],
)
def test_a_setting_that_names_no_processes_is_refused(setting: object) -> None:
    with pytest.raises(ValueError, match=r"distributed=.*; allowed: false, true, or .*index: 0}'"):
        connection.check(setting)


def test_nothing_begins_with_a_setting_that_names_no_processes() -> None:
    with pytest.raises(UserError, match="; allowed: false, true"), connection.connected("yes"):
        raise AssertionError("it was begun")


@pytest.mark.parametrize("words", [["distributed=maybe"], ["distributed=[]"], ["+distributed=2"]])
def test_the_command_line_says_what_distributed_may_be(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["task=induction_heads", "model=hawk", *words]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "; allowed: false, true, or the address of process 0" in said, said


def test_one_process_speaks_for_itself(tmp_path: Path) -> None:
    with connection.connected(False), peers.room(tmp_path) as folder:
        assert folder == tmp_path
        assert peers.first() and not peers.several()
        assert peers.agreed("a text") == "a text" and peers.largest(3) == 3
        peers.wait("anywhere")
    watch = Watch()
    assert not watch.anywhere()
    watch.received.append(signal.SIGTERM)
    assert watch.anywhere()


def test_a_long_text_is_agreed_on_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the first of two processes sends, the second receives; both must send arrays of one shape."""
    text, sent = "läuft " * 2000, []
    monkeypatch.setattr(peers, "several", lambda: True)
    monkeypatch.setattr(peers.multihost_utils, "broadcast_one_to_all", lambda array: sent.append(array) or array)
    assert peers.agreed(text) == text and peers.agreed("") == ""
    monkeypatch.setattr(peers, "first", lambda: False)

    def received(array: np.ndarray) -> np.ndarray:
        found = sent.pop(0)
        assert (found.shape, found.dtype) == (array.shape, array.dtype)
        return found

    monkeypatch.setattr(peers.multihost_utils, "broadcast_one_to_all", received)
    assert peers.agreed("of the second") == text and peers.agreed("") == ""


@pytest.mark.parametrize("index", [0, 1])
def test_a_folder_that_one_process_does_not_see_is_refused_by_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, index: int
) -> None:
    """As each of two processes meets it; what the other does is made up."""
    shared, own = tmp_path / "shared", tmp_path / f"of {index}"
    monkeypatch.setattr(peers, "several", lambda: True)
    monkeypatch.setattr(peers, "first", lambda: index == 0)
    monkeypatch.setattr(peers, "agreed", lambda text: ".mark")
    monkeypatch.setattr(peers, "wait", lambda name: (shared.mkdir(exist_ok=True), (shared / ".mark").touch()))
    monkeypatch.setattr(peers, "largest", lambda unseen: max(unseen, int(index == 0 and other_is_apart)))
    other_is_apart = False
    connection.refuse_unshared(shared)
    other_is_apart = True
    with pytest.raises(UserError, match=r"is not seen by all processes; give hydra.run.dir= on a disk"):
        connection.refuse_unshared(own)
    assert not (own / ".mark").exists()


@pytest.mark.parametrize(
    "words",
    [
        b"F1125 03:14:07.001477   26668 client.h:80] Terminating process because the JAX distributed service detected "
        b"fatal errors. This most likely\n1\n\n*** Check failure stack trace: ***\n    @     0x7fc50b240634  absl\n",
        b"terminate called after throwing an instance of 'gloo::EnforceNotMet'\n  what():  [enforce fail at pair.cc]\n",
    ],
)
def test_what_jax_says_of_a_lost_process_becomes_one_line(words: bytes) -> None:
    warning = b"E1125 03:14:07.000791   26657 coordination_service.cc:1549] Use error polling\n1\n"
    assert passed_on(b"a line\n" + warning + words) == b"a line\nthe last\n"
    assert passed_on(b"a line\n" + warning + b"and another\n") == b"a line\n" + warning + b"and another\n"


def test_what_jax_says_while_the_last_lines_are_passed_on_is_not_shown(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    class Slow(Process):
        def wait(self, timeout: float | None = None) -> int:
            os.write(2, b"    @     0x7f66778a71f5  (unknown)\n")
            return super().wait(timeout)

    monkeypatch.setattr(last_words.subprocess, "Popen", Slow)
    with last_words.shortened():
        os.write(2, b"a line\n")
    os.write(2, b"after it\n")
    assert capfd.readouterr().err == "a line\nafter it\n"


def passed_on(text: bytes) -> bytes:
    """What the program between a process and its stderr says of a text."""
    program = [sys.executable, "-S", "-E", last_words.__file__, "the last"]
    return subprocess.run(program, input=text, capture_output=True, check=True).stderr
