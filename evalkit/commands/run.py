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

from evalkit.commands import evaluate, guide, resume
from evalkit.configuration import catalogue
from evalkit.core.errors import UserError

if TYPE_CHECKING:
    from evalkit.session.sweeps import Ended

ABOUT = """\
Train and evaluate. A setting is key=value; quotes keep a list whole: 'eval.lengths=[512,65536]'.

  task=… model=…     what is trained on what; python -m evalkit lists them
  preset=…           the size; eval=… what is measured
  train.… eval.…     every part has its settings; --cfg job prints all of them with their values
  seeds=3            so many models, trained together; seed=7 is the first
  checkpoint=…       nothing is trained: a run, a released model's folder or its name on the hub is evaluated
  experiment=…       the runs behind a figure of the paper; with model=… one of them
  data.path=…        the text of task=books and task=arxiv
  wandb.…            where W&B gets it; wandb.mode=disabled leaves it out
  format=json        the last line of the output is one JSON object; quiet=true: nothing else but errors
  hydra.run.dir=…    the run's folder; with -m hydra.sweep.dir=…

~key leaves a setting out. A key that does not exist is refused with the nearest one that does."""
EXAMPLES = (
    "task=induction_heads model=griffin",
    "task=selective_copying model=hawk preset=cpu seeds=3 train.steps=2000",
    "-m task=induction_heads model=mqa,hawk,griffin 'eval.lengths=[256,1024]'",
    "task=phonebook checkpoint=google/recurrentgemma-2b dtype=bfloat16",
    "--cfg job -p train task=induction_heads model=griffin",
)
EXISTING = {"resume": resume, "evaluate": evaluate}
FOLDERS = (*EXISTING, "hydra.run.dir", "hydra.sweep.dir")
SIGNALS = (130, 143)
# Hydra names each run of a sweep as it starts.
SILENT = "hydra.hydra_logging.root.level=ERROR"
# Launchers of Hydra's that are packages of their own, and the extras that bring them.
LAUNCHERS = {
    "joblib": ("hydra-joblib-launcher", "joblib"),
    "submitit_local": ("hydra-submitit-launcher", "slurm"),
    "submitit_slurm": ("hydra-submitit-launcher", "slurm"),
}


def main(arguments: Sequence[str]) -> int:
    """Runs what the settings describe and returns the exit code; raises UserError before anything is written."""
    flags = _page().parse_intermixed_args(arguments)
    overrides = flags.overrides
    if (flags.package is not None or flags.resolve) and flags.cfg is None:
        raise UserError("-p and --resolve say how --cfg prints; give --cfg job, hydra or all as well")
    if flags.info or flags.hydra_help or flags.shell_completion:
        return _answered_by_hydra(flags)
    _refuse_no_folder(overrides)
    existing = [text for text in overrides if text.partition("=")[0] in EXISTING]
    if existing:
        verb, _, folder = existing[0].partition("=")
        if len(existing) > 1 or flags.multirun:
            raise UserError(f"{verb}=RUN takes one run at a time; give one {verb}=, without -m")
        rest = [text for text in overrides if text not in existing]
        if flags.cfg is not None:
            return _show_existing(flags, EXISTING[verb].run_folder(folder, verb), EXISTING[verb].changeable(), rest)
        return EXISTING[verb].existing(folder, rest)
    if flags.cfg is not None:
        return _show(flags)
    if flags.multirun:
        return _sweep(overrides)
    if _is_whole_experiment(overrides):
        from evalkit.core import devices
        from evalkit.session import experiments

        _refuse_without_effect(overrides)
        devices.use_every_core()
        return experiments.main(overrides)
    return _run(overrides)


def _refuse_no_folder(overrides: Sequence[str]) -> None:
    """Raises UserError for a folder that is named by nothing, which would be the current one."""
    for text in overrides:
        name, equals, folder = text.lstrip("+").partition("=")
        if name in FOLDERS and equals and not folder.strip("'\" "):
            raise UserError(f"{name}= names no folder; give one, such as {name}=runs/<task>/<model>/<time>")


