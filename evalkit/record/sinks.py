"""Writes a run's rows to `metrics.jsonl`, the record, and gives them to the sinks; no failure of a sink stops a run.

A killed session may lose the last rows that a sink was given. So it does not count: the next session gives its rows to
the sink again. `<name>_sent.json` notes what the sink got in sessions that ended by themselves.
"""

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, Self

from evalkit.core import during
from evalkit.core.contracts import Sink, SinkEnd, SinkStart
from evalkit.core.errors import first_line, place_of
from evalkit.core.rows import FILE, Header, Record, Row, RowLog, encode, encode_header, read
from evalkit.disk.files import write_whole

logger = logging.getLogger(__name__)


class Recorder:
    """The record of a run, cut after `offset` bytes, and a session's sinks by name. Use it as a context manager."""

    def __init__(self, folder: Path, offset: int, sinks: Mapping[str, Sink], config: Mapping[str, Any]):
        file = folder / FILE
        before = file.read_bytes() if file.is_file() else b""
        # Each outlet notes the rows that are cut from the record before they are deleted there.
        self._outlets = [Outlet(name, sink, folder, config, before, offset) for name, sink in sinks.items()]
        self._log = RowLog(file, offset)
        if self._log.offset and self._outlets:
            record = read(folder)
            for outlet in self._outlets:
                outlet.begin(record)

    def begin(self, header: Header) -> None:
        """Writes the first line of the record: what the run is. Raises UserError when the disk refuses."""
        self._log.begin(header)
        for outlet in self._outlets:
            outlet.begin(Record(header, []))

    def write(self, rows: Sequence[Row]) -> None:
        """Writes rows to the record, then to the sinks. Raises UserError when the disk refuses."""
        self._log.write(rows)
        for outlet in self._outlets:
            outlet.write(rows)

    def sync(self) -> int:
        """Forces the record to the disk; returns its length in bytes, to be stored beside a checkpoint."""
        return self._log.sync()

    def finish(self, end: SinkEnd) -> list[str]:
        """Ends the sinks that have not ended yet; returns what they tell the user."""
        return [line for outlet in self._outlets for line in outlet.finish(end, self._log.offset)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._log.close()


@dataclass(frozen=True)
class Delivery:
    """What a sink received in sessions that ended by themselves: the first `rows` bytes of `metrics.jsonl`.

    `sessions` are the names of what these left. `ahead` are lines that the sink has as well and that were taken back
    from the record, to be written anew.
    """

    rows: int = 0
    sessions: Sequence[str] = ()
    ahead: Sequence[str] = ()

    def cut(self, record: bytes, offset: int) -> "Delivery":
        """The same when the `record` is cut after `offset` bytes."""
        lines = record[offset : self.rows].decode().split("\n")[:-1]
        return replace(self, rows=min(self.rows, offset), ahead=[*lines, *self.ahead])


class Outlet:
    """One sink of a session: it gets each row once, and its first error becomes one warning."""

    def __init__(
        self, name: str, sink: Sink, folder: Path, config: Mapping[str, Any], record: bytes, offset: int
    ) -> None:
        self._name, self._sink, self._folder, self._config = name, sink, folder, config
        self._note = folder / f"{name}_sent.json"
        self._begun = self._failed = False
        self._delivered, self._in_record = Delivery(), 0
        self._ahead: list[str] = []
        with self._one_warning():
            if self._note.is_file():
                before = Delivery(**json.loads(self._note.read_text(encoding="utf-8")))
                self._delivered = before.cut(record, offset)
                self._in_record = max(0, record[: self._delivered.rows].count(b"\n") - 1)
                self._write(self._delivered)

    def begin(self, record: Record) -> None:
        """Begins the session, and gives the sink the rows of `record` that it has not or may have lost."""
        if self._failed:
            return
        had, ahead = self._delivered, list(self._delivered.ahead)
        with self._one_warning():
            if not had.rows and ahead and ahead.pop(0) != encode_header(record.header):
                ahead = []
            received = self._in_record + len(ahead)
            self._begun = True
            kept = self._sink.begin(record.header, SinkStart(self._folder, self._config, received, had.sessions))
            if kept is None:
                self._begun = False
                return
            if kept not in range(received + 1):
                raise ValueError(f"begin returned {kept!r}; allowed: None, or 0 to {received}, the rows received")
            self._ahead = ahead if kept == received else []
            if kept != received:
                self._write(Delivery(sessions=had.sessions))
            for rows in written_together(record.rows[min(kept, self._in_record) :]):
                new = self._new(rows)
                if new:
                    self._sink.repeat(new)

    def write(self, rows: Sequence[Row]) -> None:
        """Gives the sink the rows that it does not have."""
        if not self._begun or self._failed:
            return
        with self._one_warning():
            new = self._new(rows)
            if new:
                self._sink.write(new)

    def finish(self, end: SinkEnd, written: int) -> list[str]:
        """Ends the session, and notes that the sink has the first `written` bytes of the record."""
        if not self._begun:
            return []
        self._begun, failed = False, self._failed
        lines: list[str] = []
        with self._one_warning():
            lines += self._sink.finish(end)
            if not failed:
                self._write(Delivery(written, [*self._delivered.sessions, *self._sink.sessions]))
        return [] if self._failed else lines

    def _new(self, rows: Sequence[Row]) -> list[Row]:
        """The rows that the sink does not have; it has those that repeat `_ahead`, up to the first difference."""
        new = []
        for entry in rows:
            if self._ahead and self._ahead[0] == encode(entry):
                del self._ahead[0]
            else:
                self._ahead = []
                new.append(entry)
        return new

    def _write(self, delivery: Delivery) -> None:
        write_whole(self._note, json.dumps(asdict(delivery), indent=2) + "\n")

    @contextmanager
    def _one_warning(self) -> Iterator[None]:
        """Turns an error in the block into a warning, the session's first alone."""
        try:
            yield
        except Exception as error:  # whatever code that we did not write may raise
            if not self._failed:
                logger.warning(
                    "log=%s failed and gets nothing more; metrics.jsonl goes on: %s%s",
                    *(self._name, first_line(error), place_of(error)),
                )
            self._failed = True


def written_together(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Groups rows as they were written: by dispatch, by validation, and singly in the evaluation at the end."""
    # A look while training was written with the validation before it.
    alike = {during.DURING: "validation"}
    for (split, _), group in groupby(
        rows, lambda entry: (alike.get(entry["split"] or "", entry["split"]), entry["step"])
    ):
        together = list(group)
        yield from ([entry] for entry in together) if split == "test" else [together]


class Point(NamedTuple):
    """Values of one seed's curves at place `at` of `axis`, by name; `axis` is empty for what is measured once."""

    seed: int
    axis: str
    at: int | None
    values: dict[str, float]


def points(rows: Iterable[Row], seeds: Sequence[int], train_length: int | None) -> list[Point]:
    """The points of the curves that `rows` make; a row without a seed is one of every seed's.

    Rows by position or channel and rows without a value (`count == 0`) are in no curve. Validation rows at other
    lengths than `train_length` get names of their own, and so does each group of prompts, depth and block.
    """
    by_place: dict[tuple[int, str, int | None], Point] = {}
    kept = list(rows)
    for name, of_seeds in during.curves(kept).items():
        for seed, steps in of_seeds.items():
            for step, value in steps.items() if seed in seeds else ():
                point = by_place.setdefault((seed, STEP, step), Point(seed, STEP, step, {}))
                point.values[f"{during.DURING}/{name}"] = value
    for row in kept:
        if row["split"] == during.DURING:
            continue
        if not row["count"] or row["total"] is None or row["position"] is not None or "channel" in row["extra"]:
            continue
        name, axis, at = _curve(row, train_length)
        for seed in seeds if row["seed"] is None else {row["seed"]} & set(seeds):
            point = by_place.setdefault((seed, axis, at), Point(seed, axis, at, {}))
            point.values[name] = row["total"] / row["count"]
    return list(by_place.values())


STEP, LENGTH = "train/step", "eval/length"
APART = ("answer", "depth", "block")
"""What sets the measurements of an evaluation at one length apart, each with a curve of its own."""


def _curve(row: Row, train_length: int | None) -> tuple[str, str, int | None]:
    """The name of the curve that a row belongs to, the name of its x axis, and where on it the row lies."""
    split, metric, length = row["split"], row["metric"], row["length"]
    if split == "test":
        which = "".join(
            f"/{name} {row['extra'][name]}"
            for name in APART
            if row["extra"].get(name, during.ALL) not in (during.ALL, None)
        )
        return f"extrapolation/{metric}{which}", LENGTH, length
    if split == "validation" and length != train_length:
        return f"validation/{metric}@{length}", STEP, row["step"]
    if split in ("train", "validation"):
        return f"{split}/{metric}", STEP, row["step"]
    return metric, "", None
