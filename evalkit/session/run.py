"""One run: start it, go on with it, evaluate it again.

Its life: the experiment is built; what cannot be is refused; the folder is described; a session trains, evaluates and
reports. A run on a checkpoint is the same without training.
"""

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import jax
from rich.console import Console

from evalkit.checkpoints import archives
from evalkit.checkpoints.archives import is_archive
from evalkit.checkpoints.loading import restore, trainer_of
from evalkit.configuration.composition import typed
from evalkit.configuration.experiment import Experiment, refuse_rare_looks, refuse_used, written
from evalkit.configuration.notes import notes_of
from evalkit.configuration.saved import EVALUABLE, RESUMABLE, from_file, save
from evalkit.contract.experiment import hold
from evalkit.core.contracts import Trained, Verdict
from evalkit.core.errors import UserError, writing
from evalkit.core.rows import Record, offset_after, read, record_file
from evalkit.core.trust import code_of, refuse_elsewhere
from evalkit.parallel import devices, peers
from evalkit.parallel.layouts import connection
from evalkit.record import environment, history
from evalkit.record.files import RESULTS
from evalkit.record.history import Work, pasteable
from evalkit.record.progress import EvaluationProgress
from evalkit.reports.writer import say
from evalkit.session import subjects
from evalkit.session.hints import after_evaluation, near, next_commands, resume_hint
from evalkit.session.lock import alone
from evalkit.session.loop import train
from evalkit.session.session import Session, console_of
from evalkit.session.space import refuse_full
from evalkit.training.checkpoints import Checkpoints, Restored
from evalkit.training.state import TrainState, params_of
from evalkit.training.trainer import Trainer

EARLIER = "before"
"""Where the folder of a run that was trained further keeps what it was."""
AGAIN = "give the same command again"
# What decides the numbers of a run; where it logs to, and how, does not.
DECIDING = ("task", "model", "train", "eval", "seed", "seeds", "parameters", "matmul_precision")


def start(experiment: Experiment, folder: Path) -> int:
    """Trains, evaluates and reports in `folder`; returns the exit code (after a signal 128 and its number).

    Raises BrokenPromise, before anything is written, for a task, a model or an evaluation that does not keep one.
    """
    connection.refuse_unconnected(experiment.distributed)
    experiment = _heard(experiment)
    devices.use_precision(experiment.matmul_precision)
    if experiment.checkpoint is not None:
        opened = subjects.open_checkpoint(experiment)
        with alone(folder):
            return _on_checkpoint(experiment, folder, opened, None)
    connection.refuse_unshared(folder)
    _announce(experiment, folder)
    trainer = trainer_of(experiment)
    refuse_full(folder, trainer)
    began = time.perf_counter()
    state = _fresh(experiment, trainer)
    compilation = time.perf_counter() - began
    with peers.room(folder) as own, alone(own), closing(Checkpoints(folder, trainer.training.keep_every)) as kept:
        return _trained(experiment, own, trainer, kept, state, {"compilation": compilation})


def resume(folder: Path, overrides: Sequence[str], packages: Sequence[str] = ()) -> int:
    """Goes on exactly where the run in `folder` stopped, with its own config; a finished run stays as it is.

    More `train.steps` than before train a finished run further. Its code may be of these `packages`, which the user has
    named. Raises UserError if it cannot go on.
    """
    experiment = _heard(from_file(folder / "config.yaml", overrides, RESUMABLE, packages))
    connection.refuse_unconnected(experiment.distributed)
    refuse_elsewhere(folder, written(experiment.config), typed(overrides))
    devices.use_precision(experiment.matmul_precision)
    if experiment.checkpoint is None and is_archive(folder):
        raise UserError(f"{folder} is an archive, which has no checkpoint to go on from; give the run itself")
    with peers.room(folder) as own, alone(own):
        if experiment.checkpoint is not None:
            if peers.several():
                raise UserError(f"{folder} measures a checkpoint, which is one process's; leave distributed= out")
            return _resume_on_checkpoint(experiment, folder, overrides)
        connection.refuse_unshared(folder)
        _refuse_less(experiment, folder)
        finished = (folder / RESULTS).is_file() and not _has_more_steps(experiment, folder)
        if peers.agreed(RESULTS if finished else ""):
            _refuse_other_evaluation(experiment, folder, overrides)
            return _say_finished(experiment, folder) if peers.first() else 0
        return _go_on(experiment, folder, own)


