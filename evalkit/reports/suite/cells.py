"""What a suite's report is made of: a cell is one task with one model of one state size, its seeds and its trials."""

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from evalkit.core import studies
from evalkit.core.rows import read, record_file
from evalkit.core.statistics import wilson
from evalkit.evaluations.extrapolation.summary import summarise
from evalkit.record import history
from evalkit.record.files import RESULTS, times_of
from evalkit.reports.along import tokens_seen
from evalkit.reports.numbers import Point

KEPT = Path(__file__).with_name("kept.json")
FINAL = "final"
SEARCHES = GRID, LOWER, HIGHER = ("rates", "rates_lower", "rates_higher")
"""The runs of a cell: `FINAL` with fresh seeds, and searches over the rates of its grid, below it and above it."""
SOLVED = 0.99
WORKS = 0.9
"""A rate works if its accuracy above the floor is at least this share of the best rate's."""
CHANGING = (
    *("task.", "task={", "train.", "train={", "eval.", "eval=", "suite.", "quick=", "scale="),
    *("matmul_precision=", "parameters="),
)
"""How words begin that may change how a cell is trained, which `Cell.typed` keeps."""
PLACED = re.compile(r"[\w/]+@(task|train|eval)\b")
"""As `CHANGING`: an option that is put there, such as `optimizer@train.optimizer=mine`."""
OF_A_MODEL = ("model.", "model={")
"""How words begin that make another model of one that is kept; one's own model is what its words say."""
SHOWING = (
    *("suite.controls", "+suite.controls", "~suite.controls", "quick=false"),
    *("train.microbatch=", "train.gather=", "train.keep_every=", "train.checkpoint_every=", "eval.batch_size="),
)
"""Exceptions, which change no number, or what the board shows."""
OTHER_CELLS = ("~suite.sizes", "~suite.tasks", "~suite.models.", "+suite.models.", "+suite.sizes.", "+suite.tasks.")
"""Exceptions, which add or leave out cells, and change none that stays."""
OF_CELLS: Mapping[str, Sequence[str | None]] = {
    "tasks": (None, "task"),
    "models": ("model",),
    "models_on": ("task", "model"),
    "sizes": ("task", "size", "model"),
    "floors": (None, "task"),
}
"""What the names in `suite.models_on.TASK.MODEL` and its like say of the cells that they change; None for a preset."""
SEARCHING = ("quick=", "suite.quick", "suite.rates", "suite.seed", "suite.search_seed")
"""How words begin that set the rates and the seeds of a cell."""


@dataclass(frozen=True)
class Measured:
    """Accuracy of one seed at one length, or at positions `first` to `last` of it, with its 95% interval."""

    length: int
    seed: int
    accuracy: float
    low: float
    high: float
    first: int | None = None
    last: int | None = None

    def point(self, x: int) -> Point:
        """The same for a figure, at `x`."""
        return Point(x, self.accuracy, self.low, self.high)


@dataclass(frozen=True)
class RateTrial:
    """One seed at one learning rate: accuracy and loss (nats) at the training length; None where it was no number.

    `low` is the lower end of the accuracy's 95% interval over the sequences that were asked.
    """

    rate: float
    accuracy: float | None
    loss: float | None
    low: float | None = None

    def is_above(self, floor: float) -> bool:
        """Whether it is better than a guess, by more than the choice of sequences explains."""
        return self.accuracy is not None and (self.accuracy if self.low is None else self.low) > floor


