"""The command line: what is handed on, what is refused, exit codes; a refused command leaves nothing behind."""

import logging
import os
import re
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from subprocess import PIPE

import pytest
import yaml
from hydra.core.singleton import Singleton
from hydra.core.utils import setup_globals

from evalkit.__main__ import main
from evalkit.commands import VERBS
from evalkit.configuration import catalogue, saved
from evalkit.configuration import experiment as config
from evalkit.configuration.spec import Spec
from evalkit.core.contracts import Verdict
from evalkit.core.errors import UserError
from evalkit.session.gates import refuse_run_in
from evalkit.session.session import Outcome
from support.shrunk import sampled
from support.words import leaves, typed

ROOT = Path(__file__).parents[2]
GRIFFIN = ("task=induction_heads", "model=griffin")
pytestmark = pytest.mark.usefixtures("shared")


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Hydra keeps its state and its log files open between runs; each test here starts and ends without."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["evalkit"])
    setup_globals()  # or the state before the first test is one without Hydra's resolvers
    root, state = logging.getLogger(), Singleton.get_state()
    handlers, level = root.handlers[:], root.level
    yield
    for handler in set(root.handlers) - set(handlers):
        handler.close()
    root.handlers[:] = handlers
    root.setLevel(level)
    Singleton.set_state(state)


class Run:
    """Stands in for `evalkit.session.run`: keeps what it was asked to do; of a new run it marks the folder as used."""

    def __init__(self) -> None:
        self.started: list[tuple[config.Experiment, Path]] = []
        self.existing: list[tuple[str, Path, dict[str, str]]] = []
        self.outcome: Callable[[config.Experiment], int] = lambda experiment: 0

    def start(self, spec: Spec) -> Outcome:
        refuse_run_in(spec.folder)
        folder = spec.folder.absolute()
        self.started.append((spec.experiment, folder))
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "metrics.jsonl").touch()
        return ended(folder, self.outcome(spec.experiment))

    def resume(self, spec: Spec) -> Outcome:
        self.existing.append(("resume", spec.folder, dict(spec.typed)))
        return ended(spec.folder, 0)

    def evaluate(self, spec: Spec, step: int | None = None) -> Outcome:
        self.existing.append(("evaluate", spec.folder, {**spec.typed, "step": step}))
        return ended(spec.folder, 3)


def ended(folder: Path, code: int) -> Outcome:
    """The outcome with this exit code."""
    return Outcome(folder, stopped_by=code - 128) if code > 128 else Outcome(folder, verdict=Verdict(exit_code=code))


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    stand_in, module = Run(), types.ModuleType("evalkit.session.run")
    module.__dict__.update(start=stand_in.start, resume=stand_in.resume, evaluate=stand_in.evaluate)
    module.__dict__.update(start_or_resume=stand_in.start)  # of a sweep
    monkeypatch.setitem(sys.modules, "evalkit.session.run", module)
    monkeypatch.setattr("evalkit.session.run", module, raising=False)
    return stand_in


