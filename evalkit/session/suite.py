"""`experiment=suite`: every task with every model, each trained at the rate that a short search chooses.

A cell is a task with a model. Its trials train one seed for a share of the steps, a trial a rate, and are judged at the
training length alone. Then the chosen rate trains fresh seeds. Further state sizes of a model take its rate.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig

from evalkit.configuration import catalogue, composition
from evalkit.configuration.spec import Spec
from evalkit.core.errors import UserError, said_of
from evalkit.record.files import write_text
from evalkit.reports.suite.cells import FINAL, NOT_FINITE, SOLVED, TRIAL
from evalkit.session.plan import is_finished
from evalkit.session.selection import ranked, trial_of
from evalkit.training.finite import NotFinite
from evalkit.training.settings import Training

KIND = "evalkit.evaluations.extrapolation.report"
"""What a suite compares: its cells are read from reports of this kind."""


PROTOCOL = "suite."
KEYS = ("rates", "search_seed", "search_share", "seed", "seeds", "tasks", "models", "models_on", "sizes")
OPTIONAL = ("models_on", "sizes")
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


class Part(NamedTuple):
    """One run: its folder below the suite's, its words, and of a final one the trials that its rate comes from."""

    name: str
    words: list[str]
    spec: Spec
    trials: tuple[str, ...] = ()


class Asked(NamedTuple):
    """What the user typed: which suite; a task, a model or a mixer of it, or None; and what goes to every run.

    `protocol` is what is typed of the suite itself, such as `suite.seeds=5`.
    """

    suite: str
    task: str | None
    model: str | None
    mixer: str | None
    rest: list[str]
    protocol: list[str]

    @property
    def own(self) -> Path | None:
        """The user's own folder of YAML."""
        return composition.own_folder(self.rest)


def asked(overrides: Sequence[str]) -> Asked | None:
    """What the words ask of a suite; None where `experiment=` names none. No run of it has these four words.

    Raises UserError for several of what a suite takes one of, and for what its protocol decides.
    """
    found: dict[str, str] = {}
    rest, protocol = [], []
    for text, override in zip(overrides, composition.parse(overrides), strict=True):
        if override.key_or_group in ("task", "model", "mixer", "experiment") and composition.is_choice(override):
            found[override.key_or_group] = "" if override.is_sweep_override() else str(override.value())
        else:
            (protocol if override.key_or_group.startswith(PROTOCOL) else rest).append(text)
    given = Asked(
        found.get("experiment", ""), found.get("task"), found.get("model"), found.get("mixer"), rest, protocol
    )
    if not catalogue.is_suite(given.suite, given.own):
        return None
    if "mixer" in found and "model" in found:
        raise UserError(f"model={found['model']} with +mixer={found['mixer']}; give one of the two")
    for name in ("task", "model", "mixer"):
        if found.get(name) == "":
            raise UserError(f"{name}= takes one name in a suite; leave it out for all, or give a command for each")
    for key, instead in DECIDED.items():
        typed = [text for text in rest if composition.parse([text])[0].key_or_group == key]
        if typed:
            raise UserError(f"{typed[-1]}: the suite's protocol decides it; give {instead}")
    return given


def parts(config: DictConfig, given: Asked) -> list[Part]:
    """The runs in order, cell by cell; raises UserError for a task or a model that is unknown."""
    suite = {**{name: {} for name in OPTIONAL}, **composition.plain(config)["suite"]}
    _refuse_wrong(suite)
    _refuse_misspelt(suite, given)
    tasks, models = _tasks(suite, str(config.preset), given), _models(suite, given)
    _refuse_one_size(suite, tasks, models, given)
    chosen = any(composition.parse([text])[0].key_or_group == "preset" for text in given.rest)
    rest = given.rest if chosen else [f"preset={config.preset}", *given.rest]
    found: list[Part] = []
    for task, of_task in tasks.items():
        for model, of_model in models.items():
            found += _cell(suite, f"{task}/{model}", [*of_task, *of_model, *_own(suite, task, model), *rest])
        for size, of_sizes in suite["sizes"].get(task, {}).items():
            for model in models:
                if model in of_sizes:
                    words = [*of_task, *models[model], *_own(suite, task, model), *of_sizes[model], *rest]
                    trials = _trial_names(suite, f"{task}/{model}")
                    found.append(_final(suite, f"{task}/{model}/{size}", words, trials))
    return found


def _refuse_misspelt(suite: Mapping[str, Any], given: Asked) -> None:
    """Raises UserError for a typed `suite.models_on.TASK.MODEL` or `suite.sizes.TASK.SIZE.MODEL` of no such name."""
    tasks = {name for of_preset in suite["tasks"].values() for name in of_preset}
    for text in given.protocol:
        _, key, *names = composition.parse([text])[0].key_or_group.split(".")
        if key not in OPTIONAL:
            continue
        places = {0: ("task", tasks | set(catalogue.options("task", given.own)))}
        places[WORDS[key][0] - 1] = ("model", set(suite["models"]) | set(catalogue.options("model", given.own)))
        for place, (kind, known) in places.items():
            if names[place:] and names[place] not in known:
                allowed = ", ".join(sorted(known))
                raise UserError(f"{text}: {names[place]} is no {kind} of the suite; give one of {allowed}")


