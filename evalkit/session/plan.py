"""What an experiment has before it: its runs, what is done of them, and how long the rest will train."""

import json
import time
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
from rich.console import Console

from evalkit.checkpoints.loading import trainer_of
from evalkit.configuration.experiment import Experiment
from evalkit.configuration.grammar import Words
from evalkit.configuration.request import Request
from evalkit.configuration.spec import Spec
from evalkit.core.errors import place_told
from evalkit.core.rows import read, record_file
from evalkit.record.files import RESULTS, times_of
from evalkit.reports.numbers import DASH, grouped
from evalkit.reports.suite.board import Board
from evalkit.reports.suite.cells import GRID
from evalkit.reports.terminal import print_table
from evalkit.session.session import memory_told
from evalkit.tasks.text import Text
from evalkit.training.settings import Stage
from evalkit.training.state import TrainState
from evalkit.training.trainer import Trainer

MEASURED_SECONDS = 2.0
HEADER = ["run", "state", "steps", "hours"]
# What decides how long a step takes, beside the model and the task.
SPEED = ("batch_size", "microbatch", "log_every")


class RateSearch(NamedTuple):
    """The search for the learning rate of a suite's final run: runs in `folder` that train one seed at each rate.

    `words` are those of each run, without rates and seeds. The first run has the `rates`, with seeds from `seed` on. An
    accuracy at or below `floor` is no better than a guess.
    """

    folder: str
    words: Words
    rates: Sequence[float]
    seed: int
    floor: float

    @property
    def name(self) -> str:
        """The run of the grid."""
        return f"{self.folder}/{GRID}"


class Job(NamedTuple):
    """One run of an experiment, built, in the folder of its `spec`.

    `group` is `runs` or `controls`, and in a suite the suite's name. `evaluation` says which trained run it evaluates,
    and how; None for a run that trains. In a suite, a job has its
    `cell` and the `board`, on which no cell stands yet; a final run also has its `words` and the `search` that chooses
    its learning rate.
    """

    group: str
    name: str
    spec: Spec
    evaluation: Request | None = None
    cell: str = ""
    words: Words = ()
    search: RateSearch | None = None
    board: Board | None = None

    @property
    def experiment(self) -> Experiment:
        """What it builds."""
        return self.spec.experiment

    @property
    def folder(self) -> Path:
        """Where it writes."""
        return self.spec.folder

    @property
    def is_left_to_train(self) -> bool:
        """Whether it trains, and has not come to its end."""
        return self.evaluation is None and not is_finished(self.folder)


def show(jobs: Sequence[Job], console: Console) -> None:
    """Prints every run with its state, the hours that its training still takes, and their sum; writes nothing.

    Hours are the tokens that are left times the seconds a token of each model. These are known from runs that have
    begun, or else from a few steps that are timed here.
    """
    measured: dict[Hashable, float] = {}
    lines, whole, waiting = [], 0.0, False
    for line, of_line in grouped((job.cell or job.name, job) for job in jobs).items():
        left = [job for job in of_line if job.is_left_to_train]
        waiting |= bool(left)
        hours = [some for job in left if (some := _hours(job, jobs, measured, console)) is not None]
        whole += sum(hours)
        lines.append([line, _state(of_line), _steps(of_line), _shown(sum(hours)) if hours else DASH])
    print_table(console, HEADER, lines)
    console.print()
    if measured:
        console.print(f"about {_shown(whole)} hours of training; evaluations come on top", highlight=False)
        console.print("(by steps measured now, or by what runs that began have taken)", style="dim", highlight=False)
    elif waiting:
        console.print("how long a run on a text takes is known when one has ended or was stopped", highlight=False)
    else:
        console.print("nothing is left to train", highlight=False)


def default_folder(experiment: str, preset: str, *, quick: bool = False) -> Path:
    """Where an experiment writes unless `hydra.run.dir` says; the cells of a quick form are others."""
    return Path("runs", experiment, f"{preset}-quick" if quick else preset)


def buildable(words: Words, folder: Path) -> Spec:
    """The run of these words in `folder`, built to check it; raises UserError if it cannot be built."""
    spec = Spec.of(words, folder=folder)
    _ = spec.experiment
    return spec


def is_finished(folder: Path) -> bool:
    """Whether a run has come to its end."""
    return (folder / RESULTS).is_file()


