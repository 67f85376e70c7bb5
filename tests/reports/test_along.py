"""Curves of training by steps, tokens, FLOPs and seconds, against sums by hand."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evalkit.commands import compare as command
from evalkit.core.errors import UserError
from evalkit.core.rows import Record, row
from evalkit.evaluations.extrapolation.report import figures
from evalkit.evaluations.extrapolation.summary import learning_curve
from evalkit.reports.along import WORDS, along, omitted
from evalkit.reports.pooling import Line, load, pool
from support.made_up_runs import STEPS, run_record, write_run

BATCH = 4
CURRICULUM = {50: 64, 100: 256, 150: 256}
"""The training length of each fifty steps; an answer of one token follows."""
TOKENS = [0, 50 * BATCH * 65, 50 * BATCH * (65 + 257), 50 * BATCH * (65 + 257 + 257)]


def line(folder: Path, name: str, by: str, seeds: tuple[int, ...] = (0, 1)) -> Line:
    header, rows = run_record(name, seeds=seeds, flops_per_token=1_000_000)
    names: dict[str, Any] = {
        "run": header.run,
        "task": header.task,
        "model": header.model,
        "split": "train",
        "metric": "loss",
    }
    trained = [
        row(**names, seed=seed, step=step, length=length, total=1.0, count=50 * BATCH)
        for step, length in CURRICULUM.items()
        for seed in seeds
    ]
    write_run(folder / name, Record(header, trained + rows))
    (alone,) = pool([load(folder / name)])
    return replace(alone, by=by)


@pytest.mark.parametrize(
    ("by", "places"),
    [
        ("steps", list(STEPS)),
        ("tokens", TOKENS),
        ("flops", [3_000_000 * count for count in TOKENS]),
        ("seconds", [round(579 * count / TOKENS[-1]) for count in TOKENS]),
    ],
)
def test_every_point_keeps_its_value_and_moves_to_its_place(tmp_path: Path, by: str, places: list[int]) -> None:
    drawn = line(tmp_path, "hawk", by)
    (tmp_path / "hawk" / "timing.json").write_text(json.dumps({"training": 579.0}))
    before = learning_curve(drawn.record)
    moved = along(before, drawn)
    for seed in (0, 1):
        assert [point.value for point in moved.seeds[seed]] == [point.value for point in before.seeds[seed]]
        assert [point.x for point in moved.seeds[seed]] == places
    drawings = figures([drawn, drawn], "", [])
    assert drawings["learning"].figure.axes[0].get_xlabel() == WORDS[by]


def test_a_line_whose_seconds_are_not_known_is_left_out_and_named(tmp_path: Path) -> None:
    known, unknown = line(tmp_path, "hawk", "seconds"), line(tmp_path, "mqa", "seconds")
    (tmp_path / "hawk" / "timing.json").write_text(json.dumps({"training": 60.0}))
    (note,) = omitted([known, unknown])
    assert "mqa" in note and "hawk" not in note
    assert not along(learning_curve(unknown.record), unknown).seeds
    with pytest.raises(UserError, match="--by=seconds"):
        omitted([unknown])


def test_the_command_offers_what_can_be_drawn() -> None:
    with pytest.raises(UserError, match=", ".join(map(repr, WORDS)).replace("'", "'?")):
        command.main(["runs", "--by", "epochs"])
