"""`evalkit search`: trials of settings that Optuna chooses, then fresh seeds of the best.

Any number of processes work on the trials of one folder. What one leaves, another takes over from its checkpoint.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from rich.console import Console
from rich.text import Text

from evalkit.configuration import grammar
from evalkit.configuration.experiment import Experiment
from evalkit.configuration.overrides import overrides_of
from evalkit.configuration.space import Space, Value, at, corners, space_of
from evalkit.configuration.spec import Spec
from evalkit.contract.experiment import is_ours, refuse_broken_model
from evalkit.core.errors import Unavailable, UserError, first_line, writing
from evalkit.core.rows import Row, read, record_file
from evalkit.core.trust import code_of
from evalkit.evaluations.extrapolation.measure import Extrapolation
from evalkit.parallel.interrupt import STOPPED
from evalkit.record import environment
from evalkit.record.files import write_text
from evalkit.record.history import pasteable
from evalkit.record.wandb import check_before_several
from evalkit.record.wandb_names import cut
from evalkit.reports import search as report
from evalkit.reports.criterion import Criterion
from evalkit.reports.writer import say
from evalkit.session import logs, run
from evalkit.session.hints import near
from evalkit.session.study import LOCK, TRIALS, Claimed, OptunaFactory, Study, Tried

FILE, FINAL, FINAL_LOCK = "search.json", "final", ".final.lock"
SEEDS, GROUP = ("seed", "seeds"), "wandb.group"
TRUSTED = (grammar.ALLOW, grammar.SEARCHPATH)
"""Words that allow code of other packages: they are not saved, so the user types them again when a search goes on."""
STATES = {"COMPLETE": "finished", "PRUNED": "given up", "FAIL": "failed", "RUNNING": "not finished"}
BY_TEST = (
    "chosen by test rows: at these lengths the evaluation of the best is no test of it, and fresh seeds are measured "
    "on the same sequences"
)


DEFAULTS: Mapping[str, Any] = {
    "trials": 20,
    "by": "validation.accuracy",
    "direction": None,
    "sampler": {"_target_": "optuna.samplers.TPESampler", "seed": 0},
    "pruner": {"_target_": "optuna.pruners.NopPruner"},
    "final_seeds": 3,
}
"""The settings of the search itself, not of its runs, with their defaults."""


@dataclass(frozen=True)
class Search:
    """What is searched, as `search.json` keeps it; raises UserError for an invalid value.

    Options:
      words: the words of every run, those with several values among them.
      trials: how many settings are tried, given up and failed ones among them.
      by: what a trial is judged by: `validation` or `extrapolation`, a metric, and after @ a length.
      direction: `maximize` or `minimize`; null: accuracy is maximised, and everything else minimised.
      sampler: Optuna's sampler, by `_target_`; its seed and a trial's number decide what is drawn.
      pruner: Optuna's pruner, by `_target_`, which sees each validation.
      final_seeds: so many fresh seeds train with the best settings at the end; 0: none.
    """

    words: list[str]
    trials: int
    by: str
    direction: str | None
    sampler: Mapping[str, Any]
    pruner: Mapping[str, Any]
    final_seeds: int

    def __post_init__(self) -> None:
        for name, least in (("trials", 1), ("final_seeds", 0)):
            number = getattr(self, name)
            if type(number) is not int or number < least:
                raise UserError(f"{name}={number}; give a whole number, {least} or more")
        if self.direction not in (None, "maximize", "minimize"):
            raise UserError(f"direction={self.direction}; allowed: maximize, minimize")
        for name in ("sampler", "pruner"):
            node = getattr(self, name)
            if not isinstance(node, Mapping) or "_target_" not in node:
                raise UserError(f"{name}={node}; give one of Optuna's, as {name}={DEFAULTS[name]}")
        _ = self.criterion

    @property
    def criterion(self) -> Criterion:
        """What a trial is judged by."""
        return Criterion.of(str(self.by))


def refuse_unmeasured(criterion: Criterion, experiment: Experiment) -> None:
    """Raises UserError for a length at which the run is neither validated nor measured at its end."""
    if not isinstance(experiment.eval, Extrapolation):
        return
    validated = (None, experiment.task.length, *experiment.eval.during)
    if criterion.part == "validation" and criterion.length not in validated:
        raise UserError(f"by={criterion} is never validated; give 'eval.during=[{criterion.length}]' too")
    if criterion.part != "validation" and criterion.length not in experiment.eval.lengths:
        raise UserError(f"by={criterion} is not measured at the end; add {criterion.length} to eval.lengths")


class Searching:
    """One process's work on a search in `folder`. `trusted` are words that let others' code run, typed now."""

    def __init__(self, search: Search, folder: Path, trusted: Sequence[str] = ()):
        self.search, self.folder, self._words = search, folder, [*search.words, *trusted]
        self.space: Space = space_of(self._words)
        self._trusted = list(trusted)
        self._made = OptunaFactory(search.sampler, search.pruner, grammar.trusted(trusted))
        for key in SEEDS:
            if key in self.space:
                raise UserError(f"{key}= is not searched; give one number, as seeds=2 of every trial")
        self._experiments = [self.trial(values, 0).experiment for values in corners(self.space)]
        for experiment in self._experiments:
            experiment.feed.prepare()
        search.criterion.refuse_unmeasured(self._experiments[0].feed)
        check_before_several(sink for experiment in self._experiments for sink in experiment.outlets.values())
        first = self._experiments[0]
        self.console = Console(stderr=first.format == "json", quiet=first.quiet)

    def refuse_broken_model(self) -> None:
        """Raises BrokenPromise for a model of the user's own that would break one in each trial."""
        experiment = self._experiments[0]
        if not is_ours(experiment.config["model"]):
            refuse_broken_model(experiment)

    def trial(self, values: Mapping[str, Value], number: int) -> Spec:
        """The run of a trial.

        Unless `eval.lengths` is typed, its final evaluation has the training length and, with `by=extrapolation…@N`, N.
        """
        words, criterion = [*at(self._words, values), *self._group()], self.search.criterion
        spec = _spec(words, self.folder / TRIALS / f"{number:03d}")
        experiment = spec.experiment
        if not isinstance(experiment.eval, Extrapolation):
            return spec
        length, typed = experiment.task.length, "eval.lengths" in spec.typed
        if criterion.part == "validation" or typed:
            refuse_unmeasured(criterion, experiment)
        lengths = [length] if criterion.part == "validation" else sorted({length, criterion.length or length})
        return spec if typed else _spec([*words, f"eval.lengths={lengths}".replace(" ", "")], spec.folder)

    def final(self, best: Tried) -> Spec:
        """The run of fresh seeds with the settings of the best trial, named after it, and all of the evaluation."""
        seeds = {"seed": max(self._experiments[0].all_seeds) + 1, "seeds": self.search.final_seeds}
        return _spec(
            [*self._chosen(best), *overrides_of(seeds), *self._group()], self.folder / FINAL / f"{best.number:03d}"
        )

    def work(self) -> int:
        """Works on trials until none is left for this process, and ends the search if it is over; the exit code."""
        search, criterion = self.search, self.search.criterion
        study = Study(self.folder, self.space, search.trials, search.direction or criterion.direction, self._made)
        resumed = pasteable("search", "resume", str(near(self.folder)), *_typed(self._trusted))
        again = f"go on with the whole search: {resumed}"
        with logs.shown(self.console):
            if criterion.part == "extrapolation":
                say(self.console, f"by={criterion} is {BY_TEST}")
            for line in self._changed(study):
                say(self.console, line)
            try:
                while (claimed := study.claim()) is not None:
                    code = self._try(study, claimed)
                    if code in STOPPED:
                        say(self.console, again)
                        return code
            except (KeyboardInterrupt, Unavailable):  # between two trials; a trial itself saves its state first
                say(self.console, again)
                raise
            return self._end(study)

    def _changed(self, study: Study) -> list[str]:
        """A line where the user's own code was changed since a trial that is there already."""
        code, folders = code_of(self._experiments[0].config), (study.folder_of(tried.number) for tried in study.tried())
        changed = next(filter(None, (environment.changed_code(folder, code) for folder in folders)), None)
        return [] if changed is None else [f"{changed}; trials of both compete, unless hydra.sweep.dir= is another"]

    def _try(self, study: Study, claimed: Claimed) -> int:
        """Trains a trial, or goes on with it, and notes how it ended; returns the exit code of one that was stopped."""
        folder, criterion = near(study.folder_of(claimed.number)), self.search.criterion
        searched = [word for word in grammar.parse(self._words) if word.get_key_element() in claimed.values]
        shown = " ".join(at(searched, claimed.values))
        line = f"{folder} ({claimed.number + 1} of {self.search.trials}): {shown}"
        self.console.print(Text(line, style="bold"), soft_wrap=True)

        def judge(rows: Sequence[Row]) -> bool:
            value = criterion.while_training.value(rows, length)
            step = max((row["step"] or 0 for row in rows), default=0)
            return value is not None and study.gives_up(claimed, step, value)

        try:
            spec = self.trial(claimed.values, claimed.number)
            length = spec.experiment.task.length
            outcome = run.start_or_resume(spec, judge)
            if outcome.stopped_by is not None:
                return outcome.exit_code
            if outcome.given_up:
                study.end(claimed, "PRUNED")
                return 0
            value = criterion.value(read(spec.folder).rows, length)
            study.end(claimed, "FAIL" if value is None else "COMPLETE", value)
            if value is None:
                say(self.console, f"{folder}: no row has a number of by={criterion}; the trial counts as failed")
        except Unavailable:  # it would meet each of the others too, and is none of their settings' fault
            raise
        except UserError as error:  # the others go on, as in a sweep
            self.console.print(Text(f"{folder}: {error}", style="red"), soft_wrap=True)
            study.end(claimed, "FAIL")
        finally:
            claimed.release()
        return 0

    def _end(self, study: Study) -> int:
        """Writes the report and trains fresh seeds of the best trial, if no trial is left in any process."""
        if not study.is_over:
            say(self.console, "the trials that are left are with other processes; the last of them ends the search")
            return 0
        best = study.best()
        if best is None:
            raise UserError(f"none of {self.search.trials} trials has a value; look into {near(self.folder / TRIALS)}")
        self._report(study, best)
        if not self.search.final_seeds:
            return 0
        lock = FileLock(self.folder / FINAL_LOCK, timeout=0)
        try:
            lock.acquire()
        except Timeout:
            say(self.console, "another process trains fresh seeds of the best")
            return 0
        try:
            return run.start_or_resume(self.final(best)).print_result(self._experiments[0].format)
        finally:
            lock.release()

    def _report(self, study: Study, best: Tried) -> None:
        criterion = self.search.criterion
        sign = 1 if (self.search.direction or criterion.direction) == "minimize" else -1
        tried = sorted(study.tried(), key=lambda one: (one.judged is None, sign * (one.judged or 0.0), one.number))
        log = frozenset(key for key, values in self.space.items() if not isinstance(values, list) and values.log)
        searched = report.Searched(
            title=f"Search on {self._experiments[0].task_name}",
            by=str(criterion),
            by_validation=str(criterion.while_training),
            trials=[self._reported(study, one) for one in tried],
            log=log,
            notes=[f"By {criterion}: {BY_TEST}."] if criterion.part == "extrapolation" else [],
        )
        report.write(self.folder, searched, self.console, pasteable(*_typed(self._chosen(best))))

    def _reported(self, study: Study, tried: Tried) -> report.Trial:
        folder, criterion = study.folder_of(tried.number), self.search.criterion
        record = read(folder) if record_file(folder) is not None else None
        rows, length = ([], None) if record is None else (record.rows, record.header.train_length)
        return report.Trial(
            number=tried.number,
            settings=tried.values,
            judged=tried.judged,
            state=STATES.get(tried.state, tried.state),
            steps=max((row["step"] or 0 for row in rows), default=None),
            curve=criterion.while_training.curve(rows, length),
        )

    def _chosen(self, best: Tried) -> list[str]:
        """The words that train with the settings of the best trial; seeds are for whoever types them."""
        kept = [word for word in grammar.parse(self._words) if word.key_or_group not in SEEDS]
        return at(kept, best.values)

    def _group(self) -> list[str]:
        """W&B shows the runs of a search together, unless the user names a group."""
        typed = any(word.key_or_group == GROUP for word in grammar.parse(self._words))
        named = typed or "WANDB_RUN_GROUP" in os.environ
        return [] if named else overrides_of({GROUP: cut(f"search-{self.folder.absolute().name}")})


