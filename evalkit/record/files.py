"""Writes the text files of a report; a full disk or a missing permission is a UserError."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evalkit.core.errors import writing
from evalkit.disk.files import write_whole

RESULTS = "results.json"


def write_text(path: Path, text: str) -> None:
    """Writes a file as a whole; raises UserError with its name and the reason if that fails."""
    with writing(path):
        write_whole(path, text)


def write_results(folder: Path, summary: Mapping[str, Any]) -> None:
    """Writes `results.json`; raises ValueError for NaN and infinity, which JSON has not: a summary says null."""
    write_text(folder / RESULTS, json.dumps(summary, indent=2, allow_nan=False) + "\n")