@pytest.fixture
def here() -> Path:
    """The folder of a run that exists."""
    Path("here").mkdir()
    saved.save(Spec.of(GRIFFIN).plain, Path("here", saved.CONFIG_FILE))
    return Path("here")


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line of a refused command that left no folder."""
    before = set(Path.cwd().rglob("*"))
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert set(Path.cwd().rglob("*")) == before
    assert printed.out == "" and printed.err.startswith("evalkit: ") and printed.err.count("\n") == 1
    return printed.err


def test_a_bare_command_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    guide = capsys.readouterr().out
    for group in ("task", "model", "preset", "eval", "experiment"):
        assert all(
            option in guide and catalogue.headline(group, option) in guide for option in catalogue.options(group)
        )
    assert all(f"  {name} " in guide and verb.purpose in guide for name, verb in VERBS.items())
    for flag in ("--help", "-h"):
        assert main([flag]) == 0 and capsys.readouterr().out == guide
    assert main(["--version"]) == 0 and capsys.readouterr().out.split()[0] == "evalkit"


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_a_page(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "--help"]) == 0
    page = capsys.readouterr().out
    assert f"evalkit {verb}" in page and not list(Path.cwd().iterdir())
    assert not re.search(r"(?<!')\b[\w.]+=\[[^']*\](?!')", page), "zsh needs a list in quotes"


def test_the_guide_lists_what_is_the_users_own(capsys: pytest.CaptureFixture[str]) -> None:
    for group in ("task", "model", "eval", "experiment", "preset"):
        Path("mine", group).mkdir(parents=True)
        Path("mine", group, "own.yaml").write_text(f"# @package _global_\n# A {group} of my own.\n", encoding="utf-8")
    for words in (["--config-dir", "mine"], ["--help", "--config-dir=mine"], ["-cd", "mine", "-h"]):
        assert main(words) == 0
        guide = capsys.readouterr().out
        assert guide.count("of my own.") == 5 and "induction_heads" in guide


def test_an_option_of_the_users_own_may_not_have_the_name_of_ours(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine", "model").mkdir(parents=True)
    Path("mine", "model", "hawk.yaml").write_text("# Mine.\n", encoding="utf-8")
    assert main(["task=induction_heads", "model=hawk", "--config-dir", "mine"]) == 2
    said = capsys.readouterr().err
    assert "model=hawk is in" in said and "give yours another name" in said and said.count("\n") == 1
    assert not Path("runs").exists()


@pytest.fixture
def own() -> None:
    """A task of the user's own in the folder `mine`."""
    source = catalogue.directory() / "task" / "induction_heads.yaml"
    Path("mine", "task").mkdir(parents=True)
    Path("mine", "task", "own.yaml").write_text(source.read_text(encoding="utf-8"), encoding="utf-8")


