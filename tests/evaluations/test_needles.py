"""Needles of a checkpoint: one who copies finds all of them, one who forgets the near ones, and nobody by luck."""

from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import pytest

from evalkit.core.contracts import Pretrained
from evalkit.core.rows import Header, Record, Row, row, value
from evalkit.core.statistics import wilson
from evalkit.evaluations.needle import report
from evalkit.evaluations.needle.measure import Needles
from evalkit.evaluations.needle.rows import ALL, FOUND
from evalkit.session import subjects
from evalkit.tasks.needle import Needle
from evalkit.tasks.phonebook import Phonebook
from support import tiny
from support.evaluated import checkpoint_of
from support.language_models import Finder, pretrained, tiny_pretrained

SETTINGS: dict[str, Any] = {"prompts": 3, "batch_size": 4, "chunk": 128}


@lru_cache
def finder(window: int | None = None) -> Pretrained:
    """Always the same object, so that all tests share its programs."""
    return pretrained(Finder(window))


def rows_of(held: Pretrained, task: Needle, **settings: Any) -> list[Row]:
    evaluation = Needles(**{"lengths": [1000], **SETTINGS, **settings})
    return list(evaluation.run(checkpoint_of(held, task, partial(row, run="r"))))


@pytest.mark.parametrize(
    "words",
    [
        {},
        {"keys": 4, "value": "words"},
        {"haystack": "needles", "key": "uuids", "value": "uuids"},
        {"values": 3},
        {"queries": 3},
    ],
    ids=str,
)
def test_one_who_copies_finds_all_of_them(words: dict[str, Any]) -> None:
    rows = rows_of(finder(), Needle(**words), depths=[0.0, 0.5, 1.0])
    assert [(entry["metric"], entry["extra"]["depth"]) for entry in rows] == [
        (metric, depth) for depth in (0.0, 0.5, 1.0) for metric in (FOUND, ALL)
    ]
    assert all(value(entry) == 1 and entry["count"] == 3 for entry in rows)


def test_one_who_forgets_finds_the_near_ones() -> None:
    shares = {
        entry["extra"]["depth"]: value(entry) for entry in rows_of(finder(400), Needle()) if entry["metric"] == FOUND
    }
    assert shares == {0.0: 0, 0.25: 0, 0.5: 0, 0.75: 1, 1.0: 1}


def test_part_of_the_values_is_part_of_the_score() -> None:
    """Within a window of half the text lies a part of the four, which stand anywhere."""
    rows = rows_of(finder(500), Needle(values=4), depths=[], prompts=12)
    assert [entry["extra"]["depth"] for entry in rows] == [None, None]
    assert all(abs(entry["extra"]["prompt_tokens"] - 1000) < 30 for entry in rows)
    part, whole = (value(entry) for entry in rows)
    assert 0.2 < part < 0.8 and whole == 0


def test_an_interval_counts_prompts_and_not_their_depths() -> None:
    """The text of a prompt is the same at each depth."""
    at: dict[str, Any] = {"metric": FOUND, "split": "test", "length": 400, "total": 10, "count": 20}
    names = {"run": "r", "task": "needle", "model": "m"}
    rows = [row(**names, **at, extra={"depth": depth, "sentences": 3}) for depth in (0.0, 0.25, 0.5, 0.75, 1.0)]
    (point,) = report._points(Record(Header(**names, kind=report.__name__), rows))
    assert (point.value, point.low, point.high, point.count) == (0.5, *wilson(10, 20), 20)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_nobody_finds_them_by_luck() -> None:
    assert all(
        value(entry) == 0 for entry in rows_of(tiny_pretrained("griffin"), Needle(), lengths=[300], depths=[0.5])
    )


def test_what_is_done_is_not_done_again() -> None:
    evaluation = Needles(lengths=[600, 400], depths=[0.0, 1.0], **SETTINGS)
    trained = checkpoint_of(finder(), Needle(), partial(row, run="r"))
    rows = list(evaluation.run(trained))
    assert [entry["length"] for entry in rows] == [400] * 4 + [600] * 4
    assert [evaluation.kept(rows[:count]) for count in range(9)] == [0, 0, 0, 0, 4, 4, 4, 4, 8]
    assert list(evaluation.run(replace(trained, kept=rows[:4]))) == rows[4:]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lengths": []}, r"lengths=\[\]; allowed: one length or more"),
        ({"depths": [1.5]}, r"depths=\[1.5\]; allowed: numbers from 0 to 1, or \[\] for anywhere"),
        ({"prompts": 0}, "prompts=0; allowed: 1 or more"),
        ({"new_tokens": 0}, "new_tokens=0; allowed: 1 or more, or null"),
    ],
)
def test_what_cannot_be_measured_is_one_line(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Needles(**{"lengths": [1000], **settings})


def test_other_tasks_and_depths_of_a_task_are_refused() -> None:
    evaluation = Needles(lengths=[1000])
    with pytest.raises(ValueError, match="give task=needle checkpoint=FOLDER"):
        evaluation.check(Phonebook())
    with pytest.raises(ValueError, match=r"task.depth=0.5, but needles are measured at eval.depths"):
        evaluation.check(Needle(depth=0.5))
    with pytest.raises(ValueError, match="length=20; allowed: at least"):
        Needles(lengths=[20]).check_tokens(Needle(), finder().tokenizer)


ASKED = ["eval.lengths=[150,300]", "eval.prompts=2", "eval.depths=[0,1]", "wandb.mode=disabled"]


def assert_drawn(folder: Path) -> None:
    results = tiny.results(folder)
    assert [entry["length"] for entry in results["lengths"]] == [150, 300]
    assert set(results["lengths"][0]["depths"]) == {"0%", "100%"}
    assert (folder / "needle.png").is_file() and (folder / "depths.png").is_file()


@pytest.mark.slow
@pytest.mark.usefixtures("blank")
def test_a_checkpoint_is_asked_and_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subjects, "load_for_text", lambda checkpoint, dtype, allow_targets: finder())
    assert tiny.start(tmp_path / "asked", of=["task=needle", "checkpoint=some/finder", *ASKED]) == 0
    assert_drawn(tmp_path / "asked")


@pytest.mark.exhaustive
@pytest.mark.usefixtures("blank")
def test_a_run_that_was_trained_on_bytes_is_asked_and_drawn(tmp_path: Path) -> None:
    """Trained on `task=needle`, asked by `task=needle checkpoint=RUN`: one layout, one tokenizer."""
    words = ["task=needle", "task.length=130", *tiny.MODEL, *tiny.TRAIN, "train.steps=2", "eval.lengths=[130]"]
    words += ["eval.sequences=4", "eval.during=[]", "train.curriculum=[]", "wandb.mode=disabled"]
    assert tiny.start(tmp_path / "run", of=words) == 0
    assert tiny.start(tmp_path / "asked", of=["task=needle", f"checkpoint={tmp_path / 'run'}", *ASKED]) == 0
    assert_drawn(tmp_path / "asked")
