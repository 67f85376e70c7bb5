"""`experiment=…`: the runs behind one of the paper's figures, one after the other, then drawn together.

The same command again leaves finished runs alone and goes on with one that was stopped.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig
from rich.console import Console
from rich.text import Text

from evalkit.configuration import catalogue, composition, grammar, nodes
from evalkit.configuration.account import completed
from evalkit.configuration.grammar import RUN_FOLDER
from evalkit.configuration.recipes import GROUPS
from evalkit.configuration.request import Request
from evalkit.configuration.saved import CONFIG_FILE, EVALUABLE, begun_with_other, plain_of
from evalkit.configuration.schema import completed as with_defaults
from evalkit.configuration.schema import unknown
from evalkit.configuration.spec import Spec
from evalkit.contract.experiment import is_ours, refuse_broken_model
from evalkit.core.errors import UserError, said_of
from evalkit.core.trust import code_of
from evalkit.parallel.interrupt import STOPPED
from evalkit.record import environment
from evalkit.record.history import pasteable
from evalkit.record.wandb import check_before_several
from evalkit.reports.comparison import compare
from evalkit.reports.suite.cells import kept
from evalkit.reports.suite.report import write as write_suite
from evalkit.session import logs, plan, run, suite
from evalkit.session.plan import Job, is_finished
from evalkit.training.finite import NotFinite

SUITE = "suite"


def main(words: Sequence[Override], *, dry_run: bool = False) -> int:
    """Runs what is missing of the experiment that words name; returns 0, or the code of a run that stopped.

    A list of the runs and an estimate come first; with `dry_run` that is all. `~runs.NAME` leaves one of them out,
    and `+runs.NAME=["model=…"]` adds one. A run that fails does not keep the others from running; the code is then 1.
    Raises UserError for what cannot be run, before anything is written.
    """
    folder, jobs = _planned(words)
    for job in jobs:
        _refuse_begun_otherwise(job)
    if not dry_run:
        left = [job.experiment for job in jobs if not is_finished(job.folder)]
        check_before_several(sink for experiment in left for sink in experiment.outlets.values())
    console = Console(stderr=jobs[0].experiment.format == "json", quiet=jobs[0].experiment.quiet)
    again = f"go on with the whole experiment: {pasteable(*map(grammar.text_of, words))}"
    try:
        with logs.shown(console):
            _say_changed(jobs, console)
            _refuse_broken_models(jobs, console)
            plan.show(jobs, console)
            if dry_run:
                return 0
            _refuse_unreadable(jobs)
            code = _run_all(folder, jobs, console)
    except KeyboardInterrupt:  # between two runs; a run itself saves its state first
        console.print(Text(again), soft_wrap=True)
        raise
    if code in STOPPED:
        console.print(Text(again), soft_wrap=True)
    return code


def _planned(words: Sequence[Override]) -> tuple[Path, list[Job]]:
    """An experiment's folder and its runs, built; raises UserError for what cannot be run."""
    typed = [word for word in words if word.key_or_group != RUN_FOLDER]
    suite_words = suite.selected(typed)
    if suite_words is not None:
        typed = grammar.parse([f"experiment={suite_words.suite}", *suite_words.rest])
    of_runs = [word for word in typed if word.key_or_group.partition(".")[0] in GROUPS]
    if of_runs and suite_words is not None:
        raise UserError(f"{of_runs[0].input_line}: a suite has cells, not runs; give task= and model= for one of them")
    typed = [word for word in typed if word not in of_runs]
    protocol = [] if suite_words is None else suite_words.protocol
    named = [word for word in words if word.key_or_group == RUN_FOLDER]
    chosen = composition.compose([*filter(grammar.chooses, typed), *of_runs, *protocol, *named], named_by=words)
    _refuse_unknown_runs(chosen, of_runs)
    is_quick = suite_words is not None and suite_words.quick
    usual = plan.default_folder(chosen.choices["experiment"], str(chosen.config.preset), quick=is_quick)
    folder = chosen.folder if named else usual
    jobs = (
        _jobs(chosen.config, typed, folder) if suite_words is None else suite.jobs(chosen.config, suite_words, folder)
    )
    return folder, jobs


def _refuse_unknown_runs(chosen: composition.Composed, words: Sequence[Override]) -> None:
    """Raises UserError for a word of a run that the experiment has not, and that does not add it."""
    known = list(nodes.paths({group: chosen.base[group] for group in GROUPS}))
    for word in words:
        if not (word.is_add() or word.is_delete() or word.key_or_group in known):
            raise UserError(f"{unknown(word.key_or_group, known)}; or add it: +{word.input_line}")


