"""`experiment=…`: what is missing is run, what is done is left alone, and what cannot be is refused before anything."""

import math
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest
from rich.console import Console

from evalkit.__main__ import main
from evalkit.configuration import recipes
from evalkit.configuration.spec import Spec
from evalkit.core.errors import UserError
from evalkit.core.rows import read
from evalkit.record.files import TIMES, times_of
from evalkit.session import experiments, plan, run
from evalkit.session.session import Outcome
from evalkit.training.finite import NotFinite
from support import tiny
from support.words import EXPERIMENTS

pytestmark = pytest.mark.usefixtures("shared", "blank_figures")

EXPERIMENT = """
# Two tiny runs and a control.
options: {task: induction_heads}
runs:
  one: [model=griffin]
  other: [model=griffin, seed=1]
controls:
  forgetful: [evaluate=one, eval.reset_every=8, "eval.lengths=[16]"]
"""
# A figure of the paper, with controls; `-m exhaustive` looks at all.
FIGURES = (("fig6a", "cpu"),)
SETTINGS = [text for text in tiny.OVERRIDES if not text.startswith(("task=", "model="))]


def begin(folder: Path, *overrides: str, text: str = EXPERIMENT) -> int:
    """Runs an experiment of a folder of the user's own, into `folder/out`; what a step takes is made up."""
    (folder / "conf" / "experiment").mkdir(parents=True, exist_ok=True)
    (folder / "conf" / "experiment" / "mine.yaml").write_text(text.lstrip())
    search = f"hydra.searchpath=['file://{folder / 'conf'}']"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "_seconds_measured", Mock(return_value=1.0))
        return main(["experiment=mine", search, *SETTINGS, f"hydra.run.dir={folder / 'out'}", *overrides])


@pytest.fixture
def experiment(tmp_path: Path) -> Callable[..., int]:
    """Runs the experiment into `tmp_path/out`."""
    return partial(begin, tmp_path)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("experiment")
    assert begin(folder) == 0
    return folder / "out"


@pytest.fixture
def finished(done: Path, tmp_path: Path) -> Path:
    """`tmp_path/out` with all of the experiment's runs."""
    return Path(shutil.copytree(done, tmp_path / "out"))


def stamps(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in sorted(folder.rglob("metrics.jsonl"))}


def test_it_runs_what_is_missing_and_draws_it_together(experiment: Callable[..., int], finished: Path) -> None:
    out = finished
    assert {path.name for path in out.iterdir()} == {"one", "other", "forgetful", "runs", "controls"}
    controls = (out / "controls" / "compare.csv").read_text().splitlines()[1:]
    assert [line.split(",")[1] for line in controls] == ["forgetful"], "not called after its place in the experiment"
    for name in ("compare.png", "learning.png", "compare.csv", "compare.html"):
        assert (out / "runs" / name).is_file()
    header, *lines = (out / "runs" / "compare.csv").read_text().splitlines()
    assert {line.split(",")[0] for line in lines} == {"one", "other"} and header.startswith("run,model")
    forgetful = [entry for entry in read(out / "forgetful").rows if entry["metric"] == "accuracy"]
    assert [(entry["length"], entry["extra"]) for entry in forgetful] == [(16, {"reset_every": 8})]
    before = stamps(out)
    assert experiment() == 0
    assert stamps(out) == before, "a finished run was run again"


def test_it_goes_on_with_a_run_that_was_stopped_and_leaves_one_that_was_given_more_steps(
    experiment: Callable[..., int], finished: Path, tmp_path: Path
) -> None:
    one = tmp_path / "out" / "one"
    before = Spec.saved(one).experiment.train.steps
    assert tiny.resume(one, [f"train.steps={before + 4}"]) == 0
    (tmp_path / "out" / "other" / "results.json").unlink()  # as if stopped before its end
    called: list[Path] = []
    with pytest.MonkeyPatch.context() as patch:
        original = run.resume
        patch.setattr(run, "resume", lambda spec: (called.append(spec.folder), original(spec))[1])
        assert experiment() == 0
    assert called == [tmp_path / "out" / "other"]
    assert Spec.saved(called[0]).experiment.seed == 1
    assert Spec.saved(one).experiment.train.steps == before + 4


