"""`docs/configuration.md` has every key with a type, a default, a unit and a meaning, as the constructors say it."""

import pkgutil
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import pytest

from evalkit.commands import run
from evalkit.configuration import catalogue
from evalkit.configuration.experiment import SETTINGS, Experiment
from evalkit.configuration.grammar import CHECKPOINT
from evalkit.configuration.request import VERBS
from evalkit.configuration.schema import INSTRUCTIONS, annotations, completed
from evalkit.configuration.spec import Spec
from evalkit.core import studies
from evalkit.core.moved import renamed
from support.configuration_page import NONE, PAGE, REASONS, listed, options_of, written

TASKS, MODELS, EVALUATIONS = (catalogue.options(group) for group in ("task", "model", "eval"))
STUDIES = PAGE.parents[1] / "studies"
FREE = ("paper.", "runs.", "controls.")
"""Mappings whose keys are any setting's."""
# Each task, model and evaluation once, and each task of a checkpoint.
SOME = [
    *(
        (f"task={TASKS[i % len(TASKS)]}", f"model={model}", f"eval={EVALUATIONS[i % len(EVALUATIONS)]}")
        for i, model in enumerate(MODELS)
    ),
    *((f"task={task}", f"{CHECKPOINT}=FOLDER") for task in catalogue.options("on_checkpoint")),
]
ALL = [(f"task={task}", f"model={model}", f"eval={name}") for task, model, name in product(TASKS, MODELS, EVALUATIONS)]


@pytest.fixture(scope="module")
def rows() -> list[list[str]]:
    """The cells of each row of the page's tables of keys."""
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    return [cells for line in lines if len(cells := re.split(r" *(?<!\\)\| *", line.strip("| "))) > 2]


def test_the_page_is_what_the_constructors_say() -> None:
    again = "write it again: python -m tests.support.configuration_page"
    assert PAGE.read_text(encoding="utf-8") == written(), again


def test_each_key_has_a_type_a_default_a_unit_and_a_meaning_in_a_line_that_can_be_read(rows: list[list[str]]) -> None:
    assert len(rows) > 100 and {len(row) for row in rows} == {5}
    assert [row for row in rows if not all(cell.strip() for cell in row)] == []
    assert [row for row in rows if len(" | ".join(row)) > 200] == []
    uncounted = {key for key, kind, _, unit, _ in rows if unit == NONE and re.match(r"(list of )?int\b", kind)}
    assert uncounted == {"`seed`", "`task.seed`", "`task.map_seed`"}


@pytest.mark.parametrize(
    "settings", [*SOME, *(pytest.param(words, marks=pytest.mark.exhaustive) for words in ALL)], ids=" ".join
)
def test_every_key_of_a_run_is_on_the_page(settings: Sequence[str], rows: list[list[str]]) -> None:
    on_page = {row[0].strip("`") for row in rows}
    keys = list(_leaves(completed(Spec.of(settings).plain)))
    wanted = {key for key in keys if not key.startswith(FREE)} - {"train", "model"}  # null with a checkpoint
    assert len(wanted) > 30 and wanted - on_page == set()


def test_what_no_kept_run_changed_has_a_reason_or_is_no_setting() -> None:
    kept = [packed.files["config.yaml"] for study in STUDIES.iterdir() for packed in studies.runs_of(study).values()]
    assert len(kept) > 200
    values: dict[str, set[str]] = {}
    for config in map(renamed, kept):
        for key in _leaves({part: node for part, node in config.items() if f"{part}." not in (*FREE, "suite.")}):
            node = config
            for name in key.split("."):
                node = node[name]
            values.setdefault(key, set()).add(repr(node))
    unvaried = {key for key, several in values.items() if len(several) == 1}
    assert len(unvaried) > 50 and unvaried == set(REASONS) & set(values)


def test_a_docstring_speaks_of_no_key_that_its_constructor_does_not_take() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in catalogue.directory().rglob("*.yaml"))
    constructors = [pkgutil.resolve_name(name) for name in sorted(set(re.findall(r"_target_: ([\w.]+)", text)))]
    assert len(constructors) > 15
    for built in constructors:
        for owner in built.__mro__ if isinstance(built, type) else [built]:
            assert set(listed(owner)) <= set(annotations(owner) if listed(owner) else {}), owner
    assert {key.partition(".")[0] for key in options_of(Experiment)} <= set(SETTINGS)
    assert {*VERBS, *run.FOLDERS} <= set(options_of(run.main))


def _leaves(node: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """The dotted keys of everything that is no mapping with something in it."""
    for name, value in node.items():
        key = f"{path}.{name}" if path else name
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, key)
        elif name not in INSTRUCTIONS:
            yield key
