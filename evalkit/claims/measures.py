"""What a claim's test may measure of kept runs: a closed vocabulary, each word a pure function of rows.

A measure gives one number a seed, or a round of a timing. An estimate gives the mean over documents with its interval.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from statistics import fmean
from typing import Any

from evalkit.core import studies
from evalkit.core.errors import UserError
from evalkit.core.rows import Record, read, record_file
from evalkit.evaluations.extrapolation import summary as accuracies
from evalkit.evaluations.text import rows as text_rows
from evalkit.evaluations.text import summary as texts

Numbers = Mapping[int, float]
"""A number a seed, or a round; what was never reached is infinite."""


class NoRows(Exception):
    """What was never run, or not measured at this place."""


@dataclass(frozen=True)
class Kept:
    """A kept run: its record, and its summary by length, made once."""

    record: Record

    @cached_property
    def summary(self) -> Mapping[str, Any]:
        """As in `results.json` of a run whose accuracy is measured by length."""
        return accuracies.summarise(self.record)


def accuracy(kept: Kept, length: int, metric: str = "accuracy") -> Numbers:
    """The accuracy at `length` when training has ended, or another `metric` of it, such as `exact_match`."""
    return {point["seed"]: point[metric] for point in kept.summary["extrapolation"] if point["length"] == length}


def late_accuracy(kept: Kept, length: int) -> Numbers:
    """The median of the last four looks at `length` while training."""
    return {point["seed"]: point["accuracy"] for point in kept.summary.get("late", ()) if point["length"] == length}


def steps_to(kept: Kept, level: float) -> Numbers:
    """The steps to this accuracy at the training length; infinite where it was not reached."""
    steps = {one["seed"]: one["steps_to"][str(level)] for one in kept.summary["seeds"]}
    return {seed: math.inf if step is None else step for seed, step in steps.items()}


def validation_loss(kept: Kept) -> Numbers:
    """The validation loss of text, in nats a byte, when training has ended."""
    return {seed: curve[-1][1] for seed, curve in texts.validation(kept.record.rows)["loss"].items()}


def loss_at(kept: Kept, position: int) -> Numbers:
    """The mean loss over documents at a position of the text."""
    by_document = texts.table_of(kept.record.rows, text_rows.LOSS).get(position, {}).values()
    seeds = sorted({seed for losses in by_document for seed in losses})
    return {seed: fmean(losses[seed] for losses in by_document if seed in losses) for seed in seeds}


def context(kept: Kept, position: int) -> texts.Estimate | None:
    """The change of a passage's loss after `position` tokens of context, against what fits into a training window."""
    paired, base = texts.table_of(kept.record.rows, text_rows.PAIRED), texts.base_context(kept.record)
    return _at(position, texts.differences(paired, paired, base))


def repeated(kept: Kept, position: int) -> texts.Estimate | None:
    """The change of a passage's loss if the same passage also stood `position` tokens before."""
    seen, fresh = (texts.table_of(kept.record.rows, name) for name in (text_rows.REPEATED, text_rows.FRESH))
    return _at(position, texts.differences(seen, fresh))


def timing(rows: Sequence[Mapping[str, Any]], field: str, over: str | None = None, **where: Any) -> Numbers:
    """A field of the one row of a kept timing that matches `where`; a list has one number per round.

    With `over`, each number is divided by that field.
    """
    matching = [row for row in rows if all(row.get(name) == value for name, value in where.items())]
    if len(matching) != 1:
        raise NoRows(f"{len(matching)} timings have {where}")
    measured = matching[0][field]
    rounds = measured if isinstance(measured, list) else [measured]
    return {number: one / (matching[0][over] if over else 1) for number, one in enumerate(rounds)}


MEASURES: Mapping[str, Callable[..., Numbers]] = {
    measure.__name__: measure for measure in (accuracy, late_accuracy, steps_to, validation_loss, loss_at)
}
ESTIMATES: Mapping[str, Callable[..., texts.Estimate | None]] = {
    estimate.__name__: estimate for estimate in (context, repeated)
}


