"""Which trial a search chooses: the rule that its protocol states, on trials made up for it."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from evalkit.__main__ import main
from evalkit.configuration.spec import Spec
from evalkit.core.rows import read, value, with_records
from evalkit.session.plan import tokens
from evalkit.session.selection import Trial, ranked, select
from support import tiny
from support.words import studied

pytestmark = pytest.mark.usefixtures("shared", "blank_figures")


def trial(name: str, tokens: int | None, loss: float | None, finished: bool = True) -> Trial:
    return Trial(name, 1e-3, "hawk", finished, None if tokens is None else tokens // 10, tokens, 1.0, loss)


def order(*trials: Trial) -> str:
    return "".join(one.name for one in ranked(trials))


def test_the_fewest_tokens_win_and_within_a_tenth_the_lowest_loss() -> None:
    assert order(trial("a", 120, 0.1), trial("b", 100, 0.9), trial("c", 110, 0.2)) == "cba"
    assert order(trial("a", 300, 0.5), trial("b", 200, 0.9), trial("c", 300, 0.1)) == "bca"


def test_what_never_got_there_comes_behind_and_what_failed_last() -> None:
    lost = trial("n", 1, None)
    unfinished = trial("u", 1, 0.0, finished=False)
    assert order(unfinished, lost, trial("y", None, 2.0), trial("x", None, 1.0), trial("a", 10**9, 3.0))[:3] == "axy"
    assert order(trial("x", None, 1.0), unfinished) == "xu"
    both = trial("b", 200, 0.5), trial("c", 210, 0.1)
    assert order(*both) == order(*both, lost)[:2] == "cb", "what failed changed which of the others is the best"


@pytest.mark.slow
def test_a_search_is_read_from_its_rows(tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(tiny_run, tmp_path / "one")
    (found,) = select(tmp_path, level=1.0)["griffin"]
    validation = [row for row in read(tmp_path / "one").rows if row["split"] == "validation" and row["step"] == 6]
    assert (found.accuracy, found.loss) == tuple(
        value(row) for name in ("accuracy", "loss") for row in validation if row["metric"] == name
    )
    assert (found.name, found.finished, found.steps, found.tokens) == ("one", True, None, None)
    experiment = tiny.experiment("train.steps=8", "train.curriculum=[{length:8,steps:2,batch_size:8}]")
    answer = experiment.task.answer_length
    assert tokens(experiment, 0, 2) == 2 * 8 * (8 + answer)
    assert tokens(experiment, 0, 6) == 2 * 8 * (8 + answer) + 4 * 4 * (32 + answer)
    assert main(["select", str(tmp_path), "--level", "0.9"]) == 0
    (kept,) = json.loads((tmp_path / "selection.json").read_text())["trials"]["griffin"]
    assert kept["tokens"] is None and kept["loss"] == found.loss
    assert "griffin" in capsys.readouterr().out


def test_a_folder_without_trials_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["select", str(tmp_path)]) == 2
    assert "no metrics.jsonl in the folders of" in capsys.readouterr().err


RESULTS = Path(__file__).parents[2] / "studies" / "synthetic"
# What a recipe freezes; its steps and curriculum follow from the tokens that the protocol gives to every run.
FROZEN = ("batch_size", "learning_rate", "schedule", "weight_decay", "warmup_steps", "b1", "b2", "clip")


def recipe_of(*overrides: str) -> Mapping[str, Any]:
    return Spec.of(overrides).plain


@pytest.mark.slow
@pytest.mark.parametrize(
    ("figure", "level"), [pytest.param("fig6b", 1.0, marks=pytest.mark.exhaustive), ("fig6a", 0.99)]
)
def test_the_recipes_of_a_figure_are_those_that_its_search_chose(figure: str, level: float) -> None:
    """By the rows kept with the results: no recipe was mended after its figure was seen."""
    for model, trials in select(RESULTS / f"{figure}_search", level).items():
        chosen = Spec.saved(RESULTS / f"{figure}_search" / trials[0].name).plain
        chosen["model"]["mixers"].get("attention", {}).pop("window", None)
        for preset in ("cpu", "paper"):
            recipe = recipe_of(f"experiment={figure}", f"model={model}", f"preset={preset}")
            assert recipe["selected_by"] == trials[0].name
            assert {key: recipe["train"][key] for key in FROZEN} == {key: chosen["train"][key] for key in FROZEN}
            window = recipe["model"]["mixers"].get("attention", {}).pop("window", None)
            assert window == (None if model != "griffin" else recipe["task"]["length"] // 2)
            assert recipe["model"] == chosen["model"]


@pytest.mark.slow
@pytest.mark.parametrize(("control", "model"), [("mqa_local", "mqa"), ("hawk_ungated", "hawk")])
def test_a_control_is_trained_by_the_recipe_of_its_model(control: str, model: str) -> None:
    recipes = [recipe_of("experiment=fig6b", f"model={name}", "preset=cpu") for name in (control, model)]
    assert recipes[0]["train"] == recipes[1]["train"]
    assert recipes[0]["selected_by"] == recipes[1]["selected_by"]


def test_the_input_scaled_otherwise_is_trained_by_the_recipe_of_hawk() -> None:
    scaled = recipe_of(studied("fig6b_convex"), "model=hawk_convex", "preset=cpu")
    frozen = recipe_of("experiment=fig6b", "model=hawk", "preset=cpu")
    assert (scaled["train"], scaled["eval"]) == (frozen["train"], frozen["eval"])


PASSING = {"state_passing": 0.0625, "average": 0.999}
FIRST_EDITION = [
    "experiment=fig6b preset=paper model=hawk",
    "experiment=fig6b preset=cpu model=griffin",
    f"{studied('fig6b_search')} preset=cpu model=hawk",
    f"{studied('fig6b_constant')} preset=cpu model=griffin",
    f"{studied('fig6b_published')} preset=cpu model=hawk",
    f"{studied('fig6b_convex')} preset=cpu model=hawk_convex",
    f"{studied('fig6b_longer')} preset=cpu model=hawk",
    f"{studied('fig6b_scale')} preset=cpu model=hawk_convex",
]


@pytest.mark.slow
@pytest.mark.parametrize("words", FIRST_EDITION)
def test_the_default_recipe_passes_states_and_the_studies_of_the_paper_s_training_do_not(words: str) -> None:
    assert recipe_of("task=induction_heads", *words.split()[2:])["train"]["state_passing"] == 0.0625
    assert recipe_of(*words.split())["train"]["state_passing"] is None


@pytest.mark.parametrize("model", ["hawk", "griffin"])
def test_state_passing_is_tried_by_the_frozen_recipe_and_nothing_else(model: str) -> None:
    tried = recipe_of(studied("fig6b_passing"), f"model={model}", "preset=cpu")
    frozen = recipe_of("experiment=fig6b", f"model={model}", "preset=cpu")
    assert tried["train"] == {**frozen["train"], **PASSING}
    assert (tried["model"], tried["task"], tried["selected_by"]) == (
        frozen["model"],
        frozen["task"],
        frozen["selected_by"],
    )
    assert {key: tried["eval"][key] for key in ("lengths", "during", "sequences")} == {
        key: frozen["eval"][key] for key in ("lengths", "during", "sequences")
    }


@pytest.mark.slow
def test_each_try_changes_one_thing_of_what_it_is_compared_with() -> None:
    """Of the configurations alone: what differs from Hawk with state passing, key by key."""
    runs = recipe_of(studied("fig6b_tries"), "model=hawk", "preset=cpu")["runs"]
    plain = recipe_of(studied("fig6b_passing"), "model=hawk", "preset=cpu")
    changed = {}
    for name, words in runs.items():
        tried = recipe_of(studied("fig6b_tries"), "preset=cpu", *words)
        block, usual = (found["model"]["mixers"]["recurrent"] for found in (tried, plain))
        keys = [key for key, given in tried["train"].items() if given != plain["train"][key]]
        changed[name] = {*keys, *(key for key, given in block.items() if given != usual.get(key))}
    assert changed == {
        "hawk_start": {"decay_power", "decay_range", "conv_init"},
        "hawk_amsgrad": {"optimizer"},
        "hawk_clipped": {"optimizer"},
        "hawk_smoothed": {"label_smoothing"},
        "hawk_gates": {"gate_blocks"},
        "hawk_longer": {"steps", "learning_rate", "schedule", "log_every", "eval_every", "checkpoint_every"},
    }


@pytest.mark.parametrize("model", ["hawk", "griffin"])
def test_the_control_and_what_is_trained_by_its_recipe_differ_in_the_model_alone(model: str) -> None:
    given = recipe_of(studied("fig6b_published"), f"model={model}", "preset=cpu")
    control = recipe_of("experiment=fig6b", "model=mamba", "preset=cpu")
    assert (given["train"], given["eval"]) == (control["train"], control["eval"])


@pytest.mark.parametrize("model", ["hawk", "griffin"])
def test_the_recipes_beyond_the_protocol_are_those_that_carried_furthest(model: str) -> None:
    """What was chosen on extrapolation, and says so, is the trial with the best rows at 4,096."""
    carried = {
        folder.name: next(
            value(row)
            for row in read(folder).rows
            if (row["split"], row["length"], row["metric"]) == ("test", 4096, "accuracy")
        )
        for folder in with_records(RESULTS / "fig6b_search_far")
        if folder.name.startswith(f"{model}_")
    }
    furthest = max(carried, key=lambda name: carried[name])
    chosen = Spec.saved(RESULTS / "fig6b_search" / furthest).plain
    recipe = recipe_of(studied("fig6b_constant"), f"model={model}", "preset=cpu")
    assert recipe["selected_by"] == furthest
    assert {key: recipe["train"][key] for key in FROZEN} == {key: chosen["train"][key] for key in FROZEN}
    frozen = recipe_of("experiment=fig6b", f"model={model}", "preset=cpu")
    assert (recipe["model"], recipe["train"]["steps"]) == (frozen["model"], frozen["train"]["steps"])
