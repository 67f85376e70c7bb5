"""Recipes and experiments: what each layer sets, what `like` takes over, and what is wrong in a file as one line."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from evalkit.configuration import catalogue, recipes
from evalkit.configuration.spec import Spec
from evalkit.core.errors import UserError
from evalkit.session.hints import untuned
from support.shrunk import sampled
from support.words import EXPERIMENTS

CONF = catalogue.directory()
MIXER = "_target_: evalkit.models.mixers.rglru.RecurrentBlock\n_partial_: true\nwidth_rnn: 80\n"
FILES = sorted((CONF / "recipe").glob("*.yaml"))


def composed(*overrides: str) -> Mapping[str, Any]:
    return Spec.of(overrides).plain


def models_in(document: Any) -> set[str]:
    """The models that a document of recipes names."""
    found = set(document.get("models", {}))
    return found.union(*(level.get("models", {}) for level in document.values() if isinstance(level, Mapping)))


def test_the_folders_of_options_are_few() -> None:
    groups = {"task", "model", "eval", "recipe", "experiment", "log"}
    assert {path.name for path in CONF.iterdir() if path.is_dir()} == groups
    assert len(list(CONF.rglob("*.yaml"))) <= 95


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_recipe_is_of_what_there_is(path: Path) -> None:
    document = recipes.read(path)
    assert {path.stem, *document.get("tasks", [])} <= set(catalogue.options("task"))
    assert models_in(document) <= set(catalogue.options("model"))


@pytest.mark.slow
@pytest.mark.parametrize("path", sampled([str(path) for path in EXPERIMENTS], 6))
def test_what_an_experiment_fixed_for_a_model_is_taken(path: str) -> None:
    planned = recipes.experiment(path, None)
    assert models_in(planned.recipes or {}) <= set(catalogue.options("model"))
    for preset, models in recipes.models_by_preset(planned, None).items():
        for model in models:
            assert composed(f"experiment={planned.path}", f"preset={preset}", f"model={model}")["selected_by"]


@pytest.mark.parametrize(("preset", "model"), [("cpu", "hawk"), ("paper", "mqa"), ("text", "mamba")])
def test_books_and_arxiv_share_all_but_their_name(preset: str, model: str) -> None:
    books, arxiv = (composed(f"task={task}", f"model={model}", f"preset={preset}") for task in ("books", "arxiv"))
    assert {**arxiv, "task_name": "books"} == books


@pytest.mark.parametrize(("task", "model"), [("induction_heads", "griffin"), ("phonebook", "mamba")])
def test_where_nothing_is_smaller_the_presets_differ_in_name_alone(task: str, model: str) -> None:
    paper, *others = (composed(f"task={task}", f"model={model}", f"preset={name}") for name in ("paper", "cpu", "text"))
    assert [{**other, "preset": "paper"} for other in others] == [paper, paper]


@pytest.mark.parametrize(
    ("task", "preset"), [("books", "text"), ("arxiv", "text"), ("induction_heads", "paper"), ("phonebook", "paper")]
)
def test_a_task_says_its_preset(task: str, preset: str) -> None:
    assert composed(f"task={task}", "model=hawk") == composed(f"task={task}", "model=hawk", f"preset={preset}")


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A user's folder of configurations, with the model `mine`."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine.yaml").write_text((CONF / "model" / "hawk.yaml").read_text())
    (tmp_path / "recipe").mkdir()
    (tmp_path / "experiment").mkdir()
    return tmp_path


def steps(own: Path, *words: str) -> Any:
    return composed("model=mine", *words, f"hydra.searchpath=['file://{own}']")["train"]["steps"]


def refused(own: Path, *words: str) -> str:
    with pytest.raises(UserError) as refusal:
        steps(own, *words)
    assert "\n" not in str(refusal.value)
    return str(refusal.value)


def test_the_model_wins_over_the_preset_and_that_over_all(own: Path) -> None:
    (own / "recipe" / "mqar.yaml").write_text(
        "all: {train: {steps: 701, batch_size: 7}}\n"
        "cpu: {train: {steps: 702}, models: {mamba: {train: {steps: 705}}}}\n"
        "models: {mine: {train: {steps: 703}}, hawk: {like: mine}, mqa: {like: hawk, train: {batch_size: 8}}}\n"
    )
    search = f"hydra.searchpath=['file://{own}']"
    found = {
        (model, preset): composed("task=mqar", f"model={model}", f"preset={preset}", search)["train"]
        for model in ("mine", "hawk", "mqa", "mamba", "griffin")
        for preset in ("paper", "cpu")
    }
    assert {key: train["steps"] for key, train in found.items()} == {
        **dict.fromkeys([(model, preset) for model in ("mine", "hawk", "mqa") for preset in ("paper", "cpu")], 703),
        ("mamba", "paper"): 701,
        ("griffin", "paper"): 701,
        ("mamba", "cpu"): 705,
        ("griffin", "cpu"): 702,
    }
    assert found["mqa", "cpu"]["batch_size"] == 8 and found["mine", "cpu"]["batch_size"] == 7
    assert found["mine", "cpu"]["validation_sequences"] == 128  # as evalkit's own recipe of the task


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "mine: {train: {steps: 5}}",
            "mine is neither all, models nor a preset (cpu, paper, text, tiny); write",
        ),
        ("models: {mine: {like: his}}", "a recipe of mine is like: his; allowed: "),
        ("models: {mine: {like: hawk}, hawk: {like: mine}}", "is like: mine; allowed: "),
        ("all: 5", "all has 5 in place of settings"),
        ("models: {mine: 5}", "models has 5 in place of settings"),
        ("[all]", "is a list; write settings"),
        (
            "all: {train: {stepz: 5}}",
            "'train.stepz', which a chosen YAML file gives; the nearest valid one is",
        ),
        ("all: [", "expected the node content"),
        ("models:", "models has None in place of settings"),
        ("models: {mine: {like: [hawk]}}", "like: ['hawk'] in models; name one other, such as like: hawk"),
        ("models: {mine: {train: 5}}", "models: train has 5 in place of settings"),
        ("models: {mnie: {train: {steps: 5}}}", "mnie is no model; choose one of "),
    ],
)
def test_a_wrong_recipe_is_one_line(own: Path, text: str, told: str) -> None:
    (own / "recipe" / "mqar.yaml").write_text(text + "\n")
    assert told in refused(own, "task=mqar")


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("recipe/mqar/paper/mine.yaml", "move its settings into recipe/mqar.yaml, as paper: {models: {mine: …}}"),
        ("recipe/mqar/paper.yaml", "move its settings into recipe/mqar.yaml, as paper: …"),
        ("experiment/own/cpu/mine.yaml", "into experiment/own.yaml, as recipes: cpu: {models: {mine: …}}"),
    ],
)
def test_a_file_for_each_preset_and_model_is_refused_with_its_new_place(own: Path, path: str, told: str) -> None:
    (own / path).parent.mkdir(parents=True)
    (own / path).write_text("train: {steps: 5}\n")
    (own / "experiment" / "own.yaml").write_text("options: {task: mqar}\n")
    words = ["experiment=own"] if "experiment" in path else ["task=mqar"]
    assert told in refused(own, *words)


def test_an_experiment_is_built_on_another(own: Path) -> None:
    (own / "experiment" / "first.yaml").write_text(
        "options: {task: mqar, preset: cpu}\ntrain: {steps: 701, batch_size: 7}\nruns: {one: [model=mine]}\n"
        "recipes: {cpu: {models: {mine: {selected_by: a, train: {average: 0.9}}}}}\n"
    )
    (own / "experiment" / "second.yaml").write_text(
        "like: first\ntrain: {steps: 702}\nrecipes: {cpu: {models: {mine: {like: first/mine, selected_by: b}}}}\n"
    )
    for word in ("experiment=second", f"experiment={own / 'experiment' / 'second.yaml'}"):
        found = composed("model=mine", word, f"hydra.searchpath=['file://{own}']")
        train = {name: found["train"][name] for name in ("steps", "batch_size", "average")}
        assert train == {"steps": 702, "batch_size": 7, "average": 0.9}
        assert (found["task_name"], found["preset"], found["selected_by"], found["runs"]) == ("mqar", "cpu", "b", {})
    assert "second has no recipe of model=hawk at preset=cpu" in refused(own, "experiment=second", "model=hawk")
    assert "experiment=third does not exist; choose one of fig1a," in refused(own, "experiment=third")
    (own / "experiment" / "old.yaml").write_text("defaults: [{override /task: mqar}]\n")
    assert "write options: {task: …}" in refused(own, "experiment=old")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("like: wrong", "like: wrong leads back to this file"),
        ("like: other", "like: wrong leads back to this file"),
        ("like: [fig6b]", "like is ['fig6b']; write the name of an experiment"),
        ("options: [a]", "options is ['a']; write settings, such as key: value"),
        ("grid: 3", "grid is 3; write settings"),
        ("train: 3", "train is 3; write settings"),
        ("suite:", "suite is None; write settings"),
    ],
)
def test_a_wrong_experiment_is_one_line(own: Path, text: str, told: str) -> None:
    (own / "experiment" / "wrong.yaml").write_text(text + "\n")
    (own / "experiment" / "other.yaml").write_text("like: wrong\n")
    assert told in refused(own, "experiment=wrong", "task=mqar", "model=mine")


def test_what_the_command_adds_of_ones_own_wins_over_a_recipe(own: Path) -> None:
    for path, text in (
        ("recipe/mqar.yaml", "all: {train: {steps: 701, optimizer: {_target_: optax.contrib.muon, _partial_: true}}}"),
        ("optimizer/lion.yaml", "_target_: optax.lion\n_partial_: true\nb1: 0.95"),
        ("setup/fast.yaml", "# @package _global_\ntrain: {steps: 5}"),
    ):
        (own / path).parent.mkdir(exist_ok=True)
        (own / path).write_text(text + "\n")
    words = ["task=mqar", "model=mine", f"hydra.searchpath=['file://{own}']"]
    train = composed(*words, "+optimizer@train.optimizer=lion", "+setup=fast")["train"]
    assert (train["steps"], train["optimizer"]["_target_"], train["optimizer"]["b1"]) == (5, "optax.lion", 0.95)
    assert "momentum" not in str(train["optimizer"]) and composed(*words)["train"]["steps"] == 701


def test_a_recipe_is_of_the_tasks_that_it_lists_in_any_form_of_yaml(own: Path) -> None:
    (own / "recipe" / "both.yaml").write_text("tasks:\n- mqar  # and no copying\nall: {train: {steps: 701}}\n")
    search = f"hydra.searchpath=['file://{own}']"
    found = {task: composed(f"task={task}", "model=mine", search)["train"]["steps"] for task in ("mqar", "copying")}
    assert found["mqar"] == 701 != found["copying"]


def test_a_preset_may_be_like_one_of_which_the_task_says_nothing(own: Path) -> None:
    (own / "recipe" / "mqar.yaml").write_text("all: {train: {steps: 701}}\ncpu: {like: text}\n")
    words = ["task=mqar", "model=mine", "preset=cpu", f"hydra.searchpath=['file://{own}']"]
    assert composed(*words)["train"]["steps"] == 701


def test_a_suite_may_be_like_another(own: Path) -> None:
    (own / "experiment" / "mine.yaml").write_text("like: suite\ntrain: {weight_decay: 0.01}\n")
    assert catalogue.is_suite("mine", own) and not catalogue.is_suite("fig6b", own)


def test_recipes_of_an_experiment_have_the_form_of_a_tasks(own: Path) -> None:
    """What is below `all`, then what a preset has for every model, then its model's own."""
    (own / "experiment" / "own.yaml").write_text(
        "options: {task: mqar, preset: cpu}\n"
        "recipes: {all: {train: {steps: 701, batch_size: 7}}, cpu: {train: {steps: 702}, models: {hawk: {seed: 3}}}}\n"
    )
    for model, seed in (("hawk", 3), ("griffin", 0)):
        found = composed(f"model={model}", "experiment=own", f"hydra.searchpath=['file://{own}']")
        assert (found["train"]["steps"], found["train"]["batch_size"], found["seed"]) == (702, 7, seed)