def _refuse_one_size(suite: Mapping[str, Any], tasks: Iterable[str], models: Iterable[str], given: Asked) -> None:
    """Raises UserError for a typed setting that the further sizes have of their own: they would all be the same."""
    for task, model in itertools.product(tasks, models):
        words = [word for of_sizes in suite["sizes"].get(task, {}).values() for word in of_sizes.get(model, [])]
        sized = {override.key_or_group for override in composition.parse(words)}
        for text in given.rest:
            if composition.parse([text])[0].key_or_group in sized:
                raise UserError(
                    f"{text}: the sizes of {task} set it as well; leave them out with '~suite.sizes.{task}'"
                )


def _own(suite: Mapping[str, Any], task: str, model: str) -> list[str]:
    """What a model has in one task alone."""
    return suite["models_on"].get(task, {}).get(model, [])


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


def at_chosen_rate(folder: Path, part: Part) -> Part:
    """A final run at the rate that its trials choose, of those whose loss stayed a number.

    Raises UserError if one of them is not finished, or none stayed a number.
    """
    unfinished = [name for name in part.trials if not is_done(folder / name)]
    if unfinished:
        raise UserError(f"its rate is chosen from {unfinished[0]}, which is not finished; give the same command again")
    packages = part.spec.packages
    finished = [trial_of(folder / name, SOLVED, packages) for name in part.trials if is_finished(folder / name)]
    if not finished:
        raise UserError("the loss was not finite at any of its rates; give lower ones as 'suite.rates=[1e-4,3e-4]'")
    chosen = ranked(finished)[0]
    words = [*part.words, f"train.learning_rate={chosen.name.removeprefix(TRIAL)}"]
    return part._replace(words=words, spec=Spec.of(words))


def is_done(trial: Path) -> bool:
    """Whether a trial is finished, or ended because its loss was not finite: it would do so again."""
    return is_finished(trial) or (trial / NOT_FINITE).is_file()


def give_up(trial: Path, error: NotFinite) -> None:
    """Writes down that the loss of a trial was not finite."""
    write_text(trial / NOT_FINITE, f"{error}\n")


def _tasks(suite: Mapping[str, Any], preset: str, given: Asked) -> dict[str, list[str]]:
    """The words of each task that is wanted: by its name in the suite, or all those of one option `task=`."""
    known: dict[str, list[str]] = suite["tasks"].get(preset, {})
    if not known:
        raise UserError(f"the suite has no tasks at preset={preset}; give preset={' or preset='.join(suite['tasks'])}")
    if given.task is None:
        return known
    chosen = {name: words for name, words in known.items() if given.task == name or f"task={given.task}" in words}
    if not chosen and given.task not in catalogue.options("task", given.own):
        raise UserError(f"task={given.task} is none of the suite's ({', '.join(known)}), and no other task")
    return chosen or {given.task: [f"task={given.task}"]}


def _models(suite: Mapping[str, Any], given: Asked) -> dict[str, list[str]]:
    known: dict[str, list[str]] = suite["models"]
    if given.mixer in known:
        raise UserError(f"+mixer={given.mixer} is also a model of the suite; give the file of your mixer another name")
    if given.mixer is not None:
        return {given.mixer: [f"+mixer={given.mixer}"]}
    if given.model is None:
        return known
    if given.model not in known and given.model not in catalogue.options("model", given.own):
        raise UserError(f"model={given.model} is none of the suite's ({', '.join(known)}), and no other model")
    return {given.model: known.get(given.model, [f"model={given.model}"])}


def _cell(suite: Mapping[str, Any], name: str, words: Sequence[str]) -> Iterator[Part]:
    """The trials of a cell, then its final run."""
    with said_of(f"cell {name}"):
        experiment = Spec.of(words).experiment
    if experiment.eval.kind != KIND:
        task = next((word for word in words if word.startswith("task=")), name)
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
    names = _trial_names(suite, name)
    for trial, rate in zip(names, suite["rates"], strict=True):
        of_trial = [*words, *search, f"train.learning_rate={rate:g}"]
        yield Part(trial, of_trial, buildable(of_trial))
    yield _final(suite, name, words, names)


def _shortened(training: Training, length: int, share: float) -> list[str]:
    """The same training in a share of its steps, those of its stages before `length` too."""
    stages = [
        f"{{length: {stage['length']}, steps: {math.ceil(share * stage['steps'])}, batch_size: {stage['batch_size']}}}"
        for stage in training.curriculum
        if stage["length"] < length
    ]
    return [f"train.steps={math.ceil(share * training.steps)}", f"train.curriculum=[{', '.join(stages)}]"]


def _final(suite: Mapping[str, Any], name: str, words: Sequence[str], trials: tuple[str, ...]) -> Part:
    """The fresh seeds; the training length, by which a cell is judged, is among the lengths of evaluation."""
    own = [*words, f"seed={suite['seed']}", f"seeds={suite['seeds']}"]
    with said_of(f"cell {name}"):
        spec = buildable(own)
        length, asked = spec.experiment.task.length, spec.plain["eval"]["lengths"]
        if length not in asked:
            own.append(f"eval.lengths={[length, *asked]}".replace(" ", ""))
            spec = buildable(own)
    return Part(f"{name}/{FINAL}", own, spec, trials)


def buildable(words: Sequence[str]) -> Spec:
    """The run of these words, which is built: raises UserError for what cannot be."""
    spec = Spec.of(words)
    _ = spec.experiment
    return spec


def _trial_names(suite: Mapping[str, Any], cell: str) -> tuple[str, ...]:
    return tuple(f"{cell}/{TRIAL}{rate:g}" for rate in suite["rates"])
