"""Runs that no model made: rows with known numbers, for the tests of what reads rows."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from evalkit.core.moved import ACCURACY
from evalkit.core.rows import Header, Record, Row, RowLog, row

SEQUENCES = 64
STEPS = (0, 50, 100, 150)
LADDER = (64, 128, 256, 512, 1024)


def perfect(length: int, seed: int) -> int:
    """Every sequence right, at every length."""
    return SEQUENCES


def falls(length: int, seed: int) -> int:
    """Right to 256; beyond, fewer with the length and the seed."""
    return SEQUENCES if length <= 256 else SEQUENCES * 256 // length - seed


def learns(step: int, seed: int) -> int:
    """Right in 4, 58, 64, 64 of 64 sequences at the four validations; seed 1 stays one validation behind."""
    return (4, 4, 58, 64, 64)[STEPS.index(step) + 1 - (seed == 1)]


def scores(
    right: int, split: str, step: int, length: int, seed: int, names: Mapping[str, Any], sequences: int = SEQUENCES
) -> list[Row]:
    """The three rows of one evaluation."""
    totals = {"loss": 0.5 * (sequences - right), "accuracy": right, "exact_match": right}
    place: dict[str, Any] = {"split": split, "step": step, "length": length, "seed": seed, "count": sequences}
    return [row(**names, **place, metric=metric, total=total) for metric, total in totals.items()]


def run_record(
    model: str = "griffin",
    task: str = "induction_heads",
    name: str | None = None,
    seeds: Sequence[int] = (0,),
    test: Callable[[int, int], int] = falls,
    not_run: Sequence[int] = (),
    **extra: Any,
) -> Record:
    """The record of a run trained at 256: validation at 256 and 512, then the ladder."""
    names: dict[str, Any] = {"run": name or f"{model}-1", "task": task, "model": model}
    facts = {"train_length": 256, "answer_length": 1, "window": 128, "chance": 1 / 16, "preset": "paper"}
    told = {
        "kind": ACCURACY,
        "parameters": 243_776,
        "steps": STEPS[-1],
        **names,
        **facts,
        **extra,
    }
    rows: list[Row] = []
    for step in STEPS:
        for seed in seeds:
            rows += scores(learns(step, seed), "validation", step, 256, seed, names)
            rows += scores(learns(step, seed) // 2, "validation", step, 512, seed, names)
    for length in LADDER:
        for seed in seeds:
            rows += scores(test(length, seed), "test", told["steps"], length, seed, names)
    reason = {"not_run": "quadratic"}
    left = [row(**names, split="test", length=length, metric="accuracy", count=0, extra=reason) for length in not_run]
    return Record(Header(**told), rows + left)


def write_run(folder: Path, record: Record) -> Path:
    """A run's folder that holds this record."""
    folder.mkdir(parents=True)
    with RowLog(folder / "metrics.jsonl") as log:
        log.begin(record.header)
        log.write(record.rows)
    return folder
