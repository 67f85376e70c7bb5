"""`python -m evalkit -m hydra/sweeper=…`: another sweeper of Hydra's chooses the runs, by a number of each."""

from datetime import datetime
from functools import partial
from pathlib import Path
from traceback import extract_tb
from typing import TYPE_CHECKING

from evalkit.commands import sweep
from evalkit.core.errors import UserError, first_line

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from evalkit.configuration.composition import Composed
    from evalkit.configuration.experiment import Experiment
    from evalkit.configuration.grammar import Words
    from evalkit.reports.criterion import Criterion

SWEEPER, BASIC = "hydra/sweeper", "basic"
BY, DEFAULT = "by", "validation.accuracy"
DIRECTION = "hydra.sweeper.direction"


def chosen(words: "Words") -> bool:
    """Whether these words name a sweeper that asks each run for a number; raises UserError for `by=` without one."""
    from evalkit.configuration.grammar import value_of

    named = value_of(words, SWEEPER, BASIC) != BASIC
    if not named and (by := value_of(words, BY, None)) is not None:
        raise UserError(f"{BY}={by} is of a sweeper or a search; give {SWEEPER}=optuna, or evalkit search")
    return named


def ends(words: "Words") -> list[list[str]]:
    """The words of runs that together have each choice and each end of an interval; of one run if nothing is swept.

    Even then a sweeper may vary something, in settings of its own that only it reads.
    """
    from evalkit.configuration.grammar import parse, text_of
    from evalkit.configuration.space import at, corners, space_of

    texts = [text_of(word) for word in parse(words) if word.key_or_group != BY]
    if not any(word.is_sweep_override() for word in parse(texts)):
        return [texts]
    return [at(texts, values) for values in corners(space_of(texts))]


def main(words: "Words") -> int:
    """Has the sweeper choose runs until it has enough; raises UserError before the first for what cannot be built.

    A run's number is what `by=` names, as in `evalkit search`: by default the accuracy in validation. A run without
    one counts as failed; whether the sweep goes on then is the sweeper's own setting.
    """
    from rich.console import Console

    from evalkit.configuration import hydra_private
    from evalkit.configuration.composition import compose, whole
    from evalkit.configuration.grammar import parse, text_of, value_of
    from evalkit.configuration.overrides import overrides_of
    from evalkit.parallel.devices import use_every_core
    from evalkit.record.history import command_line
    from evalkit.record.wandb import check_before_several
    from evalkit.reports.criterion import Criterion
    from evalkit.reports.writer import say
    from evalkit.session import logs
    from evalkit.session.hints import near

    now, criterion = datetime.now(), Criterion.of(str(value_of(words, BY, DEFAULT)))
    texts = [text for text in sweep.typed(words, now) if parse([text])[0].key_or_group != BY]
    use_every_core()
    possible = ends(texts)
    first = compose(possible[0], job=0)
    experiments = [_checked(compose(end, job=number), end, criterion) for number, end in enumerate(possible)]
    check_before_several(sink for experiment in experiments for sink in experiment.outlets.values())
    if "direction" in first.hydra["sweeper"] and value_of(texts, DIRECTION, None) is None:
        texts += overrides_of({DIRECTION: criterion.direction})
    quiet = any(experiment.quiet for experiment in experiments)
    console = Console(stderr="format=json" in texts, quiet=quiet)
    named = parse([*texts, *sweep.names(texts, first, now), *([sweep.SILENT] if quiet else [])])
    of_runs = [text_of(word) for word in named if not word.is_hydra_override()]
    work = partial(number_of, command=command_line(), by=str(criterion))
    try:
        with logs.shown(console), sweep.ending_in_one_line(first.hydra["launcher"]["_target_"], first.sweep):
            hydra_private.multirun(of_runs, ends(named)[0], whole, work)
    except SystemExit as stop:  # of a run that a signal stopped
        return stop.code if isinstance(stop.code, int) else 1
    except UserError:
        raise
    except Exception as error:
        if any(frame.name == number_of.__name__ for frame in extract_tb(error.__traceback__)):
            raise  # of a run of ours, and no user's to mend
        raise UserError(f"the sweeper ended with: {first_line(error)}; its runs are in {near(first.sweep)}") from error
    say(console, f"judged by={criterion}; the runs, and what the sweeper says of them, are in {near(first.sweep)}")
    return 0


def _checked(composed: "Composed", words: "Words", criterion: "Criterion") -> "Experiment":
    """A run that the sweeper might choose, built; raises UserError for one that cannot be, or has no such number."""
    from evalkit.configuration.grammar import parse
    from evalkit.configuration.spec import Spec
    from evalkit.session.search import refuse_unmeasured

    if composed.choices.get("on_checkpoint") is not None or composed.config.get("checkpoint") is not None:
        raise UserError("a sweeper trains its runs, and checkpoint= is trained already; leave it out")
    experiment = Spec.composed(composed, parse(words)).experiment
    experiment.feed.prepare()
    criterion.refuse_unmeasured(experiment.feed)
    refuse_unmeasured(criterion, experiment)
    return experiment


def number_of(config: "DictConfig", command: str, by: str) -> float:
    """Does one run of the sweep and returns its number `by`; raises UserError where it failed or has no such number."""
    from evalkit.core.rows import read, record_file
    from evalkit.reports.criterion import Criterion

    ended = sweep.job(config, command)
    folder = Path(ended.folder)
    if record_file(folder) and not ended.code:
        record = read(folder)
        value = Criterion.of(by).value(record.rows, record.header.train_length)
        if value is not None:
            return value
    raise UserError(f"{folder} has no number of by={by}; see what it says above")
