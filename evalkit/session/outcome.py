"""How the work on a run ended."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from evalkit.core.contracts import Verdict


class Outcome(NamedTuple):
    """A run's folder, its `results.json` (empty where it was stopped), the signal that stopped it, and the verdict.

    `given_up`: a judge ended its training early.
    """

    folder: Path
    summary: Mapping[str, Any] = {}
    stopped_by: int | None = None
    verdict: Verdict = Verdict()
    given_up: bool = False

    @property
    def exit_code(self) -> int:
        """The exit code of the command: a signal's own, or what the evaluation's verdict says."""
        return self.verdict.exit_code if self.stopped_by is None else 128 + self.stopped_by

    def shown(self, format: str) -> int:
        """Prints the last line of `format=json`, if there are numbers to print; returns the exit code."""
        if format == "json" and self.summary:
            sys.stdout.write(json.dumps({**self.summary, "folder": str(self.folder)}, allow_nan=False) + "\n")
            sys.stdout.flush()
        return self.exit_code
