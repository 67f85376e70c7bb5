"""The promises of everything in one experiment."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, cycle, islice
from pathlib import Path
from typing import Any, NamedTuple

import jax

from evalkit.configuration.experiment import Experiment, build, model_of
from evalkit.contract.evaluations import PROMISES_OF_EVALUATIONS, QUICK_PROMISES_OF_EVALUATIONS, EvaluationUnderCheck
from evalkit.contract.models import OF_A_TEXT, OF_ONE_MIXER, QUICK_PROMISES_OF_MODELS, SLOWER_PROMISES, ModelUnderCheck
from evalkit.contract.promises import BrokenPromise, Promise, broken
from evalkit.contract.sinks import PROMISES_OF_SINKS, QUICK_PROMISES_OF_SINKS, SinkUnderCheck
from evalkit.contract.tasks import PROMISES_OF_TASKS, TaskUnderCheck
from evalkit.core import trust
from evalkit.core.contracts import LanguageModel, NoProgress, Params, Task, Trained, never_interrupt
from evalkit.core.rows import row

OURS = "evalkit."


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
        """The promises that are not kept."""
        return broken(self.name, self.groups, self.under_check)


def refuse_broken_promise(experiment: Experiment, params: Callable[[], Params]) -> None:
    """Raises BrokenPromise for the first promise that does not hold, of those that take a second to check.

    `params` makes the model's parameters. A task of ours, a model of our mixers alone and an evaluation of ours are not
    checked again: our tests do that, and their programs would take three seconds of every run.
    """
    of_models = QUICK_PROMISES_OF_MODELS
    if not isinstance(experiment.task, Task):
        of_models = (*of_models, OF_A_TEXT)
    every = {"model": of_models, "task": PROMISES_OF_TASKS, "eval": QUICK_PROMISES_OF_EVALUATIONS}
    of = {name: () if is_ours(experiment.config[name]) else groups for name, groups in every.items()}
    if any(of.values()):
        _raise_first(chain(*_parts(experiment, params(), of["eval"], of["model"], of["task"])))
    _raise_first(_sinks(experiment, QUICK_PROMISES_OF_SINKS))


def refuse_broken_model(experiment: Experiment) -> None:
    """Raises BrokenPromise for the first promise of a model that does not hold, of all that `evalkit check` checks.

    It takes up to a minute on two cores. Our tests check models of our mixers alone (`is_ours`).
    """
    _, model, _ = _parts(experiment, None, (), (*QUICK_PROMISES_OF_MODELS, SLOWER_PROMISES), ())
    _raise_first(chain(model, _mixers(experiment)))


def _raise_first(parts: Iterable[Part]) -> None:
    for part in parts:
        for violation in part.broken():
            raise violation


def every_part(experiment: Experiment) -> list[Part]:
    """Task, model, its mixers one by one, evaluation, and sinks, with every promise that they make."""
    groups = (*QUICK_PROMISES_OF_MODELS, SLOWER_PROMISES)
    task, model, evaluation = _parts(experiment, None, PROMISES_OF_EVALUATIONS, groups)
    sinks = _sinks(experiment, PROMISES_OF_SINKS)
    return [*task, *_at_twice_the_length(experiment), *model, *_mixers(experiment), *evaluation, *sinks]


def _at_twice_the_length(experiment: Experiment) -> list[Part]:
    """The task at twice its own length, if it can have that: evaluations go far beyond the training length."""
    task = experiment.task
    if not isinstance(task, Task):
        return []
    try:
        experiment.feed.check_length(2 * task.length)
    except ValueError:
        return []
    name = f"task={experiment.task_name}, length {2 * task.length:,}"
    return [Part(name, PROMISES_OF_TASKS[2:], TaskUnderCheck(task, 2 * task.length))]


def _mixers(experiment: Experiment) -> list[Part]:
    """Each mixer with a window, in a model of one block."""
    node, parts = experiment.config["model"], []
    for name in dict.fromkeys(_blocks(node)):
        model = model_of({**node, "pattern": [name], "depth": None}, experiment.task.vocab_size)
        if model.window is not None:
            alone = ModelUnderCheck(
                model, experiment.task.vocab_size, dtype=_dtype(experiment), length=2 * model.window
            )
            parts.append(Part(f"mixer {name}", (OF_ONE_MIXER,), alone))
    return parts


def _sinks(experiment: Experiment, groups: Sequence[Sequence[Promise]]) -> list[Part]:
    """The user's own sinks. Our tests check ours, which would send the rows of a check to a server."""
    nodes = {name: node for name, node in experiment.config["sinks"].items() if not is_ours(node)}
    return [Part(f"log={name}", groups, SinkUnderCheck(partial(build, nodes, name, "sinks."))) for name in nodes]


