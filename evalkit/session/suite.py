"""`experiment=suite`: every task with every model, each trained at the rate that a search chooses.

A cell is a task with a model. Its search trains one seed at each learning rate of a grid, for all steps and in one
program, and is judged at the training length alone. If the best rate is at the edge, the grid is widened. Then fresh
seeds train at the chosen rate. Further state sizes of the model use the same rate.
"""

import itertools
import math
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig

from evalkit.configuration import catalogue, grammar, nodes
from evalkit.configuration.grammar import Words
from evalkit.configuration.overrides import overrides_of
from evalkit.configuration.spec import Spec
from evalkit.core.contracts import AnyTask
from evalkit.core.errors import UserError, said_of
from evalkit.record.history import pasteable
from evalkit.reports.suite.board import Board
from evalkit.reports.suite.cells import FINAL, GRID, HIGHER, LOWER, RateTrial, best_of, rate_trials, window_of
from evalkit.session.plan import Job, RateSearch, buildable, default_folder, is_finished
from evalkit.session.protocol import FURTHER, KEYS, OPTIONAL, QUICK, QUICK_KEYS, WORDS, quick_form, refuse_wrong

KIND = "evalkit.evaluations.extrapolation.report"
"""What a suite compares: its cells are read from reports of this kind."""

CHOOSING = ("task", "model", "mixer", "experiment")
PROTOCOL = "suite."
LEAST_GRID = 3
"""A grid of fewer rates, such as the quick form's, is a first look: one of its rates is always an edge."""
DECIDED = {
    "seed": "suite.seed=N for the final runs, or suite.search_seed=N for the trials",
    "seeds": "suite.seeds=N for the final runs",
    "train.learning_rate": "'suite.rates=[1e-3,3e-3]'",
}
"""What each run of a suite has from its protocol, and what to give instead."""


class Selected(NamedTuple):
    """What the user typed: the suite; one task, model or mixer of it, or None; and the words for every run (`rest`).

    `protocol` has the words that set the suite itself, such as `suite.seeds=5`; `quick` selects its quick form.
    """

    suite: str
    task: str | None
    model: str | None
    mixer: str | None
    rest: list[Override]
    protocol: list[Override]
    quick: bool = False

    @property
    def own(self) -> Path | None:
        """The user's own folder of YAML."""
        return grammar.own_folder(self.rest)


def selected(words: Words) -> Selected | None:
    """The part of a suite that the words select; None where `experiment=` names no suite.

    The words task=, model=, +mixer= and experiment= are not passed on to its runs. Raises UserError for several values
    where a suite takes one, and for a setting that its protocol decides.
    """
    parsed = grammar.parse(words)
    choosing = [word for word in parsed if word.key_or_group in CHOOSING and grammar.is_choice(word)]
    quick = [word for word in parsed if word.key_or_group == QUICK]
    others = [word for word in parsed if word not in (*choosing, *quick)]
    _refuse_repeated(choosing)
    chosen = {word.key_or_group: "" if word.is_sweep_override() else str(word.value()) for word in choosing}
    selection = Selected(
        suite=chosen.get("experiment", ""),
        task=chosen.get("task"),
        model=chosen.get("model"),
        mixer=chosen.get("mixer"),
        rest=[word for word in others if not word.key_or_group.startswith(PROTOCOL)],
        protocol=[word for word in others if word.key_or_group.startswith(PROTOCOL)],
    )
    if not catalogue.is_suite(selection.suite, selection.own):
        return None
    _refuse_several(selection)
    _refuse_decided(selection)
    return selection._replace(quick=_is_quick(quick, selection.protocol))


def _refuse_repeated(choosing: Sequence[Override]) -> None:
    """Raises UserError for a choice that is typed twice: hours would go to the last alone."""
    keys = [word.key_or_group for word in choosing]
    repeated = next((key for key in keys if keys.count(key) > 1), None)
    if repeated is not None:
        given = " ".join(str(word.input_line) for word in choosing if word.key_or_group == repeated)
        raise UserError(f"{given}: a suite takes {repeated}= once; give a command for each")


