"""`experiment=suite`: every task with every model, each trained at the rate that a short search chooses.

A cell is a task with a model. Its trials train one seed for a share of the steps, a trial a rate, and are judged at the
training length alone. Then the chosen rate trains fresh seeds. Further state sizes of a model take its rate.
"""

import itertools
import math
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig

from evalkit.configuration import catalogue, composition
from evalkit.configuration.composition import Words
from evalkit.configuration.overrides import overrides_of
from evalkit.configuration.spec import Spec
from evalkit.core.errors import UserError, said_of
from evalkit.record.files import write_text
from evalkit.reports.suite.cells import FINAL, NOT_FINITE, SOLVED, TRIAL
from evalkit.session.plan import Job, Squares, is_finished
from evalkit.session.selection import ranked, trial_of
from evalkit.training.finite import NotFinite
from evalkit.training.settings import Training

KIND = "evalkit.evaluations.extrapolation.report"
"""What a suite compares: its cells are read from reports of this kind."""


PROTOCOL = "suite."
KEYS = ("rates", "search_seed", "search_share", "seed", "seeds", "tasks", "models", "models_on", "sizes", "floors")
OPTIONAL = ("models_on", "sizes", "floors")
WORDS = {
    "tasks": (2, "{cpu: {mine: [task=parity]}}"),
    "models": (1, "{mine: [model=hawk]}"),
    "models_on": (2, "{parity: {mine: [model.width=32]}}"),
    "sizes": (3, "{parity: {small: {mine: [model.width=32]}}}"),
}
"""What has lists of words, how many names deep, and an example."""
DECIDED = {
    "seed": "suite.seed=N for the final runs, or suite.search_seed=N for the trials",
    "seeds": "suite.seeds=N for the final runs",
    "train.learning_rate": "'suite.rates=[1e-3,3e-3]'",
}
"""What each run of a suite has from its protocol, and what to give instead."""


class Selected(NamedTuple):
    """What was typed: which suite; a task, a model or a mixer of it, or None; and what goes to every run.

    `protocol` is what is typed of the suite itself, such as `suite.seeds=5`.
    """

    suite: str
    task: str | None
    model: str | None
    mixer: str | None
    rest: list[Override]
    protocol: list[Override]

    @property
    def own(self) -> Path | None:
        """The user's own folder of YAML."""
        return composition.own_folder(self.rest)


def selected(words: Words) -> Selected | None:
    """What the words select of a suite; None where `experiment=` names none. No run of it has these four words.

    Raises UserError for several of what a suite takes one of, and for what its protocol decides.
    """
    choices: dict[str, str] = {}
    rest, protocol = [], []
    for word in composition.parse(words):
        if word.key_or_group in ("task", "model", "mixer", "experiment") and composition.is_choice(word):
            choices[word.key_or_group] = "" if word.is_sweep_override() else str(word.value())
        else:
            (protocol if word.key_or_group.startswith(PROTOCOL) else rest).append(word)
    task, model, mixer = (choices.get(name) for name in ("task", "model", "mixer"))
    selection = Selected(choices.get("experiment", ""), task, model, mixer, rest, protocol)
    if not catalogue.is_suite(selection.suite, selection.own):
        return None
    if mixer is not None and model is not None:
        raise UserError(f"model={model} with +mixer={mixer}; give one of the two")
    for name in ("task", "model", "mixer"):
        if choices.get(name) == "":
            raise UserError(f"{name}= takes one name in a suite; leave it out for all, or give a command for each")
    for word in rest:
        if word.key_or_group in DECIDED:
            instead = DECIDED[word.key_or_group]
            raise UserError(f"{word.input_line}: the suite's protocol decides it; give {instead}")
    return selection


