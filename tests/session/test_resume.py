"""A run that was stopped, by whatever means, and goes on ends exactly as one that was never disturbed."""

import logging
import shutil
import signal
from pathlib import Path
from typing import Self

import pytest

from evalkit.core.errors import UserError
from evalkit.session import run
from evalkit.training.checkpoints import Checkpoints
from evalkit.training.interrupt import Watch
from support import tiny

# Two seeds; a first stage that ends between two dispatches; checkpoints rarer than rows, so that a kill loses some.
LONG = (
    "seeds=2",
    "train.steps=160",
    "train.curriculum=[{length:16,steps:51,batch_size:8}]",
    "train.eval_every=20",
    "train.checkpoint_every=20",
    "eval.lengths=[16,32,48,64,80,96]",
    "eval.sequences=64",
)
STEPS = 160


class StopAfterOneDispatch(Watch):
    """A signal has always come already."""

    def __enter__(self) -> Self:
        self.received = signal.SIGINT
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    ended = tiny.finished(tiny.new(folder, *LONG))
    assert ended.returncode == 0, ended.stderr
    return folder


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.trained(tmp_path_factory.mktemp("short") / "run")


@pytest.fixture
def copy(short: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(short, tmp_path / "copy"))


def spoil(folder: Path, step: int) -> None:
    """Cuts every file of one checkpoint short."""
    for path in (folder / "checkpoints" / str(step)).rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[:7])


def assert_same(one: Path, other: Path) -> None:
    assert tiny.rows(one) == tiny.rows(other)
    tiny.assert_identical(tiny.state(one), tiny.state(other))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_a_signal_in_the_midst_of_training_changes_nothing(
    undisturbed: Path, tmp_path: Path, number: int, code: int
) -> None:
    folder = tmp_path / "run"
    stop_from = {signal.SIGINT: 30, signal.SIGTERM: 50, signal.SIGKILL: 70}[signal.Signals(number)]
    ended = tiny.signalled(
        tiny.new(folder, *LONG), number, folder, lambda entries: tiny.last_step(entries) >= stop_from
    )
    assert ended == code
    assert stop_from <= tiny.last_step(tiny.read(folder).rows) < STEPS
    resumed = tiny.finished(tiny.command(f"resume={folder}"))
    assert resumed.returncode == 0, resumed.stderr
    assert_same(folder, undisturbed)


@pytest.mark.slow
def test_a_signal_in_the_midst_of_the_evaluation_changes_nothing(undisturbed: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    ended = tiny.signalled(
        tiny.new(folder, *LONG),
        signal.SIGTERM,
        folder,
        lambda entries: any(entry["split"] == "test" for entry in entries),
    )
    assert ended == 143
    assert not (folder / "results.json").exists()
    resumed = tiny.finished(tiny.command(f"resume={folder}"))
    assert resumed.returncode == 0, resumed.stderr
    assert_same(folder, undisturbed)


@pytest.mark.slow
def test_a_stop_after_every_dispatch_changes_nothing(
    short: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    with monkeypatch.context() as patched:
        patched.setattr("evalkit.session.session.Watch", StopAfterOneDispatch)
        assert run.start(tiny.experiment(), folder) == 130
        for step in (2, 4):
            assert Checkpoints(folder).latest == step
            assert run.resume(folder, []) == 130
    assert f"go on with: python -m evalkit resume={folder}" in capsys.readouterr().out
    assert run.resume(folder, []) == 0
    assert_same(folder, short)


@pytest.mark.slow
def test_going_on_with_a_finished_run_changes_nothing(short: Path, copy: Path) -> None:
    assert run.resume(copy, []) == 0
    assert_same(copy, short)
    assert {**tiny.results(copy), "run": None} == {**tiny.results(short), "run": None}


@pytest.mark.slow
def test_more_steps_go_on_from_the_last_one(short: Path, copy: Path) -> None:
    assert run.resume(copy, ["train.steps=10"]) == 0
    before = [entry for entry in tiny.rows(short) if entry["split"] != "test"]
    after = tiny.rows(copy)
    assert after[: len(before)] == before
    steps = [entry["step"] for entry in after if entry["split"] == "train" and entry["metric"] == "loss"]
    assert steps == [2, 4, 6, 8, 10]
    assert int(tiny.state(copy).step[0]) == 10
    assert tiny.results(copy)["step"] == 10


def test_fewer_steps_than_are_done_are_refused(copy: Path) -> None:
    before = tiny.files(copy)
    with pytest.raises(UserError, match=r"train\.steps=4.* is at step 6; give at least 6"):
        run.resume(copy, ["train.steps=4"])
    assert tiny.files(copy) == before


@pytest.mark.parametrize("change", ["model=hawk", "task=selective_copying", "model.width=32", "seed=1", "seeds=2"])
def test_another_model_or_task_or_seed_is_refused(copy: Path, change: str) -> None:
    before = tiny.files(copy)
    with pytest.raises(UserError) as refusal:
        run.resume(copy, [change])
    assert change.partition("=")[0] in str(refusal.value) and "\n" not in str(refusal.value)
    assert tiny.files(copy) == before


@pytest.mark.slow
def test_a_broken_newest_checkpoint_falls_back_to_the_one_before(
    short: Path, copy: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spoil(copy, 6)
    with caplog.at_level(logging.WARNING, "evalkit"):
        assert run.resume(copy, []) == 0
    (warning,) = [entry.getMessage() for entry in caplog.records if entry.levelno == logging.WARNING]
    assert warning.startswith("checkpoint 6 in ") and "\n" not in warning
    assert_same(copy, short)
    caplog.clear()
    # The broken one has been replaced: nothing is left to warn of.
    tiny.state(copy)
    assert not [entry for entry in caplog.records if entry.levelno >= logging.WARNING]


def test_no_readable_checkpoint_is_one_line(copy: Path) -> None:
    for step in (4, 6):
        spoil(copy, step)
    with pytest.raises(UserError, match=r"no checkpoint in .* can be read; start the run anew"):
        run.resume(copy, [])


@pytest.mark.slow
def test_a_run_stopped_before_its_first_checkpoint_starts_anew(short: Path, copy: Path) -> None:
    shutil.rmtree(copy / "checkpoints")
    assert run.resume(copy, []) == 0
    assert_same(copy, short)
