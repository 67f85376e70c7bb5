"""One run: start it, go on with it, evaluate it again.

A run is built and checked by the gates, and its configuration is saved; then a session trains, evaluates and reports.
A run on a checkpoint is the same without training.
"""

import json
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import datetime
from functools import partial
from pathlib import Path

import jax
from rich.console import Console

from evalkit.checkpoints import archives
from evalkit.checkpoints.loading import restore
from evalkit.configuration.account import notes_of
from evalkit.configuration.saved import CONFIG_FILE, begun_with_other, save
from evalkit.configuration.spec import Spec
from evalkit.contract.experiment import refuse_broken_promise
from evalkit.core.contracts import Trained, Verdict
from evalkit.core.errors import UserError, place_told, writing
from evalkit.core.rows import Record, offset_after, read, record_file
from evalkit.core.trust import code_of
from evalkit.numerics import random_key
from evalkit.parallel import peers
from evalkit.record import environment, history, variables
from evalkit.record.files import EARLIER, RESULTS
from evalkit.record.history import Work
from evalkit.record.progress import EvaluationProgress
from evalkit.reports.writer import say
from evalkit.session import ahead, gates, subjects
from evalkit.session.gates import Judge, Launch, pass_all
from evalkit.session.hints import after_evaluation, near, next_commands, untuned
from evalkit.session.lock import alone
from evalkit.session.loop import train
from evalkit.session.session import Outcome, Session, memory_told
from evalkit.training.checkpoints import Checkpoints, Restored
from evalkit.training.state import TrainState, params_of

AGAIN = "give the same command again"


def start(spec: Spec, judge: Judge | None = None) -> Outcome:
    """Trains, evaluates and reports in `spec.folder`; a `judge` may end the training early.

    Raises BrokenPromise, before anything is written, for a task, a model or an evaluation that breaks a promise.
    """
    launch = Launch(spec.at(spec.folder.absolute()), judge)
    experiment, folder = launch.experiment, launch.folder
    with jax.default_matmul_precision(experiment.matmul_precision), memory_told():
        pass_all(gates.BEFORE_START, launch)
        if experiment.checkpoint is not None:
            opened = subjects.open_checkpoint(experiment)
            with alone(folder):
                gates.refuse_used(launch)  # another process may have begun a run there since
                return _on_checkpoint(launch, opened, None)
        _announce(launch)
        for line in (*untuned(launch.spec), *_idle(launch)):
            say(launch.console, line)
        with ahead.threads() as pool:
            began = time.perf_counter()
            state = _fresh(launch, pool)
            timing = {"compilation": time.perf_counter() - began}
            with peers.room(folder) as own, alone(own):
                gates.refuse_used(launch)
                with closing(_checkpoints(launch)) as kept:
                    return _trained(launch, own, kept, state, timing)


def resume(spec: Spec, judge: Judge | None = None) -> Outcome:
    """Goes on exactly where the run in `spec.folder` stopped; a finished run stays as it is.

    More `train.steps` than before train a finished run further. Raises UserError if it cannot go on.
    """
    launch = Launch(spec, judge)
    experiment, folder = launch.experiment, launch.folder
    with jax.default_matmul_precision(experiment.matmul_precision), memory_told():
        pass_all(gates.BEFORE_RESUME, launch)
        with peers.room(folder) as own, alone(own):
            pass_all(gates.WHILE_ALONE, launch)
            if peers.first_says(launch.is_finished):
                gates.refuse_other_evaluation(launch)
                return _finished(launch) if peers.first() else Outcome(folder)
            if experiment.checkpoint is None:
                return _go_on(launch, own)
            opened = subjects.open_checkpoint(experiment)
            return _on_checkpoint(launch, opened, read(folder) if record_file(folder) else None)


def start_or_resume(spec: Spec, judge: Judge | None = None) -> Outcome:
    """Starts a run, or goes on with it where an earlier process of the same job had begun.

    A finished run stays as it is. Raises UserError where the folder holds a run with other settings.
    """
    if not (spec.folder / CONFIG_FILE).is_file():
        return start(spec, judge)
    other = begun_with_other(spec.folder, spec.plain, spec.packages)
    if other is not None:
        raise UserError(
            f"{spec.folder} was begun with another {other}; give another hydra.sweep.dir or hydra.sweep.subdir"
        )
    return resume(Spec.saved(spec.folder, packages=spec.packages, command=spec.command), judge)