def jobs(config: DictConfig, selection: Selected, folder: Path) -> list[Job]:
    """The runs below `folder` in order, cell by cell; raises UserError for a task or a model that is unknown."""
    suite = {**{name: {} for name in OPTIONAL}, **composition.plain(config, resolve=False)["suite"]}
    _refuse_wrong(suite)
    _refuse_misspelt(suite, selection)
    tasks, models = _tasks(suite, str(config.preset), selection), _models(suite, selection)
    _refuse_one_size(suite, tasks, models, selection)
    is_typed = any(word.key_or_group == "preset" for word in selection.rest)
    rest = [*([] if is_typed else [f"preset={config.preset}"]), *selection.rest]
    runs: list[Job] = []
    for task, of_task in tasks.items():
        of_models = {
            name: [*of_task, *own, *suite["models_on"].get(task, {}).get(name, [])] for name, own in models.items()
        }
        for model, words in of_models.items():
            runs += _cell(suite, selection.suite, f"{task}/{model}", [*words, *rest], folder)
        for size, of_sizes in suite["sizes"].get(task, {}).items():
            for model, words in of_models.items():
                if model in of_sizes:
                    trials, words = _trial_names(suite, f"{task}/{model}"), [*words, *of_sizes[model], *rest]
                    runs.append(_final(suite, selection.suite, f"{task}/{model}/{size}", words, trials, folder))
    squares = _squares(suite, str(config.preset), selection, tasks, models)
    return [job._replace(squares=squares) for job in runs]


def _squares(
    suite: Mapping[str, Any], preset: str, selection: Selected, tasks: Iterable[str], models: Iterable[str]
) -> Squares:
    """Every square of the suite, and those that were selected, with the command for one that is not run."""
    whole = itertools.product(suite["tasks"].get(preset, ()), suite["models"])
    own = [] if selection.own is None else ["--config-dir", shlex.quote(str(selection.own))]
    command = " ".join(["python -m evalkit", f"experiment={selection.suite}", f"preset={preset}", *own])
    wanted = list(dict.fromkeys([*whole, *itertools.product(tasks, models)]))
    return Squares(wanted, suite["floors"], command, [] if selection.mixer is None else [selection.mixer])


def _refuse_misspelt(suite: Mapping[str, Any], selection: Selected) -> None:
    """Raises UserError for a typed `suite.models_on.TASK.MODEL` or `suite.sizes.TASK.SIZE.MODEL` of no such name."""
    tasks = {name for of_preset in suite["tasks"].values() for name in of_preset}
    for word in selection.protocol:
        _, key, *names = word.key_or_group.split(".")
        if key not in WORDS or key not in OPTIONAL:
            continue
        places = {0: ("task", tasks | set(catalogue.options("task", selection.own)))}
        places[WORDS[key][0] - 1] = ("model", set(suite["models"]) | set(catalogue.options("model", selection.own)))
        for place, (kind, known) in places.items():
            if names[place:] and names[place] not in known:
                allowed = ", ".join(sorted(known))
                raise UserError(f"{word.input_line}: {names[place]} is no {kind} of the suite; give one of {allowed}")


def _refuse_one_size(
    suite: Mapping[str, Any], tasks: Iterable[str], models: Iterable[str], selection: Selected
) -> None:
    """Raises UserError for a typed setting that the further sizes have of their own: they would all be the same."""
    for task, model in itertools.product(tasks, models):
        words = [word for of_sizes in suite["sizes"].get(task, {}).values() for word in of_sizes.get(model, [])]
        sized = {override.key_or_group for override in composition.parse(words)}
        for word in selection.rest:
            if word.key_or_group in sized:
                raise UserError(
                    f"{word.input_line}: the sizes of {task} set it as well; leave them out with '~suite.sizes.{task}'"
                )