def test_a_file_of_ones_own_that_is_a_list_is_one_line(own: Path) -> None:
    (own / "task").mkdir(exist_ok=True)
    (own / "task" / "listed.yaml").write_text("- a\n")
    with pytest.raises(UserError, match="task=listed is a list; write its settings in the file, as key: value"):
        Spec.of(["task=listed", "model=hawk", f"hydra.searchpath=['file://{own}']"])


def test_a_task_of_ones_own_is_measured_on_a_checkpoint_as_its_row_says(own: Path) -> None:
    row = (
        "{options: {eval: needle}, task: {_target_: evalkit.tasks.needle.Needle}, eval: {prompts: 7}, task_name: mine}"
    )
    (own / "on_checkpoint.yaml").write_text(f"mine: {row}\n")
    found = composed("task=mine", "checkpoint=RUN", f"hydra.searchpath=['file://{own}']")
    assert (found["task"]["_target_"], found["eval"]["prompts"], found["train"]) == (
        "evalkit.tasks.needle.Needle",
        7,
        None,
    )


def test_a_grid_has_a_run_for_each_point() -> None:
    grid = {"size": [1, 2], "of": {1: ["a"], 2: ["a", "b"]}, "twice": {1: 2, 2: 4}}
    runs = recipes.expanded({"{of}{size}": ["seed={twice}", {"b": ["seeds=2"], "a": []}], "alone": ["x={y: 1}"]}, grid)
    assert runs == {"a1": ["seed=2"], "a2": ["seed=4"], "b2": ["seed=4", "seeds=2"], "alone": ["x={y: 1}"]}
    with pytest.raises(UserError, match=r"run {sice}: sice is no variable of its grid, which has size, of, twice"):
        recipes.expanded({"{sice}": []}, grid)
    with pytest.raises(UserError, match=r"two runs of the grid are called h; put {size} into the name h"):
        recipes.expanded({"h": ["model.width={size}"]}, {"size": [32, 64]})
    with pytest.raises(UserError, match="a grid has 3, and none for"):
        recipes.expanded({"{size}": [{3: []}]}, grid)


