"""One run from start to report; also going on with one, and evaluating one again. The only orchestration there is."""

import json
import logging
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.logging import RichHandler

from evalkit.checkpoints.archives import is_archive
from evalkit.checkpoints.loading import restore, seeds_of, trainer_of
from evalkit.configuration.experiment import EVALUABLE, RESUMABLE, Experiment, from_file, save
from evalkit.configuration.notes import notes_of
from evalkit.core.batches import is_text, prepare, refuse_trained_on
from evalkit.core.contracts import Texts, Trained
from evalkit.core.errors import UserError, writing
from evalkit.core.rows import ACCURACY, FILE, TEXT, Header, Row, RowLog, read, row, value
from evalkit.evaluations.extrapolation import score
from evalkit.record import environment
from evalkit.record.files import RESULTS
from evalkit.record.progress import EvaluationProgress, Progress
from evalkit.record.text_rows import digest_of
from evalkit.record.tracking import WandbLog
from evalkit.reports.writer import report
from evalkit.training.checkpoints import Checkpoints, Restored
from evalkit.training.interrupt import Interrupted, Watch
from evalkit.training.trainer import Sums, Trainer, TrainState, params_of, refuse_non_finite

SOLVED = 1.0
TIMES = "timing.json"
# As the evaluation: few enough sequences at a time that a core keeps their activations in its cache.
VALIDATION_CHUNK, VALIDATION_BATCH = 256, 8


