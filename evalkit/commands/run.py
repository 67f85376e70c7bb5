"""`python -m evalkit task=… model=…`: a run, a sweep with `-m`, a figure's runs with `experiment=…`."""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalkit.commands import evaluate, resume
from evalkit.configuration import catalogue
from evalkit.core.errors import UserError

if TYPE_CHECKING:
    from evalkit.session.sweeps import Ended

# What Hydra answers by itself, without a run.
ANSWERED_BY_HYDRA = ("help", "hydra_help", "cfg", "info", "shell_completion")
EXISTING = {"resume": resume.existing, "evaluate": evaluate.existing}
FOLDERS = (*EXISTING, "hydra.run.dir", "hydra.sweep.dir")
SIGNALS = (130, 143)
# Launchers of Hydra's that are packages of their own, and the extras that bring them.
LAUNCHERS = {
    "joblib": ("hydra-joblib-launcher", "joblib"),
    "submitit_local": ("hydra-submitit-launcher", "slurm"),
    "submitit_slurm": ("hydra-submitit-launcher", "slurm"),
}


def main(arguments: Sequence[str]) -> int:
    """Runs what the settings describe and returns the exit code; raises UserError before anything is written."""
    flags = _flags(arguments)
    if flags.cfg == "job" and not flags.multirun and not flags.package:
        return _show([*flags.overrides, *_search_path(flags.config_dir)], resolve=flags.resolve)
    own = [argument for argument in arguments if argument not in flags.overrides]
    if any(getattr(flags, name) for name in ANSWERED_BY_HYDRA):
        return _hydra([*own, *flags.overrides])
    overrides = [*flags.overrides, *_search_path(flags.config_dir)]
    _refuse_no_folder(overrides)
    existing = [text for text in overrides if text.partition("=")[0] in EXISTING]
    if existing:
        verb, _, folder = existing[0].partition("=")
        if len(existing) > 1 or flags.multirun:
            raise UserError(f"{verb}=RUN takes one run at a time; give one {verb}=, without -m")
        return EXISTING[verb](folder, [text for text in overrides if text not in existing])
    if flags.multirun:
        return _sweep(overrides)
    if _is_whole_experiment(overrides):
        from evalkit.core import devices
        from evalkit.session import experiments

        devices.use_every_core()
        return experiments.main(overrides)
    return _run(overrides)


def _refuse_no_folder(overrides: Sequence[str]) -> None:
    """Raises UserError for a folder that is named by nothing, which would be the current one."""
    for text in overrides:
        name, equals, folder = text.lstrip("+").partition("=")
        if name in FOLDERS and equals and not folder.strip("'\" "):
            raise UserError(f"{name}= names no folder; give one, such as {name}=runs/<task>/<model>/<time>")


def _show(overrides: Sequence[str], *, resolve: bool) -> int:
    """Prints the configuration of the run that these settings would start."""
    from omegaconf import OmegaConf

    from evalkit.configuration.experiment import compose

    print(OmegaConf.to_yaml(compose(overrides).config, resolve=resolve), end="")
    return 0


def _run(overrides: Sequence[str]) -> int:
    """One run: composed once, built once."""
    from evalkit.configuration.experiment import compose, prepared, refuse_used
    from evalkit.core import devices

    composed = compose(overrides)
    refuse_used(composed.folder)
    devices.use_every_core()
    experiment = prepared(composed)
    from evalkit.session import run

    return run.start(experiment, composed.folder.absolute())


def _sweep(overrides: Sequence[str]) -> int:
    """Every run of a sweep is built, so that what cannot be is refused, before Hydra starts the first.

    Ends with a list of the runs and their comparison; returns the code of the first that failed.
    """
    from rich.console import Console

    from evalkit.configuration.composition import combinations
    from evalkit.configuration.experiment import compose, prepared
    from evalkit.core import devices

    if _is_whole_experiment(overrides):
        raise UserError("experiment= has its own runs; leave -m out, or give a model= as well")
    _refuse_missing_launcher(overrides)
    devices.use_every_core()
    group = None
    for combination in combinations(overrides):
        composed = compose(combination)
        if composed.choices.get("on_checkpoint") is not None:
            raise UserError(f"task={composed.choices['on_checkpoint']} takes one checkpoint at a time; leave -m out")
        group = prepared(composed).wandb.group
    from evalkit.session import logs, sweeps

    console = Console(stderr="format=json" in overrides)
    try:
        with logs.shown(console):
            ended = _launched(_in_one_group(overrides, group))
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


def _is_whole_experiment(overrides: Sequence[str]) -> bool:
    """Whether all its runs are meant; with a model= it is one of them, as any other run."""
    named = {text.partition("=")[0] for text in overrides if not text.endswith("=null")}
    return "experiment" in named and not named & {"model", "checkpoint"}


def _flags(arguments: Sequence[str]) -> argparse.Namespace:
    """Hydra's own flags and the overrides; raises UserError for a flag that it does not have."""
    from hydra._internal.utils import get_args_parser

    flags, unknown = get_args_parser().parse_known_intermixed_args(list(arguments))
    if unknown:
        raise UserError(f"unknown argument {unknown[0]!r}; give settings as key=value; --hydra-help lists the flags")
    return flags


def _search_path(directory: str | None) -> list[str]:
    if directory is None:
        return []
    if not Path(directory).is_dir():
        raise UserError(f"--config-dir {directory} is no folder; give one with task/, model/ or other groups in it")
    return [f"hydra.searchpath=['file://{Path(directory).resolve()}']"]


def _hydra(arguments: Sequence[str]) -> int:
    """Hands the command line to Hydra, which answers by itself."""
    import hydra

    from evalkit.configuration import composition  # noqa: F401  it tells Hydra which presets there are

    command = hydra.main(version_base="1.3", config_path=str(catalogue.directory()), config_name="config")(job)
    try:
        with _as_command_line(arguments):
            command()
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    return 0


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


@contextmanager
def _as_command_line(arguments: Sequence[str]) -> Iterator[None]:
    """Hydra reads `sys.argv`, and turns errors into text of its own unless told not to."""
    argv, full_error = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    sys.argv, os.environ["HYDRA_FULL_ERROR"] = [argv[0], *arguments], "1"
    try:
        yield
    finally:
        sys.argv = argv
        if full_error is None:
            del os.environ["HYDRA_FULL_ERROR"]
        else:
            os.environ["HYDRA_FULL_ERROR"] = full_error


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