def measured(folder: Path, of: str, **parameters: Any) -> Numbers:
    """A measure of kept runs in a folder of studies; with `minus`, less that of these other runs, seed by seed.

    Raises NoRows where there is none, UserError for an unknown measure.
    """
    if other := parameters.pop("minus", None):
        less, more = measured(folder, of, **{**parameters, "run": other}), measured(folder, of, **parameters)
        refuse_other_seeds([less, more])
        return {seed: number - less[seed] for seed, number in more.items()}
    if of == "timing":
        numbers = timing(_timings(folder / parameters.pop("file"), parameters.pop("record")), **parameters)
    elif of in MEASURES:
        runs = [_kept(place) for place in _places(folder / parameters.pop("run"))]
        numbers = _of_every_seed([MEASURES[of](kept, **parameters) for kept in runs])
    else:
        raise UserError(f"{of!r} is no measure of a claim; choose one of timing, {', '.join(MEASURES)}")
    if not numbers:
        raise NoRows(f"nothing was measured of {of} at {parameters}")
    without = [seed for seed, number in numbers.items() if math.isnan(number)]
    if without:
        raise NoRows(f"{of} of seed {without[0]} is no number at {parameters}")
    return numbers


def refuse_other_seeds(groups: Sequence[Numbers]) -> None:
    """Raises NoRows where groups that are compared seed by seed have different ones."""
    seeds = [sorted(group) for group in groups]
    if any(one != seeds[0] for one in seeds):
        raise NoRows(f"of seeds {' and '.join(str(one) for one in seeds)}, which are compared one by one")


def _of_every_seed(groups: Sequence[Numbers]) -> dict[int, float]:
    """The numbers of several runs; raises UserError for a seed that two of them have."""
    numbers: dict[int, float] = {}
    for group in groups:
        if twice := numbers.keys() & group.keys():
            raise UserError(f"several runs have the seed {min(twice)}; name one of them as run:")
        numbers |= group
    return numbers


def estimated(folder: Path, of: str, run: str, position: int) -> tuple[texts.Estimate, int]:
    """An estimate over the documents of a kept run, and the number of its seeds. Raises NoRows where there is none."""
    if of not in ESTIMATES:
        raise UserError(f"{of!r} is no estimate of a claim; choose one of {', '.join(ESTIMATES)}")
    kept = _kept(_places(folder / run)[0])
    estimate = ESTIMATES[of](kept, position)
    if estimate is None:
        raise NoRows(f"nothing was measured of {of} at {position} in {run}")
    return estimate, len({row["seed"] for row in kept.record.rows if row["seed"] is not None})


def record_of(folder: Path, run: str) -> tuple[Record, Mapping[str, Any]]:
    """The record and the configuration of the first kept run in `run`. Raises NoRows where there is none."""
    place = _places(folder / run)[0]
    return _kept(place).record, studies.content(place / "config.yaml") or {}


def _places(place: Path) -> list[Path]:
    if studies.packed(place) is not None or record_file(place) is not None:
        return [place]
    below = [one for one in studies.packed_below(place) if one != place] if studies.study_of(place) else []
    if not below:
        raise NoRows(f"no run is kept as {'/'.join(place.parts[-2:])}")
    return below


def _kept(place: Path) -> Kept:
    """The run that is kept as `place`, read once while its rows are the same."""
    study = studies.study_of(place)
    rows = record_file(place) if study is None else study / studies.ROWS
    return _read(place, rows.stat().st_mtime if rows is not None and rows.is_file() else 0.0)


@lru_cache(maxsize=256)
def _read(place: Path, _: float) -> Kept:
    """Reads a run; the time of its rows is only a key of the cache."""
    return Kept(read(place))


def _timings(path: Path, record: str) -> Sequence[Mapping[str, Any]]:
    """The rows of one record of a file that has several by name. Raises NoRows where there is none."""
    kept = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    if record not in kept:
        raise NoRows(f"no timing {record} is kept in {'/'.join(path.parts[-2:])}")
    return kept[record]["rows"]


def _at(position: int, estimates: Iterable[texts.Estimate]) -> texts.Estimate | None:
    return next((one for one in estimates if one.position == position), None)