@dataclass(frozen=True)
class Cell:
    """One task with one model: what it costs, and what its final seeds and its trials measured.

    `size` names a state size other than the model's own, such as `small`; such a cell has no trials. `typed` has the
    words of its command that changed the suite's task, training or protocol. Each seed trains on `tokens` tokens;
    `tokens_to_solve` is the median of the tokens after which a seed's validation accuracy first reaches `SOLVED` (None:
    most seeds never reach it). `seconds` is the time of all its training. Samples of another `task_version` differ.
    """

    task: str
    model: str
    size: str | None
    preset: str
    parameters: int | None
    state_bytes: int | None
    flops_per_token: int | None
    chance: float | None
    train_length: int
    steps: int
    rate: float
    measured: Sequence[Measured]
    trials: Sequence[RateTrial]
    typed: Sequence[str] = ()
    tokens: int | None = None
    tokens_to_solve: int | None = None
    seconds: int | None = None
    task_version: int = 1

    def at(self, length: int, last: int | None = None) -> list[float]:
        """The accuracy of each seed at one length, or at positions up to `last` of it."""
        return [one.accuracy for one in self.measured if (one.length, one.last) == (length, last)]

    @property
    def training(self) -> "Training":
        """What comparable cells of one task share."""
        typed = sorted(word for word in self.typed if not word.lstrip("+~").startswith(SEARCHING))
        return Training(self.train_length, self.steps, self.tokens, self.chance, self.task_version, tuple(typed))

    @property
    def search(self) -> tuple[int, tuple[str, ...]]:
        """The number of final seeds, and what was typed of seeds and rates."""
        typed = sorted(word for word in self.typed if word.lstrip("+~").startswith(SEARCHING))
        return len(self.accuracies), tuple(typed)

    @property
    def protocol(self) -> tuple[Any, ...]:
        """What cells share that a test may compare: `training` and `search`."""
        return self.training, self.search

    @property
    def accuracies(self) -> list[float]:
        """The accuracy of each seed at the training length."""
        return self.at(self.train_length)


class Training(NamedTuple):
    """How a cell was trained: length, steps, tokens a seed, chance, the task's version, and what was typed of it."""

    length: int
    steps: int
    tokens: int | None
    chance: float | None
    task_version: int
    typed: tuple[str, ...]


def finished_cells(folder: Path) -> list[Cell]:
    """The cells whose final run in `folder` is finished: `<task>/<model>/final`, of another size `…/<size>/final`."""
    finals = sorted(path.parent for deep in ("*/*", "*/*/*") for path in folder.glob(f"{deep}/{FINAL}/{RESULTS}"))
    return [_cell(final.relative_to(folder), final) for final in finals if record_file(final) is not None]


def kept(preset: str) -> list[Cell]:
    """The cells that are installed with evalkit, of one preset."""
    return [cell for cell in from_json(KEPT.read_text(encoding="utf-8")) if cell.preset == preset]


def beside(own: Sequence[Cell], others: Iterable[Cell]) -> list[Cell]:
    """The `others`, each replaced by the cell of `own` of the same task, model and size; the rest of `own` follows."""
    keys = {(cell.task, cell.model, cell.size): cell for cell in own}
    left = [keys.pop((cell.task, cell.model, cell.size), cell) for cell in others]
    return [*left, *keys.values()]


def as_json(cells: Sequence[Cell]) -> str:
    """The cells as they are kept, a line each; numbers have six digits, more than any difference needs."""
    lines = ",\n".join(json.dumps(_rounded(asdict(cell)), separators=(",", ":"), allow_nan=False) for cell in cells)
    return f"[\n{lines}\n]\n"


def _rounded(plain: Any) -> Any:
    """Plain data with every float rounded to six digits."""
    if isinstance(plain, float):
        return float(f"{plain:.6g}")
    if isinstance(plain, dict):
        return {key: _rounded(one) for key, one in plain.items()}
    return [_rounded(one) for one in plain] if isinstance(plain, list | tuple) else plain


def from_json(text: str) -> list[Cell]:
    """What `as_json` wrote."""
    cells = []
    for record in json.loads(text):
        measured, trials = record.pop("measured"), record.pop("trials")
        cells.append(
            Cell(**record, measured=[Measured(**one) for one in measured], trials=[RateTrial(**one) for one in trials])
        )
    return cells


def _cell(place: Path, final: Path) -> Cell:
    """The cell of a final run, whose `place` below the suite's folder says of what it is."""
    record = history.record_of(final)
    header, summary = record.header, summarise(record)
    task, model, *sizes = place.parent.parts
    assert header.train_length is not None and header.preset is not None and header.steps is not None
    searches = [final.with_name(name) for name in SEARCHES if (final.with_name(name) / RESULTS).is_file()]
    seen = tokens_seen(record)
    solved = summary["aggregate"]["steps_to"][str(SOLVED)]["median"]
    until = [] if solved is None else [tokens for step, tokens in seen.items() if step >= solved]
    ends = ("length", "seed", "accuracy", "low", "high")
    ladder = [Measured(**{end: entry[end] for end in ends}) for entry in summary["extrapolation"]]
    spans = [Measured(**{end: entry[end] for end in (*ends, "first", "last")}) for entry in summary.get("spans", [])]
    return Cell(
        task=task,
        model=model,
        size=sizes[0] if sizes else None,
        preset=header.preset,
        parameters=header.parameters,
        state_bytes=header.state_bytes(),
        flops_per_token=header.flops_per_token,
        chance=_rounded(header.chance),  # as in kept cells, which it stands beside
        train_length=header.train_length,
        steps=header.steps,
        rate=float(studies.content(final / "config.yaml")["train"]["learning_rate"]),
        measured=[*ladder, *spans],
        trials=sorted((trial for search in searches for trial in rate_trials(search)), key=lambda trial: trial.rate),
        typed=_typed(final, {"task": task, "model": model, "size": sizes[0] if sizes else None}),
        tokens=max(seen.values(), default=None),
        tokens_to_solve=min(until, default=None),
        seconds=_seconds([final, *searches]),
        task_version=header.task_version,
    )