def _refuse_wrong(suite: Mapping[str, Any]) -> None:
    """Raises UserError for a key of the protocol that is unknown, or a value that cannot be."""
    for name in suite:
        if name not in KEYS:
            raise UserError(f"suite.{name} is unknown; a suite has {', '.join(KEYS)}")
    missing = [name for name in KEYS if name not in suite]
    if missing:
        raise UserError(f"suite.{missing[0]} is missing; a suite has {', '.join(KEYS)}")
    for name, (depth, example) in WORDS.items():
        if not _has_words(suite[name], depth):
            raise UserError(f"suite.{name}={suite[name]}; allowed: lists of words, such as {name}: {example}")
    for preset, tasks in suite["tasks"].items():
        for name, words in tasks.items():
            if not words:
                raise UserError(f"suite.tasks.{preset}.{name} is empty; give its words, such as [task=parity]")
    if not isinstance(suite["floors"], Mapping):
        raise UserError(f"suite.floors={suite['floors']}; allowed: an accuracy by task, such as {{mqar: 0.0156}}")
    tasks_of_all = {name for of_preset in suite["tasks"].values() for name in of_preset}
    for name, floor in suite["floors"].items():
        if name not in tasks_of_all:
            allowed = ", ".join(sorted(tasks_of_all))
            raise UserError(f"suite.floors.{name}: {name} is no task of the suite; give one of {allowed}")
        if isinstance(floor, bool) or not isinstance(floor, int | float) or not 0 <= floor < 1:
            raise UserError(f"suite.floors.{name}={floor}; allowed: an accuracy from 0 to below 1")
    rates, share = suite["rates"], suite["search_share"]
    if not isinstance(rates, list) or not rates or not all(isinstance(r, int | float) and r > 0 for r in rates):
        raise UserError(f"suite.rates={rates}; allowed: a list of rates above 0, such as 'suite.rates=[1e-3,3e-3]'")
    if len({f"{rate:g}" for rate in rates}) < len(rates):
        raise UserError(f"suite.rates={rates} has a rate twice, to six digits; give each once")
    if not isinstance(share, int | float) or not 0 < share <= 1:
        raise UserError(f"suite.search_share={share}; allowed: above 0, up to 1")
    search, first, seeds = suite["search_seed"], suite["seed"], suite["seeds"]
    if all(isinstance(number, int) for number in (search, first, seeds)) and first <= search < first + seeds:
        raise UserError(
            f"suite.search_seed={search} is one of the {seeds} final seeds from suite.seed={first}, which are to be "
            "fresh; give another"
        )


def _has_words(value: Any, depth: int) -> bool:
    """Whether there are lists of words below so many names."""
    if depth > 0:
        return isinstance(value, Mapping) and all(_has_words(below, depth - 1) for below in value.values())
    return isinstance(value, list) and all(isinstance(word, str) for word in value)


def at_chosen_rate(folder: Path, final: Job) -> Spec:
    """A final run at the rate that its trials, in the suite's `folder`, choose of those whose loss stayed a number.

    Raises UserError if one of them is not finished, or none stayed a number.
    """
    unfinished = [name for name in final.trials if not is_done(folder / name)]
    if unfinished:
        raise UserError(f"its rate is chosen from {unfinished[0]}, which is not finished; give the same command again")
    packages = final.spec.packages
    finished = [trial_of(folder / name, SOLVED, packages) for name in final.trials if is_finished(folder / name)]
    if not finished:
        raise UserError("the loss was not finite at any of its rates; give lower ones as 'suite.rates=[1e-4,3e-4]'")
    rate = ranked(finished)[0].name.removeprefix(TRIAL)
    return Spec.of([*final.words, f"train.learning_rate={rate}", in_folder(final.folder)])


def is_done(trial: Path) -> bool:
    """Whether a trial is finished, or ended because its loss was not finite: it would do so again."""
    return is_finished(trial) or (trial / NOT_FINITE).is_file()


def give_up(trial: Path, error: NotFinite) -> None:
    """Writes down that the loss of a trial was not finite."""
    write_text(trial / NOT_FINITE, f"{error}\n")


def _tasks(suite: Mapping[str, Any], preset: str, selection: Selected) -> dict[str, list[str]]:
    """The words of each task that is wanted: by its name in the suite, or all those of one option `task=`."""
    known: dict[str, list[str]] = suite["tasks"].get(preset, {})
    if not known:
        raise UserError(f"the suite has no tasks at preset={preset}; give preset={' or preset='.join(suite['tasks'])}")
    if selection.task is None:
        return known
    chosen = {
        name: words for name, words in known.items() if selection.task == name or f"task={selection.task}" in words
    }
    if not chosen and selection.task not in catalogue.options("task", selection.own):
        raise UserError(f"task={selection.task} is none of the suite's ({', '.join(known)}), and no other task")
    return chosen or {selection.task: [f"task={selection.task}"]}


