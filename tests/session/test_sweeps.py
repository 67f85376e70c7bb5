"""Sweeps end with a list and a comparison, a missing launcher is one line, and W&B's agent starts runs of ours."""

import io
import json
import os
import re
import signal
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any, Self
from unittest.mock import Mock

import pytest
import yaml
from omegaconf import OmegaConf
from rich.console import Console

from evalkit.__main__ import main
from evalkit.configuration.spec import Spec
from evalkit.core.rows import read
from evalkit.parallel.interrupt import Watch
from evalkit.reports.writer import report
from evalkit.session.sweeps import Ended, conclude
from support import servers, tiny
from support.made_up_runs import run_record, write_run

pytestmark = pytest.mark.usefixtures("blank_figures")


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
@pytest.mark.usefixtures("shared")
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


PAGE = tiny.ROOT / "docs" / "sweeps.md"
RATES = {"r1": 0.002}


class Sweeping(servers.Wandb):
    """A server that has one sweep: it gives one run after the other to the agent that asks, then none."""

    def __init__(self, sweep: dict[str, Any]) -> None:
        super().__init__()
        self.sweep, self.given, self.opened = sweep, list[str](), list[dict[str, Any]]()

    def body(self, path: str, question: bytes) -> Any:
        text = question.decode(errors="replace")
        if "SweepWithRuns" in text:
            return {
                "data": {"project": {"sweep": {"id": "s", "config": yaml.safe_dump(self.sweep), "runs": {"edges": []}}}}
            }
        if "createAgent" in text:
            return {"data": {"createAgent": {"agent": {"id": "a"}}}}
        if "agentHeartbeat" in text:
            running = json.loads(json.loads(text)["variables"]["runState"])
            left = [name for name in RATES if name not in self.given]
            commands = [] if running or not left else [self._command(left[0])]
            return {"data": {"agentHeartbeat": {"agent": {"id": "a"}, "commands": json.dumps(commands)}}}
        if "upsertbucket" in text.lower():
            self.opened.append(json.loads(text)["variables"])
        return super().body(path, question)

    def _command(self, name: str) -> dict[str, Any]:
        self.given.append(name)
        (parameter,) = self.sweep["parameters"]
        return {
            "type": "run",
            "run_id": name,
            "program": self.sweep["program"],
            "args": {parameter: {"value": RATES[name]}},
        }


def of_the_page() -> dict[str, Any]:
    """The sweep that the page shows."""
    block = re.search(r"```yaml\n(program: .*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert block is not None
    assert len(block[1].splitlines()) == 5
    return yaml.safe_load(block[1])


def test_the_command_of_the_page_starts_a_run_with_the_parameters_of_the_agent() -> None:
    """As W&B fills it in: `${env}`, `${interpreter}`, and each parameter without hyphens."""
    sweep = of_the_page()
    (parameter,) = sweep["parameters"]
    filled = {"${env}": "/usr/bin/env", "${interpreter}": "python", "${args_no_hyphens}": f"{parameter}=0.002"}
    env, interpreter, flag, package, *words = [filled.get(word, word) for word in sweep["command"]]
    assert [env, interpreter, flag, package] == ["/usr/bin/env", "python", "-m", sweep["program"]]
    assert Spec.of(words).plain["train"]["learning_rate"] == 0.002


@pytest.mark.exhaustive  # the command alone above; what a sweep's server is told, in tests/record/test_wandb.py
def test_the_agent_of_a_sweep_runs_the_yaml_of_the_page(tmp_path: Path) -> None:
    sweep = of_the_page()
    # The page's task and model are a tiny one here, whose folder is the test's.
    at = sweep["command"].index("${args_no_hyphens}")
    named = [word for word in sweep["command"][:at] if "=" not in word]
    small = [word for word in tiny.OVERRIDES if not word.startswith("wandb.")]
    sweep["command"] = [*named, *small, "train.steps=2", *sweep["command"][at:]]
    server = Sweeping(sweep)
    with servers.serving(server):
        environment = {
            **{name: value for name, value in tiny.environment().items() if not name.startswith("WANDB_")},
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            **{
                "WANDB_BASE_URL": server.url,
                "WANDB_API_KEY": "k" * 40,
                "WANDB_DIR": str(tmp_path),
                "HOME": str(tmp_path),
            },
        }
        agent = [sys.executable, "-m", "wandb", "agent", "me/evalkit/s1", "--count", str(len(RATES))]
        done = subprocess.run(
            agent, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=tiny.HANGS, check=False
        )
    assert done.returncode == 0, done.stderr
    runs = sorted((tmp_path / "runs").glob("*/*/*/config.yaml"), key=lambda path: path.stat().st_mtime_ns)
    assert [OmegaConf.load(path).train.learning_rate for path in runs] == list(RATES.values()), (
        done.stdout + done.stderr
    )
    assert all((path.parent / "results.json").is_file() for path in runs)
    # The server opened the runs that it gave, as runs of its sweep, and no others.
    assert {one.get("name") for one in server.opened if one.get("sweep") == "s1"} == set(RATES)
    assert {one.get("name") for one in server.opened} == set(RATES)
