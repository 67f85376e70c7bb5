"""Metric rows: the record of truth of a run, one JSON object a line in `metrics.jsonl`."""

import json
import math
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from io import FileIO
from numbers import Integral
from operator import index
from pathlib import Path
from typing import Any, Self, SupportsFloat, SupportsIndex, TypedDict, cast

from evalkit.core.errors import UserError, writing

FILE = "metrics.jsonl"


class Row(TypedDict):
    """One measurement: its value is `total / count`; `None` where a field does not apply."""

    run: str | None
    task: str | None
    model: str | None
    seed: int | None
    step: int | None
    split: str | None
    length: int | None
    position: int | None
    metric: str
    total: float | None
    count: float | None
    extra: dict[str, Any] | None


FIELDS = tuple(Row.__annotations__)


def row(
    *,
    metric: str,
    run: str | None = None,
    task: str | None = None,
    model: str | None = None,
    seed: SupportsIndex | None = None,
    step: SupportsIndex | None = None,
    split: str | None = None,
    length: SupportsIndex | None = None,
    position: SupportsIndex | None = None,
    total: SupportsFloat | None = None,
    count: SupportsFloat | None = None,
    extra: Mapping[str, Any] | None = None,
) -> Row:
    """Makes one row; `count` counts sequences, `total` sums one number a sequence. Array scalars become numbers."""
    return Row(
        run=run,
        task=task,
        model=model,
        seed=_integer(seed),
        step=_integer(step),
        split=split,
        length=_integer(length),
        position=_integer(position),
        metric=metric,
        total=_number(total),
        count=_number(count),
        extra=None if extra is None else dict(extra),
    )


def value(entry: Row) -> float:
    """The row's mean, `total / count`; NaN where it has none (a non-finite total, or nothing counted)."""
    if entry["total"] is None or not entry["count"]:
        return math.nan
    return entry["total"] / entry["count"]


def encode(entry: Row) -> str:
    """One line of strictly valid JSON, fields in fixed order, floats by `repr`.

    A non-finite total is written as null, with `extra.value` = "nan", "inf" or "-inf".
    """
    fields = dict(entry)
    total = entry["total"]
    if total is not None and not math.isfinite(total):
        fields |= {"total": None, "extra": {**(entry["extra"] or {}), "value": str(float(total))}}
    fields["extra"] = _plain(fields["extra"])
    return json.dumps({name: fields[name] for name in FIELDS}, allow_nan=False, separators=(",", ":"))


class RowLog:
    """Appends rows to a file, each with the operating system before `write` returns; made by `RowLog.open`."""

    def __init__(self, file: FileIO, path: Path, offset: int) -> None:
        self._file = file
        self.path = path
        self.offset = offset

    @classmethod
    def open(cls, path: str | Path, offset: int | None = None) -> Self:
        """Opens `path` for appending, making it where it is missing.

        With `offset` (bytes, from `sync`), everything after it is removed first: that is how a run resumes. A last
        line that was only half written is removed in any case. Raises `UserError` if the file is shorter than `offset`
        or cannot be written.
        """
        path = Path(path)
        with writing(path):
            path.touch()
            size = path.stat().st_size
        if offset is not None and size < offset:
            raise UserError(f"{path} has {size} bytes but its checkpoint {offset}: rows were lost; start a new run")
        with writing(path):
            end = _complete(path.read_bytes()[:offset])
            file = FileIO(path, "r+")
            file.truncate(end)
            file.seek(end)
        return cls(file, path, end)

    def write(self, rows: Iterable[Row]) -> None:
        """Appends `rows`, one write a row. Raises `UserError` naming the file when the disk refuses."""
        for entry in rows:
            line = (encode(entry) + "\n").encode()
            try:
                with writing(self.path):
                    self._write_all(line)
            except UserError:
                self._drop_partial_line()
                raise
            self.offset += len(line)

    def sync(self) -> int:
        """Forces the rows to the disk and returns the file's length in bytes, to be stored beside a checkpoint."""
        with writing(self.path):
            os.fsync(self._file.fileno())
        return self.offset

    def close(self) -> None:
        """Closes the file; safe to call twice."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write_all(self, line: bytes) -> None:
        rest = memoryview(line)
        while rest:
            rest = rest[self._file.write(rest) :]

    def _drop_partial_line(self) -> None:
        with suppress(OSError):
            self._file.truncate(self.offset)
            self._file.seek(self.offset)


def read(run: str | Path) -> list[Row]:
    """The rows of one run's folder, in the order written; a last line cut short by a kill is ignored.

    Raises `UserError` if the folder has no `metrics.jsonl`, or if a complete line is not a row.
    """
    path = Path(run) / FILE
    if not path.is_file():
        raise UserError(f"no {FILE} in {run}: give the folder of a run (runs/<task>/<model>/<timestamp>)")
    data = path.read_bytes()
    lines = data[: _complete(data)].splitlines()
    return [_decode(line, path, number) for number, line in enumerate(lines, start=1)]


def rows(*runs: str | Path) -> list[Row]:
    """The rows of one or several runs as a table: `pandas.DataFrame(evalkit.rows(RUN))`.

    Raises `UserError` naming the folder that has no `metrics.jsonl`.
    """
    return [entry for run in runs for entry in read(run)]


def _decode(line: bytes, path: Path, number: int) -> Row:
    try:
        fields = json.loads(line)
    except ValueError as error:
        raise UserError(f"{path}:{number} is not JSON ({error}): the file was damaged or edited") from error
    if not isinstance(fields, dict) or set(fields) != set(FIELDS):
        raise UserError(f"{path}:{number} is not a row: each line has exactly the fields {', '.join(FIELDS)}")
    return cast(Row, fields)


def _complete(data: bytes) -> int:
    return data.rfind(b"\n") + 1


def _integer(number: SupportsIndex | None) -> int | None:
    return None if number is None else index(number)


def _number(number: SupportsFloat | None) -> float | None:
    if number is None:
        return None
    return int(number) if isinstance(number, Integral) else float(number)


def _plain(item: Any) -> Any:
    """`item` as JSON can hold it: keys as sorted strings, array scalars as numbers, non-finite floats as strings."""
    if isinstance(item, Mapping):
        return {str(key): _plain(item[key]) for key in sorted(item, key=str)}
    if isinstance(item, list | tuple):
        return [_plain(part) for part in item]
    if item is None or isinstance(item, str | bool):
        return item
    number = _number(item)
    return number if number is not None and math.isfinite(number) else str(number)