def _refuse_several(selection: Selected) -> None:
    """Raises UserError for a model beside a mixer, and for a choice of several values."""
    if selection.mixer is not None and selection.model is not None:
        raise UserError(f"model={selection.model} with +mixer={selection.mixer}; give one of the two")
    for name in ("task", "model", "mixer"):
        if getattr(selection, name) == "":
            raise UserError(f"{name}= takes one name in a suite; leave it out for all, or give a command for each")


def _refuse_decided(selection: Selected) -> None:
    """Raises UserError for a setting of runs that the protocol decides."""
    for word in selection.rest:
        if word.key_or_group in DECIDED:
            instead = DECIDED[word.key_or_group]
            raise UserError(f"{word.input_line}: the suite's protocol decides it; give {instead}")


def _is_quick(words: Sequence[Override], protocol: Sequence[Override]) -> bool:
    """Whether `quick=true` was typed; raises UserError for another value, and for what that form has of its own."""
    for word in words:
        if not isinstance(word.value(), bool):
            raise UserError(f"{word.input_line}; allowed: quick=true for the quick form of the suite, or false")
    is_quick = bool(words) and bool(words[-1].value())
    for word in protocol if is_quick else ():
        if word.key_or_group in (f"{PROTOCOL}{name}" for name in QUICK_KEYS):
            instead = word.key_or_group.replace(PROTOCOL, f"{PROTOCOL}{QUICK}.")
            raise UserError(f"{word.input_line} with quick=true, which has its own; give {instead}")
    return is_quick


def jobs(config: DictConfig, selection: Selected, folder: Path) -> list[Job]:
    """The runs below `folder` in order, cell by cell; raises UserError for a task or a model that is unknown."""
    given = nodes.plain(config, resolve=False)["suite"]
    if not isinstance(given, Mapping):
        raise UserError(f"suite={given}; a suite has {', '.join(KEYS)}")
    suite = {**{name: {} for name in OPTIONAL}, **given}
    refuse_wrong(suite, selection.own)
    _refuse_misspelt(suite, selection)
    preset = str(config.preset)
    tasks, models = _tasks(suite, preset, selection), _models(suite, selection)
    if selection.quick:
        suite = quick_form(suite, preset)
        refuse_wrong(suite, selection.own)
        tasks = tasks if selection.task else {name: tasks[name] for name in suite[QUICK]["tasks"]}
    suite = {**suite, "floors": suite["floors"].get(preset, {})}
    _refuse_one_size(suite, tasks, models, selection)
    is_typed = any(word.key_or_group == "preset" for word in selection.rest)
    rest = [*([] if is_typed else [f"preset={preset}"]), *selection.rest]
    runs: list[Job] = []
    for task, of_task in tasks.items():
        of_models = {
            name: [*of_task, *own, *suite["models_on"].get(task, {}).get(name, [])] for name, own in models.items()
        }
        for model, words in of_models.items():
            runs += _cell(suite, selection.suite, f"{task}/{model}", [*words, *rest], folder)
        searches = {job.cell: job.search for job in runs}
        for size, of_sizes in suite["sizes"].get(task, {}).items():
            for model, words in of_models.items():
                if model in of_sizes:
                    sized, search = [*words, *of_sizes[model], *rest], searches[f"{task}/{model}"]
                    final = _final(suite, selection.suite, f"{task}/{model}/{size}", sized, folder)
                    runs.append(final._replace(search=search))
    board = _board(suite, preset, selection, folder, itertools.product(tasks, models))
    return [job._replace(board=board) for job in runs]


def _board(
    suite: Mapping[str, Any], preset: str, selection: Selected, folder: Path, squares: Iterable[tuple[str, str]]
) -> Board:
    """Every square of the suite and those that were selected, with the command that adds one to this folder."""
    whole = itertools.product(suite["tasks"].get(preset, ()), suite["models"])
    return Board(
        cells=(),
        wanted=list(dict.fromkeys([*whole, *squares])),
        floors=suite["floors"],
        command=_command(selection, preset, folder),
        mixers=catalogue.options("mixer", selection.own),
        controls=suite["controls"],
        typed=_typed_for_one(selection),
    )


def _typed_for_one(selection: Selected) -> dict[tuple[str, str], str]:
    """What was typed of the one task or model that was selected, as `Board.typed`."""
    chosen = {"task": selection.task, "model": selection.mixer or selection.model}
    typed = {
        (kind, name): [grammar.text_of(word) for word in selection.rest if word.key_or_group.startswith(f"{kind}.")]
        for kind, name in chosen.items()
        if name is not None
    }
    return {key: shlex.join(words) for key, words in typed.items() if words}


