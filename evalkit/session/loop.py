"""The training loop, from fresh parameters or a checkpoint to the last step, and the cost of evaluations on the way."""

import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import jax
import numpy as np

from evalkit.core.rows import Row, value
from evalkit.evaluations.look import EVERY
from evalkit.parallel import peers
from evalkit.record.progress import Progress
from evalkit.session import subjects
from evalkit.session.ahead import VALIDATION
from evalkit.session.session import GivenUp, Session
from evalkit.training.checkpoints import Checkpoints, Restored
from evalkit.training.finite import refuse_non_finite
from evalkit.training.settings import Stage
from evalkit.training.state import Sums, TrainState
from evalkit.training.trainer import Trainer

logger = logging.getLogger(__name__)
ALL_RIGHT = 1.0
MAX_LOOK_SHARE = 0.2
"""The largest share of the time that looks may take before a line says what to change."""
LEAST_SECONDS_TOLD = 10.0
"""Seconds that the looks of one setting took together, before anything is said of them."""


@dataclass
class Looked:
    """The last look of one setting: its step, the second it ended at, and the seconds of all so far."""

    step: int
    ended: float
    seconds: float


@dataclass
class LookCosts:
    """The time that evaluations during training ("looks") take, by the setting of their interval (`eval.during.every`).

    Models are validated every `eval_every` steps. `clock` gives seconds. The first look of each setting is not judged,
    because it compiles.
    """

    say: Callable[[str], None]
    eval_every: int
    clock: Callable[[], float] = time.perf_counter
    looked: dict[str, Looked] = field(default_factory=dict)
    said: set[str] = field(default_factory=set)

    @property
    def seconds(self) -> float:
        """What all looks took."""
        return sum(each.seconds for each in self.looked.values())

    def timed(self, setting: str, rows: Iterable[Row], step: int) -> list[Row]:
        """Makes a look after `step` steps, measures its time and returns its rows; a look without rows was not due."""
        began = self.clock()
        made = list(rows)
        if made:
            ended = self.clock()
            before = self.looked.get(setting, Looked(step, began, 0.0))
            now = self.looked[setting] = Looked(step, ended, before.seconds + ended - began)
            if setting not in self.said and now.seconds > LEAST_SECONDS_TOLD:
                self._judge(setting, now.step - before.step, began - before.ended, ended - began)
        return made

    def _judge(self, setting: str, steps: int, between: float, seconds: float) -> None:
        """Says what to change if a look of `seconds` takes too large a share, `steps` after the look before."""
        share = seconds / (between + seconds)
        if steps and share > MAX_LOOK_SHARE:
            self.said.add(setting)
            enough = seconds * (1 - MAX_LOOK_SHARE) / MAX_LOOK_SHARE * steps / between
            every = math.ceil(enough / self.eval_every) * self.eval_every
            self.say(
                f"a look while training takes {seconds:.1f} s, {share:.0%} of the time; {setting}={every} makes it "
                f"{MAX_LOOK_SHARE:.0%}, or let it read less"
            )


