"""A claim whose runs are made anew: which runs of its experiment it needs, and its test on these."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from evalkit.claims.claims import Claim
from evalkit.claims.parts import Part
from evalkit.core.errors import UserError

READ = ("run", "minus")
"""The fields of a measure that name a kept run."""


def needed(claim: Claim) -> list[str]:
    """The names of the runs of its experiment that a claim's test and control read. Raises UserError where none are."""
    every = names(claim, [*claim.test, *claim.control.parts])
    if not every:
        raise UserError(
            f"what claim {claim.id} reads is no run that run=true could start; type python -m evalkit "
            f"{claim.runs.command}"
        )
    return every


def names(claim: Claim, parts: Sequence[Part]) -> list[str]:
    """The names of the runs of its experiment that these parts read."""
    runs = (one[name] for part in parts for one in measures(part) for name in READ if name in one)
    return sorted({PurePosixPath(run).name for run in runs if _is_of(run, claim)})


def measures(part: Part) -> list[Mapping[str, Any]]:
    """The measures of runs that a part reads; none for a part that consists of tests of the suite."""
    each: list[Any] = part.of if isinstance(part.of, list) else [part.of]
    return [one for one in each if isinstance(one, Mapping)]


def experiment(claim: Claim, studies: Path) -> str:
    """The experiment of a claim as `experiment=` takes it, wherever the command is typed."""
    name = str(claim.runs.experiment)
    beside = studies.parent / name
    return str(beside.resolve()) if name.endswith(".yaml") and beside.is_file() else name


def on(claim: Claim, folder: Path) -> Claim:
    """The claim with its experiment's runs read from `folder`, with any number of seeds; other runs stay as kept."""
    control = replace(claim.control, parts=[_moved(part, claim, folder) for part in claim.control.parts])
    runs = replace(claim.runs, seeds=())
    return replace(claim, test=[_moved(part, claim, folder) for part in claim.test], control=control, runs=runs)


def _moved(part: Part, claim: Claim, folder: Path) -> Part:
    def moved(of: Any) -> Any:
        if isinstance(of, list):
            return [moved(one) for one in of]
        return {name: _place(x, claim, folder) if name in READ else x for name, x in of.items()}

    return part if part.statistic == "tests" else replace(part, of=moved(part.of))


def _place(run: str, claim: Claim, folder: Path) -> str:
    return str((folder / PurePosixPath(run).name).resolve()) if _is_of(run, claim) else run


def _is_of(run: str, claim: Claim) -> bool:
    """Whether a kept run is of the claim's experiment: studies keep it in a folder of that name."""
    experiment = claim.runs.experiment
    return experiment is not None and PurePosixPath(run).parent.name == PurePosixPath(experiment).stem
