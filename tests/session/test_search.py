"""Searches: shared by processes, killed and gone on with, given up early, judged by what is named."""

import csv
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from evalkit.__main__ import main
from evalkit.configuration.space import at
from evalkit.core.errors import Unavailable, UserError
from evalkit.core.rows import read
from evalkit.session import search, study
from support import extending, searched, tiny
from support.searched import STEPS, Killed, Trainings, settings

optuna = pytest.importorskip("optuna")
MEDIAN = {"_target_": "optuna.pruners.MedianPruner", "n_startup_trials": 3, "n_warmup_steps": 100}


@pytest.fixture(autouse=True)
def _without_models(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Runs are made up, and no page is drawn, but where a test is about these."""
    if request.function not in (
        test_a_mixer_of_the_users_own_is_searched,
        test_a_search_that_trains_is_killed_and_goes_on,
    ):
        monkeypatch.setattr(search, "_spec", searched.spec)
    if request.function not in (
        test_it_ends_with_a_table_figures_and_words_to_type,
        test_a_mixer_of_the_users_own_is_searched,
    ):
        monkeypatch.setattr(search.report, "write", lambda *_: None)


def worked(folder: Path, monkeypatch: pytest.MonkeyPatch, trainings: Trainings, **changed: Any) -> int:
    """One process's work on the search in a folder."""
    monkeypatch.setattr(search.run, "start_or_resume", trainings)
    return search.begin(settings(**changed), folder, ())


def trials_of(folder: Path) -> list[Any]:
    with_storage = optuna.load_study(study_name=study.NAME, storage=f"sqlite:///{folder / study.FILE}")
    return with_storage.get_trials()


def best_of(folder: Path) -> Any:
    return optuna.load_study(study_name=study.NAME, storage=f"sqlite:///{folder / study.FILE}").best_trial


@pytest.mark.slow
def test_killed_trials_go_on_and_none_is_trained_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    undisturbed = Trainings()
    assert worked(tmp_path / "whole", monkeypatch, undisturbed, trials=4) == 0
    trained = []
    for kill in ({"001": 500}, {"003": 250}, {}):
        trainings = Trainings(kill)
        if kill:
            with pytest.raises(Killed):
                worked(tmp_path / "killed", monkeypatch, trainings, trials=4)
        else:
            assert worked(tmp_path / "killed", monkeypatch, trainings, trials=4) == 0
        trained += trainings.trained
    assert sorted(trained) == sorted(undisturbed.trained) and len(set(trained)) == len(trained)
    assert [trial.state.name for trial in trials_of(tmp_path / "killed")] == 4 * ["COMPLETE"]
    first, second = best_of(tmp_path / "whole"), best_of(tmp_path / "killed")
    assert (first.number, first.params, first.value) == (second.number, second.params, second.value)


def test_processes_share_the_trials_and_take_over_those_of_the_dead(tmp_path: Path) -> None:
    """Each `Study` is as another process: their locks hold between them."""
    space = {"rate": search.space_of(["rate=interval(1e-4,1e-2)"])["rate"]}
    one, two, three = (
        study.Study(tmp_path, space, 4, "maximize", study.OptunaFactory(searched.RANDOM, search.DEFAULTS["pruner"]))
        for _ in "abc"
    )
    claims = [claimed for process in (one, two, three) if (claimed := process.claim()) is not None]
    assert [claimed.number for claimed in claims] == [0, 1, 2]
    claims[1].release()  # its process was killed
    again = three.claim()
    assert again is not None and (again.number, again.values) == (1, claims[1].values)
    last = one.claim()
    assert last is not None and last.number == 3 and two.claim() is None and not two.is_over
    for place, claimed in enumerate([claims[0], again, claims[2], last]):
        three.end(claimed, "COMPLETE", float(place % 2))
        claimed.release()
    best = one.best()
    assert one.is_over and one.claim() is None and best is not None and best.number == 1


@pytest.mark.exhaustive  # that trials are given up, the table below shows
def test_a_pruner_saves_a_third_of_the_steps_and_keeps_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bad rates are bad early."""
    whole, pruned = Trainings(), Trainings()
    worked(tmp_path / "whole", monkeypatch, whole)
    worked(tmp_path / "pruned", monkeypatch, pruned, pruner=MEDIAN)
    assert whole.steps == 12 * STEPS and pruned.steps <= 2 / 3 * whole.steps
    assert best_of(tmp_path / "whole").params == best_of(tmp_path / "pruned").params
    assert {trial.state.name for trial in trials_of(tmp_path / "pruned")} == {"COMPLETE", "PRUNED"}


@pytest.mark.slow
def test_what_is_named_is_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """Of trials judged by validation nothing but the training length is measured."""
    worked(tmp_path / "validation", monkeypatch, Trainings(), trials=4)
    worked(tmp_path / "test", monkeypatch, Trainings(), trials=4, by="extrapolation.accuracy@1024")
    worked(tmp_path / "worst", monkeypatch, Trainings(), trials=4, direction="minimize")
    validation, test, worst = (best_of(tmp_path / name) for name in ("validation", "test", "worst"))
    assert test.params["train.learning_rate"] < validation.params["train.learning_rate"]
    assert worst.value < validation.value
    rows = (tmp_path / "validation" / "trials" / "000" / "metrics.jsonl").read_text()
    assert '"split":"test","length":256' in rows and '"length":1024' not in rows


@pytest.mark.slow
def test_it_ends_with_a_table_figures_and_words_to_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    early = {**MEDIAN, "n_startup_trials": 1}
    worked(tmp_path, monkeypatch, Trainings(), trials=5, pruner=early, by="extrapolation.accuracy@1024")
    for name in ("search-train.learning_rate.png", "search-train.weight_decay.png", "search-training.png"):
        assert (tmp_path / name).is_file()
    table = list(csv.DictReader((tmp_path / "search.csv").read_text().splitlines()))
    assert next(line["trial"] for line in table if line["state"] == "finished") == str(best_of(tmp_path).number)
    page = (tmp_path / "search.html").read_text()
    rate = f"{best_of(tmp_path).params['train.learning_rate']:.3g}"
    assert f"python -m evalkit task=mqar model=hawk train.learning_rate={rate} train.weight_decay=" in page
    assert "chosen by test rows" in page and page.count("<svg") == 3
    given_up = [line for line in table if line["state"] == "given up"]
    assert given_up and all(line["extrapolation.accuracy@1024"] == "" for line in given_up)


@pytest.mark.slow
def test_fresh_seeds_of_the_best_are_a_run_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainings = Trainings()
    ran: list[Any] = []

    def training(of: Any, judge: Any = None) -> Any:
        ran.append(of)
        return trainings(of, judge)

    monkeypatch.setattr(search.run, "start_or_resume", training)
    search.begin(settings(trials=2, final_seeds=3, words=[*searched.WORDS, "seeds=2"]), tmp_path, ())
    final = ran[-1]
    assert final.folder == tmp_path / "final" / f"{best_of(tmp_path).number:03d}"
    assert final.experiment.all_seeds == [2, 3, 4]
    assert final.experiment.eval.lengths == [64, 256, 1024]
    best = best_of(tmp_path).params
    assert final.plain["train.learning_rate"] == pytest.approx(best["train.learning_rate"], rel=5e-3)


def test_more_trials_may_be_given_later_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worked(tmp_path, monkeypatch, Trainings(), trials=2)
    assert search.resume(tmp_path, 3, ()) == 0 and len(trials_of(tmp_path)) == 3
    with pytest.raises(UserError, match="begun with 3"):
        search.resume(tmp_path, 2, ())
    with pytest.raises(UserError, match="holds another search"):
        worked(tmp_path, monkeypatch, Trainings(), trials=3, by="validation.loss")
    with pytest.raises(UserError, match=r"search\.json"):
        search.resume(tmp_path / "none", None, ())


def test_trials_of_other_code_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(search.environment, "changed_code", lambda folder, code: f"{folder.name} is of other code")
    monkeypatch.setattr(search, "say", lambda console, line: told.append(line))
    worked(tmp_path, monkeypatch, Trainings(), trials=2)
    assert told == [], "there is no earlier trial"
    assert search.resume(tmp_path, 3, ()) == 0
    assert told == ["000 is of other code; trials of both compete, unless hydra.sweep.dir= is another"]


def test_a_trial_that_fails_does_not_stop_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainings = Trainings()

    def training(of: Any, judge: Any = None) -> Any:
        if of.folder.name == "001":
            raise UserError("the loss is not finite")
        return trainings(of, judge)

    monkeypatch.setattr(search.run, "start_or_resume", training)
    search.begin(settings(trials=3), tmp_path, ())
    assert [trial.state.name for trial in trials_of(tmp_path)] == ["COMPLETE", "FAIL", "COMPLETE"]


def test_a_full_disk_ends_no_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would meet each of the others too; with more room all of them are trained."""
    with pytest.raises(Unavailable, match="has room for"):
        worked(tmp_path, monkeypatch, Mock(side_effect=Unavailable("it has room for nothing")), trials=2)
    assert [trial.state.name for trial in trials_of(tmp_path)] == ["RUNNING"]
    assert worked(tmp_path, monkeypatch, Trainings(), trials=2) == 0
    assert [trial.state.name for trial in trials_of(tmp_path)] == ["COMPLETE", "COMPLETE"]


@pytest.mark.parametrize(
    ("node", "said"),
    [
        ({"_target_": "optuna.storages.RDBStorage", "url": "sqlite:///made.db"}, "is no sampler of Optuna"),
        ({"_target_": "optuna.delete_study", "study_name": "a", "storage": "b"}, "is no sampler of Optuna"),
        ({**searched.RANDOM, "seed": None, "more": {"_target_": "optuna.storages.InMemoryStorage"}}, "is no sampler"),
        ({"_target_": "optuna.samplers.CmaEsSampler"}, "keeps its state as a pickle"),
        ({"_target_": "optuna.__version__"}, "is no sampler of Optuna"),
        ({"_target_": "optuna.samplers"}, "is no sampler of Optuna"),
    ],
)
def test_nothing_of_optuna_is_called_but_samplers_and_pruners(
    node: dict[str, Any], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=said):
        study.OptunaFactory(node, search.DEFAULTS["pruner"])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("interval", "value", "typed"),
    [
        ("interval(0.9,0.9999)", 0.9999, "0.9999"),
        ("interval(0.9990,0.9999)", 0.99912345, "0.999123"),
        ("interval(0.9,0.99999)", 0.99999, "0.99999"),
        ("interval(1e-5,1e-1)", 0.000123456, "0.000123"),
        ("interval(0,1)", 0.0, "0"),
        ("int(interval(1,9))", 3, "3"),
    ],
)
def test_a_drawn_number_has_as_many_digits_as_its_interval_needs(interval: str, value: float, typed: str) -> None:
    assert at([f"train.b2={interval}"], {"train.b2": value}) == [f"train.b2={typed}"]


