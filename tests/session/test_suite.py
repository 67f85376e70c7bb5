"""`experiment=suite`: rates are searched, the chosen one trains fresh seeds, and all is drawn beside what is kept."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import jax
import numpy as np
import pytest

from evalkit.__main__ import main
from evalkit.configuration import catalogue, composition, grammar
from evalkit.configuration.spec import Spec
from evalkit.core.contracts import Judged
from evalkit.core.errors import UserError
from evalkit.record.history import Work
from evalkit.reports.suite import cells as suite_cells
from evalkit.reports.suite.board import html
from evalkit.reports.suite.cells import (
    RateTrial,
    as_json,
    finished_cells,
    from_json,
    rate_trials,
    window_of,
)
from evalkit.session import experiments, plan, run, suite
from evalkit.session.protocol import KEYS
from support import tiny

pytestmark = pytest.mark.usefixtures("shared", "blank_figures")

SMALL = 'model=hawk, model.width=8, "model.pattern=[recurrent]", model.mixers.recurrent.gate_blocks=2'
SUITE = f"""
# Two tasks with two models.
suite:
  rates: [1.0e-3, 3.0e-3]
  search_seed: 1000
  seed: 7
  seeds: 2
  tasks:
    paper:
      heads: [task=induction_heads, task.length=32, "eval.lengths=[16,32]"]
      parity: [task=state_tracking, task.group=z2, task.length=16, "eval.lengths=[16,32]", eval.span=8]
  models:
    one: [{SMALL}, model.mlp_expansion=2]
    other: [{SMALL}, model.mlp_expansion=1]
  models_on:
    heads:
      other: [model.mlp_expansion=2]
  sizes:
    heads:
      large:
        one: [model.mixers.recurrent.width_rnn=16]
"""
MIXER = '''
"""An exponential moving average of each channel, whose decay is learned (Ma et al. 2022, arXiv 2209.10655)."""

import jax
import jax.numpy as jnp
from flax import nnx

from evalkit.models.layers import Linear, NoDecay, scanned


class MovingAverage(nnx.Module):
    """`h_t = a h_{t-1} + (1 - a) x_t W`, with one learned a a channel, and a gate of the token on the output."""

    window = None

    def __init__(self, width, *, rngs):
        self.decay = NoDecay(jnp.linspace(-3.0, 3.0, width))
        self.value = Linear(width, width, rngs=rngs)
        self.gate = Linear(width, width, rngs=rngs)
        self.output = Linear(width, width, rngs=rngs)

    def __call__(self, x, positions, cache):
        a = jnp.broadcast_to(jax.nn.sigmoid(self.decay[...]), x.shape)
        h, last = scanned((1 - a) * self.value(x), a, positions, cache)
        return self.output(h * jax.nn.silu(self.gate(x))), None if cache is None else last

    def init_cache(self, batch, length):
        return jnp.zeros((batch, self.decay.shape[0]))
'''
YAML = "# A moving average.\n_target_: theirs.average.MovingAverage\n_partial_: true\n"
SETTINGS = [
    *(*tiny.TRAIN, "train.lengths=null", "wandb.mode=disabled"),
    *("eval.sequences=4", "eval.batch_size=8", "eval.during=[]"),
]


def begin(folder: Path, *overrides: str) -> int:
    """Runs the suite of a folder of the user's own, into `folder/out`; what a step takes is made up."""
    (folder / "conf" / "experiment").mkdir(parents=True, exist_ok=True)
    (folder / "conf" / "experiment" / "mine.yaml").write_text(SUITE.lstrip())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "_seconds_measured", Mock(return_value=1.0))
        words = ["experiment=mine", "--config-dir", str(folder / "conf"), *SETTINGS, f"hydra.run.dir={folder / 'out'}"]
        return main([*words, *overrides])


@pytest.fixture
def suite_of(tmp_path: Path) -> Callable[..., int]:
    return partial(begin, tmp_path)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("suite")
    assert begin(folder, "task=heads") == 0
    return folder


