"""Recipes: what a task and a preset set, for every model and for one; what an experiment sets over it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from evalkit.configuration import catalogue
from evalkit.configuration.spec import Spec

CONF = catalogue.directory()
RECIPES = sorted((CONF / "recipe").rglob("*.yaml"))
FROZEN = sorted((CONF / "experiment").glob("*/*/*.yaml"))


def composed(*overrides: str) -> Mapping[str, Any]:
    return Spec.of(overrides).plain


def test_there_are_three_layers() -> None:
    assert {path.name for path in CONF.iterdir() if path.is_dir()} == {
        *("task", "model", "scale", "eval", "recipe", "experiment", "on_checkpoint")
    }


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: "/".join(path.with_suffix("").parts[-3:]))
def test_a_recipe_is_of_what_there_is(path: Path) -> None:
    """Hydra leaves an optional file out without a word, so a name that is spelt wrong would never be noticed."""
    task, preset, *model = path.relative_to(CONF / "recipe").with_suffix("").parts
    assert task in catalogue.options("task") and preset in catalogue.options("preset")
    assert set(model) <= set(catalogue.options("model")) and len(model) < 2


@pytest.mark.parametrize("path", FROZEN, ids=lambda path: "/".join(path.with_suffix("").parts[-3:]))
def test_what_an_experiment_fixed_for_a_model_is_taken(path: Path) -> None:
    name, preset, model = path.relative_to(CONF / "experiment").with_suffix("").parts
    assert name in catalogue.options("experiment")
    assert composed(f"experiment={name}", f"preset={preset}", f"model={model}")["selected_by"]


@pytest.mark.parametrize("preset", catalogue.options("preset"))
@pytest.mark.parametrize("model", ["hawk", "mqa", "mamba"])
def test_books_and_arxiv_share_all_but_their_name(preset: str, model: str) -> None:
    books, arxiv = (composed(f"task={task}", f"model={model}", f"preset={preset}") for task in ("books", "arxiv"))
    assert {**arxiv, "task_name": "books"} == books


@pytest.mark.parametrize("task", ["induction_heads", "phonebook"])
@pytest.mark.parametrize("model", ["griffin", "mqa_nope", "mamba"])
def test_where_nothing_is_smaller_the_presets_differ_in_name_alone(task: str, model: str) -> None:
    paper, *others = (composed(f"task={task}", f"model={model}", f"preset={name}") for name in ("paper", "cpu", "text"))
    assert [{**other, "preset": "paper"} for other in others] == [paper, paper]


@pytest.mark.parametrize(
    ("task", "preset"), [("books", "text"), ("arxiv", "text"), ("induction_heads", "paper"), ("phonebook", "paper")]
)
def test_a_task_says_its_preset(task: str, preset: str) -> None:
    assert composed(f"task={task}", "model=hawk") == composed(f"task={task}", "model=hawk", f"preset={preset}")
