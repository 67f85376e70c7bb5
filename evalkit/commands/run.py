"""`python -m evalkit task=… model=…`: a run, a sweep with `-m`, a figure's runs with `experiment=…`."""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from evalkit.commands import existing, guide, sweep
from evalkit.configuration import catalogue
from evalkit.core.errors import UserError

if TYPE_CHECKING:
    from evalkit.configuration.composition import Words

ABOUT = """\
Train and evaluate. A setting is key=value; quotes keep a list whole: 'eval.lengths=[512,65536]'.

  task=… model=…     what is trained on what; python -m evalkit lists them
  preset=…           the size; eval=… what is measured
  train.… eval.…     every part has its settings; --cfg job prints all of them with their values
  seeds=3            so many models, trained together; seed=7 is the first
  checkpoint=…       nothing is trained: a run, a released model's folder or its name on the hub is evaluated
  experiment=…       the runs behind a figure of the paper; with model=… one of them
  data.path=…        the text of task=books and task=arxiv
  log=[wandb]        where the rows go besides: wandb, tensorboard, your own, or log=[]
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
FOLDERS = (*existing.VERBS, "hydra.run.dir", "hydra.sweep.dir")


def main(arguments: Sequence[str]) -> int:
    """Runs what the settings describe and returns the exit code; raises UserError before anything is written.

    Options (words among the settings that are no settings of the run):
      resume: the folder of a run, which goes on exactly where it stopped.
      evaluate: the folder of a run, which is evaluated again, without training.
      step: with `evaluate=`, the training step of a checkpoint that was kept; left out, the newest.
      dry_run: `true`, with `experiment=`: its runs and an estimate of their time are shown, and none is run.
      hydra.run.dir: the run's folder; left out, `runs/<task>/<model>/<time>`.
      hydra.sweep.dir: with `-m`, the folder of all its runs; left out, `runs`.
    """
    flags = _page().parse_intermixed_args(arguments)
    overrides = flags.overrides
    if (flags.package is not None or flags.resolve) and flags.cfg is None:
        raise UserError("-p and --resolve say how --cfg prints; give --cfg job, hydra or all as well")
    if flags.info or flags.hydra_help or flags.shell_completion:
        return _answered_by_hydra(flags)
    _refuse_no_folder(overrides)
    named = [text for text in overrides if text.partition("=")[0] in existing.VERBS]
    if named:
        verb, _, folder = named[0].partition("=")
        if len(named) > 1 or flags.multirun:
            raise UserError(f"{verb}=RUN takes one run at a time; give one {verb}=, without -m")
        rest = [text for text in overrides if text not in named]
        if flags.cfg is not None:
            return _show_existing(flags, existing.run_folder(folder, verb), existing.changeable(verb), rest)
        return existing.go_on(verb, folder, rest)
    if flags.cfg is not None:
        return _show(flags)
    _refuse_dry_run(overrides)
    _refuse_distributed(overrides, flags.multirun)
    if flags.multirun:
        if _is_whole_experiment(overrides):
            one = "" if _is_suite(overrides) else ", or give a model= as well"
            raise UserError(f"experiment= has its own runs; leave -m out{one}")
        return sweep.main(overrides)
    if _is_whole_experiment(overrides):
        from evalkit.parallel import devices
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
    from evalkit.configuration.composition import compose, for_hydra, one_line

    if flags.info:
        compose(flags.overrides)  # what cannot be composed is told before anything is printed
    own = ["--info", flags.info] if flags.info else ["--hydra-help"] if flags.hydra_help else ["-sc"]
    with one_line():
        return _hydra([*own, *for_hydra(flags.overrides)])


def _show(flags: argparse.Namespace) -> int:
    """Prints the configuration of the run, or of each run of a sweep, that these settings would start."""
    from evalkit.configuration.composition import combinations
    from evalkit.configuration.experiment import compose
    from evalkit.configuration.shown import shown

    for combination in combinations(flags.overrides) if flags.multirun else [flags.overrides]:
        if flags.multirun:
            print("---")
        composed = compose(combination)
        print(shown(composed.config, composed.hydra, flags.cfg, flags.package, flags.resolve), end="")
    return 0


def _show_existing(flags: argparse.Namespace, folder: Path, allowed: Sequence[str], overrides: Sequence[str]) -> int:
    """Prints the configuration of a run that goes on, or is evaluated again, with these settings."""
    from omegaconf import OmegaConf

    from evalkit.configuration.saved import from_file
    from evalkit.configuration.shown import shown

    if flags.cfg != "job":
        raise UserError(f"--cfg {flags.cfg}: an existing run has no configuration of Hydra's; give --cfg job")
    rest = [text for text in overrides if not text.startswith("step=")]
    config = OmegaConf.create(from_file(folder / "config.yaml", rest, allowed).config)
    print(shown(config, {}, "job", flags.package, flags.resolve), end="")
    return 0


def _run(overrides: Sequence[str]) -> int:
    """One run: composed once, built once."""
    from evalkit.configuration.composition import parse, plain
    from evalkit.configuration.experiment import compose, prepared, refuse_used
    from evalkit.parallel import devices, peers
    from evalkit.parallel.layouts import connection

    words = parse(overrides)
    composed = compose(words)
    _refuse_without_effect(words)
    devices.use_every_core()
    with connection.connected(plain(composed.config)["distributed"]):
        # By the clock of the first process, which is the one that may find a run there.
        folder = Path(peers.agreed(str(composed.folder)))
        if peers.first():
            refuse_used(folder)
        experiment = prepared(composed)
        from evalkit.session import run

        return run.start(experiment, folder.absolute())


def _is_whole_experiment(overrides: Sequence[str]) -> bool:
    """Whether all its runs are meant; with a model= it is one of them, as any other run."""
    named = _named(overrides)
    return "experiment" in named and "checkpoint" not in named and ("model" not in named or _is_suite(overrides))


def _is_suite(overrides: Sequence[str]) -> bool:
    """Whether the experiment is one whose tasks and models are chosen by `task=` and `model=`."""
    from evalkit.configuration.composition import own_folder

    return catalogue.is_suite(_named(overrides)["experiment"], own_folder(overrides))


def _named(overrides: Sequence[str]) -> dict[str, str]:
    """Each key with its text, but for those that are null."""
    return {text.partition("=")[0]: text.partition("=")[2] for text in overrides if not text.endswith("=null")}


def _refuse_dry_run(overrides: Sequence[str]) -> None:
    """Raises UserError for `dry_run=` where there is no list to show."""
    asked = [text for text in overrides if text.lstrip("+").startswith("dry_run=")]
    if asked and not _is_whole_experiment(overrides):
        raise UserError(f"{asked[0]} lists the runs of experiment=… without model=; --cfg job shows one run's settings")


def _refuse_distributed(overrides: Sequence[str], multirun: bool) -> None:
    """Raises UserError for `distributed=` that names no processes, or of anything but one run that trains."""
    asked = [text for text in overrides if text.lstrip("+").partition("=")[0] == "distributed"]
    if not asked:
        return
    if multirun or _is_whole_experiment(overrides) or "checkpoint" in _named(overrides):
        raise UserError(f"{asked[0]}: several processes train one model together; give one run, with task= and model=")
    from evalkit.configuration.composition import parse
    from evalkit.parallel.layouts import connection

    try:  # before the types of all settings, which would say less of it
        connection.check(parse(asked)[-1].value())
    except ValueError as error:
        raise UserError(str(error)) from error


def _refuse_without_effect(words: "Words") -> None:
    """Raises UserError for a key of Hydra's that says nothing about a single run."""
    from evalkit.configuration.composition import parse

    parsed = [override for override in parse(words) if override.is_hydra_override()]
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

    main = hydra.main(version_base="1.3", config_path=str(catalogue.directory()), config_name="config")
    command = main(lambda config: sweep.job(config, list(arguments)))
    try:
        with _as_command_line(arguments):
            command()
    except SystemExit as stop:
        return guide.exit_code(stop)
    return 0


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
