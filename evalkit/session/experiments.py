"""`experiment=…`: the runs behind one of the paper's figures, one after the other, then drawn together.

The same command again leaves finished runs alone and goes on with one that was stopped.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from omegaconf import DictConfig
from rich.console import Console
from rich.text import Text

from evalkit.configuration import catalogue, composition
from evalkit.configuration.account import completed
from evalkit.configuration.experiment import Experiment, built
from evalkit.configuration.saved import EVALUABLE, changed, from_file
from evalkit.configuration.schema import unknown
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

EVALUATE, STEP, RUN_FOLDER, DRY_RUN = "evaluate=", "step=", "hydra.run.dir=", "dry_run="
GROUPS = ("runs", "controls")
SUITE = "suite"


class Member(NamedTuple):
    """One run of an experiment, built.

    `evaluated` is the trained run that it evaluates, with `overrides`; None for a run that trains. `part` is what it
    is of a suite, of which a final run has no learning rate before its trials are finished.
    """

    group: str
    name: str
    overrides: list[str]
    evaluated: str | None
    experiment: Experiment
    part: suite.Part | None = None


def main(overrides: Sequence[str]) -> int:
    """Runs what is missing of the experiment that `overrides` name; returns 0, or the code of a run that stopped.

    A list of the runs and an estimate come first; with `dry_run=true` that is all. `~runs.NAME` leaves one of them out,
    and `+runs.NAME=["model=…"]` adds one. A run that fails does not keep the others from running; the code is then 1.
    Raises UserError for what cannot be run, before anything is written.
    """
    dry, typed = _dry_run(overrides)
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
            if not dry:
                _refuse_unreadable(folder, members)
            code = 0 if dry else _run_all(folder, members, console)
    except KeyboardInterrupt:  # between two runs; within one, that is saved first
        console.print(Text(again), soft_wrap=True)
        raise
    if code in STOPPED:
        console.print(Text(again), soft_wrap=True)
    return code


def _dry_run(overrides: Sequence[str]) -> tuple[bool, list[str]]:
    """Whether only the list is wanted, and the other words; raises UserError."""
    asked = [text for text in overrides if text.lstrip("+").startswith(DRY_RUN)]
    values = [composition.parse([text])[0].value() for text in asked]
    if not all(isinstance(value, bool) for value in values):
        raise UserError(f"{asked[-1]}; allowed: dry_run=true or dry_run=false")
    return any(values[-1:]), [text for text in overrides if text not in asked]


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
        return plan.Job(member.name, target, member.experiment, member.evaluated)
    cell = member.name.rpartition("/")[0]
    return plan.Job(member.name, target, member.experiment, None, cell, cell.split("/")[1])


def _of_suite(chosen: DictConfig, asked: suite.Asked) -> list[Member]:
    """The runs of a suite, which is drawn as a whole."""
    found = suite.parts(chosen, asked)
    return [Member(asked.suite, part.name, part.words, None, part.experiment, part) for part in found]


def _members(chosen: DictConfig, given: Sequence[str]) -> list[Member]:
    """The runs in order, the user's own settings last in what is trained; raises UserError if there are none."""
    members: dict[str, Member] = {}
    for group, name, planned in _plans(chosen):
        evaluated = next((text.removeprefix(EVALUATE) for text in planned if text.startswith(EVALUATE)), None)
        own = [text for text in planned if not text.startswith(EVALUATE)]
        if evaluated is None:
            typed = [*own, *given]
            with said_of(f"run {name}"):
                members[name] = Member(group, name, typed, None, built(typed))
            continue
        trained = [member.name for member in members.values() if member.evaluated is None]
        if evaluated not in trained:
            known = ", ".join(trained)
            raise UserError(f"{name} evaluates {evaluated}, which is not trained in this experiment: {known}")
        settings = [text for text in own if not text.startswith(STEP)]
        with said_of(f"run {name}"):
            experiment = changed(members[evaluated].experiment.config, settings, EVALUABLE)
        members[name] = Member(group, name, own, evaluated, experiment)
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
    return sorted(plans, key=lambda found: any(text.startswith(EVALUATE) for text in found[2]))