def _command(selection: Selected, preset: str, folder: Path) -> str:
    """The command line of this folder's suite, for `task=` and `model=` to follow."""
    form = [f"{QUICK}=true"] if selection.quick else []
    own = [] if selection.own is None else ["--config-dir", str(selection.own)]
    of_one = tuple(f"{kind}." for kind, _ in _typed_for_one(selection))
    given = [
        grammar.text_of(word)
        for word in (*selection.protocol, *selection.rest)
        if word.key_or_group not in ("preset", grammar.SEARCHPATH) and not word.key_or_group.startswith(of_one)
    ]
    usual = default_folder(selection.suite, preset, quick=selection.quick)
    place = [] if folder == usual else overrides_of({grammar.RUN_FOLDER: folder})
    return pasteable(f"experiment={selection.suite}", f"preset={preset}", *form, *own, *given, *place)


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
        sized = {override.key_or_group for override in grammar.parse(words)}
        for word in selection.rest:
            if word.key_or_group in sized:
                raise UserError(
                    f"{word.input_line}: the sizes of {task} set it as well; leave them out with '~suite.sizes.{task}'"
                )


def at_chosen_rate(folder: Path, final: Job) -> Spec:
    """A final run at the rate that its search, in the suite's `folder`, chooses: the middle of the window that works.

    The search trains one seed at each rate. The rate at which it learns fastest is often the highest that works, and
    other seeds may fail there. Where nothing was learned, the lowest loss decides. Raises UserError if the search is
    not finished, or no loss stayed finite.
    """
    trials = _searched(folder, final)
    window = window_of(trials, _search_of(final).floor)
    if window:
        middle = math.sqrt(window[0].rate * window[-1].rate)
        # Of two rates that are equally near, the lower one: `round` removes differences by rounding errors.
        rate = min((trial.rate for trial in window), key=lambda rate: (round(abs(math.log(rate / middle)), 9), rate))
    else:
        rate = min((trial for trial in trials if trial.loss is not None), key=lambda trial: trial.loss or 0.0).rate
    return Spec.of([*final.words, f"train.learning_rate={rate!r}"], folder=final.folder)


def further_searches(folder: Path, final: Job) -> Iterator[Spec]:
    """The searches of rates beyond the grid: at the end where the best one lies, if it does better than the floor.

    A grid of fewer than `LEAST_GRID` rates has none. Raises UserError as `at_chosen_rate` does.
    """
    search = _search_of(final)
    grid = sorted(search.rates)
    for number, (name, edge, inner) in enumerate(((LOWER, 0, 1), (HIGHER, -1, -2))):
        best = best_of(_searched(folder, final))
        further = folder / search.folder / name
        at_edge = best is not None and best.rate == grid[edge] and best.is_above(search.floor)
        if (at_edge and len(grid) >= LEAST_GRID) or is_finished(further):
            step = grid[edge] / grid[inner]
            rates = [float(f"{grid[edge] * step ** (1 + n):.3g}") for n in range(FURTHER)]
            seed = search.seed + len(grid) + number * FURTHER
            yield buildable([*search.words, *_at_rates(rates, seed)], further)


def _searched(folder: Path, final: Job) -> list[RateTrial]:
    """Every trial of a cell's finished searches; raises UserError if the grid is not finished or no loss is finite."""
    search = _search_of(final)
    places = [folder / search.folder / name for name in (GRID, LOWER, HIGHER)]
    if not is_finished(places[0]):
        raise UserError(f"its rate is chosen from {search.name}, which is not finished; give the same command again")
    trials = [trial for place in filter(is_finished, places) for trial in rate_trials(place)]
    if all(trial.loss is None for trial in trials):
        raise UserError("the loss was not finite at any of its rates; give lower ones as 'suite.rates=[1e-4,3e-4]'")
    return trials


def _search_of(final: Job) -> RateSearch:
    assert final.search is not None
    return final.search


