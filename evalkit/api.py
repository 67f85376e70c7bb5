"""evalkit from Python: train, evaluate, go on, compare, and the measurements as a table.

Settings are those of the command line. Those whose name is a Python word are arguments, a part with several settings is
a dictionary, and `settings` takes dotted names: `train={"steps": 100}` is `settings={"train.steps": 100}`.
"""

import logging
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
from rich.console import Console

from evalkit.checkpoints.archives import is_archive
from evalkit.checkpoints.loading import Run, load, named_folder
from evalkit.configuration.account import completed
from evalkit.configuration.composition import trusted
from evalkit.configuration.experiment import compose, prepared, refuse_used
from evalkit.configuration.overrides import overrides_of
from evalkit.configuration.saved import from_file
from evalkit.core import tidy
from evalkit.core.errors import UserError
from evalkit.parallel import devices
from evalkit.parallel.interrupt import STOPPED
from evalkit.reports import comparison
from evalkit.reports.pooling import find_runs
from evalkit.session import run as session

Folder = str | os.PathLike[str]
"""A folder; a `Run` is one too."""
AGAIN = "call evaluate again"


def train(
    task: str | None = None,
    model: str | None = None,
    *,
    folder: Folder | None = None,
    config_dir: Folder | None = None,
    settings: Mapping[str, Any] | None = None,
    **named: Any,
) -> Run:
    """Trains, evaluates and reports, as `python -m evalkit task=… model=…` does; returns the run.

        run = evalkit.train("induction_heads", "griffin", train={"steps": 2000}, eval={"lengths": [256, 4096]}, seeds=3)

    `folder` is where it writes, by default `runs/<task>/<model>/<time>`; `config_dir` has tasks, models and recipes of
    your own. Raises UserError, before anything is written, for what cannot be; KeyboardInterrupt when it was stopped,
    its state saved: `evalkit.resume(folder)` goes on.
    """
    where = None if folder is None else named_folder(folder)
    own = {"task": task, "model": model, "hydra.run.dir": where}
    given = {name: value for name, value in own.items() if value is not None}
    overrides = overrides_of({**_search(config_dir), **given, **named, **_settings(settings)})
    with _as_if(*overrides):
        composed = compose(overrides)
        if composed.config.checkpoint is not None:
            raise UserError("checkpoint= is trained already, so train has no part in it; use python -m evalkit for it")
        refuse_used(composed.folder)
        devices.use_every_core()
        experiment = prepared(composed)
        _ended(session.start(experiment, composed.folder.absolute()), composed.folder, _resuming(composed.folder))
    return load(composed.folder, allow_targets=list(composed.config.allow_targets))


def resume(run: Folder, *, settings: Mapping[str, Any] | None = None, **named: Any) -> Run:
    """Goes on exactly where a run was stopped; returns it. `train={"steps": …}` gives it more steps.

    Raises UserError for what cannot go on, and KeyboardInterrupt as `train` does.
    """
    place = named_folder(run)
    overrides = overrides_of({**named, **_settings(settings)})
    with _as_if(f"resume={place}", *overrides):
        devices.use_every_core()
        _ended(session.resume(place, overrides), place, _resuming(place))
    return load(place, allow_targets=trusted(overrides))


def evaluate(
    run: Folder,
    *,
    step: int | None = None,
    folder: Folder | None = None,
    config_dir: Folder | None = None,
    settings: Mapping[str, Any] | None = None,
    **named: Any,
) -> Run:
    """Evaluates a run again without training; returns it with the folder of the evaluation, whose rows are new.

        longer = evalkit.evaluate(run, eval={"lengths": [65536]})
        evalkit.rows(longer)

    `step` takes a checkpoint that was kept, by default that of a `Run` that was loaded, or the newest. `folder` is
    where it writes, by default `<run>/evaluate/<time>`; `config_dir` has tasks and evaluations of your own. Raises
    UserError for what cannot be evaluated, and KeyboardInterrupt when it was stopped.
    """
    source = named_folder(run)
    at = run.step if step is None and isinstance(run, Run) and not is_archive(source) else step
    own = {**_search(config_dir), **({} if at is None else {"step": at})}
    overrides = overrides_of({**own, **named, **_settings(settings)})
    with _as_if(f"evaluate={source}", *overrides):
        devices.use_every_core()
        place = session.new_evaluation(source) if folder is None else named_folder(folder)
        refuse_used(place)
        _ended(session.evaluate(source, overrides, place), place, AGAIN)
    packages = trusted(overrides)
    evaluated = from_file(place / "config.yaml", packages=packages)
    found = run if isinstance(run, Run) and at == run.step else load(source, step=step, allow_targets=packages)
    return replace(found, folder=place, task=evaluated.task, config=dict(evaluated.config))


