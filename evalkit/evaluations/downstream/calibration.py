"""Compares results of lm-eval with published ones: a run must reproduce a released model's before Table 1 counts.

python -m evalkit calibrate recurrentgemma-2b RESULTS.json
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evalkit.core.errors import UserError
from evalkit.evaluations.downstream import table1

COLUMNS = {"MMLU": table1.MMLU_LETTERS, **table1.COLUMNS}


@dataclass(frozen=True)
class Published:
    """Published percentages by column of Table 1, with the metrics and shots of `griffin_table1`, and their source."""

    values: Mapping[str, float]
    source: str


PUBLISHED = {
    "recurrentgemma-2b": Published(
        {"MMLU": 38.4, "HellaSwag": 71.0, "PIQA": 78.5, "WinoGrande": 67.8, "ARC-E": 72.9, "ARC-C": 42.3},
        "model card of google/recurrentgemma-2b",
    ),
    "recurrentgemma-2b-deltanet": Published(
        {"HellaSwag": 71.1, "PIQA": 78.2, "WinoGrande": 67.6},
        "lm-eval, arXiv 2406.06484, section 4.2 (its MMLU, 31.8, is zero-shot; its ARC a mean of both)",
    ),
    "gemma-2b": Published(
        {"MMLU": 42.3, "HellaSwag": 71.4, "PIQA": 77.3, "WinoGrande": 65.4, "ARC-E": 73.2, "ARC-C": 42.1},
        "model card of google/gemma-2b",
    ),
    "gemma-2b-supra": Published(
        {"MMLU": 41.2, "HellaSwag": 71.4, "PIQA": 78.6, "WinoGrande": 64.4, "ARC-C": 41.5},
        "lm-eval, arXiv 2405.06640, table 1 (its ARC-E, 74.0, is not normalised)",
    ),
    "mamba-2.8b-slimpj": Published(
        dict(zip(COLUMNS, table1.PAPER["Mamba 3B"], strict=True)),
        "arXiv 2402.19427, table 1, row Mamba 3B, which appears to be this model",
    ),
}


@dataclass(frozen=True)
class Check:
    """The published percentage of one column, and the one measured `here` with its standard error."""

    column: str
    published: float
    here: float
    error: float

    @property
    def holds(self) -> bool:
        """Returns whether the two percentages differ by at most one standard error."""
        return abs(self.here - self.published) <= self.error


def known(name: str) -> Published:
    """Returns the published results called `name`; raises UserError for an unknown name."""
    if name not in PUBLISHED:
        raise UserError(f"calibrate={name!r} is not known; choose one of {', '.join(PUBLISHED)}")
    return PUBLISHED[name]


def checks(name: str, results: Mapping[str, Any]) -> list[Check]:
    """Compares every published column with lm-eval's `results`; raises UserError if a column's task was not run."""
    compared = []
    for column, published in known(name).values.items():
        task, metric = COLUMNS[column]
        if task not in results["results"]:
            raise _missing(name, column, task)
        value, count = results["results"][task].get(f"{metric},none"), documents(results, task)
        if value is None or not count:
            raise UserError(f"the results of task {task} have no {metric} of counted documents; run griffin_table1")
        # The standard error of a mean of zeros and ones.
        error = math.sqrt(value * (1 - value) / max(1, count - 1))
        compared.append(Check(column, published, 100 * value, 100 * error))
    return compared


def refuse_missing(name: str, is_run: Callable[[str], bool]) -> None:
    """Raises UserError for a published column whose task will not be run."""
    for column in known(name).values:
        task, _ = COLUMNS[column]
        if not is_run(task):
            raise _missing(name, column, task)


def _missing(name: str, column: str, task: str) -> UserError:
    return UserError(f"calibrate={name} needs {column}, task {task}; add it to tasks, or leave calibrate out")


def documents(results: Mapping[str, Any], name: str) -> int:
    """Returns how many documents a task, or a group's tasks together, were run on; 0 where the results do not say."""
    if name in results["n-samples"]:
        return results["n-samples"][name]["effective"]
    return sum(documents(results, member) for member in results.get("group_subtasks", {}).get(name, []))


def shown(name: str, compared: list[Check]) -> str:
    """Returns the checks as a Markdown table with their source."""
    lines = ["| column | published | here | standard error | within one |", "|---|---|---|---|---|"]
    lines += [
        f"| {check.column} | {check.published:.1f} | {check.here:.1f} | {check.error:.1f} | "
        f"{'yes' if check.holds else 'NO'} |"
        for check in compared
    ]
    return "\n".join([f"{name}: {known(name).source}", *lines]) + "\n"


def read(path: Path) -> Mapping[str, Any]:
    """What lm-eval wrote into a results file; raises UserError for a file that holds no results."""
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}); give a results_….json that lm-eval wrote") from error
    parts = [results.get(name) for name in ("results", "n-samples")] if isinstance(results, Mapping) else [None]
    if not all(isinstance(part, Mapping) for part in parts):
        raise UserError(f"{path} holds no results of lm-eval; give a results_….json of its --output_path")
    return results