def test_the_grid_of_figure_1a_is_whole() -> None:
    runs = Spec.of(["experiment=fig1a", "model=mqa"]).plain["runs"]
    assert len(runs) == 36 and runs["hawk_w48_r64"][-1] == "train.learning_rate=64e-3"
    assert list(runs)[:4] == ["mqa_w32_r16", "mqa_w32_r32", "mqa_w32_r64", "mqa_w48_r8"]


def test_a_mapping_that_is_typed_sets_each_of_its_keys_and_is_one_word() -> None:
    words = ["task=mqar", "model=hawk", "train={steps: 900, batch_size: 8}"]
    spec = Spec.of(words)
    assert spec.typed["train.steps"] == spec.typed["train"] == words[2] and spec.words() == words
    assert spec.words("train") == words[:2]


def test_a_model_without_a_recipe_is_told_what_to_do() -> None:
    said, like, search = untuned(Spec.of(["task=selective_copying", "model=mamba", "seed=3"]))
    assert said == "no recipe of selective_copying has mamba: it trains at the default rate, 0.003"
    assert "as hawk: write models: {mamba: {like: hawk}} in recipe/selective_copying.yaml" in like
    assert "python -m evalkit search task=selective_copying model=mamba seed=3 'train.learning_rate=interval(" in search


