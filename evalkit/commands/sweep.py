"""`python -m evalkit -m …`: a run of each of several values, listed and compared at the end."""

import os
import sys
from collections.abc import Sequence
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalkit.core.errors import UserError

if TYPE_CHECKING:
    from evalkit.session.sweeps import Ended

SIGNALS = (130, 143)
# Hydra names each run of a sweep as it starts.
SILENT = "hydra.hydra_logging.root.level=ERROR"
# Launchers of Hydra's that are packages of their own, and the extras that bring them.
LAUNCHERS = {
    "joblib": ("hydra-joblib-launcher", "joblib"),
    "submitit_local": ("hydra-submitit-launcher", "slurm"),
    "submitit_slurm": ("hydra-submitit-launcher", "slurm"),
}


def main(overrides: Sequence[str]) -> int:
    """Every run of a sweep is built, so that what cannot be is refused, before Hydra starts the first.

    Ends with a list of the runs and their comparison; returns the code of the first that failed.
    """
    from rich.console import Console

    from evalkit.configuration.composition import combinations
    from evalkit.configuration.experiment import compose, prepared
    from evalkit.core import devices

    _refuse_missing_launcher(overrides)
    devices.use_every_core()
    group, quiet = None, False
    for combination in combinations(overrides):
        composed = compose(combination)
        if composed.choices.get("on_checkpoint") is not None:
            raise UserError(f"task={composed.choices['on_checkpoint']} takes one checkpoint at a time; leave -m out")
        experiment = prepared(composed)
        group, quiet = experiment.wandb.group, experiment.quiet or quiet
    from evalkit.session import logs, sweeps

    console = Console(stderr="format=json" in overrides, quiet=quiet)
    try:
        with logs.shown(console):
            ended = _launched([*_in_one_group(overrides, group), *([SILENT] if quiet else [])])
    except SystemExit as stop:  # of a run that a signal stopped
        return stop.code if isinstance(stop.code, int) else 1
    sweeps.conclude(ended, console)
    return next((one.code for one in ended if one.code), 0)


def _launched(overrides: Sequence[str]) -> "list[Ended]":
    """Has Hydra's launcher call `job` for each run of a sweep."""
    from hydra.core.global_hydra import GlobalHydra

    from evalkit.configuration import composition

    with composition.initialised():
        hydra = GlobalHydra.instance().hydra
        assert hydra is not None
        words = [*composition.forced(overrides), "hydra.mode=MULTIRUN"]
        batches = hydra.multirun(config_name="config", task_function=job, overrides=words)
    return [done.return_value for batch in batches or [] for done in batch]


def _refuse_missing_launcher(overrides: Sequence[str]) -> None:
    """Raises UserError, with what to install, for a launcher of Hydra's that is not there."""
    for text in overrides:
        name, _, launcher = text.lstrip("+").partition("=")
        if name == "hydra/launcher" and launcher in LAUNCHERS:
            package, extra = LAUNCHERS[launcher]
            try:
                version(package)
            except PackageNotFoundError as error:
                raise UserError(f"{text} needs {package}: pip install 'griffin-evalkit[{extra}]'") from error


def _in_one_group(overrides: Sequence[str], group: str | None) -> list[str]:
    """The overrides of a sweep whose runs are one group of W&B, named by its folder, else by the time.

    A `group` that was set stays, and so does one of W&B's own variable.
    """
    from hydra.core.hydra_config import HydraConfig

    if group is not None or "WANDB_RUN_GROUP" in os.environ:
        return list(overrides)
    own_folder = any(text.lstrip("+").startswith("hydra.sweep.dir=") for text in overrides)
    name = Path(HydraConfig.get().sweep.dir).resolve().name if own_folder else f"{datetime.now():%Y-%m-%d_%H-%M-%S}"
    return [*overrides, f"wandb.group='sweep-{name}'"]


def job(config: Any) -> "Ended":
    """One run of a sweep in the folder that Hydra gives it; a signal ends the sweep by SystemExit.

    A run that failed does not stop the others.
    """
    from hydra.core.hydra_config import HydraConfig

    from evalkit.configuration.experiment import experiment, refuse_used
    from evalkit.session import run
    from evalkit.session.sweeps import Ended

    folder = Path(HydraConfig.get().runtime.output_dir)
    try:
        refuse_used(folder)
        code = run.start(experiment(config), folder)
    except UserError as error:
        print(f"evalkit: {error}", file=sys.stderr)
        code = error.exit_code
    if code in SIGNALS:
        raise SystemExit(code)
    return Ended(str(folder), code)
