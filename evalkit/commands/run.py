"""`python -m evalkit task=… model=…`: a run, a sweep with `-m`, a figure's runs with `experiment=…`."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from evalkit.commands import guide, sweep, sweeper
from evalkit.configuration import catalogue
from evalkit.configuration.request import VERBS, Request
from evalkit.core.errors import UserError, typed_path

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

    from evalkit.configuration.spec import Spec

ABOUT = """\
Train and evaluate. A setting is key=value; quotes keep a list whole: 'eval.lengths=[512,65536]'.

  task=… model=…     what is trained on what; python -m evalkit lists them
  preset=…           the size; eval=… what is measured
  train.… eval.…     every part has its settings; --cfg job prints all of them with their values
  seeds=3            so many models, trained together; seed=7 is the first
  checkpoint=…       nothing is trained: a run, a released model's folder or its name on the hub is evaluated
  experiment=…       the runs behind a figure of the paper; with model=… one of them
  data.path=…        the text of task=books and task=arxiv
  'log=[wandb]'      where the rows go besides: wandb, tensorboard, your own; 'log=[]' for none
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
FOLDERS = (*VERBS, "hydra.run.dir", "hydra.sweep.dir")
FLAGS = ("--cfg", "--package", "--info", "--resolve", "--multirun", "--hydra-help", "--shell-completion")
"""Flags of this command's, none of which is a setting."""


def main(arguments: Sequence[str]) -> int:
    """Runs what the settings describe and returns the exit code; raises UserError before anything is written.

    Options (words among the settings that are no settings of the run):
      resume: the folder of a run, which goes on exactly where it stopped.
      evaluate: the folder of a run, which is evaluated again, without training.
      step: with `evaluate=`, the training step of a checkpoint that was kept; left out, the newest.
      dry_run: `true`, with `experiment=`: its runs and an estimate of their time are shown, and none is run.
      by: with `-m` and `hydra/sweeper=`, what a run is judged by; left out, `validation.accuracy`.
      hydra.run.dir: the run's folder; left out, `runs/<task>/<model>/<time>`.
      hydra.sweep.dir: with `-m`, the folder of all its runs; left out, `runs`.
    """
    _refuse_hyphens(arguments)
    flags = _page().parse_intermixed_args(arguments)
    if (flags.package is not None or flags.resolve) and flags.cfg is None:
        raise UserError("-p and --resolve say how --cfg prints; give --cfg job, hydra or all as well")
    if flags.info or flags.hydra_help or flags.shell_completion:
        return _answered_by_hydra(flags)
    guide.refuse_no_folder(flags.overrides, FOLDERS)
    return _done(Request.of(flags.overrides), flags)


def _done(request: Request, flags: argparse.Namespace) -> int:
    """Does what is asked for, or shows its settings."""
    if request.verb is not None:
        if flags.multirun:
            raise UserError(f"{request.verb}=RUN takes one run at a time; give one {request.verb}=, without -m")
        return _go_on(request) if flags.cfg is None else _show_existing(flags, request)
    if flags.cfg is not None:
        return _show(flags)
    from evalkit.configuration.grammar import parse

    words = parse(request.settings)
    is_whole = _is_whole_experiment(words)
    if request.dry_run is not None and not is_whole:
        shown = f"dry_run={str(request.dry_run).lower()}"
        raise UserError(f"{shown} lists the runs of experiment=… without model=; --cfg job shows one run's settings")
    _refuse_distributed(words, flags.multirun or is_whole)
    if flags.multirun:
        if is_whole:
            one = "" if _is_suite(words) else ", or give a model= as well"
            raise UserError(f"experiment= has its own runs; leave -m out{one}")
        for word in words:
            if word.key_or_group == "hydra.run.dir":
                raise UserError(
                    f"{word.input_line} is of a single run; give hydra.sweep.dir=FOLDER, in which each has its own"
                )
        return (sweeper if sweeper.chosen(words) else sweep).main(words)
    if not is_whole:
        return _run(words)
    from evalkit.configuration.experiment import AUTO
    from evalkit.configuration.grammar import value_of
    from evalkit.parallel import devices
    from evalkit.session import experiments
    from evalkit.session.compilation import keep_programs

    _refuse_without_effect(words)
    devices.use_every_core()
    if not request.dry_run:
        keep_programs(value_of(words, "compilation_cache", AUTO))
    return experiments.main(words, dry_run=bool(request.dry_run))


def _refuse_hyphens(words: Sequence[str]) -> None:
    """Raises UserError for a setting that is written as a flag, as a sweep of W&B's writes it by default."""
    for word in words:
        key, equals, _ = word.partition("=")
        if key.startswith("--") and equals and key not in FLAGS:
            raise UserError(
                f"{word}: a setting has no hyphens; give {word.lstrip('-')}, and in the command of a sweep of W&B's "
                "${args_no_hyphens}"
            )


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
    from evalkit.configuration import hydra_private
    from evalkit.configuration.composition import compose
    from evalkit.configuration.grammar import for_hydra
    from evalkit.configuration.nodes import one_line

    if flags.info:
        compose(flags.overrides)  # what cannot be composed is told before anything is printed
    own = ["--info", flags.info] if flags.info else ["--hydra-help"] if flags.hydra_help else ["-sc"]
    with one_line():
        words = flags.overrides if flags.shell_completion else for_hydra(flags.overrides)
        hydra_private.answer(catalogue.directory(), [*own, *words])
    return 0