@pytest.mark.slow
def test_an_example_of_the_users_own_task_is_shown(own: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--config-dir", "mine", "example", "own", "length=12"]) == 0
    assert "own, length 12" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.exhaustive  # tests/faults/test_trust.py runs, resumes and evaluates with the user's own
def test_what_is_the_users_own_goes_to_every_verb_that_composes(
    own: None, run: Run, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["example", "--config-dir", "mine"]) == 0
    assert "own  vocabulary" in capsys.readouterr().out
    assert main(["task=own", "model=hawk", "--config-dir", "mine", "hydra.run.dir=out"]) == 0
    assert run.started[0][0].task_name == "own"
    assert main(["run", "task=own", "model=hawk", "--cfg", "job", "-p", "task_name", "--config-dir", "mine"]) == 0
    assert capsys.readouterr().out == "own\n"
    for verb in ("resume", "evaluate"):
        main([verb, "here", "--config-dir", "mine"])
        word = f"hydra.searchpath=['file://{Path('mine').resolve()}']"
        assert run.existing[-1][2]["hydra.searchpath"] == word


def test_the_guide_and_the_help_load_no_jax() -> None:
    code = "import sys; from evalkit.__main__ import main; main([]); main(['--help']); assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, capture_output=True)


def test_a_run_starts_in_a_folder_of_its_own(run: Run) -> None:
    assert main([*GRIFFIN, "train.steps=700", "+seeds=2"]) == 0
    [(experiment, folder)] = run.started
    assert (experiment.task_name, experiment.model_name, experiment.preset) == ("induction_heads", "griffin", "paper")
    assert (experiment.train.steps, experiment.seeds) == (700, 2)
    assert folder.is_absolute() and folder.parent == Path.cwd() / "runs" / "induction_heads" / "griffin"
    assert {path.name for path in folder.iterdir()} == {"metrics.jsonl"}


@pytest.mark.parametrize("code", [1, 130, 143])
def test_the_exit_code_of_a_run_is_passed_on(run: Run, code: int) -> None:
    run.outcome = lambda experiment: code
    assert main(GRIFFIN) == code


def test_a_run_that_fails_says_so_in_one_line(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(experiment: config.Experiment) -> int:
        raise UserError("the loss was not finite at step 3, seed 0")

    run.outcome = fail
    assert main(GRIFFIN) == 2
    assert capsys.readouterr().err == "evalkit: the loss was not finite at step 3, seed 0\n"


def test_a_fault_of_ours_keeps_its_traceback(run: Run) -> None:
    def fail(experiment: config.Experiment) -> int:
        raise ZeroDivisionError

    run.outcome = fail
    with pytest.raises(ZeroDivisionError):
        main(GRIFFIN)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((*GRIFFIN, "train.stepz=1"), "'train.steps'"),
        (("task=induction_heads",), "model is missing"),
        (("-m", "task=induction_heads", "model=mqa,retnet"), "model=retnet"),
        (("-m", *GRIFFIN, "train.stepz=1,2"), "'train.steps'"),
        ((*GRIFFIN, "--fast"), "--fast; see python -m evalkit run --help"),
        ((*GRIFFIN, "--train.steps=8"), "a setting has no hyphens; give train.steps=8, and in the command of a sweep"),
        (("--task=induction_heads", "--seed=1"), "give task=induction_heads, and in the command of a sweep of W&B's"),
        ((*GRIFFIN, "--config-dir", "nowhere"), "nowhere"),
        (("resume=nowhere",), "nowhere does not exist"),
        (("resume=.",), "no config.yaml"),
        (("resume", __file__), "test_cli.py is a file; give the folder of a run"),
        ((*GRIFFIN, "log=tensorboard"), "allowed: a list of str, such as 'log=[tensorboard]'"),
        ((*GRIFFIN, "eval.lengths=[0]"), "lengths=[0]; allowed: lengths of 1 or more"),
        (("evaluate=nowhere", "eval.lengths=[8]"), "nowhere does not exist"),
        (("resume=a", "evaluate=b"), "one run"),
        (("-m", "resume=a", "seed=1,2"), "one run"),
        ((*GRIFFIN, "preset=null"), "preset=null picks nothing; choose one of cpu"),
        ((*GRIFFIN, "recipe=foo"), "recipe follows from task, preset and model"),
        ((*GRIFFIN, "dtype=bfloat16"), "give model.dtype=bfloat16"),
        ((*GRIFFIN, "seed=${train}"), "allowed: int"),
        ((*GRIFFIN, "~train.steps=1400"), "~train.steps=1400 deletes another value than steps=3000"),
        (("task=phonebook", "checkpoint="), "model is missing"),
        (("experiment=fig6b", "checkpoint=x"), "experiment=fig6b, but checkpoint=x is trained already"),
        (("--cfg", "job", *GRIFFIN, "nope=3"), "unknown key 'nope'"),
        (("resume",), "resume needs the folder of a run"),
        (("evaluate", "eval.lengths=[8]"), "evaluate needs the folder of a run"),
        (("archive", "a"), "archive takes a run and the folder to write"),
        (("bench", "fly"), "invalid choice: 'fly'"),
        (("--config-dir",), "--config-dir is no folder"),
        (("--config-dir", ".", "--config-dir", "."), "--config-dir is given twice; give one folder"),
        ((*GRIFFIN, "-p", "train"), "give --cfg job"),
        (("--cfg", "job", *GRIFFIN, "-p", "train.stepz"), "nearest valid one is 'train.steps'"),
        (("--cfg", "job", "task=induction_heads"), "model is missing"),
        (("--cfg", "some", *GRIFFIN), "invalid choice: 'some'"),
        (("--info", "all", "task=nope", "model=hawk"), "task=nope does not exist"),
        ((*GRIFFIN, "hydra.sweep.dir=x"), "hydra.sweep.dir=x is of a sweep"),
        ((*GRIFFIN, "~model"), "leaves nothing in its place; give model=…"),
        (("task=[induction_heads]", "model=hawk"), "is no name; choose one of"),
        (("example", "induction_heads", "length=99999999999"), "allowed up to 1000000"),
        (("example", "induction_heads", "_target_=json"), "give allow_targets=[json]"),
        (("example", "induction_heads", "_target_=json", "allow_targets=[json]"), "name a class or a function in it"),
        ((*GRIFFIN, "hydra.verbose=true"), "hydra.verbose=true changes nothing"),
    ],
)
def test_a_refused_command_leaves_nothing(
    run: Run, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    assert said in refused(capsys, *arguments)
    assert not run.started and not run.existing


def test_a_folder_is_not_used_twice(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*GRIFFIN, "hydra.run.dir=here"]) == 0
    assert "python -m evalkit resume here, or" in refused(capsys, *GRIFFIN, "hydra.run.dir=here")
    assert len(run.started) == 1


