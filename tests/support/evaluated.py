"""What an evaluation is given, for the tests: a model with some parameters, and nobody who stops it."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from evalkit.configuration.experiment import Experiment
from evalkit.core.batches import feed_of
from evalkit.core.contracts import AnyTask, Pretrained, Trained
from evalkit.core.rows import Row, row
from evalkit.session.subjects import NoProgress
from support.shrunk import params_of


def trained_of(experiment: Experiment, seeds: int = 1, step: int = 7) -> Trained:
    """Fresh parameters of each seed, as if a run were at that step."""
    assert experiment.model is not None
    params = [params_of(experiment.model, seed) for seed in range(seeds)]
    feed = feed_of(experiment.task)
    return Trained(
        task=experiment.task,
        model=experiment.model,
        params=params,
        seeds=range(seeds),
        step=step,
        make_row=partial(row, run="r", task=experiment.task_name, model=experiment.model_name),
        check_interrupt=lambda: None,
        progress=NoProgress(),
        feed=feed,
        tokenizer=feed.tokenizer,
        train_length=experiment.task.length,
        folder=Path(),
    )


def checkpoint_of(pretrained: Pretrained, task: AnyTask, make_row: Callable[..., Row], **changes: Any) -> Trained:
    """A checkpoint on a task that it was not trained on."""
    params: Sequence[Any] = [pretrained.params]
    trained = Trained(
        task=task,
        model=pretrained.model,
        params=params,
        seeds=[0],
        step=None,
        make_row=make_row,
        check_interrupt=lambda: None,
        progress=NoProgress(),
        feed=feed_of(task),
        tokenizer=pretrained.tokenizer,
        train_length=pretrained.train_length,
        folder=Path(),
        source=pretrained.source,
        digest=pretrained.digest,
        settings=pretrained.settings,
    )
    return replace(trained, **changes)