def _hours(job: Job, jobs: Sequence[Job], measured: dict[Hashable, float], console: Console) -> float | None:
    """The hours that its training still takes; None for a run on a text until a similar run has been timed."""
    key = _speed_key(job)
    if key not in measured:
        alike = [other for other in jobs if other.evaluation is None and _speed_key(other) == key]
        known = [seconds for other in alike if (seconds := _seconds_taken(other)) is not None]
        if not known and isinstance(job.experiment.task, Text):
            return None
        if not known:
            console.print(f"measuring a step of {job.name} …", highlight=False)
        measured[key] = known[0] if known else _seconds_measured(job.experiment)
    _, training = job.experiment.trained
    left = job.experiment.seeds * tokens(job.experiment, _steps_done(job), training.steps)
    return measured[key] * left / 3600


def _speed_key(job: Job) -> Hashable:
    """A key of the speed: runs with the same key take equally long per token. In a suite it is the model's name."""
    if job.cell:
        return job.cell.split("/")[1]
    config: Mapping[str, Any] = job.experiment.config
    train = {name: config["train"][name] for name in SPEED}
    # Streams take as long, however often they begin anew.
    train["streams"] = config["train"]["state_passing"] is not None
    seeds, precision = job.experiment.seeds, job.experiment.matmul_precision
    return json.dumps([config["task"], config["model"], train, seeds, precision])


def _seconds_taken(job: Job) -> float | None:
    """The seconds per token that a run's training took so far, without compilation; None where that is not known."""
    taken = times_of(job.folder)
    if not {"training", "first_dispatch"} <= taken.keys():
        return None
    seconds = taken["training"] - taken["first_dispatch"] - taken.get("looks", 0.0)
    _, training = job.experiment.trained
    first = min(training.log_every, training.steps - 1)
    trained = job.experiment.seeds * tokens(job.experiment, first, _steps_done(job))
    return seconds / trained if seconds > 0 and trained > 0 else None


def _seconds_measured(experiment: Experiment) -> float:
    """Seconds a token of a few steps at the training length."""
    with jax.default_matmul_precision(experiment.matmul_precision), memory_told(), place_told():
        trainer = trainer_of(experiment)
        stage = trainer.training.stages(experiment.task.length)[-1]
        state = jax.block_until_ready(trainer.advance(trainer.init(), stage, 1))[0]
        once, state = _timed(trainer, state, stage, 1)
        steps = max(1, min(trainer.training.log_every, int(MEASURED_SECONDS / once)))
        seconds, _ = _timed(trainer, state, stage, steps)
    return seconds / steps / (stage.batch_size * (stage.length + experiment.task.answer_length) * experiment.seeds)


def _timed(trainer: Trainer, state: TrainState, stage: Stage, steps: int) -> tuple[float, TrainState]:
    """The seconds that so many steps take, and the state after them."""
    began = time.perf_counter()
    state, _ = jax.block_until_ready(trainer.advance(state, stage, steps))
    return time.perf_counter() - began, state


def tokens(experiment: Experiment, first: int, last: int) -> int:
    """The tokens of the steps from `first` to `last` that one seed trains on, its answers among them."""
    task, (_, training) = experiment.task, experiment.trained
    return sum(
        max(0, min(stage.stop, last) - max(stage.start, first)) * stage.batch_size * (stage.length + task.answer_length)
        for stage in training.stages(task.length)
    )


def _steps_done(job: Job) -> int:
    if record_file(job.folder) is None:
        return 0
    return max((entry["step"] or 0 for entry in read(job.folder).rows if entry["split"] == "train"), default=0)


def _state(jobs: Sequence[Job]) -> str:
    """The state of one run, or how many of several are finished."""
    finished = [job for job in jobs if is_finished(job.folder)]
    if len(finished) == len(jobs):
        return "finished"
    if len(jobs) > 1 and finished:
        return f"{len(finished)} of {len(jobs)} finished"
    if jobs[0].evaluation is not None:
        return f"evaluates {jobs[0].evaluation.run}"
    return "stopped" if any(map(_steps_done, jobs)) else "to do"


def _steps(jobs: Sequence[Job]) -> str:
    """How many of the runs' training steps are done; all seeds of a run train together, so a step counts once."""
    if jobs[0].evaluation is not None:
        return DASH
    done = [_steps_done(job) for job in jobs]
    planned = [job.experiment.trained[1].steps for job in jobs]
    # A run may have been given more.
    return f"{sum(done):,} of {sum(map(max, done, planned)):,}"


def _shown(hours: float) -> str:
    return "< 0.01" if hours < 0.01 else f"{hours:.2f}" if hours < 1 else f"{hours:.1f}"