@pytest.mark.slow
def test_every_cell_is_searched_trained_and_drawn(done: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = done / "out"
    for cell in ("heads/one", "heads/other"):
        config = Spec.saved(out / cell / "final").plain
        assert (config["seed"], config["seeds"], config["train"]["steps"]) == (7, 2, 6)
        search = Spec.saved(out / cell / "rates").plain
        assert (search["seed"], search["seeds"], search["train"]["steps"]) == (1000, 2, 6), "full length, a seed a rate"
        assert [trial.rate for trial in rate_trials(out / cell / "rates")] == [0.001, 0.003]
        trials = [trial for path in (out / cell).glob("rates*") for trial in rate_trials(path)]
        window = [trial.rate for trial in window_of(trials, 1 / 15)]
        assert config["train"]["learning_rate"] in (window or [trial.rate for trial in trials])
    large = Spec.saved(out / "heads" / "one" / "large" / "final").plain
    own = Spec.saved(out / "heads" / "one" / "final").plain
    assert large["model"]["mixers"]["recurrent"]["width_rnn"] == 16
    assert large["train"]["learning_rate"] == own["train"]["learning_rate"]
    drawn = {path.stem for path in out.glob("*.png")}
    assert drawn == {"board", "heads-state", "heads-length", "heads-rate"}
    assert "2 tasks, 2 models, 2 of 4 cells run" in (out / "board.html").read_text()
    page, rows = (out / "suite.html").read_text(), (out / "suite.csv").read_text().splitlines()
    assert "one" in page and "beyond the training length" in page
    found = from_json((out / "suite.json").read_text())
    assert [cell.protocol for cell in finished_cells(out)] == [cell.protocol for cell in found], "beside kept ones"
    tried = sum(len(cell.trials) for cell in found)
    assert len(rows) == 1 + 3 * 2 * 2 + tried and tried >= 4, "a row a measurement of three final runs, and one a trial"
    assert [(cell.task, cell.model, cell.size) for cell in found][:2] == [
        ("heads", "one", None),
        ("heads", "one", "large"),
    ]
    assert as_json(found) == (out / "suite.json").read_text()


@pytest.mark.slow
def test_again_nothing_is_trained(
    done: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("start", "resume"):
        monkeypatch.setattr(run, name, Mock(side_effect=AssertionError))
    assert begin(done, "task=heads") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "nothing is left to train" in said and "heads/one finished" in said


@pytest.mark.slow
def test_a_final_run_at_another_rate_than_its_trials_choose_now_is_refused(
    done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(done / "out", tmp_path / "out")
    final = tmp_path / "out" / "heads" / "one" / "final"
    chosen = Spec.saved(final).plain["train"]["learning_rate"]
    edited = (final / "config.yaml").read_text().replace(f"learning_rate: {chosen}", "learning_rate: 0.5")
    (final / "config.yaml").write_text(edited)
    before = tiny.files(final)
    assert begin(tmp_path, "task=heads", "model=one") == 1
    said = " ".join("".join(capsys.readouterr()).split())
    assert f"was begun at the rate 0.5, and its search chooses {chosen:g} now; remove that folder" in said
    assert tiny.files(final) == before


@pytest.mark.slow
def test_one_cell_is_a_cell_and_a_dry_run_writes_nothing(
    suite_of: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert suite_of("task=heads", "model=other", "dry_run=true") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "heads/other to do 0 of 12" in said and "parity" not in said and not (tmp_path / "out").exists()
    assert suite_of("task=state_tracking", "dry_run=true") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "parity/one" in said and "heads" not in said
    assert suite_of("task=nothing", "dry_run=true") == 2
    assert "task=nothing is none of the suite's (heads, parity)" in capsys.readouterr().err
    assert suite_of("preset=cpu") == 2 and "give preset=paper" in capsys.readouterr().err


TASKS = {name for tasks in composition.compose(["experiment=suite"]).config.suite.tasks.values() for name in tasks}


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("task=books", "task=books is not judged by accuracy, as a suite's tasks are; choose one that is generated"),
        (
            "+mixer=theirs",
            "cell parity/theirs: +mixer=theirs is a file of yours, mixer/theirs.yaml; "
            "give its folder as --config-dir FOLDER",
        ),
        ("-m", "experiment= has its own runs; leave -m out"),
        ("seeds=5", "seeds=5: the suite's protocol decides it; give suite.seeds=N for the final runs"),
        (
            "train.learning_rate=1e-2",
            "train.learning_rate=1e-2: the suite's protocol decides it; give 'suite.rates=[1e-3,3e-3]'",
        ),
        ("suite.rates=many", "suite.rates=many; allowed: a list of rates above 0, such as 'suite.rates=[1e-3,3e-3]'"),
        ("quick=1", "quick=1; allowed: quick=true for the quick form of the suite, or false"),
        ("quick=true ~suite.quick", "quick=true, and suite.quick={}; a quick form has tasks, rates, seeds"),
        ("quick=true suite.seeds=5", "suite.seeds=5 with quick=true, which has its own; give suite.quick.seeds"),
        (
            "quick=true suite.quick.rates=many",
            "suite.rates=many; allowed: a list of rates above 0, such as 'suite.rates=[1e-3,3e-3]'",
        ),
        (
            "quick=true suite.quick.tasks=3",
            "suite.quick.tasks=3; allowed: a list of the suite's tasks, such as [parity]",
        ),
        (
            "quick=true suite.quick.tasks=[[parity]]",
            "suite.quick.tasks=[['parity']]; allowed: a list of the suite's tasks, such as [parity]",
        ),
        (
            "quick=true suite.quick.tasks=[parity,heads]",
            "suite.quick.tasks: heads is no task at preset=cpu; give of parity, s3, even_pairs, cycle, mqar, "
            "noisy_recall, copying, selective_copying, palindrome, stack",
        ),
        ("suite.models=3", "suite.models=3; allowed: lists of words, such as models: {mine: [model=hawk]}"),
        (
            "suite.sizes=many",
            "suite.sizes=many; allowed: lists of words, such as sizes: {parity: {small: {mine: [model.width=32]}}}",
        ),
        ("~suite.tasks", f"suite.tasks is missing; a suite has {', '.join(KEYS)}"),
        (
            'task=s3 model=hawk +suite.models_on.s3.hawk=["model.widht=32"]',
            "cell s3/hawk: unknown key 'model.widht'; the nearest valid one is 'model.width'",
        ),
        (
            'task=mqar model=mamba suite.sizes.mqar.small.mamba=["model.widht=32"]',
            "cell mqar/mamba/small: unknown key 'model.widht'; the nearest valid one is 'model.width'",
        ),
        (
            '+runs.mine=["model=hawk"]',
            '+runs.mine=["model=hawk"]: a suite has cells, not runs; give task= and model= for one of them',
        ),
        ("suite.floors.cpu.mqar=1", "suite.floors.cpu.mqar=1; allowed: an accuracy from 0 to below 1"),
        (
            "suite.floors.cpu.nosuch=0.1",
            f"suite.floors.cpu.nosuch: nosuch is no task of the suite; give one of {', '.join(sorted(TASKS))}",
        ),
        ("suite.floors=3", "suite.floors=3; allowed: accuracies by preset and task, such as {cpu: {mqar: 0.08}}"),
        (
            "suite.controls.s3=lsmt",
            f"suite.controls.s3=lsmt is no model; give one of {', '.join(sorted(catalogue.options('model')))}",
        ),
        (
            "suite.controls.s3=[lstm]",
            f"suite.controls.s3=['lstm'] is no model; give one of {', '.join(sorted(catalogue.options('model')))}",
        ),
        (
            "suite.rates=[1e-3,1.0000001e-3]",
            "suite.rates=[0.001, 0.0010000001] has a rate twice, to six digits; give each once",
        ),
        (
            "suite.search_seed=2002",
            "suite.search_seed=2002 begins 12 seeds of a search, some of them among the 3 final ones from "
            "suite.seed=2000, which are to be fresh; give another",
        ),
        (
            "model.mixers.recurrent.width_rnn=32",
            "model.mixers.recurrent.width_rnn=32: the sizes of mqar set it as well; leave them out with "
            "'~suite.sizes.mqar'",
        ),
        ("suite.tasks.cpu.parity=[]", "suite.tasks.cpu.parity is empty; give its words, such as [task=parity]"),
        (
            "suite.models.hawk=[]",
            "suite.models.hawk is empty; give a model's words, such as models: {mine: [model=hawk]}",
        ),
        ("+mixer=hawk", "+mixer=hawk is also a model of the suite; give the file of your mixer another name"),
        ("model=hawk,mamba", "model= takes one name in a suite; leave it out for all, or give a command for each"),
        ("model=hawk model=mamba", "model=hawk model=mamba: a suite takes model= once; give a command for each"),
        (
            "task=state_tracking task.group=s5",
            "task.group=s5 with task=state_tracking, which is parity, s3 in the suite, told apart by this setting; "
            "give one of them, such as task=parity",
        ),
        (
            "+optimizer@train.optimizer=cautious --config-dir {own}",
            "train.optimizer is one of Optax, which takes one learning rate, and a search trains "
            "several in one program; give one rate: 'suite.rates=[1e-3]'",
        ),
        (
            "task=parity --config-dir {own}",
            "task=parity is a task of {own}, and of the suite; give the file of yours another name",
        ),
    ],
)
def test_what_a_suite_cannot_do_is_one_line(
    words: str, line: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for file, text in (
        ("optimizer/cautious.yaml", "_target_: optax.lion\n_partial_: true\n"),
        ("task/parity.yaml", "# Mine.\n_target_: evalkit.tasks.state_tracking.StateTracking\n"),
    ):
        (tmp_path / file).parent.mkdir()
        (tmp_path / file).write_text(text)
    assert main(["experiment=suite", *words.replace("{own}", str(tmp_path)).split()]) == 2
    assert capsys.readouterr().err == f"evalkit: {line.replace('{own}', str(tmp_path))}\n"


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ('+suite.models_on.partiy.hawk=["model.width=32"]', "partiy is no task of the suite; give one of "),
        ('+suite.models_on.parity.hwak=["model.width=32"]', "hwak is no model of the suite; give one of "),
        ('+suite.sizes.mqar.tiny.hwak=["model.width=32"]', "hwak is no model of the suite; give one of "),
    ],
)
def test_a_misspelt_name_of_what_is_changed_is_one_line(
    word: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["experiment=suite", word]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"evalkit: {word}: {told}") and "hawk" in said


@pytest.mark.slow
def test_a_task_is_found_wherever_its_word_stands() -> None:
    words = [
        "experiment=suite",
        '+suite.tasks.cpu.mine=["task.length=16","task=copying"]',
        "task=copying",
        "model=hawk",
    ]
    given = suite.selected(words)
    assert given is not None
    config = composition.compose(["experiment=suite", *given.protocol]).config
    assert {part.name.split("/")[0] for part in suite.jobs(config, given, Path("out"))} == {"copying", "mine"}


def guessed(task: Any) -> float:
    """The accuracy of the best of four guesses: the value shown last or the commonest, with the answers or without.

    An answer that is never shown, such as the end of a copy, is known by its place.
    """
    keys = jax.random.split(jax.random.key(9), 200)
    examples = jax.device_get(jax.jit(jax.vmap(lambda key: task.sample(key, task.length)))(keys))
    values, rights = np.unique(examples.targets[examples.mask]), list[np.ndarray]()
    for tokens, targets, mask in zip(examples.tokens, examples.targets, examples.mask, strict=True):
        is_value = np.isin(tokens, values)
        shown = (is_value, is_value & ~np.roll(mask, 1))  # an answer stands right after its question
        right = [[_guesses(tokens[:at][of[:at]], targets[at], tokens) for of in shown] for at in np.flatnonzero(mask)]
        rights.append(np.mean(right, axis=0))
    return float(np.mean(rights, axis=0).max())


def _guesses(shown: np.ndarray, target: int, tokens: np.ndarray) -> tuple[float, float]:
    if target not in tokens:
        return 1.0, 1.0
    if not len(shown):
        return 0.0, 0.0
    counts = np.bincount(shown)
    commonest = np.flatnonzero(counts == counts.max())
    return float(shown[-1] == target), float(target in commonest) / len(commonest)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "copying",
        *(
            pytest.param(name, marks=pytest.mark.exhaustive)
            for name in ("mqar", "noisy_recall", "selective_copying", "palindrome", "stack")
        ),
    ],
)
def test_a_floor_is_what_a_guess_among_the_values_shown_has(name: str) -> None:
    protocol = composition.compose(["experiment=suite"]).config.suite
    words = [word for word in protocol.tasks.cpu[name] if word.startswith("task")]
    task = Spec.of(["preset=cpu", "model=hawk", *words]).experiment.task
    assert guessed(task.judged if isinstance(task, Judged) else task) == pytest.approx(
        protocol.floors.cpu[name], abs=0.02
    )