def test_a_dry_run_lists_the_runs_with_their_hours_and_writes_nothing(
    experiment: Callable[..., int], done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run of 6 steps of 4 × 33 tokens each, by a model that takes a second a token."""
    assert experiment("dry_run=true") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert said.count("measuring a step") == 1, "the two differ in nothing that makes a step slower"
    assert "one to do 0 of 6 0.21 other to do 0 of 6 0.21 forgetful evaluates one – –" in said
    assert "about 0.43 hours of training" in said
    assert not (tmp_path / "out").exists()
    assert experiment("dry_run=perhaps") == 2 and "allowed: dry_run=true" in capsys.readouterr().err
    before = tiny.files(shutil.copytree(done, tmp_path / "out"))
    assert experiment("dry_run=true") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "one finished 6 of 6 –" in said and "nothing is left to train" in said
    assert tiny.files(tmp_path / "out") == before


def test_the_words_say_which_runs_there_are(
    experiment: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that was left out was trained all the same, and one that was added was not."""
    assert experiment("~runs.other", '+runs.mine=["model=griffin","seed=2"]', "dry_run=true") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "one to do 0 of 6" in said and "mine to do 0 of 6" in said and "other" not in said
    assert not (tmp_path / "out").exists()


def test_what_a_step_takes_is_measured() -> None:
    seconds = plan._seconds_measured(tiny.experiment())
    assert math.isfinite(seconds) and seconds > 0


@pytest.mark.slow
@pytest.mark.parametrize("content", ["[]", '{"training": "long"}', "{", None])
def test_the_times_of_a_damaged_file_are_unknown(content: str | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / TIMES).write_text(content, encoding="utf-8")
    assert times_of(tmp_path) == {}


def test_ctrl_c_names_the_command_that_goes_on_with_all(
    experiment: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    for stop in (Mock(return_value=130), Mock(side_effect=KeyboardInterrupt)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(experiments, "_do", stop)
            patch.setattr(plan, "show", Mock())
            assert experiment("dry_run=false") == 130
        said = capsys.readouterr().out
        assert "go on with the whole experiment: python -m evalkit experiment=mine" in said
        assert "'eval.lengths=[16,32]'" in said and "dry_run" not in said


def test_other_settings_in_the_same_folder_are_refused(
    experiment: Callable[..., int], finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = stamps(finished)
    for other in (8, 2):  # more than it was trained for, and fewer
        assert experiment(f"train.steps={other}") == 2
        said = capsys.readouterr().err
        assert (
            said.count("\n") == 1
            and "out/one was begun with another train.steps; give another hydra.run.dir=FOLDER" in said
        )
    assert stamps(finished) == before


@pytest.mark.parametrize(
    ("text", "overrides", "words"),
    [
        (
            EXPERIMENT.replace("evaluate=one", "evaluate=two"),
            [],
            "forgetful evaluates two, which is not trained in this",
        ),
        (
            EXPERIMENT.replace("seed=1", "train.learning_rat=1e-3"),
            [],
            "run other: unknown key 'train.learning_rat'; the nearest valid one is 'train.learning_rate'",
        ),
        (EXPERIMENT.split("runs:")[0], [], "names no runs"),
        (EXPERIMENT, ["-m"], "experiment= has its own runs; leave -m out"),
        (EXPERIMENT, ["eval.lengths=[0]"], "lengths=[0]; allowed: lengths of 1 or more"),
        (EXPERIMENT.replace("reset_every=8", "reset_evry=8"), [], "the nearest valid one is 'eval.reset_every'"),
        (EXPERIMENT, ["~runs.two"], "~runs.two deletes what is not there"),
        (EXPERIMENT, ["~runs.one"], "forgetful evaluates one, which is not trained in this experiment: other"),
        (EXPERIMENT, ["~runs.one", "~runs.other", "~controls.forgetful"], "names no runs"),
        (EXPERIMENT, ["~runs", "~controls"], "names no runs"),
        (EXPERIMENT, ["runs.one=griffin"], "runs.one=griffin; give a list of words, such as 'runs.one=["),
        (EXPERIMENT, ["+runs.mine=[{model: griffin}]"], "; give a list of words"),
        (
            EXPERIMENT,
            ['runs.two=["model=griffin"]'],
            "unknown key 'runs.two'; the nearest valid one is 'runs.one'; or add it",
        ),
        (EXPERIMENT, ["+runs.mine=[model=griffin]"], "in a list a word with an equals sign takes quotes"),
        (EXPERIMENT, ["runs=3"], "give the words of each run, such as 'runs={mine: ["),
        (EXPERIMENT, ["runs=[one]"], "runs is a mapping, not a list"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(
    experiment: Callable[..., int],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    text: str,
    overrides: list[str],
    words: str,
) -> None:
    assert experiment(*overrides, text=text) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and words in said, said
    assert not (tmp_path / "out").exists()


@pytest.mark.exhaustive  # of one run: tests/session/test_texts.py
def test_data_that_is_not_there_ends_the_whole_experiment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each of its runs would say the same."""
    few = 'runs={one: ["model=hawk"], other: ["model=mqa"]}'
    words = [f"data.path={tmp_path / 'nowhere'}", f"hydra.run.dir={tmp_path / 'out'}"]
    assert main(["experiment=fig9", few, *words]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "nowhere is no folder" in said, said
    assert not (tmp_path / "out").exists()


@pytest.mark.exhaustive  # in parts: the next test, and that of what waits for a run's end
def test_a_run_that_fails_does_not_keep_the_others_from_running(
    experiment: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A rate that makes the loss infinite is as likely as any in a search."""
    started = run.start

    def start(spec: Spec) -> Outcome:
        if spec.folder.name == "one":
            raise NotFinite("the loss was not finite at step 2")
        return started(spec)

    monkeypatch.setattr(run, "start", start)
    assert experiment(text=EXPERIMENT.split("controls:")[0]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "the loss was not finite at step 2" in said
    assert said.endswith("failed: one") and not (tmp_path / "out" / "one" / "results.json").exists()
    assert (tmp_path / "out" / "other" / "results.json").is_file()
    assert "one" not in (tmp_path / "out" / "runs" / "compare.csv").read_text().replace("none", "")


def test_a_verdict_against_one_run_does_not_keep_the_others_from_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of an evaluation that does not calibrate; a signal ends them all."""
    for codes, done in (([1, 0], 2), ([143, 0], 1)):
        do, draw = Mock(side_effect=codes), Mock()
        monkeypatch.setattr(experiments, "_do", do)
        monkeypatch.setattr(experiments, "_draw", draw)
        jobs = [plan.Job("runs", name, Mock(folder=tmp_path / name)) for name in ("one", "other")]
        assert experiments._run_all(tmp_path, jobs, Console(quiet=True)) == codes[0]
        assert do.call_count == done and draw.called == (done == 2)


def test_an_interrupted_evaluation_is_done_anew(experiment: Callable[..., int], finished: Path, tmp_path: Path) -> None:
    forgetful = tmp_path / "out" / "forgetful"
    whole = (forgetful / "metrics.jsonl").read_bytes()
    (forgetful / "results.json").unlink()
    (forgetful / "metrics.jsonl").write_bytes(whole[: len(whole) // 2])
    assert experiment() == 0
    assert (forgetful / "metrics.jsonl").read_bytes() == whole


def test_a_figure_with_recipes_of_its_own_takes_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    for model in ([], ["model=hawk"]):  # all of its runs, or one
        assert main(["experiment=fig6b", "preset=text", *model]) == 2
        said = capsys.readouterr().err
        assert "fig6b has no recipe of model=hawk at preset=text, which its protocol chooses" in said
        assert "; give preset=cpu with model=griffin or hawk or" in said


PLANNED = [recipes.experiment(str(path), None) for path in EXPERIMENTS]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "preset"),
    [
        pytest.param(
            planned.path,
            preset,
            marks=[pytest.mark.exhaustive] * ((planned.name, preset) not in FIGURES),
            id=f"{planned.name}-{preset}",
        )
        for planned in PLANNED
        for preset in recipes.models_by_preset(planned, None)
    ],
)
def test_every_run_of_a_figure_can_be(path: Path, preset: str, tmp_path: Path) -> None:
    """A control's recipe that does not compose would refuse the whole figure."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiments, "_do", Mock(return_value=0))
        patch.setattr(plan, "_seconds_measured", Mock(return_value=1e-6))
        assert main([f"experiment={path}", f"preset={preset}", f"hydra.run.dir={tmp_path}"]) == 0


def test_what_evaluates_a_run_waits_for_its_end(
    experiment: Callable[..., int], finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else an evaluation of what a failed run left would stand as that of the whole run."""
    (tmp_path / "out" / "one" / "results.json").unlink()
    shutil.rmtree(tmp_path / "out" / "forgetful")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "resume", Mock(side_effect=UserError("cannot write")))
        assert experiment() == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "it evaluates one, which is not finished" in said and said.endswith("failed: one, forgetful")
    assert not (tmp_path / "out" / "forgetful").exists()


def test_a_run_that_goes_on_is_not_finished(experiment: Callable[..., int], finished: Path, tmp_path: Path) -> None:
    one = tmp_path / "out" / "one"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "train", Mock(side_effect=UserError("a full disk")))
        with pytest.raises(UserError, match="a full disk"):
            tiny.resume(one, ["train.steps=8"])
    assert not (one / "results.json").exists()


def test_one_of_its_runs_alone_is_an_ordinary_run(experiment: Callable[..., int], tmp_path: Path) -> None:
    assert experiment("model=griffin") == 0
    assert (tmp_path / "out" / "results.json").is_file(), "not in the run's own folder"


def test_the_experiment_of_the_page_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(plan, "_seconds_measured", Mock(return_value=1.0))
    page = (Path(__file__).parents[2] / "docs" / "sweeps.md").read_text(encoding="utf-8")
    (block,) = (text for text in re.findall(r"```yaml\n(.*?)```", page, re.S) if text.startswith("options:"))
    (tmp_path / "mine.yaml").write_text(f"# Mine.\n{block}")
    assert main([f"experiment={tmp_path / 'mine.yaml'}", "dry_run=true"]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in ("hawk_32_2", "hawk_32_4", "hawk_64_1", "griffin"))
