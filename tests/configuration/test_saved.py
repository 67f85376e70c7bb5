"""Saved configurations: what is read back, what may be changed, and names that have moved since."""

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from evalkit.configuration import experiment as config
from evalkit.configuration import grammar
from evalkit.configuration import saved as saving
from evalkit.configuration.schema import verify
from evalkit.configuration.spec import Spec
from evalkit.core import studies
from evalkit.core.errors import UserError
from evalkit.core.moved import MOVED, renamed

KEPT = [run / "config.yaml" for run in studies.packed_below(Path(__file__).parents[2] / "studies")]


WORDS = ("task=selective_copying", "model=griffin", "preset=cpu")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a run has written; nothing here writes into its folder."""
    path = tmp_path_factory.mktemp("saved") / "config.yaml"
    saving.save(Spec.of(WORDS).plain, path)
    return path


@pytest.mark.slow
def test_a_saved_configuration_gives_the_same_experiment(saved: Path) -> None:
    before = Spec.of(WORDS).experiment
    after = Spec.saved(saved.parent).experiment
    assert after.config == before.config
    assert (after.task, after.train, after.eval, after.wandb) == (before.task, before.train, before.eval, before.wandb)
    assert isinstance(after.train.learning_rate, float)


def test_a_saved_run_takes_what_is_allowed(saved: Path) -> None:
    given = ["train.steps=9000", "model=griffin", "preset=cpu", "wandb.mode=disabled", "eval.lengths=[32,64]"]
    experiment = Spec.saved(saved.parent, given, allowed=saving.RESUMABLE).experiment
    assert (experiment.train.steps, experiment.wandb.mode) == (9000, "disabled")
    assert experiment.config["eval"]["lengths"] == [32, 64]


def test_an_evaluation_without_a_length_may_be_replaced() -> None:
    """Benchmarks have none, and the run that measured them may be asked for something else."""
    benchmarks = {**Spec.of(WORDS).plain, "task_name": "downstream", "task": {"names": ["piqa"]}}
    changed, is_changed = saving.changed(benchmarks, grammar.parse(["task=mqar"]), saving.EVALUABLE)
    assert changed["task"]["length"] == 64 and is_changed


def test_a_saved_run_takes_another_task(saved: Path) -> None:
    """At the length that it was trained at, whatever that task's own is."""
    trained = Spec.saved(saved.parent).experiment.task.length
    changes = ["task=induction_heads", "task.trigger=prefix"]
    experiment = Spec.saved(saved.parent, changes, allowed=saving.EVALUABLE).experiment
    assert (experiment.task_name, experiment.task.length, experiment.model_name) == (
        "induction_heads",
        trained,
        "griffin",
    )
    assert experiment.config["task"]["trigger"] == "prefix"
    assert experiment.config["task_name"] == "induction_heads"


@pytest.mark.parametrize(
    ("override", "allowed", "said"),
    [
        ("model=hawk", saving.RESUMABLE, ["model=hawk", "model=griffin"]),
        ("task=induction_heads", saving.RESUMABLE, ["task=induction_heads", "task=selective_copying"]),
        ("train.batch_size=1", saving.RESUMABLE, ["train.batch_size", "train.steps"]),
        ("seed=1", saving.RESUMABLE, ["seed"]),
        ("train.stepz=1", saving.RESUMABLE, ["'train.stepz'", "'train.steps'"]),
        ("train.steps=soon", saving.RESUMABLE, ["train.steps='soon'", "int"]),
        ("train.steps=1,2", saving.RESUMABLE, ["one value"]),
        ("~train.steps", saving.RESUMABLE, ["one value"]),
        ("eval.length=[8]", saving.RESUMABLE, ["'eval.lengths'"]),
        ("eval=none", saving.EVALUABLE, ["eval=none", "extrapolation"]),
        ("task=none", saving.EVALUABLE, ["task=none", "induction_heads"]),
        ("task.vocab_size=32", saving.EVALUABLE, ["vocab_size=32", "16"]),
        ("train.steps=9000", saving.EVALUABLE, ["train.steps"]),
        ("task.length=32", saving.EVALUABLE, ["task.length", "eval.lengths"]),
        ("model=hawk", saving.EVALUABLE, ["model=griffin"]),
    ],
)
def test_a_saved_run_refuses_the_rest(saved: Path, override: str, allowed: Sequence[str], said: Sequence[str]) -> None:
    with pytest.raises(UserError) as caught:
        _ = Spec.saved(saved.parent, [override], allowed=allowed).experiment
    message = str(caught.value)
    assert "\n" not in message and all(part in message for part in said), message