def _run_all(folder: Path, jobs: Sequence[Job], console: Console) -> int:
    """Trains and evaluates one after the other, then draws them together; returns the exit code."""
    errors = Console(stderr=True) if console.quiet else console
    failed = []
    for number, job in enumerate(jobs, 1):
        if job.search is not None and job.search.name in failed:
            failed.append(job.name)  # its rate cannot be chosen; the error of the search said why
            continue
        console.print(Text(f"{job.folder} ({number} of {len(jobs)})", style="bold"), soft_wrap=True)
        try:
            code = _do(folder, job)
        except UserError as error:
            errors.print(Text(f"{job.folder}: {error}", style="red"), soft_wrap=True)
            failed.append(job.name)
            continue
        if code in STOPPED:
            if job.cell:
                _draw(folder, jobs, console)
            return code
        if code:  # such as an evaluation whose verdict is that it does not agree
            failed.append(job.name)
    _draw(folder, jobs, console)
    if failed:
        errors.print(Text(f"failed: {', '.join(failed)}", style="red"), soft_wrap=True)
    return 1 if failed else 0


def _jobs(chosen: DictConfig, typed: Sequence[Override], folder: Path) -> list[Job]:
    """The runs below `folder` in order; in each training the user's settings come last. Raises UserError for no run."""
    jobs: dict[str, Job] = {}
    own = [grammar.text_of(word) for word in typed if word.key_or_group == grammar.SEARCHPATH]
    for group, name, words in _plans(chosen):
        with said_of(f"run {name}"):
            request = Request.of(words)
            if request.verb is None:
                jobs[name] = Job(group, name, plan.buildable([*words, *typed], folder / name))
                continue
        trained = [job.name for job in jobs.values() if job.evaluation is None]
        if request.run not in trained:
            known = ", ".join(trained)
            raise UserError(f"{name} evaluates {request.run}, which is not trained in this experiment: {known}")
        with said_of(f"run {name}"):
            request = request._replace(settings=[*request.settings, *own])
            spec = jobs[request.run].spec.changed(request.settings, EVALUABLE).at(folder / name)
            jobs[name] = Job(group, name, spec, request)
            _ = spec.experiment
    if not any(job.group == "runs" for job in jobs.values()):
        allowed = " or ".join(f"experiment={name}" for name in catalogue.options("experiment"))
        raise UserError(f"{' '.join(map(grammar.text_of, typed))} names no runs; give {allowed}")
    return list(jobs.values())


def _plans(chosen: DictConfig) -> list[tuple[str, str, list[str]]]:
    """Group, name and words of each run, training runs first; raises UserError for a value that is no list of words."""
    plans = []
    settings = nodes.plain(chosen, resolve=False)
    for group, named in ((group, settings.get(group, {})) for group in GROUPS):
        if not isinstance(named, Mapping):
            raise UserError(
                f"""{group}={named}; give the words of each run, such as '{group}={{mine: ["model=hawk"]}}'"""
            )
        for name, planned in named.items():
            if not isinstance(planned, list) or not all(isinstance(text, str) for text in planned):
                raise UserError(
                    f"""{group}.{name}={planned}; give a list of words, such as '{group}.{name}=["model=hawk"]'"""
                )
        plans += [(group, str(name), planned) for name, planned in named.items()]
    for number, (group, name, _) in enumerate(plans):
        if name in {other for _, other, _ in plans[:number]}:
            raise UserError(f"{group}.{name}: another run of the experiment has this name; give each one of its own")
        if name in ("", ".") or ".." in Path(name).parts or Path(name).is_absolute():
            raise UserError(f"{group}: {name!r} is no name of a folder; give another")
    return sorted(plans, key=lambda planned: Request.of(planned[2]).verb is not None)


def _refuse_begun_otherwise(job: Job) -> None:
    """Raises UserError for a run that was begun in its folder with other settings."""
    if (job.folder / CONFIG_FILE).is_file():
        wanted = job.spec.plain
        if job.search:  # its rate is not chosen yet
            begun = _training_begun(job.spec)["learning_rate"]
            wanted = {**wanted, "train": {**wanted["train"], "learning_rate": begun}}
        other = begun_with_other(job.folder, wanted, job.spec.packages)
        is_search = bool(job.cell) and job.search is None
        if is_search and _training_begun(job.spec)["steps"] != with_defaults(wanted["train"])["steps"]:
            other = other or "train.steps"  # a rate that was chosen for longer trainings
        if other is not None:
            raise UserError(f"{job.folder} was begun with another {other}; give another {RUN_FOLDER}=FOLDER")