def _show(flags: argparse.Namespace) -> int:
    """Prints the configuration of the run, or of each run of a sweep, that these settings would start."""
    from evalkit.configuration.composition import compose
    from evalkit.configuration.grammar import ALLOW, combinations, parse
    from evalkit.configuration.shown import shown
    from evalkit.configuration.spec import Spec

    several = sweeper.ends if flags.multirun and sweeper.chosen(flags.overrides) else combinations
    for number, combination in enumerate(several(flags.overrides) if flags.multirun else [flags.overrides]):
        if flags.multirun:
            print("---")
        words = parse(combination)
        composed = compose(words, job=number if flags.multirun else None)
        composed.config[ALLOW] = Spec.composed(composed, words).packages
        print(shown(composed.config, composed.hydra, flags.cfg, flags.package, flags.resolve), end="")
    return 0


def _show_existing(flags: argparse.Namespace, request: Request) -> int:
    """Prints the configuration of a run that goes on, or is evaluated again, with these settings."""
    from omegaconf import OmegaConf

    from evalkit.configuration.grammar import parse
    from evalkit.configuration.shown import shown

    if flags.cfg != "job":
        raise UserError(f"--cfg {flags.cfg}: an existing run has no configuration of Hydra's; give --cfg job")
    config = OmegaConf.create(_saved(request, parse(request.settings)).experiment.config)
    print(shown(config, {}, "job", flags.package, flags.resolve), end="")
    return 0


def _run(words: "Sequence[Override]") -> int:
    """One run: read once, composed once, built once."""
    from evalkit.configuration.spec import Spec
    from evalkit.parallel import devices, peers
    from evalkit.parallel.layouts import connection

    spec = Spec.of(words)
    _refuse_without_effect(words)
    devices.use_every_core()
    with connection.connected(spec.plain["distributed"]):
        # All processes use the folder of the first, whose clock names it and which checks that no run is there.
        folder = Path(peers.agreed(str(spec.folder)))
        if folder != spec.folder:
            spec = Spec.of(words, folder=folder)
        from evalkit.session import run
        from evalkit.session.compilation import keep_programs

        keep_programs(spec.plain["compilation_cache"])
        return run.start(spec).print_result(spec.plain["format"])


def _go_on(request: Request) -> int:
    """Resumes or evaluates a run with the settings of it that may change, and returns the exit code."""
    from evalkit.configuration.grammar import parse, value_of
    from evalkit.parallel import devices
    from evalkit.parallel.layouts import connection

    words = parse(request.settings)
    resumes = request.verb == "resume"
    devices.use_every_core()
    with connection.connected(resumes and value_of(words, "distributed", False)):
        spec = _saved(request, words)
        from evalkit.session import run
        from evalkit.session.compilation import keep_programs

        keep_programs(spec.plain["compilation_cache"])
        outcome = run.resume(spec) if resumes else run.evaluate(spec, request.step)
    return outcome.print_result(spec.plain["format"])


def _saved(request: Request, words: "Sequence[Override]") -> "Spec":
    """The existing run with these changes; raises UserError for a folder without a run, and for a fixed setting."""
    from evalkit.configuration.saved import EVALUABLE, RESUMABLE
    from evalkit.configuration.spec import Spec

    allowed = RESUMABLE if request.verb == "resume" else EVALUABLE
    return Spec.saved(typed_path(request.run), words, allowed=allowed)


def _is_whole_experiment(words: "Sequence[Override]") -> bool:
    """Whether the words name all runs of an experiment; with a model they name a single run, except in a suite."""
    named = _named(words)
    is_single = not named.keys().isdisjoint(("model", "mixer"))
    return "experiment" in named and "checkpoint" not in named and (not is_single or _is_suite(words))


def _is_suite(words: "Sequence[Override]") -> bool:
    """Whether the experiment is one whose tasks and models are chosen by `task=` and `model=`."""
    from evalkit.configuration.grammar import own_folder

    return catalogue.is_suite(str(_named(words)["experiment"]), own_folder(words))


def _named(words: "Sequence[Override]") -> dict[str, str]:
    """The text of each value that is set and not null, by its key."""
    texts = {word.key_or_group: (word.input_line or "").partition("=")[2] for word in words}
    return {key: text for key, text in texts.items() if text != "null"}


def _refuse_distributed(words: "Sequence[Override]", several: bool) -> None:
    """Raises UserError for `distributed=` that names no processes, or of anything but one run that trains."""
    typed = [word for word in words if word.key_or_group == "distributed"]
    if not typed:
        return
    if several or "checkpoint" in _named(words):
        line = typed[0].input_line
        raise UserError(f"{line}: several processes train one model together; give one run, with task= and model=")
    from evalkit.parallel.layouts import connection

    try:  # before the check of all types, whose message says less
        connection.check(typed[-1].value())
    except ValueError as error:
        raise UserError(str(error)) from error


def _refuse_without_effect(words: "Sequence[Override]") -> None:
    """Raises UserError for a key of Hydra's that says nothing about a single run."""
    of_hydra = [word for word in words if word.is_hydra_override()]
    values = " ".join((word.input_line or "").partition("=")[2] for word in words).replace("${hydra:", "${hydra.")
    for word in of_hydra:
        key = word.key_or_group
        named = "hydra.job.override_dirname" if key.startswith("hydra.job.config.override_dirname") else key
        if key not in ("hydra.run.dir", "hydra.searchpath") and named not in values:  # ${hydra.job.name} may be in one
            kind = "is of a sweep" if key.startswith("hydra.sweep") else "changes nothing"
            raise UserError(f"{word.input_line} {kind}; give hydra.run.dir=FOLDER, or -m for a sweep")
