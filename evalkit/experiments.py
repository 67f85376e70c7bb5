"""`experiment=…`: the runs behind one of the paper's figures, one after the other, then drawn together.

The same command again leaves finished runs alone and goes on with one that was stopped.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from rich.console import Console
from rich.text import Text

from evalkit import composition, config, run
from evalkit.compare import compare
from evalkit.errors import UserError

EVALUATE = "evaluate="
FOLDER = "hydra.run.dir="
# What decides the numbers of a run; where it logs to, and how, does not.
DECIDING = ("task", "model", "train", "eval", "seed", "seeds", "matmul_precision")


def main(overrides: Sequence[str]) -> int:
    """Runs what is missing of the experiment that `overrides` name; returns 0, or the code of a run that stopped.

    Raises UserError for what cannot be run, before anything is written.
    """
    folders = [text.removeprefix(FOLDER).strip("'\"") for text in overrides if text.startswith(FOLDER)]
    given = [text for text in overrides if not text.startswith(FOLDER)]
    groups = _planned(given)
    folder = Path(folders[-1]) if folders else _folder(given)
    plans = {name: plan for group in groups.values() for name, plan in group.items()}
    for name, plan in plans.items():
        _check(folder, name, plan, plans)
    console = Console()
    for number, (name, plan) in enumerate(plans.items(), 1):
        console.print(Text(f"{folder / name} ({number} of {len(plans)})", style="bold"), soft_wrap=True)
        code = _evaluate(folder, name, plan) if _source(plan) else _train(folder / name, plan)
        if code:
            return code
    for group, members in groups.items():
        trained = [folder / name for name, plan in members.items() if not _source(plan)]
        if trained:
            compare(trained, folder / group, console)
    return 0


def _planned(given: Sequence[str]) -> dict[str, dict[str, list[str]]]:
    """The overrides of each run by its name, by group: the figure's own and its controls."""
    composed = composition.compose([text for text in given if composition.chooses(composition.parse([text])[0])])
    groups = {name: OmegaConf.to_container(composed[name]) for name in ("runs", "controls")}
    planned: dict[str, dict[str, list[str]]] = {}
    for group, members in groups.items():
        assert isinstance(members, Mapping)
        # An evaluation takes over what its run was given; the user's own settings come last.
        planned[group] = {str(name): list(plan) if _source(plan) else [*plan, *given] for name, plan in members.items()}
    if not planned["runs"]:
        raise UserError(f"{' '.join(given)} names no runs; give experiment=fig6a or experiment=fig6b")
    return planned


def _folder(given: Sequence[str]) -> Path:
    choices = composition.compose(
        [text for text in given if composition.chooses(composition.parse([text])[0])]
    ).hydra.runtime.choices
    return Path("runs", choices["experiment"], choices["preset"])


def _source(plan: Sequence[str]) -> str | None:
    """The run that is evaluated, None where one is trained."""
    return next((text.removeprefix(EVALUATE) for text in plan if text.startswith(EVALUATE)), None)


def _check(folder: Path, name: str, plan: Sequence[str], plans: Mapping[str, Any]) -> None:
    source = _source(plan)
    if source is not None:
        if source not in plans:
            raise UserError(f"{name} evaluates {source}, which is no run of this experiment: {', '.join(plans)}")
        return
    wanted = config.experiment(config.compose(plan)).config
    path = folder / name / "config.yaml"
    if path.is_file():
        begun = config.from_file(path).config
        other = [key for key in DECIDING if begun[key] != wanted[key]]
        if other:
            raise UserError(f"{path.parent} was begun with another {other[0]}; give another {FOLDER}FOLDER")


def _train(folder: Path, plan: Sequence[str]) -> int:
    if (folder / "results.json").is_file():
        return 0
    if (folder / "config.yaml").is_file():
        return run.resume(folder, [])
    return run.start(config.experiment(config.compose(plan)), folder)


def _evaluate(folder: Path, name: str, plan: Sequence[str]) -> int:
    if (folder / name / "results.json").is_file():
        return 0
    rest = [text for text in plan if not text.startswith(EVALUATE)]
    return run.evaluate(folder / str(_source(plan)), rest, folder / name)
