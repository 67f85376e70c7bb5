"""Table 1 of De et al. 2024, and results of lm-eval in its columns, in percent."""

from collections.abc import Mapping, Sequence
from typing import Any

MMLU_LETTERS, MMLU_ANSWERS = ("mmlu", "acc"), ("griffin_mmlu_continuation", "acc_norm")
COLUMNS = {
    "HellaSwag": ("hellaswag", "acc_norm"),
    "PIQA": ("piqa", "acc_norm"),
    "WinoGrande": ("winogrande", "acc"),
    "ARC-E": ("arc_easy", "acc_norm"),
    "ARC-C": ("arc_challenge", "acc_norm"),
}
"""lm-eval's task for each column, and the metric that the caption names; MMLU has two forms and is not among them."""

PAPER = {
    "Mamba 3B": (26.2, 71.0, 78.1, 65.9, 68.2, 41.7),
    "Llama-2 7B": (45.3, 77.2, 78.8, 69.2, 75.2, 45.9),
    "Llama-2 13B": (54.8, 80.7, 80.5, 72.8, 77.3, 49.4),
    "MQA 1B": (28.9, 64.8, 75.0, 62.0, 60.2, 35.4),
    "MQA 3B": (31.7, 71.0, 77.6, 66.1, 68.1, 39.2),
    "MQA 6B": (38.9, 77.0, 79.5, 70.4, 74.1, 45.2),
    "Hawk 1B": (29.7, 63.3, 76.1, 57.2, 60.6, 34.6),
    "Hawk 3B": (31.3, 71.7, 78.8, 66.5, 68.4, 40.2),
    "Hawk 7B": (35.0, 77.6, 80.0, 69.9, 74.4, 45.9),
    "Griffin 1B": (29.5, 67.2, 77.4, 65.2, 67.0, 36.9),
    "Griffin 3B": (32.6, 73.5, 78.1, 67.2, 71.5, 41.4),
    "Griffin 7B": (39.3, 78.6, 81.0, 72.6, 75.4, 47.9),
    "Griffin 14B": (49.5, 81.4, 81.8, 74.1, 79.1, 50.8),
}
"""Each row is MMLU and then `COLUMNS`; the paper quotes the rows of Mamba and Llama-2 from others."""


def rows_of(results: Mapping[str, Mapping[str, Any]]) -> dict[str, list[float | None]]:
    """One row for each form of MMLU in lm-eval's `results`, None for a task that was not run; no rows without any."""
    rest = [_percent(results, *column) for column in COLUMNS.values()]
    forms = {"MMLU by letters": _percent(results, *MMLU_LETTERS), "MMLU by answers": _percent(results, *MMLU_ANSWERS)}
    forms = {name: value for name, value in forms.items() if value is not None} or {"without MMLU": None}
    if all(value is None for value in [*forms.values(), *rest]):
        return {}
    return {f"here, {name}": [value, *rest] for name, value in forms.items()}


def beside_the_paper(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns the paper's rows and the results' as a Markdown table, or "" if no task of Table 1 was run."""
    own = rows_of(results)
    if not own:
        return ""
    rows: Mapping[str, Sequence[float | None]] = {**{f"{name} (paper)": row for name, row in PAPER.items()}, **own}
    header = ["model", "MMLU", *COLUMNS, "average"]
    lines = [
        header,
        ["---"] * len(header),
        *([name, *map(_shown, [*row, _average(row)])] for name, row in rows.items()),
    ]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _percent(results: Mapping[str, Mapping[str, Any]], task: str, metric: str) -> float | None:
    value = results.get(task, {}).get(f"{metric},none")
    return None if value is None else 100 * float(value)


def _average(row: Sequence[float | None]) -> float | None:
    known = [value for value in row if value is not None]
    return sum(known) / len(known) if len(known) == len(row) else None


def _shown(value: float | None) -> str:
    # Rounded half up, as the paper's averages are: 353.7 / 6 is 58.95 and printed as 59.0.
    return "–" if value is None else f"{value + 1e-9:.1f}"