def begin(search: Search, folder: Path, trusted: Sequence[str]) -> int:
    """Begins a search in `folder`, or goes on with the same one there; raises UserError if it holds another."""
    searching = Searching(search, folder, trusted)
    searching.refuse_broken_model()
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / LOCK):  # of two that begin at once in one folder
            if not (folder / FILE).is_file():
                _save(search, folder)
            elif saved(folder) != search:
                raise UserError(f"{folder} holds another search; give another hydra.sweep.dir=FOLDER")
    return searching.work()


def resume(folder: Path, trials: int | None, trusted: Sequence[str]) -> int:
    """Works on the search in `folder`, beside other processes if there are any; `trials` may be more than before."""
    search = saved(folder)
    if trials is not None:
        if type(trials) is not int or trials < search.trials:
            raise UserError(f"trials={trials}, but {folder} was begun with {search.trials}; give as many or more")
        search = replace(search, trials=trials)
        _save(search, folder)
    return Searching(search, folder, trusted).work()


def saved(folder: Path) -> Search:
    """The search in a folder; raises UserError if there is none."""
    path = folder / FILE
    try:
        return Search(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError as error:
        raise UserError(f"no {FILE} in {folder}: give the folder of a search (runs/search/<task>-<time>)") from error
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise UserError(f"{path} was damaged or edited ({first_line(error)}); start a new search") from error


def _save(search: Search, folder: Path) -> None:
    write_text(folder / FILE, json.dumps(asdict(search), indent=2) + "\n")


def _typed(words: Sequence[str]) -> list[str]:
    """The words as a user types them: their folder of YAML by its flag."""
    own = grammar.own_folder(words)
    kept = [word for word in words if not word.startswith(f"{grammar.SEARCHPATH}=")]
    return kept if own is None else [*kept, "--config-dir", str(own)]


def _spec(words: Sequence[str], folder: Path) -> Spec:
    """The run of these words in `folder`."""
    return Spec.of(words, folder=folder)