def _parts(
    experiment: Experiment,
    params: Params | None,
    of_evaluations: Sequence[Sequence[Promise]],
    of_models: Sequence[Sequence[Promise]],
    of_tasks: Sequence[Sequence[Promise]] = PROMISES_OF_TASKS,
) -> tuple[list[Part], list[Part], list[Part]]:
    """The parts of the task (none for a text), of the model, and of the evaluation."""
    task, (model, _) = experiment.task, experiment.trained
    if params is not None and of_models:
        model, params = _one_block_of_each(experiment, params)
    looked_at = ModelUnderCheck(model, task.vocab_size, params, dtype=_dtype(experiment), length=task.length)
    evaluation = EvaluationUnderCheck(experiment.eval, partial(_untrained, experiment, looked_at))
    name = f"task={experiment.task_name}"
    return (
        [Part(name, of_tasks, TaskUnderCheck(task))] if isinstance(task, Task) else [],
        [Part(f"model={experiment.model_name}", of_models, looked_at)],
        [Part("eval", of_evaluations, evaluation)],
    )


def _one_block_of_each(experiment: Experiment, params: Params) -> tuple[LanguageModel, Params]:
    """A model of one block per mixer, with the parameters of the mixer's first block: as many promises, in less time.

    A model that is no pattern of blocks stays whole.
    """
    node, (model, _) = experiment.config["model"], experiment.trained
    pattern = _blocks(node)
    each = list(dict.fromkeys(pattern))
    if len(each) == len(pattern):
        return model, params
    short = model_of({**node, "pattern": each, "depth": None}, experiment.task.vocab_size)
    keys = list(params["blocks"])
    kept = {keys[new]: params["blocks"][keys[pattern.index(name)]] for new, name in enumerate(each)}
    return short, {**params, "blocks": kept}


def _blocks(node: Mapping[str, Any]) -> list[str]:
    """The mixer of each block; none of a model that the user's own code builds, whose settings may mean anything."""
    if node.get("_target_") != trust.BUILD:
        return []
    pattern = list(node["pattern"])
    return list(islice(cycle(pattern), node.get("depth") or len(pattern)))


def is_ours(node: Any) -> bool:
    """Whether everything that a part of the configuration builds is of this package."""
    if not isinstance(node, Mapping):
        return True
    return str(node.get("_target_", OURS)).startswith(OURS) and all(map(is_ours, node.values()))


def _dtype(experiment: Experiment) -> str:
    return experiment.config["model"].get("dtype", "float32")


def _untrained(experiment: Experiment, looked_at: ModelUnderCheck) -> Trained:
    """The model as an evaluation gets it, before any training."""
    return Trained(
        task=experiment.task,
        model=looked_at.model,
        params=[jax.device_put(looked_at.params)],
        seeds=[experiment.seed],
        step=0,
        make_row=partial(row, run="check", task=experiment.task_name, model=experiment.model_name),
        check_interrupt=never_interrupt,
        progress=NoProgress(),
        feed=experiment.feed,
        tokenizer=experiment.feed.tokenizer,
        train_length=experiment.task.length,
        folder=Path(),
    )
