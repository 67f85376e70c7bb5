"""A few made-up documents with the fields of each of Table 1's data sets, in the folders that `hub.localise` reads."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

HELLASWAG = [
    {
        "activity_label": "Baking bread",
        "ctx_a": "A woman kneads dough on a table.",
        "ctx_b": "she",
        "endings": ["shapes it [title] and bakes it.", "flies away.", "eats the table.", "paints a wall blue."],
        "label": "0",
    },
    {
        "activity_label": "Sailing",
        "ctx_a": "Two men untie a boat.",
        "ctx_b": "they",
        "endings": ["cook it.", "row out on the lake.", "read it aloud to the dog of a friend.", "wear it."],
        "label": "1",
    },
]
PIQA = [
    {"goal": "To open a jar", "sol1": "twist the lid.", "sol2": "sing to the lid for an hour.", "label": 0},
    {"goal": "To cool soup", "sol1": "heat it.", "sol2": "let it stand.", "label": 1},
]
ARC = [
    {
        "question": "Which is a star?",
        "choices": {"text": ["the Moon", "the Sun", "a comet", "Mars"], "label": ["A", "B", "C", "D"]},
        "answerKey": "B",
    },
    {
        "question": "What melts at 0 degrees Celsius?",
        "choices": {"text": ["ice", "iron", "sand"], "label": ["1", "2", "3"]},
        "answerKey": "1",
    },
]
WINOGRANDE = [
    {
        "sentence": "The trophy does not fit in the case because the _ is too big.",
        "option1": "trophy",
        "option2": "case",
        "answer": "1",
    },
    {"sentence": "Ann thanked Sue because _ had helped her.", "option1": "Ann", "option2": "Sue", "answer": "2"},
]
MMLU = [
    {"question": f"What is {n} plus {n}?", "choices": [str(2 * n), "none", f"about {n}", "x"], "answer": 0}
    for n in range(1, 8)
]


def write(root: Path, subjects: Iterable[str] = ("anatomy",)) -> Path:
    """Writes all of it below `root`, MMLU for these subjects; returns `root`."""
    _write(root / "hellaswag" / "validation.jsonl", HELLASWAG)
    _write(root / "piqa" / "data" / "validation.jsonl", PIQA)
    for part in ("ARC-Easy", "ARC-Challenge"):
        _write(root / "allenai" / "ai2_arc" / part / "test.jsonl", ARC)
    _write(root / "winogrande" / "winogrande_xl" / "validation-00000-of-00001.jsonl", WINOGRANDE)
    for subject in subjects:
        _write(root / "mmlu" / subject / "dev.jsonl", MMLU[:5])
        _write(root / "mmlu" / subject / "test.jsonl", MMLU[5:])
    return root


def _write(path: Path, documents: Iterable[Mapping[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(document) + "\n" for document in documents), encoding="utf-8")
