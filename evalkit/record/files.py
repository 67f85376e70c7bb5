"""The text files of a run: writes results and reports (a full disk is a UserError), and reads how long a run took."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evalkit.core import studies
from evalkit.core.errors import UserError, writing
from evalkit.disk.files import write_whole

RESULTS = "results.json"
TIMES = "timing.json"
EARLIER = "before"
"""The subfolder in which a run that is trained further keeps archives of its shorter trainings."""


def write_text(path: Path, text: str) -> None:
    """Writes a file as a whole; raises UserError with its name and the reason if that fails."""
    with writing(path):
        write_whole(path, text)


def write_results(folder: Path, summary: Mapping[str, Any]) -> None:
    """Writes `results.json`; raises ValueError for NaN and infinity, which JSON has not: a summary says null."""
    write_text(folder / RESULTS, json.dumps(summary, indent=2, allow_nan=False) + "\n")


def times_of(folder: Path) -> dict[str, float]:
    """The seconds that the parts of a run took so far, by name; empty if they are unknown or the file is damaged."""
    try:
        times = studies.content(folder / TIMES)
    except (OSError, ValueError, UserError):
        return {}
    are_numbers = isinstance(times, dict) and all(isinstance(seconds, int | float) for seconds in times.values())
    return dict(times) if are_numbers else {}