def _models(suite: Mapping[str, Any], selection: Selected) -> dict[str, list[str]]:
    known: dict[str, list[str]] = suite["models"]
    if selection.mixer in known:
        raise UserError(
            f"+mixer={selection.mixer} is also a model of the suite; give the file of your mixer another name"
        )
    if selection.mixer is not None:
        return {selection.mixer: [f"+mixer={selection.mixer}"]}
    if selection.model is None:
        return known
    if selection.model not in known and selection.model not in catalogue.options("model", selection.own):
        raise UserError(f"model={selection.model} is none of the suite's ({', '.join(known)}), and no other model")
    return {selection.model: known.get(selection.model, [f"model={selection.model}"])}


def _cell(
    suite: Mapping[str, Any], group: str, name: str, words: Sequence[str | Override], folder: Path
) -> Iterator[Job]:
    """The trials of a cell, then its final run."""
    with said_of(f"cell {name}"):
        experiment = Spec.of(words).experiment
    if experiment.eval.kind != KIND:
        task = next((word for word in words if isinstance(word, str) and word.startswith("task=")), name)
        raise UserError(f"{task} is not judged by accuracy, as a suite's tasks are; choose one that is generated")
    _, training = experiment.trained
    search = [
        f"seed={suite['search_seed']}",
        "seeds=1",
        *_shortened(training, experiment.task.length, suite["search_share"]),
        f"eval.lengths=[{experiment.task.length}]",
        "eval.during=[]",
        "eval.span=null",
    ]
    trials = _trial_names(suite, name)
    for trial, rate in zip(trials, suite["rates"], strict=True):
        own = [*words, *search, f"train.learning_rate={rate:g}"]
        yield Job(group, trial, buildable(own, folder / trial), cell=name)
    yield _final(suite, group, name, words, trials, folder)


def _shortened(training: Training, length: int, share: float) -> list[str]:
    """The same training in a share of its steps, those of its stages before `length` too."""
    stages = [
        f"{{length: {stage['length']}, steps: {math.ceil(share * stage['steps'])}, batch_size: {stage['batch_size']}}}"
        for stage in training.curriculum
        if stage["length"] < length
    ]
    return [f"train.steps={math.ceil(share * training.steps)}", f"train.curriculum=[{', '.join(stages)}]"]


def _final(suite: Mapping[str, Any], group: str, cell: str, words: Words, trials: tuple[str, ...], folder: Path) -> Job:
    """The fresh seeds; the training length, by which a cell is judged, is among the lengths of evaluation."""
    own, name = [*words, f"seed={suite['seed']}", f"seeds={suite['seeds']}"], f"{cell}/{FINAL}"
    with said_of(f"cell {cell}"):
        spec = buildable(own, folder / name)
        length, lengths = spec.experiment.task.length, spec.plain["eval"]["lengths"]
        if length not in lengths:
            own.append(f"eval.lengths={[length, *lengths]}".replace(" ", ""))
            spec = buildable(own, folder / name)
    return Job(group, name, spec, cell=cell, words=own, trials=trials)


def in_folder(folder: Path) -> str:
    """The word that a run is to write in `folder`."""
    return overrides_of({"hydra.run.dir": folder})[0]


def buildable(words: Words, folder: Path) -> Spec:
    """The run of these words in `folder`, which is built: raises UserError for what cannot be."""
    spec = Spec.of([*words, in_folder(folder)])
    _ = spec.experiment
    return spec


def _trial_names(suite: Mapping[str, Any], cell: str) -> tuple[str, ...]:
    return tuple(f"{cell}/{TRIAL}{rate:g}" for rate in suite["rates"])