def test_existing_runs_go_to_their_own_commands(run: Run, here: Path) -> None:
    assert main(["resume=here", "train.steps=9000"]) == 0
    assert main(["eval.lengths=[8,16]", "evaluate=here", "step=7"]) == 3
    assert run.existing == [
        ("resume", here, {"train.steps": "train.steps=9000"}),
        ("evaluate", here, {"eval.lengths": "eval.lengths=[8,16]", "step": 7}),
    ]


def group_of_one_sweep(run: Run) -> str | None:
    """The group of W&B's that both runs of a sweep have."""
    (found,) = {experiment.wandb.group for experiment, _ in run.started}
    # A job that is requeued finds its folder again: the time in its name is the sweep's, not its own.
    times, numbers = zip(*(folder.name.rsplit("_", 1) for _, folder in run.started), strict=True)
    assert len(set(times)) == 1 and numbers == ("0", "1")
    return found


@pytest.mark.slow
def test_a_sweep_is_one_group_and_goes_on_after_a_run_that_failed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_RUN_GROUP", raising=False)
    run.outcome = lambda experiment: int(experiment.model_name == "mqa")
    assert main(["task=induction_heads", "-m", "model=mqa,hawk"]) != 0
    assert [experiment.model_name for experiment, _ in run.started] == ["mqa", "hawk"]
    assert [folder.parent.name for _, folder in run.started] == ["mqa", "hawk"]
    assert (group_of_one_sweep(run) or "").startswith("sweep-20")


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("settings", "variable", "group"),
    [
        ((), None, "sweep-20"),
        (("hydra.sweep.dir=runs/mine",), None, "sweep-mine"),
        (("wandb.group=own",), None, "own"),
        ((), "own", None),
    ],
)
def test_the_runs_of_a_sweep_are_one_group_of_w_and_b(
    settings: tuple[str, ...], variable: str | None, group: str | None, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WANDB_RUN_GROUP", raising=False)
    if variable is not None:
        monkeypatch.setenv("WANDB_RUN_GROUP", variable)
    assert main(["-m", *GRIFFIN, "seed=1,2", *settings]) == 0
    found = group_of_one_sweep(run)
    assert len(run.started) == 2 and (found == group if group is None else (found or "").startswith(group))


@pytest.mark.slow
def test_a_sweep_ends_when_it_is_interrupted(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run.outcome = lambda experiment: 130
    assert main(["-m", "task=induction_heads", "model=mqa,hawk"]) == 130
    assert len(run.started) == 1

    def while_it_compiles(experiment: config.Experiment) -> int:
        raise KeyboardInterrupt

    run.outcome = while_it_compiles
    capsys.readouterr()
    assert main(["-m", "task=induction_heads", "model=mqa,hawk", "hydra.sweep.dir=runs/mine"]) == 130
    said = capsys.readouterr().err
    assert said == "evalkit: stopped; compare what is finished with: python -m evalkit compare runs/mine\n"


def test_hydra_answers_its_own_flags(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--hydra-help"]) == 0
    assert "Hydra (" in capsys.readouterr().out
    assert main(["--info", "searchpath"]) == 0
    assert "Config search path" in capsys.readouterr().out
    assert main(["--cfg", "job", "task=phonebook", "checkpoint=somewhere"]) == 0
    assert "variant: jelassi" in capsys.readouterr().out, "not what would run"
    assert not run.started and not list(Path.cwd().iterdir())


def test_every_setting_is_shown(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    def shown(*arguments: str) -> str:
        assert main(arguments) == 0
        return capsys.readouterr().out

    job = yaml.safe_load(shown("--cfg", "job", *GRIFFIN, "train.steps=700"))
    assert job["train"]["steps"] == 700
    assert job["model"]["mixers"]["recurrent"]["decay_range"], "of the constructor, not of YAML"
    assert set(job) >= {"task", "model", "train", "eval", "wandb", "seeds"} and "hydra" not in job
    assert Spec.of([*GRIFFIN, *(f"{key}={typed(value)}" for key, value in leaves(job))]).experiment.model is not None, (
        "not every key that is shown can be given"
    )
    both = yaml.safe_load(shown("--cfg", "all", "--resolve", *GRIFFIN))
    assert both["hydra"]["run"]["dir"].startswith("runs/induction_heads/griffin/") and both["task"] == job["task"]
    assert list(yaml.safe_load(shown("--cfg", "hydra", *GRIFFIN))) == ["hydra"]
    assert shown("--cfg", "job", "-p", "train.steps", *GRIFFIN) == "3000\n"
    assert "tags" in yaml.safe_load(shown("--cfg", "job", "-p", "wandb", "task=phonebook", "checkpoint=somewhere"))
    swept = shown("--cfg", "job", "-m", "task=induction_heads", "model=hawk,mqa")
    assert [one["model_name"] for one in yaml.safe_load_all(swept)] == ["hawk", "mqa"]
    assert not run.started and not list(Path.cwd().iterdir())


def test_a_reader_that_goes_away_ends_the_command_quietly() -> None:
    code = "import sys; from evalkit.__main__ import main; sys.exit(main())"
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=PIPE, stderr=PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.wait(60) == 141 and process.stderr.read() == b""


def test_options_are_completed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMP_LINE", "evalkit model=")
    assert main(["-sc", "query=bash"]) == 0
    assert capsys.readouterr().out.split() == [f"model={name}" for name in catalogue.options("model")]


@pytest.mark.slow
@pytest.mark.exhaustive  # tests/test_installed.py trains beside packages of all those names
def test_a_package_of_the_users_own_with_one_of_our_names_is_left_alone(tmp_path: Path) -> None:
    """`tasks/` in the current folder is the user's: nothing of it is imported."""
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "__init__.py").write_text("raise SystemExit('imported')")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "evalkit", "example", "induction_heads"]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_word_that_is_no_verb_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert "'comapre' is no command; choose one of run, resume" in refused(capsys, "comapre", "a", "b")


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_is_a_file(verb: str) -> None:
    assert callable(import_module(f"evalkit.commands.{VERBS[verb].module}").main)


@pytest.mark.parametrize("verb", ["resume", "evaluate"])
def test_a_run_is_given_as_a_word_or_as_a_setting(run: Run, here: Path, verb: str) -> None:
    assert main([verb, "here", "eval.lengths=[8]"]) == main([f"{verb}=here", "eval.lengths=[8]"])
    first, second = run.existing
    assert first == second and first[:2] == (verb, here) and first[2]["eval.lengths"] == "eval.lengths=[8]"


def test_tasks_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["example"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in catalogue.options("task")) and "vocabulary 16" in listed


@pytest.mark.parametrize("name", sampled(catalogue.options("task"), 5))
def test_an_example_is_shown_with_its_answers(capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert main(["example", name, "seed=1"]) == 0
    shown = capsys.readouterr().out
    assert main(["example", name, "seed=1"]) == 0
    assert capsys.readouterr().out == shown
    assert main(["example", name, "seed=2"]) == 0
    assert capsys.readouterr().out != shown


def test_the_answer_stands_below_its_position(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["example", "induction_heads", "task.length=12", "trigger=fixed"]) == 0
    tokens, answers = capsys.readouterr().out.splitlines()[-2:]
    assert len(tokens.split()) == 12 and tokens.split()[5] == tokens.split()[-1] == "★"
    assert answers.split() == [tokens.split()[6]] and len(answers) == len(tokens)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nonsense"], "induction_heads"),
        (["induction_heads", "triger=fixed"], "'task.trigger'"),
        (["induction_heads", "trigger=late"], "prefix"),
        (["induction_heads", "length=2"], "too short"),
        (["induction_heads", "length=long"], "length='long'"),
        (["induction_heads", "seed=-1"], "seed=-1"),
    ],
)
def test_a_wrong_task_is_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str], said: str) -> None:
    assert main(["example", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1 and said in printed.err
