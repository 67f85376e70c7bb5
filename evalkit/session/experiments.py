"""`experiment=…`: the runs behind one of the paper's figures, one after the other, then drawn together.

The same command again leaves finished runs alone and goes on with one that was stopped.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig
from rich.console import Console
from rich.text import Text

from evalkit.configuration import catalogue, composition
from evalkit.configuration.account import completed
from evalkit.configuration.complete import completed as with_defaults
from evalkit.configuration.experiment import Experiment
from evalkit.configuration.request import Request
from evalkit.configuration.saved import EVALUABLE, FILE, begun_with_other, plain_of
from evalkit.configuration.schema import unknown
from evalkit.configuration.spec import Spec
from evalkit.contract.experiment import hold_model, is_ours
from evalkit.core.errors import UserError, said_of
from evalkit.core.trust import code_of
from evalkit.parallel.interrupt import STOPPED
from evalkit.record import environment
from evalkit.record.history import pasteable
from evalkit.reports.comparison import compare
from evalkit.reports.suite.cells import kept
from evalkit.reports.suite.report import write as write_suite
from evalkit.session import logs, plan, run, suite
from evalkit.session.plan import is_finished
from evalkit.training.finite import NotFinite

RUN_FOLDER = "hydra.run.dir="
GROUPS = ("runs", "controls")
SUITE = "suite"


class Member(NamedTuple):
    """One run of an experiment, built.

    `evaluation` says which trained run it evaluates, and how; None for a run that trains. `part` is what it is of a
    suite, of which a final run has no learning rate before its trials are finished.
    """

    group: str
    name: str
    spec: Spec
    evaluation: Request | None = None
    part: suite.Part | None = None

    @property
    def experiment(self) -> Experiment:
        """What it builds."""
        return self.spec.experiment


def main(typed: Sequence[str], *, dry_run: bool = False) -> int:
    """Runs what is missing of the experiment that words name; returns 0, or the code of a run that stopped.

    A list of the runs and an estimate come first; with `dry_run` that is all. `~runs.NAME` leaves one of them out,
    and `+runs.NAME=["model=…"]` adds one. A run that fails does not keep the others from running; the code is then 1.
    Raises UserError for what cannot be run, before anything is written.
    """
    given = [text for text in typed if not text.lstrip("+").startswith(RUN_FOLDER)]
    folders = [str(composition.parse([text])[0].value()) for text in typed if text not in given]
    asked = suite.asked(given)
    words = given if asked is None else [f"experiment={asked.suite}", *asked.rest]
    of_runs = [text for text in words if _is_of_runs(text)]
    if of_runs and asked is not None:
        raise UserError(f"{of_runs[0]}: a suite has cells, not runs; give task= and model= for one of them")
    words = [text for text in words if text not in of_runs]
    choices = [text for text in words if composition.chooses(composition.parse([text])[0])]
    chosen = composition.compose([*choices, *of_runs, *(asked.protocol if asked is not None else ())])
    _refuse_unknown_runs(chosen, of_runs)
    folder = Path(folders[-1]) if folders else Path("runs", chosen.choices["experiment"], chosen.config.preset)
    members = _members(chosen.config, words) if asked is None else _of_suite(chosen.config, asked)
    for member in members:
        _refuse_begun_otherwise(folder, member)
    console = Console(quiet=members[0].experiment.quiet)
    again = f"go on with the whole experiment: {pasteable(*typed)}"
    try:
        with logs.shown(console):
            _say_changed(folder, members, console)
            _hold_models(folder, members, console)
            plan.show([_job(folder, member) for member in members], console)
            if not dry_run:
                _refuse_unreadable(folder, members)
            code = 0 if dry_run else _run_all(folder, members, console)
    except KeyboardInterrupt:  # between two runs; within one, that is saved first
        console.print(Text(again), soft_wrap=True)
        raise
    if code in STOPPED:
        console.print(Text(again), soft_wrap=True)
    return code


def _is_of_runs(text: str) -> bool:
    """Whether a word says which runs there are, as `~runs.NAME` does."""
    return composition.parse([text])[0].key_or_group.partition(".")[0] in GROUPS


def _refuse_unknown_runs(chosen: composition.Composed, words: Sequence[str]) -> None:
    """Raises UserError for a word of a run that the experiment has not, and that does not add it."""
    known = list(composition.paths({group: chosen.base[group] for group in GROUPS}))
    for override in composition.parse(words):
        if not (override.is_add() or override.is_delete() or override.key_or_group in known):
            raise UserError(f"{unknown(override.key_or_group, known)}; or add it: +{override.input_line}")


def _run_all(folder: Path, members: Sequence[Member], console: Console) -> int:
    """Trains and evaluates one after the other, then draws them together; returns the exit code."""
    errors = Console(stderr=True) if console.quiet else console
    failed = []
    for number, member in enumerate(members, 1):
        trials = () if member.part is None else member.part.trials
        if any(name in failed and not suite.is_done(folder / name) for name in trials):
            failed.append(member.name)  # its rate cannot be chosen, and why was said of the trial
            continue
        console.print(Text(f"{folder / member.name} ({number} of {len(members)})", style="bold"), soft_wrap=True)
        try:
            code = _do(folder, member)
        except UserError as error:
            errors.print(Text(f"{folder / member.name}: {error}", style="red"), soft_wrap=True)
            failed.append(member.name)
            continue
        if code:
            if member.part is not None:
                _draw(folder, members, console)
            return code
    _draw(folder, members, console)
    if failed:
        errors.print(Text(f"failed: {', '.join(failed)}", style="red"), soft_wrap=True)
    return 1 if failed else 0


def _job(folder: Path, member: Member) -> plan.Job:
    """A run of the plan; those of a cell of a suite are one line, and a step of a model is measured once."""
    target = folder / member.name
    if member.part is None:
        return plan.Job(member.name, target, member.experiment, member.evaluation and member.evaluation.run)
    cell = member.name.rpartition("/")[0]
    return plan.Job(member.name, target, member.experiment, None, cell, cell.split("/")[1])


def _of_suite(chosen: DictConfig, asked: suite.Asked) -> list[Member]:
    """The runs of a suite, which is drawn as a whole."""
    found = suite.parts(chosen, asked)
    return [Member(asked.suite, part.name, part.spec, part=part) for part in found]


def _members(chosen: DictConfig, given: Sequence[str]) -> list[Member]:
    """The runs in order, the user's own settings last in what is trained; raises UserError if there are none."""
    members: dict[str, Member] = {}
    for group, name, planned in _plans(chosen):
        with said_of(f"run {name}"):
            request = Request.of(planned)
            if request.verb is None:
                members[name] = Member(group, name, suite.buildable([*planned, *given]))
                continue
        trained = [member.name for member in members.values() if member.evaluation is None]
        if request.run not in trained:
            known = ", ".join(trained)
            raise UserError(f"{name} evaluates {request.run}, which is not trained in this experiment: {known}")
        with said_of(f"run {name}"):
            spec = members[request.run].spec.changed(request.settings, EVALUABLE)
            members[name] = Member(group, name, spec, request)
            _ = spec.experiment
    if not any(member.group == "runs" for member in members.values()):
        allowed = " or ".join(f"experiment={name}" for name in catalogue.options("experiment"))
        raise UserError(f"{' '.join(given)} names no runs; give {allowed}")
    return list(members.values())


