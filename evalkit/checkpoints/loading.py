"""A run's parameters: in a notebook, in an archive, at the step that is asked for."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from evalkit.checkpoints import archives
from evalkit.configuration.experiment import Experiment
from evalkit.configuration.spec import Spec
from evalkit.core.contracts import LanguageModel, Params, Task
from evalkit.core.doors import door
from evalkit.core.errors import UserError, typed_path
from evalkit.core.trust import refuse_elsewhere
from evalkit.record.files import RESULTS
from evalkit.tasks.text import Text
from evalkit.training.checkpoints import FOLDER, Checkpoints
from evalkit.training.state import TrainState, params_of
from evalkit.training.trainer import Trainer


@dataclass(frozen=True, eq=False, repr=False)
class Run:
    """A run's parameters at one step of one seed, with what they belong to.

    It unpacks as `apply, params, task = run`, and can be passed as a path. `config` is its configuration as plain
    data. `folder` holds the rows: the run's own, or an evaluation's.
    """

    folder: Path
    model: LanguageModel
    params: Params
    task: Task | Text
    config: dict[str, Any]
    seed: int
    step: int

    @property
    def apply(self) -> Callable[..., Any]:
        """`apply(params, tokens[b, t]) -> (logits[b, t, v], None)`; with `cache=`, the new cache in place of None."""
        return self.model.apply

    @property
    def init_cache(self) -> Callable[..., Any]:
        """`init_cache(b, t)`: the cache of `b` sequences of up to `t` tokens, empty."""
        return self.model.init_cache

    def __iter__(self) -> Iterator[Any]:
        """`apply`, `params` and `task`."""
        return iter((self.apply, self.params, self.task))

    def __fspath__(self) -> str:
        return str(self.folder)

    def __repr__(self) -> str:
        count = sum(leaf.size for leaf in jax.tree.leaves(self.params))
        names = f"{self.config['model_name']} on {self.config['task_name']}"
        return f"<Run {self.folder}: {names}, seed {self.seed}, step {self.step:,}, {count:,} parameters>"


@door()
def load(
    run: str | os.PathLike[str],
    seed: int | None = None,
    step: int | None = None,
    allow_targets: Sequence[str] = (),
) -> Run:
    """The parameters of a run: of its first seed or the one given, of the newest checkpoint or that of a `step`.

        run = evalkit.load("runs/induction_heads/griffin/2026-01-31_12-00-00-000000")
        logits, _ = run.apply(run.params, tokens)  # tokens [b, t] -> logits [b, t, v]

    A run of another person may name code of theirs. It is imported only if its packages are among `allow_targets`, or
    were named before. Raises UserError for others, for a folder that is no run, a run without a checkpoint, a seed that
    it did not train, and a step that was not kept.
    """
    folder = named_folder(run)
    experiment = Spec.saved(folder, packages=allow_targets).experiment
    model, _ = experiment.trained
    seeds = experiment.all_seeds
    if seed is not None and seed not in seeds:
        raise UserError(f"{folder} has no seed {seed}; it trained {', '.join(map(str, seeds))}")
    state, at = restore(experiment, folder, step)
    chosen = seeds[0] if seed is None else seed
    params = params_of(state, seeds.index(chosen), experiment.parameters)
    return Run(folder, model, params, experiment.task, dict(experiment.config), chosen, at)


def named_folder(folder: Any) -> Path:
    """A folder's path, from its name; raises UserError for no name or an empty one, which means the current folder."""
    if not isinstance(folder, str | os.PathLike) or not os.fspath(folder).strip():
        raise UserError(f"{folder!r} names no folder; give one, such as runs/<task>/<model>/<time>")
    return typed_path(folder)


def trainer_of(experiment: Experiment) -> Trainer:
    """The trainer that an experiment describes."""
    model, training = experiment.trained
    return Trainer(experiment.task, model, training, experiment.all_seeds, experiment.mesh)


def restore(experiment: Experiment, run: Path, at: int | None = None) -> tuple[TrainState, int]:
    """The newest state of a run, or that of step `at`, and its step; raises UserError if there is none."""
    _ = experiment.trained  # raises for a run that measured a checkpoint: it has no parameters of its own
    if archives.is_archive(run):
        if at is not None:
            raise UserError(f"{run} is an archive, which has the last parameters alone; leave step= out")
        return archives.read(experiment, run)
    if not (run / FOLDER).is_dir():  # opening it would make the folder
        if (run / RESULTS).is_file():
            raise UserError(f"{run} has results and no parameters: it is an evaluation; give the run that it is of")
        raise UserError(f"{run} has no checkpoint yet; go on with resume={run}")
    trainer = trainer_of(experiment)
    kept_as = trainer.abstract, trainer.step.layout
    with closing(Checkpoints(run)) as checkpoints:
        if at is not None:
            return checkpoints.at(at, *kept_as), at
        restored = checkpoints.restore(*kept_as)
    if restored is None:
        raise UserError(f"{run} has no checkpoint yet; go on with resume={run}")
    return restored.state, restored.step


def archive(run: Path, folder: Path, step: int | None = None) -> None:
    """Writes the record of a finished `run` and its last parameters, or of `step`, into `folder`. Raises UserError."""
    archives.refuse_used(folder)
    archives.refuse_without_parameters(run)
    refuse_elsewhere(run, {}, ())
    experiment = Spec.saved(run).experiment
    if not (run / RESULTS).is_file():
        raise UserError(f"{run} is not finished; go on with it by resume={run} first")
    state, step = restore(experiment, run, step)
    archives.write(folder, run, experiment, state, step)