def test_a_search_in_a_folder_with_an_equals_sign_is_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "width=32"
    worked(folder, monkeypatch, Trainings(), trials=1)
    monkeypatch.setattr("evalkit.session.compilation.keep_programs", Mock())
    assert main(["search", "resume", str(folder), "trials=2"]) == 0 and len(trials_of(folder)) == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train.learning_rate=1e-3"], "nothing is searched"),
        (["train.learning_rate=interval(1e-2,1e-4)"], "lower end first"),
        (["train.learning_rate=tag(log,interval(0,1))"], "no logarithm"),
        (["train.steps=10,20", "trials=0"], "trials=0"),
        (["train.steps=10,20", "by=accuracy"], "by=accuracy"),
        (["train.steps=10,20", "by=extrapolation.accuracy"], "give a length"),
        (["train.steps=10,20", "by=validation.accuracy@512"], "eval.during="),
        (["train.steps=10,20", "direction=up"], "direction=up"),
        (["train.steps=10,20", "seed=0,1"], "seed= is not searched"),
        (["train.steps=10,20", "sampler={_target_: os.system}"], "allow_targets="),
        (["train.steps=10,20", "sampler={_target_: optuna.pruners.NopPruner}"], "no sampler of Optuna"),
        (["train.steps=10,20", "sampler={_target_: optuna.samplers.None}"], "optuna.samplers.None"),
        (["train.steps=10,20", "pruner={n: 1}"], "give one of Optuna's"),
        (["train.steps=10,20", "sampler.seed=a"], "sampler.seed=a; give a whole number"),
        (["train.steps=10,20", "by=validation.acuracy"], "acuracy is not measured; allowed: loss, accuracy, exact_m"),
        (["train.steps=10,20", "distributed=true"], "distributed=true"),
        (["train.steps=10,20", "hydra/launcher=basic"], "hydra/launcher=basic: Hydra starts no run of a search"),
        (["train.steps=10,20", "hydra.sweep.subdir=a"], "hydra.sweep.subdir=a: Hydra starts no run of a search"),
        (["train.steps=10,20", "hydra.sweep.dir=a,b"], "hydra.sweep.dir=a,b: a search has one folder"),
        (["resume"], "needs the folder"),
    ],
)
def test_what_cannot_be_is_one_line_before_anything_is_written(
    tmp_path: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "search"
    typed = words if words == ["resume"] else ["task=mqar", "model=hawk", f"hydra.sweep.dir={folder}", *words]
    assert main(["search", *typed]) == 2
    error = capsys.readouterr().err
    assert said in error and len(error.splitlines()) == 1
    assert not folder.exists()


def test_a_file_of_trials_that_is_none_is_one_line(tmp_path: Path) -> None:
    (tmp_path / study.FILE).write_bytes(b"no database" * 1000)
    made = study.OptunaFactory(search.DEFAULTS["sampler"], search.DEFAULTS["pruner"])
    with pytest.raises(UserError, match=r"cannot be used .*; mend it, or start a new search"):
        study.Study(tmp_path, {"train.steps": ["10", "20"]}, 2, "maximize", made)


def test_without_optuna_one_line_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(study, "find_spec", lambda _: None)
    assert main(["search", "task=mqar", "model=hawk,mqa"]) == 2
    assert "pip install 'griffin-evalkit[search]'" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("blank")
def test_a_mixer_of_the_users_own_is_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lets its code run is not kept in `search.json`: it is typed again to go on."""
    monkeypatch.setattr(search.run, "start_or_resume", Trainings())
    looked = Mock()  # its promises are looked at in tests/test_extending.py
    monkeypatch.setattr(search, "refuse_broken_model", looked)
    with extending.made(tmp_path, monkeypatch):
        words = ["task=induction_heads", "model=qrnn,hawk", "train.learning_rate=interval(1e-5,1e-1)"]
        folder = ["hydra.sweep.dir=searched", "trials=1", "final_seeds=0", "by=validation.loss"]
        assert main(["search", *words, *folder, "--config-dir", "conf"]) == 0
        assert "conf" not in (tmp_path / "searched" / search.FILE).read_text()
        assert main(["search", "resume", "searched", "trials=2", "--config-dir", "conf"]) == 0
        assert len(trials_of(tmp_path / "searched")) == 2
        assert "--config-dir" in (tmp_path / "searched" / "search.html").read_text()
    assert {call.args[0].model_name for call in looked.call_args_list} == {"qrnn"}


@pytest.mark.slow
@pytest.mark.exhaustive
def test_twelve_trials_by_three_processes_two_of_them_killed(tmp_path: Path) -> None:
    """SIGKILL at a validation of each; a fourth process ends what is left. The best is as in an undisturbed search."""
    program = (
        "import json, sys; from pathlib import Path; from evalkit.session import search; from support import searched\n"
        "trainings = searched.Trainings(json.loads(sys.argv[2]), really=True)\n"
        "search._spec, search.run.start_or_resume = searched.spec, trainings\n"
        "sys.exit(search.begin(searched.settings(), Path(sys.argv[1]), ()))"
    )

    def begun(folder: str, kill: dict[str, int]) -> subprocess.Popen[bytes]:
        environment = {**tiny.environment(), "PYTHONPATH": os.pathsep.join(sys.path)}
        return subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path / folder), json.dumps(kill)], env=environment
        )

    processes = [begun("shared", {"001": 250, "004": 500}) for _ in range(3)]
    codes = sorted(process.wait(tiny.HANGS) for process in processes)
    assert codes == [-signal.SIGKILL, -signal.SIGKILL, 0]
    assert begun("shared", {}).wait(tiny.HANGS) == 0  # what was killed last may have had nobody to take it over
    assert [trial.state.name for trial in trials_of(tmp_path / "shared")] == 12 * ["COMPLETE"]
    for folder in (path for path in (tmp_path / "shared" / "trials").iterdir() if path.is_dir()):
        assert (folder / "trained").read_text().split() == ["250", "500", "750", "1000"]
    assert begun("whole", {}).wait(tiny.HANGS) == 0
    assert best_of(tmp_path / "shared").params == best_of(tmp_path / "whole").params


@pytest.mark.slow
@pytest.mark.exhaustive  # a process that is killed goes on above, a search that trains below
def test_a_search_that_trains_is_killed_and_goes_on(tmp_path: Path) -> None:
    """Two tiny trainings by the command line, killed in the first, and fresh seeds of the better."""
    folder = tmp_path / "search"
    words = [word for word in tiny.OVERRIDES if not word.startswith(("eval.lengths", "train.steps"))]
    searching = ["train.learning_rate=1e-3,3e-3", "train.steps=60", "trials=2", "final_seeds=1", "by=validation.loss"]
    command = tiny.command("search", *words, *searching, f"hydra.sweep.dir={folder}")
    process = subprocess.Popen(command, env=tiny.environment(), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if "training: step" in line:
            process.send_signal(signal.SIGKILL)
            break
    process.wait(tiny.HANGS)
    process.stdout.close()
    again = tiny.command("search", "resume", str(folder))
    done = subprocess.run(again, env=tiny.environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = read(folder / "trials" / "000").rows
    steps = [row["step"] for row in rows if row["split"] == "train" and row["metric"] == "loss"]
    assert steps == list(range(2, 62, 2))
    assert [trial.state.name for trial in trials_of(folder)] == ["COMPLETE", "COMPLETE"]
    assert list(folder.glob("final/*/results.json")) and "the best: python -m evalkit" in done.stdout
