"""The promises of everything in one experiment."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax

from evalkit.configuration.experiment import Experiment
from evalkit.contract.evaluations import (
    PROMISES_OF_EVALUATIONS,
    QUICK_PROMISES_OF_EVALUATIONS,
    EvaluationUnderCheck,
)
from evalkit.contract.models import QUICK_PROMISES_OF_MODELS, SLOWER_PROMISES, ModelUnderCheck
from evalkit.contract.promises import BrokenPromise, Promise, broken
from evalkit.contract.tasks import PROMISES_OF_TASKS, TaskUnderCheck
from evalkit.core.contracts import Params, Silent, Task, Trained, go_on
from evalkit.core.rows import row


class Part(NamedTuple):
    """A part of an experiment, as its user calls it, with the promises that it makes."""

    name: str
    groups: Sequence[Sequence[Promise]]
    under_check: object

    @property
    def promises(self) -> list[Promise]:
        """All of them, without their groups."""
        return [promise for group in self.groups for promise in group]

    def broken(self) -> Iterator[BrokenPromise]:
        """Those that are not kept."""
        return broken(self.name, self.groups, self.under_check)


def hold(experiment: Experiment, params: Params | None = None) -> None:
    """Raises BrokenPromise for the first promise that does not hold, of those that take a second to look at.

    `params` are those of the model where they are known; else fresh ones are made.
    """
    for part in _parts(experiment, params, QUICK_PROMISES_OF_EVALUATIONS, QUICK_PROMISES_OF_MODELS):
        for found in part.broken():
            raise found


def every_part(experiment: Experiment) -> list[Part]:
    """Task, evaluation and model, with every promise that they make."""
    return _parts(experiment, None, PROMISES_OF_EVALUATIONS, (*QUICK_PROMISES_OF_MODELS, SLOWER_PROMISES))


def _parts(
    experiment: Experiment,
    params: Params | None,
    of_evaluations: Sequence[Sequence[Promise]],
    of_models: Sequence[Sequence[Promise]],
) -> list[Part]:
    task, (model, _) = experiment.task, experiment.trained
    dtype = experiment.config["model"].get("dtype", "float32")
    looked_at = ModelUnderCheck(model, task.vocab_size, params, dtype=dtype)
    of_task = [Part(f"task={experiment.task_name}", PROMISES_OF_TASKS, TaskUnderCheck(task))]
    evaluation = EvaluationUnderCheck(experiment.eval, partial(_untrained, experiment, looked_at))
    return [
        *(of_task if isinstance(task, Task) else []),
        Part(f"model={experiment.model_name}", of_models, looked_at),
        Part("eval", of_evaluations, evaluation),
    ]


def _untrained(experiment: Experiment, looked_at: ModelUnderCheck) -> Trained:
    """The model as an evaluation gets it, before any training."""
    return Trained(
        task=experiment.task,
        model=looked_at.model,
        params=[jax.device_put(looked_at.params)],
        seeds=[experiment.seed],
        step=0,
        make_row=partial(row, run="check", task=experiment.task_name, model=experiment.model_name),
        check_interrupt=go_on,
        progress=Silent(),
        feed=experiment.feed,
        tokenizer=experiment.feed.tokenizer,
        train_length=experiment.task.length,
        folder=Path(),
    )