def _say_changed(jobs: Sequence[Job], console: Console) -> None:
    """Warns of each existing run that was trained with another version of the user's own code."""
    for job in jobs:
        changed = environment.changed_code(job.folder, code_of(job.spec.plain))
        if changed:
            console.print(Text(f"{changed}; remove that folder to train it anew", style="yellow"), soft_wrap=True)


def _refuse_broken_models(jobs: Sequence[Job], console: Console) -> None:
    """Raises BrokenPromise for a user's model that breaks a promise; each is checked once, before hours of training."""
    looked_at = []
    for job in jobs:
        model = job.spec.plain["model"]
        if job.is_left_to_train and not is_ours(model) and model not in looked_at:
            looked_at.append(model)
            console.print(f"looking at what model={job.experiment.model_name} promises …", highlight=False)
            refuse_broken_model(job.experiment)


def _refuse_unreadable(jobs: Sequence[Job]) -> None:
    """Raises UserError if the data of the first run to do is not there: all runs read the same as a rule."""
    first = next((job for job in jobs if job.is_left_to_train), None)
    if first is not None:
        first.experiment.feed.prepare()


def _do(folder: Path, job: Job) -> int:
    """Does one run, unless it is finished; returns the exit code. Raises UserError if a run it needs is not finished.

    The search of a suite's cell goes on with further rates where the best one lies at the edge of its grid.
    """
    if job.search:
        is_of_search = job.cell == job.search.folder  # a further size takes the rate as it was chosen
        for further in suite.further_searches(folder, job) if is_of_search and not is_finished(job.folder) else ():
            _refuse_begun_otherwise(job._replace(spec=further, search=None))
            with suppress(NotFinite):  # the rates of the grid remain
                if code := 0 if is_finished(further.folder) else _train(further):
                    return code
        chosen = suite.at_chosen_rate(folder, job)
        _refuse_other_rate(chosen)
        return 0 if is_finished(job.folder) else _train(chosen)
    if is_finished(job.folder):
        return 0
    if job.evaluation is None:
        return _train(job.spec)
    trained = folder / job.evaluation.run
    if not is_finished(trained):
        raise UserError(f"it evaluates {trained.name}, which is not finished; give the same command again")
    spec = Spec.saved(trained, job.evaluation.settings, allowed=EVALUABLE, packages=job.spec.packages)
    return run.evaluate(spec, job.evaluation.step, job.folder).print_result(spec.plain["format"])


def _training_begun(spec: Spec) -> dict[str, Any]:
    """The settings of training with which the run in its folder was begun."""
    return with_defaults(plain_of(spec.folder / CONFIG_FILE, spec.packages)["train"])


def _refuse_other_rate(chosen: Spec) -> None:
    """Raises UserError for a final run that was begun at another rate than its search chooses now."""
    if (chosen.folder / CONFIG_FILE).is_file():
        begun, wanted = (
            training["learning_rate"] for training in (_training_begun(chosen), with_defaults(chosen.plain["train"]))
        )
        if begun != wanted:
            raise UserError(
                f"{chosen.folder} was begun at the rate {begun:g}, and its search chooses {wanted:g} now; "
                f"remove that folder, or give another {RUN_FOLDER}=FOLDER"
            )


def _train(spec: Spec) -> int:
    """Trains in the run's folder, or goes on with what was begun there; returns the exit code."""
    if (spec.folder / CONFIG_FILE).is_file():
        outcome = run.resume(Spec.saved(spec.folder, packages=spec.packages))
    else:
        outcome = run.start(spec)
    return outcome.print_result(spec.plain["format"])


def _draw(folder: Path, jobs: Sequence[Job], console: Console) -> None:
    """One comparison of the runs, and one of the controls; of a suite its own report."""
    if jobs[0].board is not None:
        # The cells that evalkit brings belong to its own suite; another suite may define them by other words.
        others = kept(jobs[0].experiment.preset) if jobs[0].group == SUITE else []
        write_suite(folder, console, others, jobs[0].board)
        return
    for group in GROUPS:
        drawn = [job.folder for job in jobs if job.group == group and is_finished(job.folder)]
        if drawn:
            compare(drawn, folder / group, console, {path: path.name for path in drawn}, complete=completed)
