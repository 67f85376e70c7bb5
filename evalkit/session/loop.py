"""The training loop: from fresh parameters, or a checkpoint, to the last step."""

import logging
import time
from collections.abc import Sequence
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
from evalkit.session.looks import Costs
from evalkit.session.session import GivenUp, Session
from evalkit.training.checkpoints import Checkpoints, Restored
from evalkit.training.finite import refuse_non_finite
from evalkit.training.settings import Stage
from evalkit.training.state import Sums, TrainState
from evalkit.training.trainer import Trainer

logger = logging.getLogger(__name__)
SOLVED = 1.0


def train(session: Session, trainer: Trainer, checkpoints: Checkpoints, begun: Restored | TrainState) -> TrainState:
    """Trains to the last step and returns the state there; raises Interrupted after a signal, the state saved.

    `begun` is what it starts from, fresh or restored. A restored run takes the very same steps as one that was never
    stopped. Batches are functions of seed and step, and its rows were cut to what the checkpoint knows.
    """
    training, task = trainer.training, trainer.task
    if isinstance(begun, Restored):
        state, step, solved, tokens = begun.state, begun.step, begun.meta["solved"], begun.meta["tokens"]
        session.say(f"going on from step {step}")
    else:
        state, step, solved, tokens = begun, 0, 0, 0
        session.begin(subjects.header(session, subjects.of_state(session, state, step)))
    with (
        session.timed("training"),
        Progress(session.console, training.steps, "training") as progress,
    ):
        began = time.perf_counter()
        costs, looks_before = Costs(session.say, training.eval_every), session.timing.get("looks", 0.0)
        for stage in training.stages(task.length):
            while step < stage.stop and not _is_solved(trainer, solved):
                # One dispatch: the device takes `log_every` steps, data included, before Python hears of them.
                steps = min(training.log_every - step % training.log_every, stage.stop - step)
                # Of several processes none asks for anything else before all of its devices are there.
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
                if stopped:
                    session.watch.check()
                if given_up:
                    raise GivenUp
    return state


def validate(session: Session, state: TrainState, step: int, costs: Costs) -> list[Row]:
    """Writes validation at the training length, and what looks at the model find; returns both, in this order."""
    experiment = session.experiment
    subject = subjects.uninterrupted(experiment, session.folder, state, step)
    rows = VALIDATION.score(subject, "validation", experiment.task.length, experiment.trained[1].validation_sequences)
    looks = {f"eval.{experiment.eval.spaced_by}": experiment.eval.probe}
    looks |= {f"{look.setting}.{EVERY}": look.probe for look in experiment.looks}
    looked = [costs.timed(setting, probe(subject), step) for setting, probe in looks.items()]
    return session.write([*rows, *chain(*looked)])


def _all_right(rows: Sequence[Row], length: int) -> bool:
    """Whether every seed has all right at the training length."""
    return all(value(row) >= SOLVED for row in rows if row["metric"] == "accuracy" and row["length"] == length)


def _mean(rows: Sequence[Row], metric: str) -> float:
    """Over the sequences of all seeds; those of steps that were skipped are not counted."""
    of_metric = [entry for entry in rows if entry["metric"] == metric]
    count = sum(entry["count"] or 0 for entry in of_metric)
    return sum(entry["total"] or 0.0 for entry in of_metric) / count if count else float("nan")


def _is_solved(trainer: Trainer, solved: int) -> bool:
    wanted = trainer.training.stop_when_solved
    return wanted is not None and solved >= wanted


def _rows(session: Session, sums: Sums, step: int, stage: Stage, steps: int) -> list[Row]:
    """Loss and accuracy of a dispatch of `steps`, by seed; where steps may be skipped, how many were, too."""
    loss, accuracy = np.asarray(sums.loss), np.asarray(sums.accuracy)
    counted = session.experiment.trained[1].skip_nonfinite
    skipped = np.asarray(sums.bad_steps) if counted else np.zeros(len(loss), int)
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