def _page() -> guide.Page:
    page = guide.Page("run", ABOUT, *EXAMPLES, usage="[-m] [--config-dir DIR] [--cfg job] key=value …")
    page.add_argument("overrides", nargs="*", metavar="key=value", help="a setting")
    page.add_argument("-m", "--multirun", action="store_true", help="a run of each of several values: seed=1,2")
    page.add_argument("--config-dir", metavar="DIR", help="a folder of your own with task/, model/, eval/, recipe/, …")
    page.add_argument("--cfg", "-c", choices=["job", "hydra", "all"], help="print the settings, and run nothing")
    page.add_argument("-p", "--package", metavar="KEY", help="of --cfg: this part alone")
    page.add_argument("--resolve", action="store_true", help="of --cfg: with ${…} replaced by what it stands for")
    page.add_argument("-i", "--info", nargs="?", const="all", metavar="WHAT", help="how Hydra finds the configuration")
    page.add_argument("--hydra-help", action="store_true", help="Hydra's own flags and plugins")
    page.add_argument("-sc", "--shell-completion", action="store_true", help="completion of words in a shell")
    return page


def _answered_by_hydra(flags: argparse.Namespace) -> int:
    """What Hydra answers by itself, without a run."""
    from evalkit.configuration.composition import compose, one_line

    if flags.info:
        compose(flags.overrides)  # what cannot be composed is told before anything is printed
    own = ["--info", flags.info] if flags.info else ["--hydra-help"] if flags.hydra_help else ["-sc"]
    with one_line():
        return _hydra([*own, *flags.overrides])


def _show(flags: argparse.Namespace) -> int:
    """Prints the configuration of the run, or of each run of a sweep, that these settings would start."""
    from evalkit.configuration import complete
    from evalkit.configuration.composition import combinations
    from evalkit.configuration.experiment import compose

    for combination in combinations(flags.overrides) if flags.multirun else [flags.overrides]:
        if flags.multirun:
            print("---")
        composed = compose(combination)
        print(complete.shown(composed.config, composed.hydra, flags.cfg, flags.package, flags.resolve), end="")
    return 0


def _show_existing(flags: argparse.Namespace, folder: Path, allowed: Sequence[str], overrides: Sequence[str]) -> int:
    """Prints the configuration of a run that goes on, or is evaluated again, with these settings."""
    from omegaconf import OmegaConf

    from evalkit.configuration import complete
    from evalkit.configuration.saved import from_file

    if flags.cfg != "job":
        raise UserError(f"--cfg {flags.cfg}: an existing run has no configuration of Hydra's; give --cfg job")
    rest = [text for text in overrides if not text.startswith("step=")]
    config = OmegaConf.create(from_file(folder / "config.yaml", rest, allowed).config)
    print(complete.shown(config, {}, "job", flags.package, flags.resolve), end="")
    return 0


def _run(overrides: Sequence[str]) -> int:
    """One run: composed once, built once."""
    from evalkit.configuration.experiment import compose, prepared, refuse_used
    from evalkit.core import devices

    composed = compose(overrides)
    _refuse_without_effect(overrides)
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


def _is_whole_experiment(overrides: Sequence[str]) -> bool:
    """Whether all its runs are meant; with a model= it is one of them, as any other run."""
    named = {text.partition("=")[0] for text in overrides if not text.endswith("=null")}
    return "experiment" in named and not named & {"model", "checkpoint"}


def _refuse_without_effect(overrides: Sequence[str]) -> None:
    """Raises UserError for a key of Hydra's that says nothing about a single run."""
    from evalkit.configuration.composition import parse

    parsed = [override for override in parse(overrides) if override.is_hydra_override()]
    folders = "".join(str(override.value()) for override in parsed if override.key_or_group == "hydra.run.dir")
    for override in parsed:
        key = override.key_or_group
        if key not in ("hydra.run.dir", "hydra.searchpath") and key not in folders:  # ${hydra.job.name} may be in it
            kind = "is of a sweep" if key.startswith("hydra.sweep") else "changes nothing"
            raise UserError(f"{override.input_line} {kind}; give hydra.run.dir=FOLDER, or -m for a sweep")


def _hydra(arguments: Sequence[str]) -> int:
    """Hands the command line to Hydra, which answers by itself."""
    import hydra

    from evalkit.configuration import composition  # noqa: F401  it tells Hydra which presets there are

    command = hydra.main(version_base="1.3", config_path=str(catalogue.directory()), config_name="config")(job)
    try:
        with _as_command_line(arguments):
            command()
    except SystemExit as stop:
        return guide.exit_code(stop)
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