def _heard(experiment: Experiment) -> Experiment:
    """As this process runs it: of several, only the first one shows anything, and gives it to sinks.

    Raises UserError for a sink that this machine lacks something for.
    """
    if not peers.first():
        return replace(experiment, quiet=True, format="text", log=())
    for sink in experiment.outlets.values():
        sink.check()
    return experiment


def start_or_resume(experiment: Experiment, folder: Path) -> int:
    """Starts a run, or goes on with it where an earlier process of the same job had begun; returns the exit code.

    A finished run stays as it is. Raises UserError where the folder holds a run with other settings.
    """
    if not (folder / "config.yaml").is_file():
        refuse_used(folder)
        return start(experiment, folder)
    packages = experiment.allow_targets
    other = begun_with_other(folder, deciding(experiment), packages)
    if other is not None:
        raise UserError(f"{folder} was begun with another {other}; give another hydra.sweep.dir or hydra.sweep.subdir")
    return resume(folder, [], packages)


def deciding(experiment: Experiment) -> dict[str, Any]:
    """What decides the numbers of a run; its training with the settings that older runs did not have yet."""
    _, training = experiment.trained
    return {**{key: experiment.config[key] for key in DECIDING}, "train": asdict(training)}


def begun_with_other(folder: Path, wanted: Mapping[str, Any], packages: Sequence[str]) -> str | None:
    """The first setting that the run in `folder` was begun with and that is another in `wanted`, as of `deciding`.

    None if there is none; a run that was given more steps stays itself. Its code may be of these `packages`.
    """
    begun, steps = deciding(from_file(folder / "config.yaml", packages=packages)), wanted["train"]["steps"]
    fewer, begun["train"]["steps"] = begun["train"]["steps"] < steps, steps
    other = [key for key in DECIDING if begun[key] != wanted[key]]
    return next(iter(other), "train.steps" if fewer else None)


def evaluate(folder: Path, overrides: Sequence[str], target: Path | None = None) -> int:
    """Evaluates the run in `folder` again, without training, into `target`, by default `folder/evaluate/<time>`.

    `step=` among the overrides takes a checkpoint that was kept; else the newest.
    """
    at = [text.removeprefix("step=") for text in overrides if text.startswith("step=")]
    if len(at) > 1 or not all(text.isdecimal() for text in at):
        raise UserError(f"step={', '.join(at)}; give one number of training steps, or leave step= out for the newest")
    rest = [text for text in overrides if not text.startswith("step=")]
    experiment = _heard(from_file(folder / "config.yaml", rest, EVALUABLE))
    refuse_elsewhere(folder, written(experiment.config), typed(rest))
    devices.use_precision(experiment.matmul_precision)
    if experiment.checkpoint is not None:
        raise UserError(f"{folder} was measured on a checkpoint; give task= and checkpoint= again")
    feed = experiment.feed
    feed.prepare()
    unknown = _refuse_trained_on(experiment, folder)
    state, step = restore(experiment, folder, int(at[0]) if at else None)
    target = target or new_evaluation(folder)
    with alone(target):
        _describe(experiment, target)
        history.add(target, Work(history.command_line()), before=history.read(folder))
        following = after_evaluation(folder, target)
        with Session(experiment, target, offset=0, resume_hint=AGAIN, next_commands=following) as session:
            for note in (unknown, environment.changed_code(folder, code_of(experiment.config))):
                if note:
                    session.say(note)

            def work() -> Verdict:
                _announce(experiment, target)
                session.begin(subjects.header(session, subjects.of_state(session, state, step)))
                return _measure_state(session, state, step)

            return session.guard(work)


def _refuse_less(experiment: Experiment, folder: Path) -> None:
    """Raises UserError for fewer steps than are done, and for a folder in which nothing was ever trained."""
    _, training = experiment.trained
    if any(work.step is None for work in history.read(folder)[-1:]):
        raise UserError(
            f"{folder} is an evaluation, which has no training to go on with; evaluate the run itself again"
        )
    with closing(Checkpoints(folder)) as checkpoints:
        done = checkpoints.latest or 0
    if done > training.steps:
        raise UserError(f"train.steps={training.steps}, but {folder} is at step {done}; give at least {done}")


def _has_more_steps(experiment: Experiment, folder: Path) -> bool:
    """Whether it is to train further than its folder says."""
    before = from_file(folder / "config.yaml", packages=experiment.allow_targets)
    (_, now), (_, then) = experiment.trained, before.trained
    return now.steps > then.steps