def evaluate(spec: Spec, step: int | None = None, target: Path | None = None) -> Outcome:
    """Evaluates the run in `spec.folder` again, without training, into `target`, by default `<run>/evaluate/<time>`.

    `step` takes a checkpoint that was kept; else the newest.
    """
    launch = Launch(spec)
    experiment, run = launch.experiment, launch.folder
    with jax.default_matmul_precision(experiment.matmul_precision), memory_told():
        pass_all(gates.BEFORE_EVALUATION, launch)
        unknown = gates.refuse_trained_on(launch)
        state, step = restore(experiment, run, step)
        folder = new_evaluation(run) if target is None else target
        with alone(folder):
            _describe(launch, folder)
            history.add(folder, Work(spec.command), before=history.read(run))
            is_alike = not {"task", "eval"} & spec.typed.keys()
            with Session(launch, folder, 0, AGAIN, after_evaluation(run, folder, is_alike)) as session:
                session.say(*filter(None, (unknown, *_changes(launch))))

                def work() -> Verdict:
                    _announce(launch, folder)
                    session.begin(subjects.header(session, subjects.of_state(session, state, step)))
                    return _measure_state(session, state, step)

                return session.guard(work)


def new_evaluation(run: Path) -> Path:
    """Where one more evaluation of `run` writes, unless it is told."""
    return run / "evaluate" / datetime.now().strftime("%Y-%m-%d_%H-%M-%S-%f")


def _finished(launch: Launch) -> Outcome:
    """Says that nothing is left to do."""
    console = Console(stderr=launch.experiment.format == "json")
    for line in (
        f"{launch.folder} is finished: nothing is left to do",
        *_changes(launch),
        *next_commands(launch.experiment, launch.folder),
    ):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    return Outcome(launch.folder, json.loads((launch.folder / RESULTS).read_text(encoding="utf-8")))


def _fresh(launch: Launch, pool: ThreadPoolExecutor | None) -> TrainState:
    """The state that training begins from; raises BrokenPromise for a broken promise, while its program compiles."""
    experiment = launch.experiment

    def look(state: TrainState) -> None:
        refuse_broken_promise(experiment, partial(params_of, state, 0, experiment.parameters))
        # Only after the checks: a process that they end would wait for these threads.
        ahead.compile_next(pool, launch, state, 0)

    try:
        return launch.trainer.start(look)
    except UserError:
        raise
    except Exception:
        # This says in one line what is wrong with a model that cannot even be traced.
        refuse_broken_promise(experiment, lambda: params_of(launch.trainer.init(), 0, experiment.parameters))
        with place_told():
            raise


def _go_on(launch: Launch, own: Path) -> Outcome:
    """Trains from the newest checkpoint, or from the beginning where there is none yet, and evaluates.

    The record is written in `own`: the run's folder in the first process, a temporary one in the others.
    """
    pass_all(gates.BEFORE_GOING_ON, launch)
    _announce(launch)
    for line in (*_changes(launch), *_idle(launch)):
        say(launch.console, line)
    experiment, trainer = launch.experiment, launch.trainer
    with ahead.threads() as pool, closing(_checkpoints(launch)) as checkpoints:
        restored = checkpoints.restore(trainer.restorable, trainer.step.layout)
        experiment.feed.prepare()
        if restored is None:
            return _trained(launch, own, checkpoints, _fresh(launch, pool), {})
        restored = restored._replace(state=trainer.with_streams(restored.state))
        gates.refuse_other_text(launch)
        gates.refuse_other_samples(launch)
        refuse_broken_promise(experiment, partial(params_of, restored.state, 0, experiment.parameters))
        ahead.compile_next(pool, launch, restored.state, restored.step)
        checkpoints.retire(restored.step)  # a kill may have come between the last one and this
        if peers.first_says((launch.folder / RESULTS).is_file()):
            _keep_finished(launch, restored)
            restored = restored._replace(meta={**restored.meta, "solved": 0})  # more steps are wanted all the same
        return _trained(launch, own, checkpoints, restored, {})