def start(experiment: Experiment, folder: Path) -> int:
    """Trains, evaluates and reports in `folder`; returns the exit code (130 or 143 after a signal)."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        save(experiment.config, folder / "config.yaml")
    return _session(experiment, folder)


def resume(folder: Path, overrides: Sequence[str]) -> int:
    """Goes on exactly where the run in `folder` stopped, with its own config; raises UserError if it cannot."""
    experiment = from_file(folder / "config.yaml", overrides, RESUMABLE)
    if is_archive(folder):
        raise UserError(f"{folder} is an archive, which has no checkpoint to go on from; give the run itself")
    with closing(Checkpoints(folder)) as checkpoints:
        done, steps = checkpoints.latest or 0, experiment.train.steps
    if done > steps:
        raise UserError(f"train.steps={steps}, but {folder} is at step {done}; give at least {done}")
    with writing(folder):
        save(experiment.config, folder / "config.yaml")
    return _session(experiment, folder)


def evaluate(folder: Path, overrides: Sequence[str], target: Path | None = None) -> int:
    """Evaluates the run in `folder` again, without training, into `target`, by default `folder/evaluate/<time>`.

    `step=` among the overrides takes a checkpoint that was kept; else the newest.
    """
    at = [text.removeprefix("step=") for text in overrides if text.startswith("step=")]
    if len(at) > 1 or not all(text.isdecimal() for text in at):
        raise UserError(f"step={', '.join(at)}; give one number of training steps, or leave step= out for the newest")
    rest = [text for text in overrides if not text.startswith("step=")]
    experiment = from_file(folder / "config.yaml", rest, EVALUABLE)
    prepare(experiment.task)
    unknown = _refuse_trained_on(experiment, folder)
    state, step = restore(experiment, folder, int(at[0]) if at else None)
    target = target or folder / "evaluate" / datetime.now().strftime("%Y-%m-%d_%H-%M-%S-%f")
    with writing(target):
        target.mkdir(parents=True, exist_ok=True)
        save(experiment.config, target / "config.yaml")
    with Session(experiment, target, offset=0, go_on="give the same command again") as session:
        if unknown:
            session.console.print(unknown, soft_wrap=True)
        return session.guard(lambda: session.evaluate(state, step))


def _refuse_trained_on(experiment: Experiment, folder: Path) -> str | None:
    """Raises UserError if a run is to be evaluated on text that it was trained on; says what could not be looked at."""
    before, task = from_file(folder / "config.yaml"), experiment.task
    # The run's own texts were held to each other when they were read.
    if not is_text(before.task) or not is_text(task) or before.config["task"] == experiment.config["task"]:
        return None
    return refuse_trained_on(before.task, task, task.contents(held_out=True))


def _session(experiment: Experiment, folder: Path) -> int:
    checkpoints = Checkpoints(folder, experiment.train.keep_every)
    trainer = trainer_of(experiment)
    restored = checkpoints.restore(trainer.abstract)
    offset = 0 if restored is None else restored.meta["rows"]
    prepare(experiment.task)
    if restored is not None:
        _refuse_other_text(experiment, folder)
    (folder / RESULTS).unlink(missing_ok=True)  # of an earlier end: what has one is finished
    try:
        go_on = f"go on with: python -m evalkit resume={folder}"
        with Session(experiment, folder, offset=offset, go_on=go_on) as session:
            return session.guard(lambda: session.train_and_evaluate(trainer, checkpoints, restored))
    finally:
        checkpoints.close()


def _refuse_other_text(experiment: Experiment, folder: Path) -> None:
    """Raises UserError if a run would go on with another text than it began with."""
    if is_text(experiment.task):
        before = read(folder).header.text
        if before is not None and before["digest"] != experiment.task.digest():
            raise UserError(f"{folder} began with another text ({before['used']}); bring it back, or start a new run")


class Session:
    """One process's work on one run: its rows, its console, its signals.

    Rows after the first `offset` bytes are of an attempt that was cut short, and go. `go_on` is what a person who
    stops it is told.
    """

    def __init__(self, experiment: Experiment, folder: Path, *, offset: int, go_on: str):
        jax.config.update("jax_default_matmul_precision", experiment.matmul_precision)
        self.experiment, self.folder, self.go_on = experiment, folder, go_on
        self.seeds = seeds_of(experiment)
        # With format=json the last line of stdout is the result and the only one.
        self.console = Console(stderr=experiment.format == "json")
        self.watch = Watch()
        self._fresh = not offset
        self.timing: dict[str, float] = _times_of(folder) if offset else {}
        self._handler = _log_to(folder, self.console)
        self.log = RowLog.open(folder / FILE, offset)
        self.wandb = WandbLog(
            experiment.wandb,
            folder,
            experiment.config,
            seeds=self.seeds,
            task=experiment.task_name,
            model=experiment.model_name,
            train_length=experiment.task.length,
        )
        self._row = partial(row, run=folder.name, task=experiment.task_name, model=experiment.model_name)

    def __enter__(self) -> "Session":
        self.watch.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.watch.__exit__(*error)
        self.log.close()
        for handler in self._handler:
            logging.getLogger("evalkit").removeHandler(handler)
            handler.close()

    def guard(self, work: Any) -> int:
        """Does the work and reports; a signal gives its exit code, any failure ends the W&B runs as failed."""
        code = 1
        try:
            self._announce()
            work()
            self._report()
            code = 0
        except Interrupted as stop:
            code = stop.exit_code
            self.console.print(f"stopped by {stop}; {self.go_on}", soft_wrap=True)
        finally:
            self._keep_times()
            self.wandb.finish(code)
        return code

    def write(self, rows: Iterable[Row]) -> list[Row]:
        """Rows to the file, then to W&B; returns them."""
        kept = list(rows)
        self.log.write(kept)
        self.wandb.write(kept)
        return kept

    def train_and_evaluate(self, trainer: Trainer, checkpoints: Checkpoints, restored: Restored | None) -> None:
        """Trains from where the checkpoint stands (or the beginning) to the end, then runs the evaluation."""
        state = self._train(trainer, checkpoints, restored)
        with self._timed("evaluation"):
            self.evaluate(state, int(state.step[0]), facts=False)

    def evaluate(self, state: TrainState, step: int, *, facts: bool = True) -> None:
        """The configured evaluation on these parameters."""
        if facts:
            self._begin(state)
        evaluation = self.experiment.eval
        with EvaluationProgress(self.console, evaluation.pieces * len(self.seeds), "evaluation") as progress:
            for entry in evaluation.run(self._trained(state, step, progress)):
                self.write([entry])

    def _train(self, trainer: Trainer, checkpoints: Checkpoints, restored: Restored | None) -> TrainState:
        training = trainer.training
        if restored is None:
            state, step, solved, tokens = trainer.start(), 0, 0, 0
            self._begin(state)
        else:
            step, state = restored.step, restored.state
            solved, tokens = restored.meta["solved"], restored.meta["tokens"]
            self.console.print(f"going on from step {step}")
        with self._timed("training"), Progress(self.console, training.steps, "training") as progress:
            began = time.perf_counter()
            for stage in training.stages(self.experiment.task.length):
                while step < stage.stop and not self._stops(solved):
                    steps = min(training.log_every - step % training.log_every, stage.stop - step)
                    state, sums = trainer.advance(state, stage, steps)
                    refuse_non_finite(sums, self.seeds, checkpoints.latest)
                    if "first_dispatch" not in self.timing:
                        self.timing["first_dispatch"] = time.perf_counter() - began
                    step += steps
                    scored = steps * stage.batch_size
                    tokens += scored * (stage.length + self.experiment.task.answer_length) * len(self.seeds)
                    self.write(self._train_rows(sums, step, stage.length, scored))
                    total = scored * len(self.seeds)
                    progress.update(step, float(sums.loss.sum()) / total, float(sums.accuracy.sum()) / total, tokens)
                    last = step == training.steps
                    if step % training.eval_every == 0 or last:
                        solved = solved + 1 if self._validate(state, step) else 0
                    if step % training.checkpoint_every == 0 or last or self._stops(solved) or self.watch.received:
                        meta = {"rows": self.log.sync(), "solved": solved, "tokens": tokens}
                        checkpoints.save(state, step, meta)
                    self.watch.check()
        return state

    def _stops(self, solved: int) -> bool:
        wanted = self.experiment.train.stop_when_solved
        return wanted is not None and solved >= wanted

    def _validate(self, state: TrainState, step: int) -> bool:
        """Validation at the training length, and the evaluation's quick look; says if every seed has it all right."""
        trained = self._trained(state, step, Silent())
        length, sequences = self.experiment.task.length, self.experiment.train.validation_sequences
        rows = [
            entry
            for seed, params in zip(trained.seeds, trained.params, strict=True)
            for entry in score(
                trained,
                params,
                seed,
                "validation",
                length,
                sequences,
                chunk=VALIDATION_CHUNK,
                batch_size=VALIDATION_BATCH,
            )
        ]
        self.write([*rows, *self.experiment.eval.probe(trained)])
        return all(value(entry) >= SOLVED for entry in rows if entry["metric"] == "accuracy")

    def _trained(self, state: TrainState, step: int, progress: Any) -> Trained:
        return Trained(
            task=self.experiment.task,
            model=self.experiment.model,
            params=[params_of(state, index) for index in range(len(self.seeds))],
            seeds=self.seeds,
            step=step,
            make_row=self._row,
            check_interrupt=lambda: None if isinstance(progress, Silent) else self.watch.check(),
            progress=progress,
        )

    def _train_rows(self, sums: Sums, step: int, length: int, count: int) -> list[Row]:
        loss, accuracy = np.asarray(sums.loss), np.asarray(sums.accuracy)
        return [
            self._row(metric=metric, seed=seed, step=step, split="train", length=length, total=total, count=count)
            for index, seed in enumerate(self.seeds)
            for metric, total in (("loss", loss[index]), ("accuracy", accuracy[index]))
        ]

    def _begin(self, state: TrainState) -> None:
        """The first line of the record: what the run is."""
        experiment = self.experiment
        task = experiment.task
        header = Header(
            run=self.folder.name,
            task=experiment.task_name,
            model=experiment.model_name,
            kind=getattr(experiment.eval, "kind", TEXT if is_text(task) else ACCURACY),
            parameters=_parameters(state),
            train_length=task.length,
            answer_length=task.answer_length,
            window=experiment.model.window,
            chance=task.chance,
            seeds=self.seeds,
            steps=experiment.train.steps,
            preset=experiment.preset,
            notes=notes_of(experiment),
            text=_text(task) if is_text(task) else None,
        )
        self.log.begin(header)
        self.wandb.begin(header)

    def _announce(self) -> None:
        """What runs, on what, and where to find it."""
        experiment = self.experiment
        facts = environment.describe(experiment.matmul_precision)
        with writing(self.folder):
            (self.folder / "environment.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
        shapes = jax.eval_shape(experiment.model.init, jax.random.key(0))
        count = sum(leaf.size for leaf in jax.tree.leaves(shapes))
        seeds = f"seed {self.seeds[0]}" if len(self.seeds) == 1 else f"seeds {self.seeds[0]}–{self.seeds[-1]}"
        lines = [
            f"{experiment.task_name} · {experiment.model_name} · {count:,} parameters · {seeds}",
            f"{facts['device']} × {facts['devices']} ({facts['cores']} cores), "
            f"float32 products: {experiment.matmul_precision}",
            *([experiment.task.used()] if is_text(experiment.task) else []),
            *notes_of(experiment),
            f"folder: {self.folder}",
        ]
        for line in lines:
            self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _keep_times(self) -> None:
        """Of every session on this run, added up. What stopped it is told already: a full disk is not told twice."""
        with suppress(OSError):
            (self.folder / TIMES).write_text(json.dumps(self.timing, indent=2) + "\n", encoding="utf-8")

    def _report(self) -> None:
        summary = report(self.folder, self.console)
        for name, seconds in self.timing.items():
            self.console.print(f"{name.replace('_', ' ')}: {seconds:.0f} s", highlight=False)
        if self.experiment.format == "json":
            sys.stdout.write(json.dumps({**summary, "folder": str(self.folder)}) + "\n")
            sys.stdout.flush()

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        """Adds the seconds that pass within, however it ends."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.timing[name] = self.timing.get(name, 0.0) + time.perf_counter() - began


class Silent:
    """Progress that is not shown: a look while training is short."""

    def describe(self, length: int, done: int, of: int) -> None:
        """Says nothing."""


def _text(task: Texts) -> dict[str, str]:
    """What a run on text reads: in words, all of it, and the held-out texts alone, whatever their tokens."""
    held_out = digest_of(task.contents(held_out=True))
    return {"used": task.used(), "digest": task.digest(), "held_out": held_out}


def _times_of(folder: Path) -> dict[str, float]:
    """What earlier sessions took."""
    try:
        return json.loads((folder / TIMES).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def _parameters(state: TrainState) -> int:
    """Parameters of one seed."""
    return sum(int(np.prod(leaf.shape[1:])) for leaf in jax.tree.leaves(state.params))


def _log_to(folder: Path, console: Console) -> list[logging.Handler]:
    """Warnings to the console, everything to `evalkit.log`."""
    # A full disk is told once, by what could not be written; the log itself must not add its own tracebacks.
    logging.raiseExceptions = False
    # Orbax logs a traceback of what it also raises.
    logging.getLogger("absl").setLevel(logging.CRITICAL)
    logger = logging.getLogger("evalkit")
    logger.setLevel(logging.INFO)
    file = logging.FileHandler(folder / "evalkit.log", encoding="utf-8")
    file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    shown = RichHandler(logging.WARNING, console, show_path=False, show_time=False)
    for handler in (file, shown):
        logger.addHandler(handler)
    return [file, shown]
