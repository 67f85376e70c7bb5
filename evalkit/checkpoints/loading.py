"""A finished run in a notebook."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from evalkit.checkpoints import archives as archive
from evalkit.configuration.experiment import Experiment
from evalkit.configuration.saved import from_file
from evalkit.core.contracts import Params, Task, Texts
from evalkit.core.errors import UserError
from evalkit.training.checkpoints import FOLDER, Checkpoints
from evalkit.training.trainer import Trainer, TrainState, params_of


def load(run: str | Path, seed: int | None = None) -> tuple[Callable[..., Any], Params, Task | Texts]:
    """`(apply, params, task)` of a run's newest checkpoint: `logits, _ = apply(params, tokens)`.

    `seed` chooses among several (the first by default). Raises UserError for a folder that is no run, a run without a
    checkpoint, or a seed that it did not train.
    """
    experiment = from_file(Path(run) / "config.yaml")
    seeds = seeds_of(experiment)
    if seed is not None and seed not in seeds:
        raise UserError(f"{run} has no seed {seed}; it trained {', '.join(map(str, seeds))}")
    state, _ = restore(experiment, Path(run))
    return experiment.model.apply, params_of(state, 0 if seed is None else seeds.index(seed)), experiment.task


def seeds_of(experiment: Experiment) -> list[int]:
    """Seed i of S is `seed + i`."""
    return list(range(experiment.seed, experiment.seed + experiment.seeds))


def trainer_of(experiment: Experiment) -> Trainer:
    """The trainer that an experiment describes."""
    return Trainer(experiment.task, experiment.model, experiment.train, seeds_of(experiment))


def restore(experiment: Experiment, run: Path, at: int | None = None) -> tuple[TrainState, int]:
    """The newest state of a run, or that of step `at`, and its step; raises UserError if there is none."""
    if archive.is_archive(run):
        if at is not None:
            raise UserError(f"{run} is an archive, which has the last parameters alone; leave step= out")
        return archive.read(experiment, run, seeds_of(experiment))
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
