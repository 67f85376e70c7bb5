"""The README's commands run: the main job with two steps, and the test command is the one that CI reads."""

import re
import shlex
from pathlib import Path

import pytest

from support import tiny

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
COMMANDS = [line for block in re.findall(r"```bash\n(.*?)```", README, re.S) for line in block.splitlines()]
MAIN = next(line for line in COMMANDS if "task=induction_heads model=griffin" in line)


def test_the_two_commands_set_themselves_up() -> None:
    tests = next(line for line in COMMANDS if "pytest" in line)
    for line in (MAIN, tests):
        assert line.startswith("python3 -m venv .venv && .venv/bin/pip install -q -e ")


def test_the_figure_is_there() -> None:
    for picture in re.findall(r"!\[[^]]*\]\(([^)]+)\)", README):
        assert (Path(__file__).parent.parent / picture).is_file(), picture


@pytest.mark.slow
def test_the_main_job_runs(tmp_path: Path) -> None:
    """With two steps and a short ladder; the rest of the line, setting up, is what `.ci/run` does."""
    words = shlex.split(MAIN.rpartition("&&")[2])
    assert words[1:3] == ["-m", "evalkit"]
    shortened = (
        "train.steps=2",
        "train.curriculum=[]",
        "train.validation_sequences=8",
        "eval.lengths=[64,512]",
        "eval.sequences=8",
        "eval.during=[]",
    )
    done = tiny.finished(
        tiny.command(*words[3:], *shortened, "wandb.mode=disabled", f"hydra.run.dir={tmp_path / 'run'}")
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "extrapolation.png").is_file()
    assert "512" in done.stdout