def test_the_board_of_one_cell_is_that_of_the_whole_suite() -> None:
    """Kept cells are drawn beside it, so that their floors are needed, and the squares that nobody ran are shown."""
    given = suite.selected(["experiment=suite", "task=copying", "model=gla"])
    assert given is not None
    board = suite.jobs(composition.compose(["experiment=suite"]).config, given, Path("out"))[0].board
    assert board is not None and board.floors["mqar"] == 0.125 and board.controls["s3"] == "lstm"
    assert {("copying", "gla"), ("mqar", "hawk"), ("stack", "mamba")} <= set(board.wanted)
    assert board.command == "python -m evalkit experiment=suite preset=cpu hydra.run.dir=out"


def test_the_command_of_a_square_runs_it_beside_the_others() -> None:
    """In their folder, by what was typed for them."""
    typed = ["suite.seeds=5", "train.steps=9"]
    for folder, place in (("runs/suite/cpu", ""), ("elsewhere/suite", " hydra.run.dir=elsewhere/suite")):
        given = suite.selected(["experiment=suite", "preset=cpu", *typed, "task=copying", "model=gla"])
        assert given is not None
        board = suite.jobs(composition.compose(["experiment=suite"]).config, given, Path(folder))[0].board
        assert board is not None
        assert board.command == f"python -m evalkit experiment=suite preset=cpu suite.seeds=5 train.steps=9{place}"
        assert not board.typed


