"""The checks ("gates") before work on a run, in order.

A gate's docstring says what must hold; where it does not, the gate raises UserError with one line.
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
from rich.console import Console

from evalkit.checkpoints.archives import is_archive
from evalkit.checkpoints.loading import trainer_of
from evalkit.configuration import saved
from evalkit.configuration.experiment import build, written
from evalkit.configuration.schema import completed
from evalkit.configuration.spec import Spec, refuse_looks_without_validation
from evalkit.core import studies
from evalkit.core.batches import feed_of
from evalkit.core.errors import Unavailable, UserError, refuse_bytes
from evalkit.core.rows import Row, read, record_file
from evalkit.core.trust import refuse_elsewhere
from evalkit.disk.places import free, used
from evalkit.parallel import peers
from evalkit.parallel.layouts import connection
from evalkit.record import history
from evalkit.record.files import RESULTS
from evalkit.record.history import pasteable
from evalkit.session.hints import near
from evalkit.training.checkpoints import FOLDER, KEPT, Checkpoints
from evalkit.training.settings import Training
from evalkit.training.trainer import Trainer

Judge = Callable[[Sequence[Row]], bool]
"""Gets the rows of each validation; says whether training is to be given up."""
RECORD_BYTES = 2**24
"""What a run writes besides its checkpoints: rows, logs, figures and the report."""


class Launch:
    """A run that this process is about to start, resume or evaluate; of several processes, the first alone prints."""

    def __init__(self, spec: Spec, judge: Judge | None = None):
        self.spec, self.folder, self.judge = spec, spec.folder, judge
        unheard = {} if peers.first() else {"quiet": True, "format": "text", "log": ()}
        self.experiment = replace(spec.experiment, **unheard) if unheard else spec.experiment

    @cached_property
    def trainer(self) -> Trainer:
        """What trains it."""
        return trainer_of(self.experiment)

    @property
    def console(self) -> Console:
        """Where it is shown; with format=json the last line of stdout is the result and the only one."""
        return Console(stderr=self.experiment.format == "json", quiet=self.experiment.quiet)

    @property
    def is_finished(self) -> bool:
        """Whether the run has results and `train.steps` asks for no more steps than the saved configuration."""
        if not (self.folder / RESULTS).is_file():
            return False
        train = self.experiment.train
        return train is None or train.steps <= completed(self.before["train"])["steps"]

    @property
    def before(self) -> dict[str, Any]:
        """The configuration in its folder, which is not changed yet."""
        return saved.plain_of(self.folder / saved.CONFIG_FILE, self.spec.packages)


Gate = Callable[[Launch], None]


def pass_all(gates: tuple[Gate, ...], launch: Launch) -> None:
    """Raises UserError where a gate does not let the launch pass."""
    for gate in gates:
        gate(launch)


def refuse_unconnected(launch: Launch) -> None:
    """With `distributed=`, this process is connected to the others."""
    connection.refuse_unconnected(launch.experiment.distributed)


def refuse_missing_packages(launch: Launch) -> None:
    """This machine has what each sink needs."""
    for sink in launch.experiment.outlets.values():
        sink.check()


def refuse_unnamable(launch: Launch) -> None:
    """The path of the run's folder is valid text, which the run's files can store."""
    refuse_bytes(str(launch.folder.absolute()))


def refuse_used(launch: Launch) -> None:
    """A new run has a folder of its own."""
    if peers.first():
        refuse_run_in(launch.folder)
        refuse_strange_files_in(launch.folder)


def refuse_run_in(folder: Path) -> None:
    """Raises UserError if a folder is a run's already."""
    if record_file(folder) is not None:
        place = near(folder)
        again = pasteable("resume", str(place))
        raise UserError(f"{place} holds a run already; go on with it: {again}, or give another hydra.run.dir")


def refuse_strange_files_in(folder: Path) -> None:
    """Raises UserError if a folder has files of the names of a run's that no run of ours wrote: it would replace them.

    A run that stopped before its first row leaves its configuration alone, which the next one may replace.
    """
    checkpoints, config = folder / FOLDER, folder / saved.CONFIG_FILE
    strange = [checkpoints] if checkpoints.is_dir() and any(checkpoints.iterdir()) else []
    if config.is_file() and not _is_of_a_run(config):
        strange.append(config)
    if strange:
        raise UserError(
            f"{near(strange[0])} is there, and there is no run to go on with; give another hydra.run.dir, or remove it"
        )


def _is_of_a_run(config: Path) -> bool:
    """Whether a `config.yaml` has parts that the configuration of each run has."""
    try:
        content = studies.content(config)
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(content, dict) and {"task", "eval"} <= set(content)


def refuse_unreadable(launch: Launch) -> None:
    """Texts are there and can be read."""
    if launch.experiment.checkpoint is None:
        launch.experiment.feed.prepare()


def refuse_unready_looks(launch: Launch) -> None:
    """Each evaluation during training suits the task's tokenizer, and its data sets are there."""
    experiment = launch.experiment
    try:
        for look in experiment.looks if experiment.checkpoint is None else ():
            look.check(experiment.feed.tokenizer)
    except ValueError as error:
        raise UserError(str(error)) from error


def refuse_unshared(launch: Launch) -> None:
    """All processes see the folder."""
    if launch.experiment.checkpoint is None:
        connection.refuse_unshared(launch.folder)


def refuse_small_disk(launch: Launch) -> None:
    """The disk has room for checkpoints and rows."""
    if launch.experiment.checkpoint is None:
        refuse_full(launch.folder, launch.trainer)


