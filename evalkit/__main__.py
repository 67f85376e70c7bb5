"""The command line: `python -m evalkit task=… model=…`, `experiment=…`, `task=… checkpoint=…`, `resume=RUN`,
`evaluate=RUN`, or nothing for the guide."""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from evalkit.commands import guide
from evalkit.configuration import catalogue
from evalkit.core.errors import UserError

EXISTING = ("resume", "evaluate")
DOWNSTREAM, PHONEBOOK, CHECKPOINT = "task=downstream", "task=phonebook", "checkpoint="
TEXTS = ("task=books", "task=arxiv")
# What Hydra answers by itself, without a run.
ANSWERED_BY_HYDRA = ("help", "hydra_help", "cfg", "info", "shell_completion")
SIGNALS = (130, 143)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code; what a user can mend is one line on stderr."""
    try:
        return _dispatch(list(sys.argv[1:] if arguments is None else arguments))
    except UserError as error:
        return _explain(error)
    except KeyboardInterrupt:  # before or after a run; a run itself saves first
        return SIGNALS[0]


def _explain(error: UserError) -> int:
    print(f"evalkit: {error}", file=sys.stderr)
    return error.exit_code


def _dispatch(arguments: list[str]) -> int:
    if not arguments:
        print(guide.text())
        return 0
    flags = _flags(arguments)
    own = [argument for argument in arguments if argument not in flags.overrides]
    if any(getattr(flags, name) for name in ANSWERED_BY_HYDRA):
        return _hydra([*own, *flags.overrides])
    overrides = [*flags.overrides, *_search_path(flags.config_dir)]
    for command in EXISTING:
        if any(text.startswith(f"{command}=") for text in overrides):
            return _existing(command, overrides, flags)
    if DOWNSTREAM in overrides or any(text.startswith(CHECKPOINT) for text in overrides):
        return _on_checkpoint(overrides, flags)
    from evalkit.configuration.composition import forced
    from evalkit.configuration.experiment import check
    from evalkit.core import devices

    devices.use_every_core()
    if _is_whole_experiment(overrides):
        from evalkit.session import experiments

        if flags.multirun:
            raise UserError("experiment= has its own runs; leave -m out, or give a model= as well")
        return experiments.main(overrides)

    check(overrides, sweep=flags.multirun)
    return _hydra([*own, *forced(flags.overrides)])


def _is_whole_experiment(overrides: list[str]) -> bool:
    """Whether all its runs are meant; with a model= it is one of them, as any other run."""
    named = {text.partition("=")[0] for text in overrides if not text.endswith("=null")}
    return "experiment" in named and "model" not in named


def _flags(arguments: list[str]) -> argparse.Namespace:
    """Hydra's own flags and the overrides; raises UserError for a flag that it does not have."""
    from hydra._internal.utils import get_args_parser

    flags, unknown = get_args_parser().parse_known_intermixed_args(arguments)
    if unknown:
        raise UserError(f"unknown argument {unknown[0]!r}; give settings as key=value; --hydra-help lists the flags")
    return flags


def _search_path(directory: str | None) -> list[str]:
    if directory is None:
        return []
    if not Path(directory).is_dir():
        raise UserError(f"--config-dir {directory} is no folder; give one with task/, model/ or other groups in it")
    return [f"hydra.searchpath=['file://{Path(directory).resolve()}']"]


def _existing(command: str, overrides: list[str], flags: argparse.Namespace) -> int:
    """`resume=RUN` and `evaluate=RUN`: the run's own configuration, so Hydra composes nothing."""
    given = [text for text in overrides if text.partition("=")[0] in EXISTING]
    if len(given) > 1 or flags.multirun:
        raise UserError(f"{command}=RUN takes one run at a time; give one {command}=, without -m")
    folder = Path(given[0].partition("=")[2].strip("'\"")).expanduser()
    if not (folder / "config.yaml").is_file():
        state = "has no config.yaml, so it is no run" if folder.is_dir() else "does not exist"
        raise UserError(f"{folder} {state}; give the folder of a run, such as {command}=runs/<task>/<model>/<time>")
    from evalkit.core import devices

    devices.use_every_core()
    rest = [text for text in overrides if text not in given]
    if "\ncheckpoint:" in "\n" + (folder / "config.yaml").read_text(encoding="utf-8"):
        from evalkit.session import lookup

        if command == "evaluate":
            raise UserError(f"{folder} was measured on a checkpoint; give task= and checkpoint= again")

        devices.spare_memory()
        return lookup.resume(folder, rest)
    from evalkit.session import run

    return run.resume(folder, rest) if command == "resume" else run.evaluate(folder, rest)


def _on_checkpoint(overrides: list[str], flags: argparse.Namespace) -> int:
    """`checkpoint=…`: nothing is trained, so these have configurations of their own."""
    tasks = [text for text in overrides if text.startswith("task=")]
    if tasks not in ([DOWNSTREAM], [PHONEBOOK], *([text] for text in TEXTS)):
        given, known = ", ".join(tasks) or "no task", ", ".join([DOWNSTREAM, PHONEBOOK, *TEXTS])
        raise UserError(f"checkpoint= goes with {known}, not with {given}; give one of them")
    if flags.multirun:
        raise UserError(f"{tasks[0]} takes one checkpoint at a time; leave -m out")
    from evalkit.core import devices

    devices.use_every_core()
    devices.spare_memory()
    rest = [text for text in overrides if text not in tasks]
    if tasks == [DOWNSTREAM]:
        from evalkit.lm_eval import downstream

        return downstream.main(rest)
    if tasks[0] in TEXTS:
        from evalkit.session import texts

        return texts.main(overrides)
    from evalkit.session import lookup

    return lookup.main(rest)


def _hydra(arguments: list[str]) -> int:
    """Hands the command line to Hydra, which calls `job` once a run."""
    import hydra

    from evalkit.configuration import composition  # noqa: F401  it tells Hydra which presets there are

    command = hydra.main(version_base="1.3", config_path=str(catalogue.directory()), config_name="config")(job)
    try:
        with _as_command_line(arguments):
            command()
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    return 0


@contextmanager
def _as_command_line(arguments: list[str]) -> Iterator[None]:
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
    """One run in the folder that Hydra gives it; ends by SystemExit with the run's code unless that is 0.

    In a sweep a run that failed does not stop the others: it raises UserError, which Hydra keeps for the end.
    """
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    from evalkit.configuration.experiment import experiment, refuse_used
    from evalkit.session import run

    folder = Path(HydraConfig.get().runtime.output_dir)
    try:
        refuse_used(folder)
        code = run.start(experiment(config), folder)
    except UserError as error:
        code = _explain(error)
    if code and HydraConfig.get().mode is RunMode.MULTIRUN and code not in SIGNALS:
        raise UserError(f"a run of the sweep, {folder}, ended with exit code {code}")
    if code:
        raise SystemExit(code)


if __name__ == "__main__":
    sys.exit(main())
