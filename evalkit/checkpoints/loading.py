"""A run's parameters: in a notebook, in an archive, at the step that is asked for."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from evalkit.checkpoints import archives
from evalkit.configuration.experiment import Experiment
from evalkit.configuration.saved import from_file
from evalkit.core.contracts import Params, Task
from evalkit.core.errors import UserError
from evalkit.record.files import RESULTS
from evalkit.tasks.text import Text
from evalkit.training.checkpoints import FOLDER, Checkpoints
from evalkit.training.state import TrainState, params_of
from evalkit.training.trainer import Trainer


def load(run: str | Path, seed: int | None = None) -> tuple[Callable[..., Any], Params, Task | Text]:
    """`(apply, params, task)` of a run's newest checkpoint: `logits, _ = apply(params, tokens)`.

    `seed` chooses among several (the first by default). Raises UserError for a folder that is no run, a run without a
    checkpoint, or a seed that it did not train.
    """
    experiment = from_file(Path(run) / "config.yaml")
    model, _ = experiment.trained
    seeds = experiment.all_seeds
    if seed is not None and seed not in seeds:
        raise UserError(f"{run} has no seed {seed}; it trained {', '.join(map(str, seeds))}")
    state, _ = restore(experiment, Path(run))
    return model.apply, params_of(state, 0 if seed is None else seeds.index(seed)), experiment.task


def trainer_of(experiment: Experiment) -> Trainer:
    """The trainer that an experiment describes."""
    model, training = experiment.trained
    return Trainer(experiment.task, model, training, experiment.all_seeds)


def restore(experiment: Experiment, run: Path, at: int | None = None) -> tuple[TrainState, int]:
    """The newest state of a run, or that of step `at`, and its step; raises UserError if there is none."""
    _ = experiment.trained  # a run that measured a checkpoint has no parameters of its own
    if archives.is_archive(run):
        if at is not None:
            raise UserError(f"{run} is an archive, which has the last parameters alone; leave step= out")
        return archives.read(experiment, run, experiment.all_seeds)
    if not (run / FOLDER).is_dir():  # opening it would make the folder
        raise UserError(f"{run} has no checkpoint yet; go on with resume={run}")
    abstract = trainer_of(experiment).abstract
    with closing(Checkpoints(run)) as checkpoints:
        if at is not None:
            return checkpoints.at(at, abstract), at
        restored = checkpoints.restore(abstract)
    if restored is None:
        raise UserError(f"{run} has no checkpoint yet; go on with resume={run}")
    return restored.state, restored.step


def archive(run: Path, folder: Path, step: int | None = None) -> None:
    """Writes the record of `run` and its last parameters, or those of `step` if it was kept, into `folder`.

    Raises UserError for what is no run, a run that is not finished, and a folder that is in use.
    """
    archives.refuse_used(folder)
    experiment = from_file(run / "config.yaml")
    if not (run / RESULTS).is_file():
        raise UserError(f"{run} is not finished; go on with it by resume={run} first")
    state, step = restore(experiment, run, step)
    archives.write(folder, run, experiment.all_seeds, state, step)