def train(session: Session, trainer: Trainer, checkpoints: Checkpoints, begun: Restored | TrainState) -> TrainState:
    """Trains to the last step and returns the state there; raises Interrupted after a signal, once the state is saved.

    `begun` is the fresh or restored state to start from. A restored run takes the very same steps as one that was never
    stopped: batches are functions of seed and step, and the record was cut to the rows that the checkpoint counts.
    """
    training, task = trainer.training, trainer.task
    if isinstance(begun, Restored):
        state, step, solved, tokens = begun.state, begun.step, begun.meta["solved"], begun.meta["tokens"]
        session.say(f"going on from step {step}")
    else:
        state, step, solved, tokens = begun, 0, 0, 0
        session.begin(subjects.header(session, subjects.of_state(session, state, step)))
    with (
        session.timed("training") as add_seconds,
        Progress(session.console, training.steps, "training") as progress,
    ):
        began = time.perf_counter()
        costs, looks_before = LookCosts(session.say, training.eval_every), session.timing.get("looks", 0.0)
        for stage in training.stages(task.length):
            while step < stage.stop and not _is_solved(trainer, solved):
                # One dispatch: the device takes `log_every` steps, data included, before Python hears of them.
                steps = min(training.log_every - step % training.log_every, stage.stop - step)
                # With several processes, each waits for all of its devices before it starts another program.
                state, sums = jax.block_until_ready(trainer.advance(state, stage, steps))
                sums = jax.tree.map(np.asarray, sums)
                refuse_non_finite(sums, trainer, checkpoints, steps)
                session.timing.setdefault("first_dispatch", time.perf_counter() - began)
                step += steps
                tokens += steps * stage.batch_size * len(trainer.seeds) * (stage.length + task.answer_length)
                rows = _rows(session, sums, step, stage, steps)
                session.write(rows)
                progress.update(step, _mean(rows, "loss"), _mean(rows, "accuracy"), tokens)
                last, given_up = step == training.steps, False
                if step % training.eval_every == 0 or last:
                    rows = validate(session, state, step, costs)
                    if costs.seconds:
                        session.timing["looks"] = looks_before + costs.seconds
                    solved = int(peers.agreed(str(solved + 1 if _all_right(rows, task.length) else 0)))
                    trains_on = not (last or _is_solved(trainer, solved))
                    given_up = trains_on and session.judge is not None and session.judge(rows)
                # A signal waits for the end of a dispatch, so that the state on disk is one between two steps.
                stopped = session.watch.anywhere()
                ends = last or _is_solved(trainer, solved) or stopped or given_up
                if step % training.checkpoint_every == 0 or ends:
                    # The length of the record goes with the state: a resumed run deletes the rows after it.
                    checkpoints.save(state, step, {"rows": session.record.sync(), "solved": solved, "tokens": tokens})
                    add_seconds()
                    session.keep_times()
                if stopped:
                    session.watch.check()
                if given_up:
                    raise GivenUp
    return state


def validate(session: Session, state: TrainState, step: int, costs: LookCosts) -> list[Row]:
    """Writes the rows of validation at the training length, then those of due looks; returns both, in this order."""
    experiment = session.experiment
    subject = subjects.uninterrupted(experiment, session.folder, state, step)
    rows = VALIDATION.score(subject, "validation", experiment.task.length, experiment.trained[1].validation_sequences)
    looks = {f"eval.{experiment.eval.spaced_by}": experiment.eval.probe}
    looks |= {f"{look.setting}.{EVERY}": look.probe for look in experiment.looks}
    looked = [costs.timed(setting, probe(subject), step) for setting, probe in looks.items()]
    return session.write([*rows, *chain(*looked)])


def _all_right(rows: Sequence[Row], length: int) -> bool:
    """Whether every seed's accuracy at the training length is 1."""
    return all(value(row) >= ALL_RIGHT for row in rows if row["metric"] == "accuracy" and row["length"] == length)


def _mean(rows: Sequence[Row], metric: str) -> float:
    """The mean of a metric over the sequences of all seeds, without those of skipped steps."""
    of_metric = [entry for entry in rows if entry["metric"] == metric]
    count = sum(entry["count"] or 0 for entry in of_metric)
    return sum(entry["total"] or 0.0 for entry in of_metric) / count if count else float("nan")


def _is_solved(trainer: Trainer, solved: int) -> bool:
    wanted = trainer.training.stop_when_solved
    return wanted is not None and solved >= wanted


def _rows(session: Session, sums: Sums, step: int, stage: Stage, steps: int) -> list[Row]:
    """Rows of a dispatch of `steps`: each seed's loss and accuracy and, if steps may be skipped, how many were."""
    loss, accuracy = np.asarray(sums.loss), np.asarray(sums.accuracy)
    counted = session.experiment.trained[1].skip_nonfinite
    skipped = np.asarray(sums.nonfinite_steps) if counted else np.zeros(len(loss), int)
    at: dict[str, Any] = {"step": step, "split": "train", "length": stage.length}
    rows = [
        session.make_row(
            metric=metric, seed=seed, total=total[index], count=(steps - int(skipped[index])) * stage.batch_size, **at
        )
        for index, seed in enumerate(session.experiment.all_seeds)
        for metric, total in (("loss", loss), ("accuracy", accuracy))
    ]
    if not counted:
        return rows
    if skipped.any():
        logger.warning("%d of %d steps before step %d were not finite and are skipped", skipped.sum(), steps, step)
    seeds = enumerate(session.experiment.all_seeds)
    return [*rows, *(session.make_row(metric="skipped", seed=s, total=skipped[i], count=steps, **at) for i, s in seeds)]
