"""What a report leaves in a folder beside its figures."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evalkit.core.errors import writing

RESULTS = "results.json"


def write_text(path: Path, text: str) -> None:
    """Writes a file, or raises `UserError` naming it and the reason."""
    with writing(path):
        path.write_text(text, encoding="utf-8")


def write_results(folder: Path, summary: Mapping[str, Any]) -> None:
    """Writes `results.json`; raises ValueError for a number that JSON has not, which a summary says as null."""
    write_text(folder / RESULTS, json.dumps(summary, indent=2, allow_nan=False) + "\n")