@pytest.mark.parametrize(
    "words",
    [
        ["task=selective_copying", "model=hawk"],
        ["task=mqar", "model=kda"],  # a rate for all models
        ["task=selective_copying", "model=mamba", "train.learning_rate=1e-3"],
        ["task=selective_copying", "model=mamba", "train={learning_rate: 1e-3}"],
        ["experiment=fig6b", "model=hawk"],
    ],
)
def test_nothing_is_said_where_a_rate_was_chosen(words: list[str]) -> None:
    assert untuned(Spec.of(words)) == []


def test_a_mixer_of_ones_own_is_told_too_and_takes_the_recipe_that_it_is_given(tmp_path: Path) -> None:
    for folder in ("mixer", "recipe"):
        (tmp_path / folder).mkdir()
    (tmp_path / "mixer" / "mine.yaml").write_text(MIXER)
    words = ["task=induction_heads", "+mixer=mine", f"hydra.searchpath=[file://{tmp_path}]"]
    _, like, search = untuned(Spec.of(words))
    assert "models: {mine: {like: hawk}} in recipe/induction_heads.yaml" in like
    assert "+mixer=mine" in search and f"--config-dir {tmp_path}" in search
    (tmp_path / "recipe" / "induction_heads.yaml").write_text("models: {mine: {like: hawk}}\n")
    spec, hawk = Spec.of(words), Spec.of(["task=induction_heads", "model=hawk"])
    assert untuned(spec) == [] and spec.plain["train"] == hawk.plain["train"]