def _plans(chosen: DictConfig) -> list[tuple[str, str, list[str]]]:
    """Group, name and words of each run, those that train first; raises UserError for what are no words."""
    plans = []
    settings = composition.plain(chosen, resolve=False)
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
    return sorted(plans, key=lambda found: Request.of(found[2]).verb is not None)


def _refuse_begun_otherwise(folder: Path, member: Member) -> None:
    """Raises UserError for a run that was begun in `folder` with other settings."""
    target = folder / member.name
    if (target / FILE).is_file():
        wanted = member.spec.plain
        if member.part is not None and member.part.trials:  # its rate is not chosen yet
            rate = _rate(plain_of(target / FILE, member.spec.packages))
            wanted = {**wanted, "train": {**wanted["train"], "learning_rate": rate}}
        other = begun_with_other(target, wanted, member.spec.packages)
        if other is not None:
            raise UserError(f"{target} was begun with another {other}; give another {RUN_FOLDER}FOLDER")


def _say_changed(folder: Path, members: Sequence[Member], console: Console) -> None:
    """Says of the first run that is there already, and was trained with other code of the user's, that it was."""
    for member in members:
        changed = environment.changed_code(folder / member.name, code_of(member.spec.plain))
        if changed:
            console.print(Text(f"{changed}; remove that folder to train it anew", style="yellow"), soft_wrap=True)
            return


