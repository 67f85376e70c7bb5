"""What a mixer, a task, an evaluation and a sink promise: ours keep all of it, wrong ones are told which they break."""

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from evalkit.configuration import experiment as config
from evalkit.configuration.experiment import Experiment
from evalkit.configuration.spec import Spec
from evalkit.contract import (
    EVERY_PROMISE_OF_MODELS,
    OF_ONE_MIXER,
    PROMISES_OF_EVALUATIONS,
    PROMISES_OF_SINKS,
    PROMISES_OF_TASKS,
    QUICK_PROMISES_OF_MODELS,
    EvaluationUnderCheck,
    ModelUnderCheck,
    SinkUnderCheck,
    TaskUnderCheck,
)
from evalkit.contract.experiment import every_part, refuse_broken_promise
from evalkit.contract.promises import BrokenPromise, broken
from evalkit.core.batches import refuse_no_task
from evalkit.core.contracts import LanguageModel, Task
from evalkit.core.errors import UserError
from evalkit.models import build
from evalkit.numerics import random_key
from evalkit.record.tensorboard import TensorBoard
from support import tiny, wrong_evaluations, wrong_mixers, wrong_sinks, wrong_tasks
from support.shrunk import DRAWN, every_model, overrides_of

VOCABULARY = 16


def ours(name: str) -> ModelUnderCheck:
    overrides = ["task=induction_heads", f"model={name}", *overrides_of(name)]
    return ModelUnderCheck(Spec.of(overrides).experiment.trained[0], VOCABULARY)


def of_mixer(mixer: type) -> ModelUnderCheck:
    # What goes from block to block is seen by two of them.
    pattern = ["mine"] * (2 if issubclass(mixer, wrong_mixers.Shares) else 1)
    model = build(vocab_size=VOCABULARY, width=8, pattern=pattern, mixers={"mine": mixer}, mlp_expansion=0)
    return ModelUnderCheck(model, VOCABULARY)


def first(found: Iterator[BrokenPromise]) -> BrokenPromise | None:
    return next(found, None)


@pytest.mark.slow
@pytest.mark.parametrize("name", every_model(("griffin",)))
def test_our_models_keep_every_promise(name: str) -> None:
    """All promises of a model in one test, because they share its programs."""
    model = ours(name)
    assert not {promise.name: found for promise in EVERY_PROMISE_OF_MODELS if (found := promise.violation(model))}


def task_of(name: str) -> Task:
    task = config.build_task(name)
    assert isinstance(task, Task)
    return task


@pytest.mark.parametrize("name", DRAWN)
def test_our_tasks_keep_every_promise(name: str) -> None:
    assert not [str(found) for found in broken("it", PROMISES_OF_TASKS, TaskUnderCheck(task_of(name)))]


# A mixer of one's own that shares nothing is checked with the package of `tests/test_extending.py`.
@pytest.mark.slow
@pytest.mark.parametrize(
    "right", [pytest.param(wrong_mixers.MinGRU, marks=pytest.mark.exhaustive), wrong_mixers.Shares]
)
def test_right_mixers_keep_every_promise(right: type) -> None:
    mixer = of_mixer(right)
    assert not {promise.name: found for promise in EVERY_PROMISE_OF_MODELS if (found := promise.violation(mixer))}


@pytest.mark.slow
def test_right_tasks_and_evaluations_keep_every_promise() -> None:
    for right_task in (wrong_tasks.Parity(), wrong_tasks.Planted()):
        assert first(broken("it", PROMISES_OF_TASKS, TaskUnderCheck(right_task))) is None
    assert first(broken("it", PROMISES_OF_EVALUATIONS, measured(wrong_evaluations.CountsSeeds()))) is None


ONE_A_PROMISE = {promise: name for name, (_, promise) in wrong_mixers.WRONG.items()}.values()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.exhaustive] * (name not in ONE_A_PROMISE)) for name in wrong_mixers.WRONG],
)
def test_a_wrong_mixer_is_told_what_it_breaks(name: str) -> None:
    mixer, promise = wrong_mixers.WRONG[name]
    looked_at = of_mixer(mixer)
    found = first(broken("model=mine", QUICK_PROMISES_OF_MODELS, looked_at))
    if found is None:  # only what `evalkit check` looks at as well
        found = first(broken("model=mine", [[*EVERY_PROMISE_OF_MODELS, *OF_ONE_MIXER]], looked_at))
    assert found is not None and found.promise.name == promise, found
    assert str(found).startswith(f"model=mine breaks {promise!r}: ") and "\n" not in str(found)


