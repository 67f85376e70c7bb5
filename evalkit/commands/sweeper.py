"""`python -m evalkit -m hydra/sweeper=…`: another sweeper of Hydra's chooses the runs, by a number of each."""

from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalkit.commands import sweep
from evalkit.core.errors import UserError

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from evalkit.configuration.composition import Words

SWEEPER, BASIC = "hydra/sweeper", "basic"
BY, DEFAULT = "by", "validation.accuracy"
DIRECTION = "hydra.sweeper.direction"


def chosen(words: "Words") -> bool:
    """Whether these words name a sweeper that asks each run for a number; raises UserError for `by=` without one."""
    from evalkit.configuration.composition import parse, text_of

    texts = [text_of(word).partition("=") for word in parse(words)]
    values = {key.lstrip("+"): value for key, _, value in texts}
    named = values.get(SWEEPER, BASIC) != BASIC
    if BY in values and not named:
        raise UserError(f"{BY}={values[BY]} is of a sweeper or a search; give {SWEEPER}=optuna, or evalkit search")
    return named


def main(words: "Words") -> int:
    """Has the sweeper choose runs until it has enough; raises UserError before the first for what cannot be built.

    A run's number is what `by=` names, as in `evalkit search`: by default the accuracy in validation. A run without
    one counts as failed; whether the sweep goes on then is the sweeper's own setting.
    """
    from rich.console import Console

    from evalkit.configuration import hydra_private
    from evalkit.configuration.composition import compose, one_line, parse, text_of, whole
    from evalkit.configuration.overrides import overrides_of
    from evalkit.configuration.space import at, corners, space_of
    from evalkit.configuration.spec import Spec
    from evalkit.parallel.devices import use_every_core
    from evalkit.record.history import command_line
    from evalkit.reports.judged import Judged
    from evalkit.reports.writer import say
    from evalkit.session import logs
    from evalkit.session.hints import near

    now, command = datetime.now(), command_line()
    texts = sweep.typed(words, now)
    use_every_core()
    by = next((text.partition("=")[2] for text in texts if text.startswith(f"{BY}=")), DEFAULT)
    judged, texts = Judged.of(by), [text for text in texts if not text.startswith(f"{BY}=")]
    ends = [at(texts, values) for values in corners(space_of(texts))]
    first = compose(ends[0], job=0)
    for number, end in enumerate(ends):
        experiment = Spec.composed(compose(end, job=number), parse(end)).experiment
        judged.refuse_unmeasured(experiment.feed)
        experiment.feed.prepare()
    if "direction" in first.hydra["sweeper"] and not any(text.startswith(f"{DIRECTION}=") for text in texts):
        texts += overrides_of({DIRECTION: judged.direction})
    named = parse([*texts, *sweep.names(texts, first, now)])
    console = Console()
    of_runs = [text_of(word) for word in named if not word.is_hydra_override()]
    of_hydra = [text_of(word) for word in named if word.is_hydra_override()]
    first_job = [*of_hydra, *at(of_runs, corners(space_of(of_runs))[0])]
    try:
        with logs.shown(console), one_line():
            hydra_private.multirun(of_runs, first_job, whole, partial(number_of, command=command, by=by))
    except SystemExit as stop:  # of a run that a signal stopped
        return stop.code if isinstance(stop.code, int) else 1
    say(console, f"judged by={by}; the runs, and what the sweeper says of them, are in {near(first.sweep)}")
    return 0


def number_of(config: "DictConfig", command: str, by: str) -> float | None:
    """A run of the sweep, and what it is judged by; None where it failed or has no such number."""
    from evalkit.core.rows import read, record_file
    from evalkit.reports.judged import Judged

    ended = sweep.job(config, command)
    folder = Path(ended.folder)
    if ended.code or not record_file(folder):
        return None
    length: Any = config.task.get("length")
    return Judged.of(by).value(read(folder).rows, length)
