"""The end of a sweep: its runs in a list with what they found, and one comparison."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from evalkit.core.errors import UserError
from evalkit.record.files import RESULTS
from evalkit.reports.comparison import compare
from evalkit.reports.numbers import DASH
from evalkit.reports.terminal import print_table
from evalkit.reports.writer import say
from evalkit.session.hints import near

HEADER = ["run", "state", "found"]


class Ended(NamedTuple):
    """A run of a sweep, its folder and its exit code."""

    folder: str
    code: int


def conclude(ended: Sequence[Ended], console: Console) -> None:
    """Prints each run with its headline numbers, then compares the finished ones if they have the same task."""
    summaries = {one.folder: _summary(Path(one.folder)) for one in ended}
    if not ended:
        return
    place = Path(os.path.commonpath([Path(one.folder).parent for one in ended]))
    lines = [[str(Path(one.folder).relative_to(place)), _state(one), _headline(summaries[one.folder])] for one in ended]
    print_table(console, HEADER, lines, f"{len(ended)} runs of this sweep, in {near(place)}")
    finished = [Path(one.folder) for one in ended if not one.code and summaries[one.folder]]
    if len({summaries[str(folder)].get("task") for folder in finished}) > 1:
        say(console, "not compared, for the runs are of several tasks: compare those of one with evalkit compare")
    elif len(finished) > 1:
        try:
            compare(finished, None, console)
        except UserError as error:  # the runs themselves are done
            say(console, f"not compared: {error}")


def _state(ended: Ended) -> str:
    return f"failed ({ended.code})" if ended.code else "finished"


def _summary(folder: Path) -> Mapping[str, Any]:
    """A run's `results.json`; empty where there is none."""
    try:
        return json.loads((folder / RESULTS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def _headline(summary: Mapping[str, Any]) -> str:
    """The accuracy at the training length and at the longest one; for a text, the loss."""
    ladder = (summary.get("aggregate") or {}).get("extrapolation") or []
    accuracies = {at["length"]: at["accuracy"]["median"] for at in ladder}
    if accuracies:
        lengths = dict.fromkeys(
            length for length in (summary.get("train_length"), max(accuracies)) if length in accuracies
        )
        return "accuracy " + ", ".join(f"{_number(accuracies[length])} at {length:,}" for length in lengths)
    losses = (summary.get("validation") or {}).get("bits_per_byte") or {}
    return ", ".join(f"{_number(loss)} bits a byte" for loss in losses.values()) or DASH


def _number(value: float | None) -> str:
    return DASH if value is None else f"{value:.3f}"
