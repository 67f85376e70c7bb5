"""What a user reads at the end: where the report is, and what to type next, in commands that can be pasted."""

from pathlib import Path

from evalkit.configuration.experiment import Experiment
from evalkit.record.history import pasteable
from evalkit.reports.writer import PAGE


def resume_hint(folder: Path) -> str:
    """How to go on with a run that was stopped."""
    return f"go on with: {pasteable('resume', str(near(folder)))}"


def next_commands(experiment: Experiment, folder: Path) -> list[str]:
    """Where the report of a run that has ended is, and what may follow: measure further, train further, compare."""
    compare = f"compare:  {pasteable('compare', *_others(experiment, folder))}"
    if experiment.checkpoint is not None:
        return [_report(folder), compare]
    _, training = experiment.trained
    again = pasteable("evaluate", str(near(folder)), *_further(experiment))
    more = pasteable("resume", str(near(folder)), f"train.steps={2 * training.steps}")
    return [_report(folder), f"evaluate: {again}", f"resume:   {more}", compare]


def after_evaluation(run: Path, target: Path) -> list[str]:
    """Where the report of an evaluation of a run is, and what may follow."""
    return [_report(target), f"compare:  {pasteable('compare', str(near(run)), str(near(target)))}"]


def near(folder: Path) -> Path:
    """A folder as it is reached from the current one, where it lies below that."""
    here = Path.cwd()
    return folder.relative_to(here) if folder.is_relative_to(here) and folder != here else folder


def _report(folder: Path) -> str:
    return f"report:   {near(folder / PAGE)}"


def _further(experiment: Experiment) -> list[str]:
    """The settings that evaluate at twice the longest length."""
    settings = experiment.config["eval"]
    if settings.get("lengths"):
        return [f"eval.lengths=[{2 * max(settings['lengths'])}]"]
    return [f"eval.length={2 * settings['length']}"] if settings.get("length") else []


def _others(experiment: Experiment, folder: Path) -> list[str]:
    """All runs of the task, if this one is in `runs/<task>/<model>/<time>`; else this run and a placeholder."""
    task = folder.parent.parent
    return [str(near(task))] if task.name == experiment.task_name else [str(near(folder)), "OTHER_RUN"]