def _refuse_other_evaluation(experiment: Experiment, folder: Path, overrides: Sequence[str]) -> None:
    """Raises UserError if a finished run is to be measured otherwise: its results stay what they are."""
    before = from_file(folder / "config.yaml", packages=experiment.allow_targets)
    if experiment.config["eval"] != before.config["eval"]:
        settings = [text for text in overrides if not text.startswith("train.")]
        command = pasteable("evaluate", str(near(folder)), *settings)
        raise UserError(f"{folder} is finished, and its results stay; for other ones give {command}")


def _say_finished(experiment: Experiment, folder: Path) -> int:
    """Says that nothing is left to do; with format=json its numbers are the last line of the output, as of any run."""
    machine = experiment.format == "json"
    console = Console(stderr=machine)
    for line in (f"{folder} is finished: nothing is left to do", *next_commands(experiment, folder)):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    if machine:
        summary = json.loads((folder / RESULTS).read_text(encoding="utf-8"))
        print(json.dumps({**summary, "folder": str(folder)}, allow_nan=False))
    return 0


def _resume_on_checkpoint(experiment: Experiment, folder: Path, overrides: Sequence[str]) -> int:
    """Goes on with an evaluation of a checkpoint, whose settings stay."""
    fixed = [text for text in overrides if text.startswith(("eval", "train"))]
    if fixed:
        raise UserError(f"{fixed[0]!r}: an evaluation goes on with its own settings; leave it out")
    if (folder / RESULTS).is_file():
        return _say_finished(experiment, folder)
    opened = subjects.open_checkpoint(experiment)
    return _on_checkpoint(experiment, folder, opened, read(folder) if record_file(folder) else None)


def new_evaluation(run: Path) -> Path:
    """Where one more evaluation of `run` writes, unless it is told."""
    return run / "evaluate" / datetime.now().strftime("%Y-%m-%d_%H-%M-%S-%f")


def _fresh(experiment: Experiment, trainer: Trainer) -> TrainState:
    """Where training begins; raises BrokenPromise while its program is still being compiled."""

    def look(state: TrainState) -> None:
        hold(experiment, params_of(state, 0, experiment.parameters))

    try:
        return trainer.start(look)
    except UserError:
        raise
    except Exception:
        look(trainer.init())  # which says in one line what is wrong with a model that cannot even be traced
        raise


def _go_on(experiment: Experiment, folder: Path, own: Path) -> int:
    """Trains from the newest checkpoint, or from the beginning where there is none yet, and evaluates.

    The record is written in `own`, which is `folder` for who speaks for all.
    """
    refuse_rare_looks(experiment)
    _announce(experiment, folder)
    changed = environment.changed_code(folder, code_of(experiment.config))
    if changed:
        say(console_of(experiment), changed)
    trainer = trainer_of(experiment)
    refuse_full(folder, trainer)
    with closing(Checkpoints(folder, trainer.training.keep_every)) as checkpoints:
        restored = checkpoints.restore(trainer.restorable, trainer.step.layout)
        experiment.feed.prepare()
        if restored is None:
            return _trained(experiment, own, trainer, checkpoints, _fresh(experiment, trainer), {})
        _refuse_other_text(experiment, folder)
        hold(experiment, params_of(restored.state, 0, experiment.parameters))
        checkpoints.retire(restored.step)  # a kill may have come between the last one and this
        if peers.agreed(RESULTS if (folder / RESULTS).is_file() else ""):
            _keep_finished(experiment, folder, restored)
        return _trained(experiment, own, trainer, checkpoints, restored, {})


def _keep_finished(experiment: Experiment, folder: Path, restored: Restored) -> None:
    """Archives a finished run that is trained further: its results go on being what its shorter training gave."""
    kept = folder / EARLIER / str(restored.step)
    if not peers.agreed(EARLIER if kept.exists() else ""):
        archives.write(kept, folder, experiment, restored.state, restored.step)
    peers.wait("kept")
    say(console_of(experiment), f"what {restored.step:,} steps gave is kept in {near(kept)}")