def refuse_full(folder: Path, trainer: Trainer) -> None:
    """Raises Unavailable, with the bytes that are missing, if the run in `folder` would fill the disk."""
    one, count = state_bytes(trainer), most_checkpoints(trainer.training)
    needed = one * count + RECORD_BYTES - used(folder / FOLDER)
    room = free(folder)
    if room < needed:
        raise Unavailable(
            f"{folder} has room for {_size(room)}, but the run writes about {_size(needed)}, with {count} checkpoints "
            f"of {_size(one)}; free space, begin in another folder, or give a larger train.keep_every"
        )


def state_bytes(trainer: Trainer) -> int:
    """The bytes of what one checkpoint holds."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(trainer.abstract))


def most_checkpoints(training: Training) -> int:
    """How many checkpoints there are at most at one time: those that are kept, and one that is being written."""
    forever = 0 if training.keep_every is None else training.steps // training.keep_every
    return KEPT + 1 + forever


def _size(count: int) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.0f} MB"


def refuse_foreign_folders(launch: Launch) -> None:
    """A saved run writes into its own folder, and into those that the user gave."""
    refuse_elsewhere(launch.folder, written(launch.spec.plain), launch.spec.typed)


def refuse_archive(launch: Launch) -> None:
    """A run that goes on has a checkpoint to go on from."""
    if launch.experiment.checkpoint is None and is_archive(launch.folder):
        raise UserError(f"{launch.folder} is an archive, which has no checkpoint to go on from; give the run itself")


def refuse_run_on_checkpoint(launch: Launch) -> None:
    """A run that is evaluated again has parameters of its own."""
    if launch.experiment.checkpoint is not None:
        raise UserError(f"{launch.folder} was measured on a checkpoint; give task= and checkpoint= again")


def refuse_changed_measurement(launch: Launch) -> None:
    """The evaluation of a checkpoint runs in one process, and goes on with the settings that it began with."""
    if launch.experiment.checkpoint is None:
        return
    if peers.several():
        raise UserError(f"{launch.folder} measures a checkpoint, which is one process's; leave distributed= out")
    fixed = [word for word in launch.spec.words() if word.startswith(("eval", "train"))]
    if fixed:
        raise UserError(f"{fixed[0]!r}: an evaluation goes on with its own settings; leave it out")


def refuse_fewer_steps(launch: Launch) -> None:
    """A run that goes on was trained in its folder, and is not beyond `train.steps` already, which counts all steps."""
    if launch.experiment.checkpoint is not None:
        return
    _, training = launch.experiment.trained
    if any(work.step is None for work in history.read(launch.folder)[-1:]):
        raise UserError(
            f"{launch.folder} is an evaluation, which has no training to go on with; evaluate the run itself again"
        )
    with closing(Checkpoints(launch.folder)) as checkpoints:
        done = checkpoints.latest or 0
    typed = launch.spec.typed.get("train.steps", "")
    if "=+" in typed:  # the same line after a stop would train for that many again
        raise UserError(f"{typed}; give all steps, those before and those to come: train.steps={done + training.steps}")
    if done > training.steps:
        raise UserError(f"train.steps={training.steps}, but {launch.folder} is at step {done}; give at least {done}")


def refuse_other_evaluation(launch: Launch) -> None:
    """A finished run keeps its evaluation and its results.

    How it passes states, and what is measured while it trains, change only together with more steps.
    """
    for key, word in launch.spec.typed.items():
        if key in saved.POST_TRAINING[1:] or key.partition(".")[0] in saved.WHILE_TRAINING:
            raise UserError(f"{word}: the run is finished; give more train.steps too")
    if launch.spec.plain["eval"] != launch.before["eval"]:
        command = pasteable("evaluate", str(near(launch.folder)), *launch.spec.words("train."))
        raise UserError(f"{launch.folder} is finished, and its results stay; for other ones give {command}")


def refuse_other_text(launch: Launch) -> None:
    """A run goes on with the text that it began with."""
    now, before = launch.experiment.feed.provenance(), read(launch.folder).header.text
    if now is not None and before is not None and before["digest"] != now["digest"]:
        raise UserError(
            f"{launch.folder} began with another text ({before['used']}); bring it back, or start a new run"
        )


def refuse_other_samples(launch: Launch) -> None:
    """A run goes on with the samples that it began with."""
    now, before = launch.experiment.task.version, read(launch.folder).header.task_version
    if now != before:
        raise UserError(
            f"{launch.folder} was trained on version {before} of {launch.experiment.task_name}, and version {now} "
            "draws other samples; start a new run"
        )


def refuse_trained_on(launch: Launch) -> str | None:
    """Raises UserError if a run would be evaluated on its training text; returns a line if that cannot be checked."""
    before = launch.before
    # With the same task, held-out and training texts were compared when they were read.
    if before["task"] == launch.spec.plain["task"]:
        return None
    return launch.experiment.feed.refuse_trained_on(feed_of(build(before, "task")))


BEFORE_START = (
    refuse_unconnected,
    refuse_unnamable,
    refuse_missing_packages,
    refuse_used,
    refuse_unreadable,
    refuse_unready_looks,
    refuse_unshared,
    refuse_small_disk,
)
BEFORE_RESUME = (refuse_unconnected, refuse_unnamable, refuse_missing_packages, refuse_foreign_folders, refuse_archive)
WHILE_ALONE = (refuse_changed_measurement, refuse_unshared, refuse_fewer_steps)
"""The gates of a run that goes on, checked while its folder is locked."""
BEFORE_GOING_ON = (
    lambda launch: refuse_looks_without_validation(launch.experiment),
    refuse_unready_looks,
    refuse_small_disk,
)
BEFORE_EVALUATION = (
    refuse_unnamable,
    refuse_missing_packages,
    refuse_foreign_folders,
    refuse_run_on_checkpoint,
    refuse_unreadable,
)
