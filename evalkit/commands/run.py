"""`python -m evalkit task=… model=…`: a run, a sweep with `-m`, a figure's runs with `experiment=…`."""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from evalkit.commands import evaluate, resume
from evalkit.configuration import catalogue
from evalkit.core.errors import UserError

# What Hydra answers by itself, without a run.
ANSWERED_BY_HYDRA = ("help", "hydra_help", "cfg", "info", "shell_completion")
EXISTING = {"resume": resume.existing, "evaluate": evaluate.existing}
SIGNALS = (130, 143)


def main(arguments: Sequence[str]) -> int:
    """Runs what the settings describe and returns the exit code; raises UserError before anything is written."""
    flags = _flags(arguments)
    if flags.cfg == "job" and not flags.multirun and not flags.package:
        return _show([*flags.overrides, *_search_path(flags.config_dir)], resolve=flags.resolve)
    own = [argument for argument in arguments if argument not in flags.overrides]
    if any(getattr(flags, name) for name in ANSWERED_BY_HYDRA):
        return _hydra([*own, *flags.overrides])
    overrides = [*flags.overrides, *_search_path(flags.config_dir)]
    existing = [text for text in overrides if text.partition("=")[0] in EXISTING]
    if existing:
        verb, _, folder = existing[0].partition("=")
        if len(existing) > 1 or flags.multirun:
            raise UserError(f"{verb}=RUN takes one run at a time; give one {verb}=, without -m")
        return EXISTING[verb](folder, [text for text in overrides if text not in existing])
    if flags.multirun:
        return _sweep(own, flags.overrides, overrides)
    if _is_whole_experiment(overrides):
        from evalkit.core import devices
        from evalkit.session import experiments

        devices.use_every_core()
        return experiments.main(overrides)
    return _run(overrides)


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


def _sweep(own: Sequence[str], typed: Sequence[str], overrides: Sequence[str]) -> int:
    """Every run of a sweep is built, so that what cannot be is refused, before Hydra starts the first."""
    from evalkit.configuration.composition import combinations, forced
    from evalkit.configuration.experiment import compose, prepared
    from evalkit.core import devices

    if _is_whole_experiment(overrides):
        raise UserError("experiment= has its own runs; leave -m out, or give a model= as well")
    devices.use_every_core()
    group = None
    for combination in combinations(overrides):
        composed = compose(combination)
        if composed.choices.get("on_checkpoint") is not None:
            raise UserError(f"task={composed.choices['on_checkpoint']} takes one checkpoint at a time; leave -m out")
        group = prepared(composed).wandb.group
    return _hydra([*own, *forced(_in_one_group(typed, group))])


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
    """Hands the command line to Hydra, which answers by itself, or calls `job` for each run of a sweep."""
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


def job(config: Any) -> None:
    """One run of a sweep in the folder that Hydra gives it; a signal ends the sweep by SystemExit.

    A run that failed does not stop the others: it raises UserError, which Hydra keeps for the end.
    """
    from hydra.core.hydra_config import HydraConfig

    from evalkit.configuration.experiment import experiment, refuse_used
    from evalkit.session import run

    folder = Path(HydraConfig.get().runtime.output_dir)
    try:
        refuse_used(folder)
        code = run.start(experiment(config), folder)
    except UserError as error:
        print(f"evalkit: {error}", file=sys.stderr)
        code = error.exit_code
    if code in SIGNALS:
        raise SystemExit(code)
    if code:
        raise UserError(f"a run of the sweep, {folder}, ended with exit code {code}")
