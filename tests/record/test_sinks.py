"""Every row reaches a sink once and in order, whatever becomes of sessions or the sink; TensorBoard's files have it."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from evalkit.contract.sinks import CONFIG, HEADER, LIVES, ROWS
from evalkit.core.contracts import Sink, SinkEnd, SinkStart
from evalkit.core.errors import UserError
from evalkit.core.rows import FILE, Header, Row, encode, read, row
from evalkit.record.sinks import Recorder
from evalkit.record.tensorboard import TensorBoard


class Remembers(Sink):
    """Keeps what sessions that ended by themselves gave it, as a server does; it may raise in one method."""

    def __init__(self, kept: list[str], fails: str = "") -> None:
        self.kept, self.fails = kept, fails
        self.new: list[str] = []
        self.calls: list[str] = []

    def call(self, name: str) -> None:
        self.calls.append(name)
        if name == self.fails:
            raise OSError(f"no {name}")

    def begin(self, header: Header, start: SinkStart) -> int:
        self.call("begin")
        assert start.received == len(self.kept)
        return start.received

    def write(self, rows: Sequence[Row]) -> None:
        self.call("write")
        self.new += map(encode, rows)

    def finish(self, end: SinkEnd) -> list[str]:
        self.call("finish")
        self.kept += self.new
        return ["said"]


def session(folder: Path, sink: Sink, first: int, last: int, ends: bool = True) -> list[str]:
    """Begins at one row of the contract's and stops before another; returns what is said at the end."""
    offset = sum(map(len, (folder / FILE).read_bytes().splitlines(keepends=True)[: first + 1])) if first else 0
    with Recorder(folder, offset, {"mine": sink}, CONFIG) as recorder:
        if not first:
            recorder.begin(HEADER)
        for entry in ROWS[first:last]:
            recorder.write([entry])
        return recorder.finish(SinkEnd()) + recorder.finish(SinkEnd(1)) if ends else []


@pytest.mark.parametrize("life", LIVES)
def test_every_row_reaches_a_sink_once_and_in_order(life: str, tmp_path: Path) -> None:
    kept: list[str] = []
    for first, last, ends in LIVES[life]:
        sink = Remembers(kept)
        session(tmp_path, sink, first, last, ends)
        assert sink.calls.count("begin") == 1 and sink.calls.count("finish") == int(ends)
    assert kept == list(map(encode, read(tmp_path).rows)) == list(map(encode, ROWS))


@pytest.mark.parametrize("fails", ["begin", "write", "finish"])
def test_a_sink_that_raises_is_one_warning_and_loses_no_row(
    fails: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What it kept by itself of that session is its own; the next session gives it what was not noted."""
    broken = Remembers([], fails)
    assert session(tmp_path, broken, 0, 6) == []
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert f"log=mine failed and gets nothing more; metrics.jsonl goes on: no {fails}" in warning
    assert broken.calls.count("finish") == 1 and broken.calls.count(fails) == 1
    kept: list[str] = []
    assert session(tmp_path, Remembers(kept), 6, 10) == ["said"]
    assert kept == list(map(encode, ROWS))


def test_a_sink_that_was_switched_off_gets_all_rows_once_it_is_on(tmp_path: Path) -> None:
    class Off(Remembers):
        def begin(self, header: Header, start: SinkStart) -> Any:
            return None

    off, kept = Off([]), list[str]()
    assert session(tmp_path, off, 0, 5) == [] and off.calls == []
    session(tmp_path, Remembers(kept), 5, 10)
    assert kept == list(map(encode, ROWS))


OF_TWO_SEEDS = Header("r", "copying", "hawk", "evalkit.evaluations.extrapolation.report", seeds=[3, 4], train_length=8)
TRAIN = [row(metric="loss", seed=3, step=step, split="train", length=8, total=step, count=2) for step in (2, 4, 6)]
REST = [
    row(metric="accuracy", seed=3, step=6, split="validation", length=16, total=1, count=2),
    row(metric="accuracy", seed=4, step=6, split="test", length=64, total=1, count=4),
]


def scalars(folder: Path, seed: int) -> dict[str, list[tuple[int, float]]]:
    """The points of every curve of a seed, as all files together have them."""
    files = EventAccumulator(str(folder / "tensorboard" / f"seed_{seed}"), {"scalars": 0}).Reload()
    return {tag: [(e.step, e.value) for e in files.Scalars(tag)] for tag in files.Tags()["scalars"]}


def test_a_kill_and_a_resume_leave_no_point_twice(tmp_path: Path) -> None:
    killed = TensorBoard()
    with Recorder(tmp_path, 0, {"tensorboard": killed}, {}) as recorder:
        recorder.begin(OF_TWO_SEEDS)
        recorder.write(TRAIN[:2])
        offset = recorder.sync()
        recorder.write(TRAIN[2:])
    with Recorder(tmp_path, offset, {"tensorboard": TensorBoard()}, {}) as recorder:
        recorder.write(TRAIN[2:])
        recorder.write(REST)
        (line,) = recorder.finish(SinkEnd())
    killed.finish(SinkEnd())
    assert (tmp_path / FILE).is_file() and line == f"TensorBoard: tensorboard --logdir {tmp_path / 'tensorboard'}"
    assert scalars(tmp_path, 3) == {
        "train/loss": [(2, 1.0), (4, 2.0), (6, 3.0)],
        "validation/accuracy@16": [(6, 0.5)],
    }
    assert scalars(tmp_path, 4) == {"extrapolation/accuracy": [(64, 0.25)]}


def test_a_missing_package_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evalkit.record.tensorboard.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'griffin-evalkit\[tensorboard\]'"):
        TensorBoard().check()