def test_what_was_typed_for_one_model_or_task_is_not_in_the_commands_of_others() -> None:
    """Else another Mamba-2 would be trained beside one's mixer, or none, where it has no such setting."""
    typed = ["model.mlp_expansion=2", "task.data_tokens=4", "train.steps=9"]
    given = suite.selected(["experiment=suite", *typed, "task=selective_copying", "model=hawk"])
    assert given is not None
    board = suite.jobs(composition.compose(["experiment=suite"]).config, given, Path("runs/suite/cpu"))[0].board
    assert board is not None and board.command.endswith(" train.steps=9")
    shown = html(replace(board, cells=()))
    for words in (
        "train.steps=9 task.data_tokens=4 model.mlp_expansion=2 task=selective_copying model=hawk",
        "train.steps=9 task.data_tokens=4 task=selective_copying model=mamba",
        "train.steps=9 model.mlp_expansion=2 task=mqar model=hawk",
        "train.steps=9 task=mqar model=mamba",
    ):
        assert words in shown


@pytest.mark.parametrize(
    ("accuracies", "chosen"),
    [
        ((1.0, 1.0, 1.0, 0.95, 0.1), 2e-3),  # the middle, not the fastest or the last that works
        ((0.1, 0.2, 1.0, 0.3, 0.1), 4e-3),
        ((1.0, 0.1, 0.99, 0.99, 0.98), 8e-3),  # the best stands alone: the longest row of those that work
        ((1.0, 0.1, 0.2, 0.99, 0.1), 1e-3),  # of rows of equal length that of the best
        ((0.1, 0.05, 0.08, 0.06, None), 8e-3),  # nothing was learned: the lowest loss
        ((1.0, 1.0, 0.1, 0.1, None), 1e-3),  # of two as near the middle the lower
    ],
)
def test_the_middle_of_the_window_is_chosen(
    accuracies: tuple[float | None, ...], chosen: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found on the board: at the rate that was right first, one of three fresh seeds of an LSTM was not."""
    rates = (1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2)
    losses = (1.0, 0.9, 0.8, 0.7, None)
    trials = [RateTrial(*one) for one in zip(rates, accuracies, losses, strict=True)]
    monkeypatch.setattr(suite, "_searched", lambda folder, final: trials)
    final = plan.Job(
        "g", "t/m/final", Mock(), words=["task=mqar", "model=hawk"], search=plan.RateSearch("t/m", [], rates, 1, 0.1)
    )
    assert (
        suite.at_chosen_rate(Path(), final._replace(spec=Spec.of(["task=mqar", "model=hawk"]))).plain["train"][
            "learning_rate"
        ]
        == chosen
    )


@pytest.mark.parametrize(
    ("accuracies", "further"),
    [
        ((0.9, 0.5, 0.2), ("rates_lower", [5e-4, 2.5e-4])),
        ((0.2, 0.5, 0.9), ("rates_higher", [8e-3, 1.6e-2])),
        ((0.5, 0.9, 0.2), None),
        ((0.05, 0.05, 0.08), None),  # nothing was learned
        ((0.5, 0.9), None),  # of two rates one is always the best
    ],
)
def test_a_grid_whose_best_rate_is_at_its_edge_is_widened_there(
    accuracies: tuple[float, ...], further: tuple[str, list[float]] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates = (1e-3, 2e-3, 4e-3)[: len(accuracies)]
    trials = [RateTrial(rate, accuracy, 0.5) for rate, accuracy in zip(rates, accuracies, strict=True)]
    monkeypatch.setattr(suite, "_searched", lambda folder, final: trials)
    search = plan.RateSearch("t/m", ["task=mqar", "model=hawk"], rates, 10, 0.1)
    found = list(suite.further_searches(Path("out"), plan.Job("g", "t/m/final", Mock(), cell="t/m", search=search)))
    assert [(spec.folder.name, list(spec.plain["train"]["learning_rate"])) for spec in found] == (
        [] if further is None else [further]
    )
    assert all(spec.plain["seed"] >= 10 + len(rates) for spec in found), "seeds that the grid has not used"


@pytest.mark.parametrize(
    ("cell", "is_done", "is_widened"), [("t/m", False, True), ("t/m", True, False), ("t/m/large", False, False)]
)
def test_the_search_of_a_finished_cell_or_of_a_further_size_is_not_widened(
    cell: str, is_done: bool, is_widened: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rates beyond the grid that diverged left no results, and were trained again by each later command."""
    widened = Mock(return_value=())
    spec = Mock(folder=tmp_path)
    monkeypatch.setattr(suite, "further_searches", widened)
    monkeypatch.setattr(suite, "at_chosen_rate", Mock(return_value=spec))
    monkeypatch.setattr(experiments, "_train", Mock(return_value=0))
    if is_done:
        (tmp_path / "results.json").write_text("{}")
    job = plan.Job("g", f"{cell}/final", spec, cell=cell, search=plan.RateSearch("t/m", [], [1e-3], 1, 0.1))
    assert experiments._do(tmp_path, job) == 0
    assert widened.called == is_widened


@pytest.mark.slow
def test_rates_that_were_searched_with_more_steps_are_refused(done: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A stopped cell that goes on with fewer steps would have a rate that was chosen for other trainings."""
    before = tiny.files(done / "out" / "heads" / "one")
    assert begin(done, "task=heads", "model=one", "train.steps=4") == 2
    assert "was begun with another train.steps" in capsys.readouterr().err
    assert tiny.files(done / "out" / "heads" / "one") == before


def test_the_quick_form_has_fewer_tasks_rates_and_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    given = suite.selected(["experiment=suite", "quick=true", "model=hawk"])
    assert given is not None and given.quick and given.rest == []
    parts = suite.jobs(composition.compose(["experiment=suite"]).config, given, Path("out"))
    assert [part.name for part in parts if part.search] == [
        f"{task}/hawk/final" for task in ("parity", "mqar", "palindrome", "copying")
    ]
    assert parts[0].board is not None and "quick=true" in parts[0].board.command
    other = suite.selected(["experiment=suite", "quick=true", "model=hawk", "task=cycle"])
    assert other is not None
    of_other = suite.jobs(composition.compose(["experiment=suite"]).config, other, Path("out"))
    assert [part.name for part in of_other] == ["cycle/hawk/rates", "cycle/hawk/final"], "a task of the suite"
    search, final = parts[:2]
    assert (search.experiment.train.rates, final.experiment.seeds) == ([2e-3, 8e-3], 1)
    whole = suite.selected(["experiment=suite", "quick=false"])
    assert whole is not None and not whole.quick
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "_seconds_measured", Mock(return_value=1.0))
        assert main(["experiment=suite", "quick=true", "task=parity", "model=hawk", "dry_run=true"]) == 0
    assert "parity/hawk to do 0 of 1,200" in " ".join(capsys.readouterr().out.split())


def test_the_protocol_is_changed_by_its_own_keys() -> None:
    words = ["experiment=suite", "suite.seeds=5", "suite.rates=[2e-3]", "task=parity", "model=hawk"]
    given = suite.selected(words)
    assert given is not None and list(map(grammar.text_of, given.protocol)) == words[1:3] and given.rest == []
    config = composition.compose(["experiment=suite", *given.protocol]).config
    search, final = suite.jobs(config, given, Path("out"))
    assert (search.name, search.spec.experiment.train.rates) == ("parity/hawk/rates", [2e-3])
    assert final.spec.experiment.seeds == 5 and final.spec.experiment.preset == "cpu", (
        "a suite's sizes are for a CPU by default"
    )


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_rate_that_diverges_is_left_out_and_takes_no_other_with_it(
    suite_of: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """At the highest rate no step of the second dispatch has a finite loss: its seed is lost, and the first goes on."""
    cell = tmp_path / "out" / "heads" / "other"
    words = ["task=heads", "model=other", "train.clip=1e38", "train.optimizer={_target_: optax.sgd, _partial_: true}"]
    assert suite_of(*words, "suite.rates=[1e-3,1e38]") == 2
    assert "an optimiser of Optax takes one" in capsys.readouterr().err
    assert suite_of(*words[:2], "suite.rates=[1e-3,1e30]", "train.steps=8", "train.warmup_steps=0") == 0
    assert [trial.loss is None for trial in rate_trials(cell / "rates")] == [False, True]
    assert Spec.saved(cell / "final").plain["train"]["learning_rate"] < 1e-2
    (found,) = finished_cells(tmp_path / "out")
    assert found.trials[-1] == RateTrial(1e30, None, None) and found.tokens and found.seconds
    assert suite_of(*words[:2], "suite.rates=[1e29,1e30]", "hydra.run.dir=" + str(tmp_path / "high")) == 1
    assert "not finite" in "".join(capsys.readouterr())


def test_a_final_run_whose_search_failed_is_not_begun(
    suite_of: Callable[..., int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "start", Mock(side_effect=UserError("no such text")))
    assert suite_of("task=heads", "model=other") == 1
    said = " ".join("".join(capsys.readouterr()).split())
    assert said.count("no such text") == 1 and "which is not finished" not in said
    assert said.endswith("failed: heads/other/rates, heads/other/final")


def test_a_suite_of_ones_own_needs_no_other_sizes(tmp_path: Path) -> None:
    own = SUITE[: SUITE.index("  models_on:")]
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(own.lstrip())
    words = ["experiment=mine", f"hydra.searchpath=['file://{tmp_path}']", "task=heads", "model=one", *SETTINGS]
    config, given = composition.compose(words[:2]).config, suite.selected(words)
    assert given is not None
    assert [part.name for part in suite.jobs(config, given, Path("out"))][-1] == "heads/one/final"


@pytest.mark.slow
def test_another_size_is_of_the_same_model_on_its_task(done: Path) -> None:
    words = ["experiment=mine", f"hydra.searchpath=['file://{done / 'conf'}']", "task=heads", "model=other", *SETTINGS]
    config, given = composition.compose(words[:2]).config, suite.selected(words)
    assert given is not None
    config.suite.sizes.heads.large = {"other": ["model.mixers.recurrent.width_rnn=16"]}
    own, large = (part.spec.plain["model"] for part in suite.jobs(config, given, Path("out")) if part.search)
    assert own["mlp_expansion"] == large["mlp_expansion"] == 2


@pytest.mark.slow
def test_a_final_run_waits_for_its_search(done: Path, tmp_path: Path) -> None:
    config = composition.compose(["experiment=mine", f"hydra.searchpath=['file://{done / 'conf'}']"]).config
    words = ["experiment=mine", f"hydra.searchpath=['file://{done / 'conf'}']", "task=heads", "model=one", *SETTINGS]
    given = suite.selected(words)
    assert given is not None
    final = next(part for part in suite.jobs(config, given, Path("out")) if part.search)
    with pytest.raises(UserError, match=r"heads/one/rates, which is not finished; give the same command again"):
        suite.at_chosen_rate(tmp_path, final)


@pytest.mark.slow
def test_a_mixer_from_outside_is_checked_run_and_drawn_beside_what_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], done: Path
) -> None:
    for name, text in (("theirs/__init__.py", ""), ("theirs/average.py", MIXER), ("conf/mixer/average.yaml", YAML)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text.lstrip())
    assert len(MIXER.strip().splitlines()) + len(YAML.splitlines()) <= 60
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    small = ["model.width=8", "model.pattern=[mixer]"]
    kept = tmp_path / "kept.json"
    kept.write_text((done / "out" / "suite.json").read_text())
    monkeypatch.setattr(suite_cells, "KEPT", kept)
    monkeypatch.setattr(experiments, "SUITE", "mine")  # as if this one came with evalkit
    monkeypatch.setenv("XDG_STATE_HOME", os.devnull)  # what was named is kept nowhere, as with a read-only home
    with monkeypatch.context() as patched:  # every promise that is kept takes long to look at
        patched.setattr(experiments, "refuse_broken_model", looked := Mock())
        assert begin(tmp_path, "+mixer=average", "task=heads", *small) == 0
    assert [call.args[0].model_name for call in looked.call_args_list] == ["average"]
    said = capsys.readouterr().out
    assert "average" in said and "other" in said and "3 of 4 cells are results that were kept" in " ".join(said.split())
    assert read_model(tmp_path / "out" / "heads" / "average" / "final") == "average"
    monkeypatch.setattr(experiments, "SUITE", "another")
    assert begin(tmp_path, "+mixer=average", "task=heads", *small) == 0
    assert "results that were kept" not in capsys.readouterr().out, "another suite may train otherwise"
    assert begin(tmp_path, "+mixer=average", "model=hawk", "task=heads") == 2
    assert "give one of the two" in capsys.readouterr().err
    wrong = MIXER.replace(
        "return self.output(", "h = h + x[:, 40:41].sum(axis=1, keepdims=True)\n        return self.output("
    )
    (tmp_path / "theirs" / "far.py").write_text(wrong.lstrip())
    (tmp_path / "conf" / "mixer" / "far.yaml").write_text(YAML.replace("average", "far"))
    assert begin(tmp_path, "+mixer=far", "task=heads", *small) == 2
    told = capsys.readouterr()
    assert told.err.startswith("evalkit: model=far breaks 'length'") and "heads/far/rates" not in told.out


def read_model(folder: Path) -> str:
    return Spec.saved(folder, packages=["theirs"]).experiment.model_name


@pytest.mark.slow
def test_a_cell_is_what_its_run_came_to_be(done: Path, tmp_path: Path) -> None:
    """Its steps are those that it was given in the end, and its words those of the command that began it."""
    folder = shutil.copytree(done / "out" / "heads", tmp_path / "heads")
    final = next(folder.glob("*/final"))
    typed = "task=mqar +mixer=m task.pairs=16 model.width=8 '~suite.sizes.mqar'"
    typed += " '+suite.models.mine=[model=hawk]' '+suite.tasks.cpu.mine=[task=copying]'"  # which add cells alone
    typed += " suite.controls.stack=lstm quick=false train.microbatch=4"  # which change what is shown, and nothing
    typed += " '+suite.models_on.mqar.lstm=[model.width=8]' suite.sizes.heads.small.lstm=[]"  # which change others
    begun = Work(f"python -m evalkit experiment=suite {typed}", 0, 6, "constant")
    further = Work("python -m evalkit resume runs/m train.steps=9", 4, 9, "constant")
    (final / "history.json").write_text(json.dumps([asdict(begun), asdict(further)]))
    [found] = (one for one in finished_cells(tmp_path) if one.model == final.parent.name and one.size is None)
    assert (found.steps, found.typed) == (9, ["task.pairs=16"])
    (final / "history.json").write_text(json.dumps([asdict(Work("evalkit task.pairs=16 'open", 0, 6))]))
    [found] = (one for one in finished_cells(tmp_path) if one.model == final.parent.name and one.size is None)
    assert found.typed == ["task.pairs=16"]


@pytest.mark.slow
def test_a_final_run_is_also_asked_at_its_training_length() -> None:
    """By which its cell is judged: the suite's own ladder is of the suite's length."""
    words = ["experiment=suite", "task=mqar", "model=kda", "task.length=40"]
    given = suite.selected([*words, "train.curriculum=[]"])
    assert given is not None
    finals = [part for part in suite.jobs(composition.compose(words[:1]).config, given, Path("out")) if part.search]
    assert [list(part.spec.plain["eval"]["lengths"]) for part in finals] == 3 * [[40, 32, 64]]


EVERY = [
    ("cpu", ["task=mqar", "model=hawk"]),
    *(
        pytest.param(preset, [word], marks=pytest.mark.exhaustive)
        for preset, word in (("cpu", "model=hawk"), ("paper", "model=mamba"), ("cpu", "task=s3"), ("cpu", "task=mqar"))
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("preset", "words"), EVERY, ids=str)
def test_the_runs_of_the_suite_can_be_and_have_as_many_parameters(preset: str, words: list[str]) -> None:
    """Of a task every model and every size, of a model every task."""
    config = composition.compose(["experiment=suite", f"preset={preset}"]).config
    given = suite.selected(["experiment=suite", f"preset={preset}", *words])
    assert given is not None
    parts = suite.jobs(config, given, Path("out"))
    assert {part.name.split("/")[-1] for part in parts} == {"rates", "final"}
    cells: dict[str, Any] = {}
    for part in parts:
        experiment = part.spec.experiment
        first = cells.setdefault(part.name.rpartition("/")[0], experiment)
        assert first.config["model"] == experiment.config["model"], part.name
    for name, experiment in cells.items():
        shapes = jax.eval_shape(experiment.trained[0].init, jax.random.key(0))
        beside = sum(leaf.size for leaf in jax.tree.leaves(shapes)) - experiment.task.vocab_size * 64
        assert beside == pytest.approx(250_000, rel=0.02), name
