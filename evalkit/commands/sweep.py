"""`python -m evalkit -m …`: a run of each of several values, listed and compared at the end."""

import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalkit.core.errors import UserError, first_line

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from evalkit.configuration.composition import Composed
    from evalkit.configuration.grammar import Words
    from evalkit.session.sweeps import Ended

# Hydra names each run of a sweep as it starts.
SILENT = "hydra.hydra_logging.root.level=ERROR"
# Launchers of Hydra's that are packages of their own, and the extras that bring them.
LAUNCHERS = {
    "joblib": ("hydra-joblib-launcher", "joblib"),
    "submitit_local": ("hydra-submitit-launcher", "slurm"),
    "submitit_slurm": ("hydra-submitit-launcher", "slurm"),
}
NOW, TIME = re.compile(r"\$\{now:([^}]*)\}"), "%Y-%m-%d_%H-%M-%S-%f"
NOT_IN_NAME = "hydra.job.config.override_dirname.exclude_keys"
SUBMITIT, SUBMITIT_FOLDER = ".submitit", "hydra.launcher.submitit_folder"


def main(words: "Words") -> int:
    """Runs a sweep; before Hydra starts the first run, all are built, so that an impossible one is refused in time.

    Ends with a list of the runs and their comparison; returns the code of the first that failed.
    """
    from rich.console import Console

    from evalkit.configuration import hydra_private
    from evalkit.configuration.composition import compose, whole
    from evalkit.configuration.grammar import combinations, parse, text_of
    from evalkit.configuration.spec import Spec
    from evalkit.parallel import devices
    from evalkit.record.history import command_line

    now = datetime.now()
    texts = typed(words, now)
    devices.use_every_core()
    first = compose(combinations(texts)[0], job=0)
    texts += names(texts, first, now)
    experiments, places = [], dict[str, int]()
    for number, combination in enumerate(combinations(texts)):
        of_run = parse(combination)
        composed = compose(of_run, job=number)
        if composed.choices.get("on_checkpoint") is not None:
            raise UserError(f"task={composed.choices['on_checkpoint']} takes one checkpoint at a time; leave -m out")
        experiments.append(Spec.composed(composed, of_run).experiment)
        place = str(composed.hydra["runtime"]["output_dir"])
        if place in places:
            raise UserError(
                f"runs {places[place]} and {number} of the sweep both write into {place}; give another "
                "hydra.sweep.subdir, such as '${hydra:job.num}'"
            )
        places[place] = number
    from evalkit.record.wandb import check_before_several
    from evalkit.session import logs, sweeps

    check_before_several(sink for experiment in experiments for sink in experiment.outlets.values())
    for experiment in experiments:
        experiment.feed.prepare()
    quiet = any(experiment.quiet for experiment in experiments)
    console = Console(stderr="format=json" in texts, quiet=quiet)
    hydra, folder = first.hydra, first.sweep
    named = parse([*texts, *([SILENT] if quiet else [])])
    try:
        with logs.shown(console), ending_in_one_line(hydra["launcher"]["_target_"], folder):
            of_runs = [text_of(word) for word in named if not word.is_hydra_override()]
            work = partial(job, command=command_line())
            ended = hydra_private.multirun(of_runs, combinations(named)[0], whole, work)
    except SystemExit as stop:  # of a run that a signal stopped
        return stop.code if isinstance(stop.code, int) else 1
    sweeps.conclude(ended, console)
    return next((one.code for one in ended if one.code), 0)


def typed(words: "Words", now: datetime) -> list[str]:
    """The words of a sweep that begins now; raises UserError for a launcher of Hydra's that is not there."""
    from evalkit.configuration.grammar import parse, text_of

    texts = [_at(now, text_of(word)) for word in parse(words)]
    _refuse_missing_launcher(texts)
    return texts


def job(config: "DictConfig", command: str) -> "Ended":
    """Does one run of a sweep in the folder that Hydra gives it; a requeued job goes on with the run there.

    Hydra composed `config`, which was checked against the constructors before the sweep began. `command` is that of the
    sweep, since a launcher's process has another. A run that failed does not stop the others; a signal ends the sweep
    by SystemExit.
    """
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import OmegaConf

    from evalkit.configuration import grammar, nodes
    from evalkit.configuration.spec import Spec
    from evalkit.parallel import devices
    from evalkit.session import run
    from evalkit.session.compilation import keep_programs
    from evalkit.session.sweeps import Ended

    devices.use_every_core()
    hydra = HydraConfig.get()
    folder = Path(hydra.runtime.output_dir)
    try:
        typed: Any = OmegaConf.to_container(hydra.overrides, resolve=False)
        own = [word for word in typed["hydra"] if word.startswith("hydra.searchpath=")]
        words = grammar.parse([*typed["task"], *own])
        spec = Spec.of_plain(nodes.plain(config), words, folder, command)
        keep_programs(spec.plain["compilation_cache"])
        outcome = run.start_or_resume(spec)
    except UserError as error:
        print(f"evalkit: {error}", file=sys.stderr)
        return Ended(str(folder), error.exit_code)
    code = outcome.print_result(spec.plain["format"])
    if outcome.stopped_by is not None:
        raise SystemExit(code)
    return Ended(str(folder), code)


@contextmanager
def ending_in_one_line(launcher: str, folder: Path) -> Iterator[None]:
    """If a sweep ends before its runs do, says in one line what to do next; `launcher` is the class of its launcher."""
    from evalkit.record.history import pasteable
    from evalkit.session.hints import near

    left = f"compare what is finished with: {pasteable('compare', str(near(folder)))}"
    try:
        yield
    except KeyboardInterrupt:
        jobs = "; jobs that were submitted go on" if "submitit" in launcher else ""
        print(f"evalkit: stopped{jobs}; {left}", file=sys.stderr)
        raise
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in ("submitit", "joblib"):
            raise
        raise UserError(f"a job ended without a result: {first_line(error)}; {left}") from error


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


def _at(now: datetime, text: str) -> str:
    """The text with `${now:…}` replaced by the time at which the sweep begins.

    Otherwise each job would read the clock when it runs, and a requeued job would not find its folder again.
    """
    return NOW.sub(lambda match: f"{now:{match[1]}}", text)


def names(overrides: Sequence[str], first: "Composed", now: datetime) -> list[str]:
    """Overrides that name each run's folder, submitit's folder and W&B's group by the time at which the sweep begins.

    submitit's folder needs it because `submitit_local` names jobs by process numbers, which may repeat. `first` is the
    configuration of the first job. A group that the user or W&B's own variable has set stays.
    """
    from evalkit.configuration.overrides import overrides_of
    from evalkit.record.wandb_names import cut

    hydra = first.hydra
    typed = {text.lstrip("+").partition("=")[0] for text in overrides}
    named: dict[str, Any] = {"hydra.sweep.subdir": _at(now, hydra["sweep"]["subdir"])}
    if SUBMITIT_FOLDER.rpartition(".")[2] in hydra["launcher"] and SUBMITIT_FOLDER not in typed:
        named[SUBMITIT_FOLDER] = f"${{hydra.sweep.dir}}/{SUBMITIT}/{now:{TIME}}/%j"
    if first.config["wandb"]["group"] is None and "WANDB_RUN_GROUP" not in os.environ:
        own = first.sweep.resolve().name if "hydra.sweep.dir" in typed else f"{now:{TIME}}"
        excluded = hydra["job"]["config"]["override_dirname"]["exclude_keys"]
        named |= {"wandb.group": cut(f"sweep-{own}"), NOT_IN_NAME: [*excluded, "wandb.group"]}
    return overrides_of(named)