def _keep_finished(launch: Launch, restored: Restored) -> None:
    """Archives a finished run before it is trained further, so that the results of the shorter training are kept."""
    kept = launch.folder / EARLIER / str(restored.step)
    if not peers.first_says(kept.exists()):
        archives.write(kept, launch.folder, launch.experiment, restored.state, restored.step)
    peers.wait("kept")
    say(launch.console, f"what {restored.step:,} steps gave is kept in {near(kept)}")


def _trained(
    launch: Launch, own: Path, checkpoints: Checkpoints, begun: Restored | TrainState, timing: Mapping[str, float]
) -> Outcome:
    """Trains to the last step, and evaluates."""
    checkpoints.tidy()
    # A run with results counts as finished, so those of a shorter training are removed first. Else a kill here would
    # leave a run that counts as finished and has more steps to do.
    (own / RESULTS).unlink(missing_ok=True)
    _describe(launch, own)
    offset, step = (begun.meta["rows"], begun.step) if isinstance(begun, Restored) else (0, 0)
    training = launch.trainer.training
    passing = training.state_passing
    starts = None if passing is None else f"{training.first_states}, {passing:g}"
    history.add(own, Work(launch.spec.command, step, training.steps, training.schedule, starts))
    # Of several processes only the first continues the record; the others write elsewhere.
    with Session(launch, own, offset if peers.first() else 0) as session:
        session.timing.update(timing)

        def work() -> Verdict:
            state = train(session, launch.trainer, checkpoints, begun)
            with session.timed("evaluation"):
                return _measure_state(session, state, state.taken)

        return session.guard(work)


def _measure_state(session: Session, state: TrainState, step: int) -> Verdict:
    with _progress(session) as progress:
        return _measure(session, subjects.of_state(session, state, step, progress))


def _on_checkpoint(launch: Launch, opened: subjects.Opened, earlier: Record | None) -> Outcome:
    """Evaluates a checkpoint; goes on after the whole pieces of an `earlier` attempt in the same folder."""
    kept, offset = [], 0
    experiment, folder = launch.experiment, launch.folder
    if earlier is not None and earlier.header.identity is not None:
        if earlier.header.identity != opened.pretrained.identity:
            raise UserError(f"{experiment.checkpoint} is another model than {folder} began with; start a new run")
        kept = earlier.rows[: experiment.eval.kept(earlier.rows)]
        offset = offset_after(folder, len(kept)) if kept else 0
    _describe(launch, folder)
    history.add(folder, Work(launch.spec.command))
    with Session(launch, folder, offset) as session:

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


def _checkpoints(launch: Launch) -> Checkpoints:
    return Checkpoints(launch.folder, launch.trainer.training.keep_every)


def _changes(launch: Launch) -> list[str]:
    """What changed since the run was trained: the user's own code, and variables that change numbers."""
    code = environment.changed_code(launch.folder, code_of(launch.spec.plain))
    return [change for change in (code, variables.changed(launch.folder)) if change is not None]


def _describe(launch: Launch, folder: Path) -> None:
    """Makes the folder and writes the configuration into it."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        save(launch.spec.plain, folder / CONFIG_FILE)


def _idle(launch: Launch) -> list[str]:
    """A line where accelerators have nothing to do, as with a batch that they do not divide."""
    working, there = launch.trainer.placement.mesh.size, jax.device_count()
    if working == there or jax.default_backend() == "cpu":
        return []
    most = f"{working} of {there} devices work, the most that divide each batch, or the seeds"
    return [f"{most}; a train.batch_size that is a multiple of {there} uses all"]


def _announce(launch: Launch, folder: Path | None = None) -> None:
    """Prints what runs, on which device, and in which folder."""
    experiment = launch.experiment
    seeds, (model, _) = experiment.all_seeds, experiment.trained
    shapes = jax.eval_shape(model.init, random_key(0))
    count = sum(leaf.size for leaf in jax.tree.leaves(shapes))
    shown = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]}–{seeds[-1]}"
    text = experiment.feed.provenance()
    lines = [
        f"{experiment.task_name} · {experiment.model_name} · {count:,} parameters · {shown}",
        environment.machine(experiment.matmul_precision),
        *([] if text is None else [text["used"]]),
        *notes_of(experiment, model),
        f"folder: {launch.folder if folder is None else folder}",
    ]
    for line in lines:
        say(launch.console, line)
