"""`experiment=…`: the runs behind one of the paper's figures, one after the other, then drawn together.

The same command again leaves finished runs alone and goes on with one that was stopped.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from omegaconf import OmegaConf
from rich.console import Console
from rich.text import Text

from evalkit.configuration import catalogue, composition
from evalkit.configuration import experiment as config
from evalkit.core.errors import UserError
from evalkit.record.files import RESULTS
from evalkit.reports.comparison import compare
from evalkit.session import run

EVALUATE, STEP, FOLDER = "evaluate=", "step=", "hydra.run.dir="
# What decides the numbers of a run; where it logs to, and how, does not. One that was given more steps stays itself.
DECIDING = ("task", "model", "train", "eval", "seed", "seeds", "matmul_precision")


class Member(NamedTuple):
    """One run of an experiment: trained with `overrides`, or, of another one `evaluated`, only evaluated with them."""

    group: str
    name: str
    overrides: list[str]
    evaluated: str | None


def main(overrides: Sequence[str]) -> int:
    """Runs what is missing of the experiment that `overrides` name; returns 0, or the code of a run that stopped.

    A run that fails does not keep the others from running; the code is then 1. Raises UserError for what cannot be
    run, before anything is written.
    """
    given = [text for text in overrides if not text.lstrip("+").startswith(FOLDER)]
    folders = [text.lstrip("+").removeprefix(FOLDER).strip("'\"") for text in overrides if text not in given]
    chosen = composition.compose([text for text in given if composition.chooses(composition.parse([text])[0])])
    choices = chosen.hydra.runtime.choices
    folder = Path(folders[-1]) if folders else Path("runs", choices["experiment"], choices["preset"])
    members = _members(chosen, given)
    trained = {
        m.name: config.experiment(config.compose(m.overrides)).config for m in members.values() if not m.evaluated
    }
    for member in members.values():
        _check(folder, member, trained)
    console = Console()
    failed = []
    for number, member in enumerate(members.values(), 1):
        console.print(Text(f"{folder / member.name} ({number} of {len(members)})", style="bold"), soft_wrap=True)
        try:
            code = _do(folder, member)
        except UserError as error:
            console.print(Text(f"{folder / member.name}: {error}", style="red"), soft_wrap=True)
            failed.append(member.name)
            continue
        if code:
            return code
    for group in ("runs", "controls"):
        finished = [folder / m.name for m in members.values() if m.group == group and _is_finished(folder / m.name)]
        if finished:
            compare(finished, folder / group, console, {path: path.name for path in finished})
    if failed:
        console.print(Text(f"failed: {', '.join(failed)}", style="red"), soft_wrap=True)
    return 1 if failed else 0


def _members(chosen: Any, given: Sequence[str]) -> dict[str, Member]:
    """The runs by name, the user's own settings last in what is trained; raises UserError if there are none."""
    members = {}
    for group in ("runs", "controls"):
        plans = OmegaConf.to_container(chosen[group])
        assert isinstance(plans, Mapping)
        for name, plan in plans.items():
            evaluated = next((text.removeprefix(EVALUATE) for text in plan if text.startswith(EVALUATE)), None)
            own = [text for text in plan if not text.startswith(EVALUATE)]
            members[str(name)] = Member(group, str(name), own if evaluated else [*own, *given], evaluated)
    if not any(member.group == "runs" for member in members.values()):
        allowed = " or ".join(f"experiment={name}" for name in catalogue.options("experiment"))
        raise UserError(f"{' '.join(given)} names no runs; give {allowed}")
    return members


def _check(folder: Path, member: Member, trained: Mapping[str, Mapping[str, Any]]) -> None:
    """Raises UserError for a run that cannot be, or was begun in `folder` with other settings than in `trained`."""
    wanted = trained.get(member.evaluated or member.name)
    if wanted is None:
        known = ", ".join(trained)
        raise UserError(f"{member.name} evaluates {member.evaluated}, which is not trained in this experiment: {known}")
    if member.evaluated is not None:
        wanted = _evaluated(wanted, [text for text in member.overrides if not text.startswith(STEP)])
    path = folder / member.name / "config.yaml"
    if path.is_file():
        begun = config.from_file(path).config
        other = [key for key in DECIDING if _decided(begun, key) != _decided(wanted, key)]
        if not other and begun["train"]["steps"] < wanted["train"]["steps"]:
            other = ["train.steps"]
        if other:
            raise UserError(f"{path.parent} was begun with another {other[0]}; give another {FOLDER}FOLDER")


def _evaluated(trained: Mapping[str, Any], overrides: Sequence[str]) -> Mapping[str, Any]:
    """The configuration of an evaluation of a run that is `trained` so; raises UserError as that would."""
    with TemporaryDirectory() as folder:
        config.save(trained, Path(folder) / "config.yaml")
        return config.from_file(Path(folder) / "config.yaml", overrides, config.EVALUABLE).config


def _decided(config: Mapping[str, Any], key: str) -> Any:
    return {**config[key], "steps": None} if key == "train" else config[key]


def _is_finished(folder: Path) -> bool:
    return (folder / RESULTS).is_file()


def _do(folder: Path, member: Member) -> int:
    """Trains or evaluates one, unless that is done; returns its exit code. Raises UserError for a run not finished."""
    target = folder / member.name
    if _is_finished(target):
        return 0
    if member.evaluated is not None:
        if not _is_finished(folder / member.evaluated):
            raise UserError(f"it evaluates {member.evaluated}, which is not finished; give the same command again")
        return run.evaluate(folder / member.evaluated, member.overrides, target)
    if (target / "config.yaml").is_file():
        return run.resume(target, [])
    return run.start(config.experiment(config.compose(member.overrides)), target)