def best_of(trials: Iterable[RateTrial]) -> RateTrial | None:
    """The trial with the highest accuracy, and of equals the lowest loss; None if no loss stayed a number."""
    finite = [trial for trial in trials if trial.loss is not None]
    return max(finite, key=lambda trial: (trial.accuracy or 0.0, -(trial.loss or 0.0)), default=None)


def window_of(trials: Iterable[RateTrial], floor: float) -> list[RateTrial]:
    """The longest row of neighbouring rates that come near the best, the lowest first; none if nothing was learned.

    Of rows of equal length it is the one with the best rate. A single rate far from all others that work may have
    worked by the luck of its seed.
    """
    tried = sorted(trials, key=lambda trial: trial.rate)
    best = best_of(tried)
    if best is None or best.accuracy is None or not best.is_above(floor):
        return []
    least = floor + WORKS * (best.accuracy - floor)
    rows: list[list[RateTrial]] = [[]]
    for trial in tried:
        if trial.accuracy is not None and trial.accuracy >= least:
            rows[-1].append(trial)
        else:
            rows.append([])
    return max(rows, key=lambda row: (len(row), best in row))


def rate_trials(folder: Path) -> Iterator[RateTrial]:
    """One trial per rate of a search, from its last validation; without values if the loss of a step was no number."""
    rates = studies.content(folder / "config.yaml")["train"]["learning_rate"]
    record = read(folder)
    lost = {row["seed"] for row in record.rows if row["metric"] == "skipped" and row["total"]}
    for rate, seed in zip(rates, summarise(record)["seeds"], strict=True):
        last = None if seed["seed"] in lost else seed["validation"]
        if last is None or last["accuracy"] is None:
            yield RateTrial(rate, None, None)
        else:
            low, _ = wilson(last["accuracy"] * last["sequences"], last["sequences"])
            yield RateTrial(rate, last["accuracy"], last["loss"], low)


def _seconds(folders: Sequence[Path]) -> int | None:
    """The seconds that these runs trained, with evaluations and compilation; None if a run did not record them."""
    times = [times_of(folder).get("training") for folder in folders]
    return None if None in times else round(sum(time for time in times if time is not None))


def _typed(final: Path, cell: Mapping[str, str | None]) -> list[str]:
    """The words of a run's first command that changed its cell; the suite's own words are in no command."""
    first = next(iter(history.read(final)), None)
    command = "" if first is None else first.command
    try:
        words = shlex.split(command)
    except ValueError:  # a quote is left open in what was edited, or masked
        words = command.split()
    begins = (*CHANGING, *OF_A_MODEL) if cell["model"] in _kept_models() else CHANGING
    bare = {word: word.lstrip("+~") for word in words}
    changing = [word for word in words if bare[word].startswith(begins) or PLACED.match(bare[word])]
    return [word for word in changing if not word.startswith((*OTHER_CELLS, *SHOWING)) and _is_of(cell, word)]


@cache
def _kept_models() -> frozenset[str]:
    """The models of the cells that are installed with evalkit."""
    return frozenset(cell.model for cell in from_json(KEPT.read_text(encoding="utf-8")))


def _is_of(cell: Mapping[str, str | None], word: str) -> bool:
    """Whether a word changes this cell, and not others alone, as `suite.models_on.TASK.MODEL=` of another task does."""
    _, _, key = word.lstrip("+~").partition("=")[0].partition("suite.")
    name, *names = key.split(".")
    return all(kind is None or cell[kind] == given for kind, given in zip(OF_CELLS.get(name, ()), names, strict=False))