@pytest.mark.slow
def test_documents_of_a_text_are_told_apart_before_it_is_trained_on(tmp_path: Path) -> None:
    """Other tasks have one in a row, and are not asked for it."""
    (tmp_path / "a.txt").write_text("It was a dark and stormy night. " * 400, encoding="utf-8")
    (tmp_path / "heldout-b.txt").write_text("The rain fell in torrents. " * 400, encoding="utf-8")
    mine = "{_target_: support.wrong_mixers.TakesDocumentsForOneWithoutACache, _partial_: true}"
    words = [
        "model=hawk",
        f"+model.mixers.mine={mine}",
        "model.pattern=[mine]",
        "model.width=8",
        "allow_targets=[support]",
    ]
    for task in (["task=books", f"data.path={tmp_path}", "task.length=64"], ["task=copying", "task.length=42"]):
        experiment = Spec.of([*task, *words, "train.curriculum=[]"]).experiment
        model, _ = experiment.trained

        def check(experiment: Experiment = experiment, model: LanguageModel = model) -> None:
            refuse_broken_promise(experiment, lambda: model.init(random_key(0)))

        if task[0] == "task=books":
            with pytest.raises(BrokenPromise, match="breaks 'packing'"):
                check()
        else:
            check()


@pytest.mark.parametrize("name", wrong_mixers.UNBUILT)
def test_a_mixer_that_cannot_be_built_is_refused(name: str) -> None:
    with pytest.raises(UserError) as refused, config.explained({"_target_": "evalkit.models.build"}, "model"):
        of_mixer(wrong_mixers.UNBUILT[name][0])
    assert wrong_mixers.UNBUILT[name][1] in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize("name", wrong_tasks.WRONG)
def test_a_wrong_task_is_told_what_it_breaks(name: str) -> None:
    task, promise = wrong_tasks.WRONG[name]
    looks = (TaskUnderCheck(task()), TaskUnderCheck(task(), 2 * task().length))
    found = next((error for look in looks if (error := first(broken("task=mine", PROMISES_OF_TASKS, look)))), None)
    assert found is not None and found.promise.name == promise, found
    assert "\n" not in str(found)


@pytest.mark.parametrize("name", wrong_tasks.UNBUILT)
def test_what_is_no_task_is_refused(name: str) -> None:
    wrong, words = wrong_tasks.UNBUILT[name]
    with pytest.raises(ValueError, match=words):
        refuse_no_task(wrong())


@lru_cache
def untrained() -> Any:
    return every_part(tiny.experiment())[-1].under_check


def measured(evaluation: Any) -> EvaluationUnderCheck:
    return EvaluationUnderCheck(evaluation, lambda: untrained().trained)


@pytest.mark.parametrize("sink", [TensorBoard, *wrong_sinks.RIGHT])
def test_right_sinks_keep_every_promise(sink: type) -> None:
    assert first(broken("it", PROMISES_OF_SINKS, SinkUnderCheck(sink))) is None


@pytest.mark.parametrize("name", wrong_sinks.WRONG)
def test_a_wrong_sink_breaks_one_promise(name: str) -> None:
    sink, promise = wrong_sinks.WRONG[name]
    assert [error.promise.name for error in broken("it", PROMISES_OF_SINKS, SinkUnderCheck(sink))] == [promise]


@pytest.mark.parametrize("name", wrong_evaluations.WRONG)
def test_a_wrong_evaluation_is_told_what_it_breaks(name: str) -> None:
    evaluation, promise = wrong_evaluations.WRONG[name]
    found = first(broken("eval", PROMISES_OF_EVALUATIONS, measured(evaluation())))
    assert found is not None and found.promise.name == promise, found
    assert "\n" not in str(found)


def test_there_are_sixty_wrong_ones() -> None:
    kinds = (wrong_mixers, wrong_tasks, wrong_evaluations)
    assert sum(len(kind.WRONG) + len(kind.UNBUILT) for kind in kinds) >= 60
