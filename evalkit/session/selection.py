"""Which trial of a search its protocol chooses, by validation at the training length alone."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

from evalkit.configuration.spec import Spec
from evalkit.core import studies
from evalkit.core.errors import UserError
from evalkit.core.rows import FILE, read, with_records
from evalkit.evaluations.extrapolation.summary import summarise
from evalkit.record.files import write_text
from evalkit.record.packing import finished
from evalkit.reports.numbers import DASH
from evalkit.reports.terminal import print_table
from evalkit.session.plan import tokens

TOKEN_TOLERANCE = 1.1
"""Trials within this factor of the fewest tokens are ranked by their loss."""
HEADER = ["trial", "tokens to the level", "accuracy", "loss", ""]


class Trial(NamedTuple):
    """One seed at one rate: when it first had the level (None: never), and its last validation (None: not finite)."""

    name: str
    rate: float
    model: str
    finished: bool
    steps: int | None
    tokens: int | None
    accuracy: float | None
    loss: float | None


def select(folder: Path, level: float) -> dict[str, list[Trial]]:
    """The trials in `folder` by model, the chosen one first; raises UserError if there are none."""
    by_model: dict[str, list[Trial]] = {}
    for path in (path for path in with_records(folder) if path.parent == folder):
        for trial in trials_of(path, level):
            by_model.setdefault(trial.model, []).append(trial)
    if not by_model:
        raise UserError(f"no {FILE} in the folders of {folder}; give a search's, such as runs/fig6b_search/cpu")
    return {model: ranked(trials) for model, trials in by_model.items()}


def ranked(trials: Sequence[Trial]) -> list[Trial]:
    """The trials, the best first."""
    whole = [trial for trial in trials if trial.finished and trial.loss is not None]
    fewest = min((trial.tokens for trial in whole if trial.tokens is not None), default=0)

    def place(trial: Trial) -> tuple[float, ...]:
        if not trial.finished or trial.loss is None:
            return (3,)
        if trial.tokens is None:
            return (2, trial.loss)
        return (0, trial.loss) if trial.tokens <= TOKEN_TOLERANCE * fewest else (1, trial.tokens, trial.loss)

    return sorted(trials, key=place)


def trials_of(folder: Path, level: float, packages: Sequence[str] = ()) -> list[Trial]:
    """One trial for each learning rate of a run, from its rows; `level` is one of `LEVELS`.

    The run's code may come from `packages`. Nothing counts of a seed that skipped a step. Raises UserError for a folder
    that is no run, and for a run with several seeds at one rate.
    """
    experiment = Spec.saved(folder, packages=packages).experiment
    record, (_, training) = read(folder), experiment.trained
    by_seed = {one["seed"]: one for one in summarise(record)["seeds"]}
    if experiment.seeds != len(training.rates):
        raise UserError(f"{folder} has {experiment.seeds} seeds at one rate; a trial has one seed")
    lost = {row["seed"] for row in record.rows if row["metric"] == "skipped" and row["total"]}
    trials = []
    for seed, rate in zip(experiment.all_seeds, training.rates, strict=True):
        one = None if seed in lost else by_seed.get(seed)
        validation = one and one["validation"]
        steps = one and one["steps_to"][str(level)]
        accuracy, loss = (_finite(validation[name]) if validation else None for name in ("accuracy", "loss"))
        trials.append(
            Trial(
                name=folder.name if len(training.rates) == 1 else f"{folder.name} {rate:g}",
                rate=rate,
                model=experiment.model_name,
                finished=finished(folder),
                steps=steps,
                tokens=None if steps is None else tokens(experiment, 0, steps),
                accuracy=accuracy,
                loss=loss,
            )
        )
    return trials


def _finite(measured: float | None) -> float | None:
    return measured if measured is not None and math.isfinite(measured) else None


def write(folder: Path, level: float) -> None:
    """Prints a table a model, and writes `selection.json` into `folder` unless it is of a study; raises UserError."""
    by_model = select(folder, level)
    record = {model: [trial._asdict() for trial in trials] for model, trials in by_model.items()}
    text = json.dumps({"level": level, "trials": record}, indent=2, allow_nan=False)
    if studies.study_of(folder) is None:
        write_text(folder / "selection.json", text + "\n")
    console = Console()
    for model, trials in by_model.items():
        console.print(Text(model, style="bold"))
        print_table(console, HEADER, [_cells(trial) for trial in trials])


def _cells(trial: Trial) -> list[str]:
    reached = DASH if trial.tokens is None else f"{trial.tokens / 1e6:.2f} M ({trial.steps:,} steps)"
    accuracy = DASH if trial.accuracy is None else f"{trial.accuracy:.4f}"
    loss = DASH if trial.loss is None else f"{trial.loss:.5f}"
    return [trial.name, reached, accuracy, loss, "" if trial.finished else "not finished"]