def _hold_models(folder: Path, members: Sequence[Member], console: Console) -> None:
    """Raises BrokenPromise for a model of the user's that is wrong: it is looked at once, before hours of training."""
    looked_at = []
    for member in members:
        model = member.spec.plain["model"]
        left = member.evaluation is None and not is_finished(folder / member.name)
        if left and not is_ours(model) and model not in looked_at:
            looked_at.append(model)
            console.print(f"looking at what model={member.experiment.model_name} promises …", highlight=False)
            hold_model(member.experiment)


def _refuse_unreadable(folder: Path, members: Sequence[Member]) -> None:
    """Raises UserError if the data of the first run to do is not there: all runs read the same as a rule."""
    for member in members:
        if member.evaluation is None and not is_finished(folder / member.name):
            member.experiment.feed.prepare()
            return


def _do(folder: Path, member: Member) -> int:
    """Trains or evaluates one, unless that is done; returns its exit code. Raises UserError for a run not finished.

    A trial of a suite whose loss is not finite is done as well: that is written down, and raised.
    """
    target = folder / member.name
    if member.part is not None and not member.part.trials:
        try:
            return 0 if suite.is_done(target) else _train(member.spec.at(target))
        except NotFinite as error:
            suite.give_up(target, error)
            raise
    if member.part is not None:
        chosen = suite.at_chosen_rate(folder, member.part).spec.at(target)
        _refuse_other_rate(chosen)
        return 0 if is_finished(target) else _train(chosen)
    if is_finished(target):
        return 0
    if member.evaluation is None:
        return _train(member.spec.at(target))
    step, trained = member.evaluation.step, folder / member.evaluation.run
    if not is_finished(trained):
        raise UserError(f"it evaluates {trained.name}, which is not finished; give the same command again")
    spec = Spec.saved(trained, member.evaluation.settings, allowed=EVALUABLE)
    return run.evaluate(spec, step, target).shown(spec.plain["format"])


def _rate(plain: Mapping[str, Any]) -> float:
    return with_defaults(plain["train"])["learning_rate"]


def _refuse_other_rate(chosen: Spec) -> None:
    """Raises UserError for a final run that was begun at another rate than its trials choose now."""
    target = chosen.folder
    if (target / FILE).is_file():
        begun, wanted = _rate(plain_of(target / FILE, chosen.packages)), _rate(chosen.plain)
        if begun != wanted:
            raise UserError(
                f"{target} was begun at the rate {begun:g}, and its trials choose {wanted:g} now; "
                f"remove that folder, or give another {RUN_FOLDER}FOLDER"
            )


def _train(spec: Spec) -> int:
    """Trains in the run's folder, or goes on with what was begun there; returns the exit code."""
    if (spec.folder / FILE).is_file():
        outcome = run.resume(Spec.saved(spec.folder, packages=spec.packages))
    else:
        outcome = run.start(spec)
    return outcome.shown(spec.plain["format"])


def _draw(folder: Path, members: Sequence[Member], console: Console) -> None:
    """One comparison of the runs, and one of the controls; of a suite its own report."""
    if any(member.part is not None for member in members):
        preset = members[0].experiment.preset
        # What is installed with evalkit is of its own suite, whose words another one need not have.
        write_suite(folder, preset, console, kept(preset) if members[0].group == SUITE else [])
        return
    for group in GROUPS:
        drawn = [folder / m.name for m in members if m.group == group and is_finished(folder / m.name)]
        if drawn:
            compare(drawn, folder / group, console, {path: path.name for path in drawn}, complete=completed)