def _tasks(suite: Mapping[str, Any], preset: str, selection: Selected) -> dict[str, list[str]]:
    """The words of each task that is wanted: by its name in the suite, or all those of one option `task=`."""
    known: dict[str, list[str]] = suite["tasks"].get(preset, {})
    if not known:
        raise UserError(f"the suite has no tasks at preset={preset}; give preset={' or preset='.join(suite['tasks'])}")
    if selection.task is None:
        return known
    _refuse_own_namesake(known, selection)
    chosen = {
        name: words for name, words in known.items() if selection.task == name or f"task={selection.task}" in words
    }
    _refuse_equal(chosen, selection)
    if not chosen and selection.task not in catalogue.options("task", selection.own):
        raise UserError(f"task={selection.task} is none of the suite's ({', '.join(known)}), and no other task")
    return chosen or {selection.task: [f"task={selection.task}"]}


def _refuse_own_namesake(known: Mapping[str, Any], selection: Selected) -> None:
    """Raises UserError for a task of the user's own that the suite has a cell's name for: that would be trained."""
    own = set(catalogue.options("task", selection.own)) - set(catalogue.options("task"))
    if selection.task in known and selection.task in own:
        raise UserError(
            f"task={selection.task} is a task of {selection.own}, and of the suite; give the file of yours another name"
        )


def _refuse_equal(chosen: Mapping[str, Sequence[str]], selection: Selected) -> None:
    """Raises UserError for a typed setting that tells several cells of one option apart: they would be the same."""
    if len(chosen) < 2:
        return
    decided = [{word.key_or_group for word in grammar.parse(words)} for words in chosen.values()]
    for word in selection.rest:
        if word.key_or_group.startswith("task.") and any(word.key_or_group in keys for keys in decided):
            cells = ", ".join(chosen)
            raise UserError(
                f"{word.input_line} with task={selection.task}, which is {cells} in the suite, told apart by this "
                f"setting; give one of them, such as task={next(iter(chosen))}"
            )


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
    """The search of a cell, then its final run."""
    final = _final(suite, group, name, words, folder)
    experiment = final.experiment
    if experiment.eval.kind != KIND:
        task = next((word for word in words if isinstance(word, str) and word.startswith("task=")), name)
        raise UserError(f"{task} is not judged by accuracy, as a suite's tasks are; choose one that is generated")
    _, training = experiment.trained
    if callable(training.optimizer) and len(suite["rates"]) > 1:
        raise UserError(
            "train.optimizer is one of Optax, which takes one learning rate, and a search trains several in one "
            "program; give one rate: 'suite.rates=[1e-3]'"
        )
    search = _search(suite, name, words, experiment.task)
    spec = buildable([*search.words, *_at_rates(search.rates, search.seed)], folder / search.name)
    yield Job(group, search.name, spec, cell=name)
    yield final._replace(search=search)


def _search(suite: Mapping[str, Any], cell: str, words: Words, task: AnyTask) -> RateSearch:
    """The search that chooses the rate of a cell: all steps of training, judged at the training length alone."""
    # All rates train in one program: a loss that is not finite at one rate must not end the others.
    judged = [f"eval.lengths=[{task.length}]", "eval.during=[]", "eval.span=null", "train.skip_nonfinite=true"]
    floor = suite["floors"].get(cell.partition("/")[0], task.chance or 0.0)
    return RateSearch(cell, [*words, *judged], suite["rates"], suite["search_seed"], floor)


def _at_rates(rates: Sequence[float], seed: int) -> list[str]:
    """The words of a search that trains a seed a rate, from `seed` on."""
    return overrides_of({"train.learning_rate": list(rates), "seed": seed, "seeds": len(rates)})


def _final(suite: Mapping[str, Any], group: str, cell: str, words: Words, folder: Path) -> Job:
    """The final run of a cell, with fresh seeds; its evaluation includes the training length, at which it is judged."""
    own, name = [*words, f"seed={suite['seed']}", f"seeds={suite['seeds']}"], f"{cell}/{FINAL}"
    with said_of(f"cell {cell}"):
        spec = buildable(own, folder / name)
        length, lengths = spec.experiment.task.length, spec.plain["eval"].get("lengths")
        if lengths is not None and length not in lengths:
            own.append(f"eval.lengths={[length, *lengths]}".replace(" ", ""))
            spec = buildable(own, folder / name)
    return Job(group, name, spec, cell=cell, words=own)
