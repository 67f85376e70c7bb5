"""The input of an evaluation: the parameters of a run at one step, or of a checkpoint; and the header of its record."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from evalkit.checkpoints.pretrained import load_for_text
from evalkit.configuration.account import account, notes_of
from evalkit.configuration.experiment import Experiment, build, written
from evalkit.configuration.saved import CONFIG_FILE, plain_of
from evalkit.core import trust
from evalkit.core.batches import feed_of
from evalkit.core.contracts import Feed, NoProgress, Pretrained, Progress, Trained, never_interrupt
from evalkit.core.errors import UserError, typed_path
from evalkit.core.rows import Header, Row, row
from evalkit.core.trust import refuse_elsewhere
from evalkit.parallel import devices
from evalkit.session.session import Session
from evalkit.training.state import TrainState, params_of


class Opened(NamedTuple):
    """A checkpoint, the feed of the task in its own tokens, and what a reader must know of the two."""

    pretrained: Pretrained
    feed: Feed
    notes: list[str]


def open_checkpoint(experiment: Experiment) -> Opened:
    """Reads the checkpoint of an experiment; raises UserError, before anything is written, if it cannot be evaluated.

    It reads the held-out texts too. If the checkpoint is a run of ours, they are compared with its training texts.
    """
    assert experiment.checkpoint is not None
    devices.spare_memory()
    own = experiment.feed
    own.refuse_unreachable()  # before the weights, which take minutes
    pretrained = load_for_text(experiment.checkpoint, experiment.dtype, experiment.allow_targets)
    try:
        experiment.eval.check_model(pretrained.model)
        experiment.eval.check_tokens(experiment.task, pretrained.tokenizer)
    except ValueError as error:
        raise UserError(str(error)) from error
    feed = own.in_tokens_of(pretrained.tokenizer)
    run = typed_path(experiment.checkpoint)
    if not (run / CONFIG_FILE).is_file():
        return Opened(pretrained, feed, [])
    before = plain_of(run / CONFIG_FILE, experiment.allow_targets)
    first = (
        f"of the {before['seeds']} seeds of the run the first, {before['seed']}" if before.get("seeds", 1) > 1 else None
    )
    return Opened(pretrained, feed, [note for note in (first, _refuse_trained_on(feed, run, before)) if note])


def _refuse_trained_on(feed: Feed, run: Path, before: dict[str, Any]) -> str | None:
    """Raises UserError if a saved run was trained on the held-out text; returns a line if that cannot be checked."""
    refuse_elsewhere(run, written(before), ())
    return feed.refuse_trained_on(feed_of(build(before, "task")))


def of_state(session: Session, state: TrainState, step: int, progress: Progress | None = None) -> Trained:
    """The parameters of a run at one step, every seed."""
    alone = uninterrupted(session.experiment, session.folder, state, step)
    return replace(alone, check_interrupt=session.watch.check, progress=progress or alone.progress)


def uninterrupted(experiment: Experiment, folder: Path, state: TrainState, step: int) -> Trained:
    """As `of_state`, but no signal interrupts the evaluation, and it shows no progress."""
    seeds = experiment.all_seeds
    return Trained(
        task=experiment.task,
        model=experiment.trained[0],
        params=[params_of(state, index, experiment.parameters) for index in range(len(seeds))],
        seeds=seeds,
        step=step,
        make_row=partial(row, run=folder.name, task=experiment.task_name, model=experiment.model_name),
        check_interrupt=never_interrupt,
        progress=NoProgress(),
        feed=experiment.feed,
        tokenizer=experiment.feed.tokenizer,
        train_length=experiment.task.length,
        folder=folder,
    )


def of_checkpoint(session: Session, opened: Opened, kept: Sequence[Row], progress: Progress) -> Trained:
    """The parameters of a checkpoint; `kept` are the rows of an interrupted evaluation that stay."""
    checkpoint = opened.pretrained
    return Trained(
        task=session.experiment.task,
        model=checkpoint.model,
        params=[checkpoint.params],
        seeds=session.experiment.all_seeds,
        step=None,
        make_row=session.make_row,
        check_interrupt=session.watch.check,
        progress=progress,
        feed=opened.feed,
        tokenizer=checkpoint.tokenizer,
        train_length=checkpoint.train_length,
        folder=session.folder,
        source=checkpoint.source,
        digest=checkpoint.digest,
        settings=checkpoint.settings,
        kept=kept,
        chat=checkpoint.chat,
        ends=checkpoint.ends,
    )


def header(session: Session, subject: Trained, notes: Sequence[str] = ()) -> Header:
    """The first line of the record: what the run is, and with `notes` what a reader must know before its numbers."""
    experiment, task = session.experiment, session.experiment.task
    trust.remember([experiment.eval.kind])
    shared = {
        "run": session.folder.name,
        "task": experiment.task_name,
        "model": experiment.model_name,
        "kind": experiment.eval.kind,
        "parameters": sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(subject.params[0])),
        **account(subject.model, subject.train_length, experiment.eval),
        "train_length": subject.train_length,
        "window": subject.model.window,
        "text": subject.feed.provenance(),
        "notes": [*notes, *notes_of(experiment, subject.model)],
    }
    if experiment.train is None:
        checkpoint = subject.pretrained()
        return Header(**shared, source=checkpoint.source, identity=checkpoint.identity, digest=checkpoint.digest)
    return Header(
        **shared,
        answer_length=task.answer_length,
        task_version=task.version,
        chance=task.chance,
        seeds=experiment.all_seeds,
        steps=experiment.train.steps,
        preset=experiment.preset,
    )
