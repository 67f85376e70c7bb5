"""Hydra's own sweepers drive evalkit: each run gives them a number."""

import os
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from evalkit.__main__ import main
from evalkit.commands import sweep, sweeper
from evalkit.core.rows import read
from evalkit.reports.criterion import Criterion
from evalkit.session.sweeps import Ended
from support import tiny

HAS_OPTUNA = find_spec("hydra_plugins") is not None and find_spec("hydra_plugins.hydra_optuna_sweeper") is not None
BY = "validation.loss"
OPTUNA = ("hydra/sweeper=optuna", "hydra.sweeper.n_trials=2", "hydra.sweeper.sampler.seed=0")
RATES = "train.learning_rate=tag(log,interval(1e-3,1e-1))"


@pytest.mark.slow
@pytest.mark.skipif(not HAS_OPTUNA, reason="needs hydra-optuna-sweeper, which wants an older Optuna than ours")
def test_optunas_sweeper_chooses_runs_by_the_number_of_each(tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    words = [*tiny.OVERRIDES, *OPTUNA, "hydra.sweeper.n_jobs=1", RATES, f"by={BY}", f"hydra.sweep.dir={folder}"]
    paths = os.pathsep.join([tiny.environment()["PYTHONPATH"], os.environ.get("PYTHONPATH", "")])
    environment = {**tiny.environment(), "PYTHONPATH": paths}
    done = subprocess.run(tiny.command("-m", *words), capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    runs = [path.parent for path in folder.rglob("results.json")]
    values = [Criterion.of(BY).value(read(run).rows, 32) for run in runs]
    best: Any = OmegaConf.load(folder / "optimization_results.yaml")
    # Lower is better of a loss, which is said to the sweeper where nothing else was typed.
    assert len(runs) == 2 and best["best_value"] == pytest.approx(min(value for value in values if value is not None))


@pytest.mark.parametrize("word", ["by=validation.accuracy", "by=validation.no_such"])
def test_a_number_is_of_a_sweeper_that_asks_for_it(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-m", *tiny.OVERRIDES, "seed=0,1", word]) == 2
    assert "is of a sweeper or a search; give hydra/sweeper=optuna" in capsys.readouterr().err


WRONG = {
    "by=validation.no_such": "no_such is not measured; allowed: loss",
    "by=extrapolation.accuracy@999": "add 999 to eval.lengths",
    "by=validation.loss@999": "give 'eval.during=[999]' too",
    "by=accuracy": "by=accuracy; allowed",
}


@pytest.mark.slow
@pytest.mark.parametrize("word", WRONG)
@pytest.mark.skipif(not HAS_OPTUNA, reason="needs hydra-optuna-sweeper, which wants an older Optuna than ours")
def test_what_no_run_could_give_is_one_line_before_the_first(
    word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*tiny.OVERRIDES, *OPTUNA, RATES, word, f"hydra.sweep.dir={tmp_path / 'sweep'}"]
    assert main(["-m", *words]) == 2
    assert WRONG[word] in capsys.readouterr().err and not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.skipif(not HAS_OPTUNA, reason="needs hydra-optuna-sweeper, which wants an older Optuna than ours")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the older Optuna
@pytest.mark.parametrize(("allowed", "said"), [(0, "has no number of by=validation"), (1, "the sweeper ended")])
def test_runs_that_all_fail_end_a_sweeper_in_one_line(
    allowed: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sweep, "job", lambda *_, **__: Ended(str(tmp_path / "none"), 2))
    words = [f"hydra.sweeper.max_failure_rate={allowed}", "hydra.sweeper.n_jobs=1", f"hydra.sweep.dir={tmp_path}"]
    assert main(["-m", *tiny.OVERRIDES, *OPTUNA, RATES, *words]) == 2
    assert said in capsys.readouterr().err.splitlines()[-1]


def test_each_end_of_what_is_swept_is_built_and_one_run_where_nothing_is() -> None:
    words = ["task=mqar", "by=validation.loss", "seed=1,2", "train.learning_rate=interval(1e-4,1e-2)"]
    first, last = sweeper.ends(words)
    assert first == ["task=mqar", "seed=1", "train.learning_rate=0.0001"]
    assert last == ["task=mqar", "seed=2", "train.learning_rate=0.01"]
    assert sweeper.ends(words[:2]) == [["task=mqar"]]


def test_the_basic_sweeper_is_none_that_asks() -> None:
    assert not sweeper.chosen(["seed=0,1"]) and not sweeper.chosen(["hydra/sweeper=basic", "seed=0,1"])
    assert sweeper.chosen(["hydra/sweeper=optuna"]) and sweeper.chosen(["+hydra/sweeper=ax"])
