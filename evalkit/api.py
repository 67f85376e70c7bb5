"""evalkit from Python: train, evaluate, go on, compare, and the measurements as a table.

Settings are those of the command line. Those whose name is a Python word are arguments, a part with several settings is
a dictionary, and `settings` takes dotted names: `train={"steps": 100}` is `settings={"train.steps": 100}`.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from evalkit.checkpoints.archives import is_archive
from evalkit.checkpoints.loading import Run, load, named_folder
from evalkit.configuration.account import completed
from evalkit.configuration.overrides import overrides_of
from evalkit.configuration.saved import EVALUABLE, RESUMABLE
from evalkit.configuration.spec import Spec
from evalkit.core import tidy
from evalkit.core.credentials import masked
from evalkit.core.doors import door
from evalkit.core.errors import UserError
from evalkit.parallel import devices
from evalkit.record.history import pasteable
from evalkit.reports import comparison
from evalkit.reports.along import WORDS
from evalkit.reports.pooling import find_runs
from evalkit.session import run as session
from evalkit.session.gates import refuse_run_in
from evalkit.session.session import Outcome

Folder = str | os.PathLike[str]
"""A folder; a `Run` is one too."""
AGAIN = "call evaluate again"


@door()
def train(
    task: str | Mapping[str, Any] | Sequence[str] | None = None,
    model: str | None = None,
    *,
    folder: Folder | None = None,
    config_dir: Folder | None = None,
    settings: Mapping[str, Any] | None = None,
    **named: Any,
) -> Run:
    """Trains, evaluates and reports, as `python -m evalkit task=… model=…` does; returns the run.

        run = evalkit.train("induction_heads", "griffin", train={"steps": 2000}, eval={"lengths": [256, 4096]}, seeds=3)
        run = evalkit.train({"task": "induction_heads", "model": "griffin", "train": {"steps": 2000}})
        run = evalkit.train(["task=induction_heads", "model=griffin", "train.steps=2000"])

    `folder` is where it writes, by default `runs/<task>/<model>/<time>`; `config_dir` has tasks, models and recipes of
    your own. Raises UserError, before anything is written, for an impossible run; KeyboardInterrupt when it was
    stopped, with its state saved: `evalkit.resume(folder)` goes on.
    """
    first, own = ([], {"task": task}) if task is None or isinstance(task, str) else (_words(task), {})
    where = None if folder is None else named_folder(folder)
    own |= {"model": model, "hydra.run.dir": where}
    chosen = {name: value for name, value in own.items() if value is not None}
    words = [*first, *overrides_of({**_search(config_dir), **chosen, **named, **_settings(settings)})]
    spec = Spec.of(words, command=masked(pasteable(*words)))
    if spec.plain["checkpoint"] is not None:
        raise UserError("checkpoint= is trained already, so train has no part in it; use python -m evalkit for it")
    devices.use_every_core()
    _ended(session.start(spec), spec, _resuming(spec.folder))
    return load(spec.folder, allow_targets=spec.packages)


@door()
def resume(
    run: Folder, *, config_dir: Folder | None = None, settings: Mapping[str, Any] | None = None, **named: Any
) -> Run:
    """Goes on exactly where a run was stopped; returns it. `train={"steps": …}` gives it more steps.

    `config_dir` has evaluations and sinks of your own, such as `log=["table"]`. Raises UserError for what cannot go on,
    and KeyboardInterrupt as `train` does.
    """
    place = named_folder(run)
    words = overrides_of({**_search(config_dir), **named, **_settings(settings)})
    devices.use_every_core()
    spec = Spec.saved(place, words, allowed=RESUMABLE, command=masked(pasteable(f"resume={place}", *words)))
    _ended(session.resume(spec), spec, _resuming(place))
    return load(place, allow_targets=spec.packages)


@door()
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
    words = overrides_of({**_search(config_dir), **named, **_settings(settings)})
    typed = [f"evaluate={source}", *(() if at is None else (f"step={at}",)), *words]
    devices.use_every_core()
    place = session.new_evaluation(source) if folder is None else named_folder(folder)
    refuse_run_in(place)
    spec = Spec.saved(source, words, allowed=EVALUABLE, command=masked(pasteable(*typed)))
    again = AGAIN if folder is None else f"{AGAIN} with another folder"
    _ended(session.evaluate(spec, at, place), spec.at(place), again)
    loaded = run if isinstance(run, Run) and at == run.step else load(source, step=step, allow_targets=spec.packages)
    return replace(loaded, folder=place, task=spec.experiment.task, config=dict(spec.plain))


@door()
def compare(
    *runs: Folder | Iterable[Folder],
    folder: Folder | None = None,
    x: str | None = None,
    at: int | None = None,
    by: str = "steps",
    quiet: bool = False,
) -> Path:
    """Overlays runs of one task, or the runs below folders: PNGs, `compare.html`, `compare.csv`; returns their folder.

        evalkit.compare(hawk, griffin, "runs/induction_heads/mqa")
        evalkit.compare("runs/induction_heads", x="cache_bytes", at=1024)

    `folder` is by default `runs/compare/<task>-<time>`; the tables are printed unless `quiet`. With
    `x="cache_bytes"` or `x="flops"`, one more figure shows accuracy against that cost, at the length `at`, by default
    that of training. Curves of training are drawn `by` `"steps"`, `"tokens"`, `"flops"` or `"seconds"`. Raises
    UserError for runs that cannot be compared.
    """
    out = None if folder is None else named_folder(folder)
    if x not in (None, *comparison.X):
        raise UserError(f"x={x!r}; allowed: {', '.join(comparison.X)}, or None for no figure more")
    if x is None and at is not None:
        raise UserError(f"at={at} is the length of x; give x={' or x='.join(comparison.X)} too")
    if by not in WORDS:
        raise UserError(f"by={by!r}; allowed: {', '.join(WORDS)}")
    against = None if x is None else comparison.Against(x, at)
    return comparison.compare(_folders(runs), out, Console(quiet=quiet), against=against, complete=completed, by=by)


def rows(*runs: Folder | Iterable[Folder], split: str | None = None, metric: str | None = None) -> list[dict[str, Any]]:
    """The measurements of runs, or of the runs below folders, one flat record each: `pandas.DataFrame(...)` takes them.

        table = pandas.DataFrame(evalkit.rows(run, split="test", metric="accuracy"))
        table.pivot_table("value", "length", "model")

    Every record has folder, run, task, model, seed, step, split, length, position, metric, value and sequences: `value`
    is the mean over so many `sequences`, and a field that does not apply is None. What else there is to say is in
    fields `extra_…`. `split` is "train", "validation", "during", "test" or "benchmark". Raises UserError for a folder
    without runs, and for a split or metric that none of them has.
    """
    return tidy.records(find_runs(_folders(runs)), split, metric)


def _folders(runs: Iterable[Folder | Iterable[Folder]]) -> list[Path]:
    """Runs as they were given, one by one or in lists; raises UserError for none."""
    folders: list[Path] = []
    for run in runs:
        if isinstance(run, str | os.PathLike) or not isinstance(run, Iterable):
            folders.append(named_folder(run))
        else:
            folders += _folders(run)
    if not folders:
        raise UserError("no run is given; give folders of runs, such as runs/<task>/<model>/<time>")
    return folders


def _settings(settings: Any) -> Mapping[str, Any]:
    """Dotted names with their values; raises UserError for what is no dictionary."""
    if settings is not None and not isinstance(settings, Mapping):
        raise UserError(f"settings={settings!r}; give a dictionary, such as settings={{'train.steps': 100}}")
    return settings or {}


def _words(settings: Mapping[str, Any] | Sequence[str]) -> list[str]:
    """A dictionary, or words as they are typed; raises UserError for anything else."""
    if isinstance(settings, Mapping):
        return overrides_of(settings)
    if isinstance(settings, Sequence) and all(isinstance(word, str) for word in settings):
        return list(settings)
    raise UserError(f"{settings!r}: give the name of a task, a dictionary of settings, or words such as 'task=parity'")


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


def _ended(outcome: Outcome, spec: Spec, again: str) -> None:
    """Prints what a command would; raises KeyboardInterrupt after a signal, with the advice `again`, or UserError."""
    outcome.print_result(spec.plain["format"])
    if outcome.stopped_by is not None:
        raise KeyboardInterrupt(f"stopped; {again}")
    if code := outcome.exit_code:
        raise UserError(f"{spec.folder} is done, but its evaluation does not hold what it promised (exit code {code})")


def _resuming(folder: Path) -> str:
    return f"evalkit.resume({str(folder)!r}) goes on"