def compare(
    *runs: Folder | Iterable[Folder],
    folder: Folder | None = None,
    x: str | None = None,
    at: int | None = None,
    quiet: bool = False,
) -> Path:
    """Overlays runs of one task, or the runs below folders: PNGs, `compare.html`, `compare.csv`; returns their folder.

        evalkit.compare(hawk, griffin, "runs/induction_heads/mqa")
        evalkit.compare("runs/induction_heads", x="cache_bytes", at=1024)

    `folder` is by default `runs/compare/<task>-<time>`; the tables are printed unless `quiet`. With `x`,
    `"cache_bytes"` or `"flops"`, a figure more has the accuracy `at` a length, by default the training length, against
    that cost of the models. Raises UserError for runs that cannot be compared.
    """
    out = None if folder is None else named_folder(folder)
    if x not in (None, *comparison.X):
        raise UserError(f"x={x!r}; allowed: {', '.join(comparison.X)}, or None for no figure more")
    if x is None and at is not None:
        raise UserError(f"at={at} is the length of x; give x={' or x='.join(comparison.X)} too")
    against = None if x is None else comparison.Against(x, at)
    return comparison.compare(_folders(runs), out, Console(quiet=quiet), against=against, complete=completed)


def rows(*runs: Folder | Iterable[Folder], split: str | None = None, metric: str | None = None) -> list[dict[str, Any]]:
    """The measurements of runs, or of the runs below folders, one flat record each: `pandas.DataFrame(...)` takes them.

        table = pandas.DataFrame(evalkit.rows(run, split="test", metric="accuracy"))
        table.pivot_table("value", "length", "model")

    Every record has folder, run, task, model, seed, step, split, length, position, metric, value and sequences: `value`
    is the mean over so many `sequences`, and a field that does not apply is None. What else there is to say is in
    fields `extra_…`. `split` is "train", "validation", "test" or "benchmark". Raises UserError for a folder without
    runs, and for a split or metric that none of them has.
    """
    return tidy.records(find_runs(_folders(runs)), split, metric)


def _folders(runs: Iterable[Folder | Iterable[Folder]]) -> list[Path]:
    """Runs as they were given, one by one or in lists; raises UserError for none."""
    found: list[Path] = []
    for run in runs:
        if isinstance(run, str | os.PathLike) or not isinstance(run, Iterable):
            found.append(named_folder(run))
        else:
            found += _folders(run)
    if not found:
        raise UserError("no run is given; give folders of runs, such as runs/<task>/<model>/<time>")
    return found


def _settings(settings: Any) -> Mapping[str, Any]:
    """Dotted names with their values; raises UserError for what is no dictionary."""
    if settings is not None and not isinstance(settings, Mapping):
        raise UserError(f"settings={settings!r}; give a dictionary, such as settings={{'train.steps': 100}}")
    return settings or {}


def _search(directory: Folder | None) -> dict[str, list[str]]:
    """The setting that adds a folder of configurations; raises UserError for what is none."""
    if directory is None:
        return {}
    place = named_folder(directory)
    if not place.is_dir():
        raise UserError(
            f"config_dir={str(directory)!r} is no folder; give one with task/, model/ or other groups in it"
        )
    return {"hydra.searchpath": [f"file://{place.resolve()}"]}


def _ended(code: int, folder: Path, again: str) -> None:
    """Raises what the exit code of a command says; `again` is what a user does after a signal."""
    if code in STOPPED:
        raise KeyboardInterrupt(f"stopped; {again}")
    if code:
        raise UserError(f"{folder} is done, but its evaluation does not hold what it promised (exit code {code})")


def _resuming(folder: Path) -> str:
    return f"evalkit.resume({str(folder)!r}) goes on"


@contextmanager
def _as_if(*words: str) -> Iterator[None]:
    """A run's records name the command line that these words are, and what it sets for its whole process is put back.

    The number of CPU devices cannot be.
    """
    precision = jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]
    raising, typed = logging.raiseExceptions, sys.orig_argv
    levels = {logger: logger.level for logger in map(logging.getLogger, ("evalkit", "absl"))}
    sys.orig_argv = [sys.executable, "-m", "evalkit", *words]
    try:
        yield
    finally:
        logging.raiseExceptions, sys.orig_argv = raising, typed
        jax.config.update("jax_default_matmul_precision", precision)
        for logger, level in levels.items():
            logger.setLevel(level)
