"""What a user reads besides the results: what to do before, and where the report is and what to type next."""

from pathlib import Path

from evalkit.configuration import grammar, recipes
from evalkit.configuration.experiment import Experiment
from evalkit.configuration.spec import Spec
from evalkit.record.history import pasteable
from evalkit.reports.writer import PAGE

RATES = "train.learning_rate=interval(1e-4,1e-2)"


def resume_hint(folder: Path) -> str:
    """How to go on with a run that was stopped."""
    return f"go on with: {pasteable('resume', str(near(folder)))}"


def untuned(spec: Spec) -> list[str]:
    """What to do where nothing sets a training's learning rate: no recipe, no experiment and no word of the user.

    Models whose rates alone differ are then easily taken for models that differ.
    """
    if {"train.learning_rate", "experiment"} & spec.typed.keys():
        return []
    task, model, preset = (str(spec.plain[name]) for name in ("task_name", "model_name", "preset"))
    own = grammar.own_folder([word for key, word in spec.typed.items() if key == grammar.SEARCHPATH])
    if any("learning_rate" in layer.get("train", {}) for layer in recipes.recipe(task, preset, model, own)):
        return []
    typed = spec.words("hydra.", "distributed")
    search = pasteable("search", *typed, RATES, *([] if own is None else ["--config-dir", str(own)]))
    said = [f"no recipe of {task} has {model}: it trains at the default rate, {spec.plain['train']['learning_rate']:g}"]
    for other in recipes.models_with(task, preset, own)[:1]:
        entry = f"models: {{{model}: {{like: {other}}}}}"
        said.append(f"  to train it as {other}: write {entry} in recipe/{task}.yaml of your --config-dir")
    return [*said, f"  to search its rate: {search}"]


def next_commands(experiment: Experiment, folder: Path) -> list[str]:
    """Where the report of a run that has ended is, and what may follow: measure further, train further, compare."""
    compare = f"compare:  {pasteable('compare', *_others(experiment, folder))}"
    if experiment.checkpoint is not None:
        return [_report(folder), compare]
    _, training = experiment.trained
    again = pasteable("evaluate", str(near(folder)), *_further(experiment))
    more = pasteable("resume", str(near(folder)), f"train.steps={2 * training.steps}")
    return [_report(folder), f"evaluate: {again}", f"resume:   {more}", compare]


def after_evaluation(run: Path, target: Path, is_alike: bool) -> list[str]:
    """Where the report of an evaluation of a run is, and what it compares with: the run, if it measured the same."""
    others = [str(near(run)), str(near(target))] if is_alike else [str(near(target)), "OTHER_EVALUATION"]
    return [_report(target), f"compare:  {pasteable('compare', *others)}"]


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