def _refuse_begun_otherwise(folder: Path, member: Member) -> None:
    """Raises UserError for a run that was begun in `folder` with other settings."""
    path = folder / member.name / "config.yaml"
    if path.is_file():
        wanted, packages = run.deciding(member.experiment), member.experiment.allow_targets
        if member.part is not None and member.part.trials:
            begun = from_file(path, packages=packages)
            wanted["train"]["learning_rate"] = run.deciding(begun)["train"]["learning_rate"]
        other = run.begun_with_other(path.parent, wanted, packages)
        if other is not None:
            raise UserError(f"{path.parent} was begun with another {other}; give another {RUN_FOLDER}FOLDER")


def _say_changed(folder: Path, members: Sequence[Member], console: Console) -> None:
    """Says of the first run that is there already, and was trained with other code of the user's, that it was."""
    for member in members:
        changed = environment.changed_code(folder / member.name, code_of(member.experiment.config))
        if changed:
            console.print(Text(f"{changed}; remove that folder to train it anew", style="yellow"), soft_wrap=True)
            return


def _hold_models(folder: Path, members: Sequence[Member], console: Console) -> None:
    """Raises BrokenPromise for a model of the user's that is wrong: it is looked at once, before hours of training."""
    looked_at = []
    for member in members:
        model = member.experiment.config["model"]
        left = member.evaluated is None and not is_finished(folder / member.name)
        if left and not is_ours(model) and model not in looked_at:
            looked_at.append(model)
            console.print(f"looking at what model={member.experiment.model_name} promises …", highlight=False)
            hold_model(member.experiment)


def _refuse_unreadable(folder: Path, members: Sequence[Member]) -> None:
    """Raises UserError if the data of the first run to do is not there: all runs read the same as a rule."""
    for member in members:
        if member.evaluated is None and not is_finished(folder / member.name):
            member.experiment.feed.prepare()
            return


def _do(folder: Path, member: Member) -> int:
    """Trains or evaluates one, unless that is done; returns its exit code. Raises UserError for a run not finished.

    A trial of a suite whose loss is not finite is done as well: that is written down, and raised.
    """
    target = folder / member.name
    if member.part is not None and not member.part.trials:
        try:
            return 0 if suite.is_done(target) else _train(member.experiment, target)
        except NotFinite as error:
            suite.give_up(target, error)
            raise
    if member.part is not None:
        chosen = suite.at_chosen_rate(folder, member.part).experiment
        _refuse_other_rate(target, chosen)
        return 0 if is_finished(target) else _train(chosen, target)
    if is_finished(target):
        return 0
    if member.evaluated is not None:
        if not is_finished(folder / member.evaluated):
            raise UserError(f"it evaluates {member.evaluated}, which is not finished; give the same command again")
        return run.evaluate(folder / member.evaluated, member.overrides, target)
    return _train(member.experiment, target)


def _refuse_other_rate(target: Path, chosen: Experiment) -> None:
    """Raises UserError for a final run that was begun at another rate than its trials choose now."""
    if (target / "config.yaml").is_file():
        before = from_file(target / "config.yaml", packages=chosen.allow_targets)
        begun, wanted = (of.trained[1].learning_rate for of in (before, chosen))
        if begun != wanted:
            raise UserError(
                f"{target} was begun at the rate {begun:g}, and its trials choose {wanted:g} now; "
                f"remove that folder, or give another {RUN_FOLDER}FOLDER"
            )


def _train(experiment: Experiment, target: Path) -> int:
    """Trains in `target`, or goes on with what was begun there; returns the exit code."""
    if (target / "config.yaml").is_file():
        return run.resume(target, [], experiment.allow_targets)
    experiment.feed.prepare()
    return run.start(experiment, target)


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
