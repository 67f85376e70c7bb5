"""Every row of the record reaches a sink once and in order, whatever becomes of sessions and of the sink."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from evalkit.contract.sinks import CONFIG, HEADER, LIVES, ROWS
from evalkit.core.contracts import Sink, SinkEnd, SinkStart
from evalkit.core.rows import FILE, Header, Row, encode, read
from evalkit.record.sinks import Recorder


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