@pytest.mark.parametrize("text", ["", "- 1", "a: [", "seed: 0"])
def test_a_file_that_is_no_runs_configuration_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=r"config\.yaml"):
        Spec.saved(path.parent)


@pytest.mark.parametrize("folder", ["nowhere", "."])
def test_a_folder_that_is_no_run_is_refused(tmp_path: Path, folder: str) -> None:
    with pytest.raises(UserError, match=r"runs/<task>/<model>/<time>"):
        _ = Spec.saved(tmp_path / folder).experiment


def test_a_run_from_before_text_tasks_is_read(tmp_path: Path) -> None:
    whole = Spec.of(["task=induction_heads", "model=griffin"]).plain
    saving.save({name: value for name, value in whole.items() if name != "data"}, tmp_path / "config.yaml")
    assert Spec.saved(tmp_path).plain == whole


def targets(content: Any) -> set[str]:
    """Every `_target_` of a configuration."""
    if isinstance(content, Mapping):
        own = {content["_target_"]} if "_target_" in content else set()
        return own.union(*(targets(value) for value in content.values()))
    return set().union(*(targets(value) for value in content)) if isinstance(content, list) else set()


@pytest.fixture(scope="module")
def kept() -> dict[Path, Mapping[str, Any]]:
    """The configurations of the kept runs of the studies, under today's names."""
    return {path: renamed(studies.content(path)) for path in KEPT}


def once(kept: Mapping[Path, Mapping[str, Any]], part: str) -> dict[str, Path]:
    """One file for each `part` that differs."""
    return {str(content[part]): path for path, content in kept.items()}


def test_every_kept_configuration_is_valid(kept: Mapping[Path, Mapping[str, Any]]) -> None:
    assert len(kept) > 100
    for content in kept.values():
        whole = {**saving.LATER, **content}
        verify(whole, whole, config.SETTINGS)
        assert not targets(content) & MOVED.keys()


@pytest.mark.parametrize("part", ["task", "train", "eval", "wandb"])
def test_every_kept_part_is_built(kept: Mapping[Path, Mapping[str, Any]], part: str) -> None:
    for path in once(kept, part).values():
        assert config.build(kept[path], part)


@pytest.mark.slow
@pytest.mark.parametrize("every", [10, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_kept_models_are_read_and_built(kept: Mapping[Path, Mapping[str, Any]], every: int) -> None:
    for path in list(once(kept, "model").values())[::every]:
        assert Spec.saved(path.parent).plain == {**saving.LATER, **kept[path]}
        assert config.model_of(kept[path]["model"], vocab_size=64)


@pytest.mark.parametrize("name", MOVED.values())
def test_what_has_moved_is_where_the_table_says(name: str) -> None:
    """Read, not imported: lm-eval takes seconds."""
    module, _, attribute = name.rpartition(".")
    spec = importlib.util.find_spec(module)
    assert name not in MOVED and spec is not None and spec.origin is not None
    assert attribute in Path(spec.origin).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "name",
    ["models.mine.Block", "models.attention.MQA2", "models.attention", "tasks.text.Text.mine", "mine.models.build"],
)
def test_a_name_of_the_users_own_is_left_alone(name: str) -> None:
    content = {"_target_": name, "parts": [{"_target_": name}, {"target": "models.build"}], "note": "models.build"}
    assert renamed(content) == content


def test_old_names_are_renamed_wherever_they_stand() -> None:
    content = {"a": [{"_target_": "models.build", "b": {"_target_": "tasks.text.Text"}}]}
    assert targets(renamed(content)) == {"evalkit.models.build", "evalkit.tasks.text.Text"}


def test_a_run_under_old_names_is_the_same_run(tmp_path: Path) -> None:
    whole = Spec.of(["task=induction_heads", "model=griffin"]).plain
    text = OmegaConf.to_yaml(OmegaConf.create(whole))
    for old, new in MOVED.items():
        text = text.replace(f"_target_: {new}\n", f"_target_: {old}\n")
    assert "_target_: models.build\n" in text
    (tmp_path / "config.yaml").write_text(text, encoding="utf-8")
    assert Spec.saved(tmp_path).plain == whole


def test_a_setting_that_is_none_any_more_is_left_out_of_older_runs() -> None:
    old = {"_target_": "evalkit.recall.Recall", "told_at": 64, "pairs": 16}
    assert renamed(old) == {"_target_": "evalkit.evaluations.recall.measure.Recall", "pairs": 16}
    assert renamed({"_target_": "mine.Recall", "told_at": 64}) == {"_target_": "mine.Recall", "told_at": 64}
