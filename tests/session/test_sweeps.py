"""A sweep ends with its list and a comparison; a launcher that is not installed is one line."""

import io
import signal
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Self
from unittest.mock import Mock

import pytest
from rich.console import Console

from evalkit.__main__ import main
from evalkit.core.rows import read
from evalkit.parallel.interrupt import Watch
from evalkit.reports.writer import report
from evalkit.session.sweeps import Ended, conclude
from support import tiny
from support.made_up_runs import run_record, write_run


class Stopped(Watch):
    """A signal has always come already."""

    def __enter__(self) -> Self:
        self.received = [signal.SIGTERM]
        return self


def concluded(*ended: Ended) -> str:
    console = Console(file=io.StringIO(), width=100)
    conclude(ended, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Two finished runs, and one that failed."""
    monkeypatch.chdir(tmp_path)
    for name in ("hawk", "mqa"):
        report(write_run(tmp_path / name, run_record(name)), Console(quiet=True))
    (tmp_path / "griffin").mkdir()
    return [str(tmp_path / name) for name in ("hawk", "mqa", "griffin")]


@pytest.mark.slow
def test_a_sweep_ends_with_its_list_and_one_comparison(runs: list[str], tmp_path: Path) -> None:
    text = concluded(Ended(runs[0], 0), Ended(runs[1], 0), Ended(runs[2], 2))
    said = " ".join(text.split())
    assert "3 runs of this sweep" in said
    for name in ("hawk", "mqa"):
        assert f"{name} finished accuracy 1.000 at 256, 0.250 at 1,024" in said
    assert "griffin failed (2) –" in said
    (out,) = (tmp_path / "runs" / "compare").iterdir()
    assert (out / "compare.html").is_file() and said.count("wrote ") == 1


@pytest.mark.slow
def test_runs_of_several_tasks_are_listed_alone(runs: list[str], tmp_path: Path) -> None:
    other = write_run(tmp_path / "other", run_record(task="selective_copying"))
    report(other, Console(quiet=True))
    assert "not compared, for the runs are of several tasks" in concluded(Ended(runs[0], 0), Ended(str(other), 0))
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("shared", "blank_figures")
def test_a_job_that_is_given_again_goes_on_with_its_run(
    tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["-m", *tiny.OVERRIDES, f"hydra.sweep.dir={tmp_path}", "hydra.sweep.subdir='${model_name}'"]
    with monkeypatch.context() as patched:
        patched.setattr("evalkit.session.session.Watch", Stopped)
        assert main(words) == 143
    folder = tmp_path / "griffin"
    assert tiny.last_step(read(folder).rows) == 2
    assert main(words) == 0
    assert tiny.rows(folder) == tiny.rows(tiny_run)
    finished = tiny.files(folder)
    assert main(words) == 0 and tiny.files(folder) == finished
    assert main([*words, "train.learning_rate=1e-4"]) == 2
    said = capsys.readouterr().err
    assert f"{folder} was begun with another train; give another hydra.sweep.dir or hydra.sweep.subdir" in said
    assert tiny.files(folder) == finished


@pytest.mark.parametrize("launcher", ["joblib", "submitit_slurm"])
def test_a_launcher_that_is_not_installed_is_named_with_its_package(
    launcher: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evalkit.commands.sweep.version", Mock(side_effect=PackageNotFoundError))
    assert main(["-m", *tiny.OVERRIDES, "seed=0,1", f"hydra/launcher={launcher}"]) == 2
    said = capsys.readouterr().err
    package = f"hydra-{launcher.partition('_')[0]}-launcher"
    assert said.count("\n") == 1 and f"hydra/launcher={launcher} needs {package}: pip install " in said