def _trained(
    experiment: Experiment,
    folder: Path,
    trainer: Trainer,
    checkpoints: Checkpoints,
    begun: Restored | TrainState,
    timing: Mapping[str, float],
) -> int:
    """Trains to the last step, and evaluates."""
    checkpoints.tidy()
    # Of an earlier end: what has results is finished. They go first, or a kill here would leave a run that has more
    # steps to do and is said to be finished.
    (folder / RESULTS).unlink(missing_ok=True)
    _describe(experiment, folder)
    offset, step = (begun.meta["rows"], begun.step) if isinstance(begun, Restored) else (0, 0)
    offset = offset if peers.first() else 0
    training = trainer.training
    history.add(folder, Work(history.command_line(), step, training.steps, training.schedule))
    # Of several processes the others write elsewhere, and all go on with the one run.
    run = checkpoints.path.parent
    told = {"resume_hint": resume_hint(run), "next_commands": next_commands(experiment, run)}
    with Session(experiment, folder, offset=offset, **told) as session:
        session.timing.update(timing)

        def work() -> Verdict:
            state = train(session, trainer, checkpoints, begun)
            with session.timed("evaluation"):
                return _measure_state(session, state, int(state.step[0]))

        return session.guard(work)


def _measure_state(session: Session, state: TrainState, step: int) -> Verdict:
    with _progress(session) as progress:
        return _measure(session, subjects.of_state(session, state, step, progress))


def _on_checkpoint(experiment: Experiment, folder: Path, opened: subjects.Opened, earlier: Record | None) -> int:
    """Evaluates a checkpoint; goes on after the whole pieces of an `earlier` attempt in the same folder."""
    kept, offset = [], 0
    if earlier is not None and earlier.header.identity is not None:
        if earlier.header.identity != opened.pretrained.identity:
            raise UserError(f"{experiment.checkpoint} is another model than {folder} began with; start a new run")
        kept = earlier.rows[: experiment.eval.kept(earlier.rows)]
        offset = offset_after(folder, len(kept)) if kept else 0
    _describe(experiment, folder)
    history.add(folder, Work(history.command_line()))
    told = {"resume_hint": resume_hint(folder), "next_commands": next_commands(experiment, folder)}
    with Session(experiment, folder, offset=offset, **told) as session:

        def work() -> Verdict:
            with _progress(session) as progress:
                subject = subjects.of_checkpoint(session, opened, kept, progress)
                header = subjects.header(session, subject, opened.notes)
                session.say(
                    environment.machine(experiment.matmul_precision),
                    *filter(None, [(header.text or {}).get("used"), *header.notes, f"folder: {folder}"]),
                )
                if not kept:
                    session.begin(header)
                return _measure(session, subject)

        return session.guard(work)


def _measure(session: Session, subject: Trained) -> Verdict:
    """The configured evaluation, its rows written as they come."""
    for entry in session.experiment.eval.run(subject):
        session.write([entry])
    return session.experiment.eval.verdict(subject)


def _progress(session: Session) -> EvaluationProgress:
    experiment = session.experiment
    return EvaluationProgress(session.console, experiment.eval.pieces * experiment.seeds, "evaluation")


def _describe(experiment: Experiment, folder: Path) -> None:
    """Makes the folder and writes the configuration into it."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        save(experiment.config, folder / "config.yaml")


def _announce(experiment: Experiment, folder: Path) -> None:
    """What runs, on what, and where to find it."""
    seeds, (model, _) = experiment.all_seeds, experiment.trained
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    count = sum(leaf.size for leaf in jax.tree.leaves(shapes))
    shown = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]}–{seeds[-1]}"
    text = experiment.feed.facts()
    lines = [
        f"{experiment.task_name} · {experiment.model_name} · {count:,} parameters · {shown}",
        environment.machine(experiment.matmul_precision),
        *([] if text is None else [text["used"]]),
        *notes_of(experiment, model),
        f"folder: {folder}",
    ]
    for line in lines:
        say(console_of(experiment), line)


def _refuse_trained_on(experiment: Experiment, folder: Path) -> str | None:
    """Raises UserError if a run is to be evaluated on text that it was trained on; says what could not be looked at."""
    before = from_file(folder / "config.yaml", packages=experiment.allow_targets)
    # The run's own texts were held to each other when they were read.
    if before.config["task"] == experiment.config["task"]:
        return None
    return experiment.feed.refuse_trained_on(before.feed)


def _refuse_other_text(experiment: Experiment, folder: Path) -> None:
    """Raises UserError if a run would go on with another text than it began with."""
    now, before = experiment.feed.facts(), read(folder).header.text
    if now is not None and before is not None and before["digest"] != now["digest"]:
        raise UserError(f"{folder} began with another text ({before['used']}); bring it back, or start a new run")
