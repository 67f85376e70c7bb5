"""The record of truth of a run, `metrics.jsonl`: a header that says what the run is, then one measurement a line."""

import gzip
import json
import math
import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import FileIO
from numbers import Integral
from operator import index
from pathlib import Path
from types import UnionType
from typing import (
    Any,
    NamedTuple,
    Self,
    SupportsFloat,
    SupportsIndex,
    TypedDict,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from evalkit.core import moved, studies
from evalkit.core.errors import UserError, reading, writing

FILE, PACKED = "metrics.jsonl", "metrics.jsonl.gz"
# Metrics that identify a recall evaluation in records that were written before there was a header.
RECALL_METRICS = {"recalled", "forgetting", "difference", "drift", "restored"}


@dataclass(frozen=True)
class Header:
    """The first line of `metrics.jsonl`: what the run is; `None` where a field does not apply or is not known."""

    run: str
    task: str
    model: str
    kind: str
    """The kind of report that its rows become, by dotted name, such as "evalkit.evaluations.extrapolation.report"."""
    parameters: int | None = None
    cache_bytes: Mapping[str, int] | None = None
    """The bytes of one sequence's cache, by the sequence's length: that of training, and the longest measured."""
    flops_per_token: int | None = None
    """Floating-point operations of a forward pass over a sequence of the training length, for each of its tokens."""
    train_length: int | None = None
    answer_length: int | None = None
    window: int | None = None
    chance: float | None = None
    task_version: int = 1
    """The task's own; records that were written before there was this field are of the first version."""
    seeds: Sequence[int] = ()
    steps: int | None = None
    preset: str | None = None
    notes: Sequence[str] = ()
    text: Mapping[str, str] | None = None
    """Of a run on text, what is read: in words (`used`), and digests of all of it and of the held-out documents."""
    source: str | None = None
    """Where a checkpoint comes from; `identity` names its architecture and parameters, `digest` its files."""
    identity: str | None = None
    digest: str | None = None

    def state_bytes(self, length: int | None = None) -> int | None:
        """The bytes kept between tokens of a sequence of `length`, by default the training length; None: not known."""
        return (self.cache_bytes or {}).get(str(length or self.train_length))


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
    extra: dict[str, Any]
    """Anything else about the measurement; null in the file where it is empty."""


class Record(NamedTuple):
    """What `metrics.jsonl` holds."""

    header: Header
    rows: list[Row]


FIELDS = tuple(Row.__annotations__)
HEADER_TYPES: Mapping[str, Any] = get_type_hints(Header)
HEADER_FIELDS = tuple(HEADER_TYPES)
LIMITS: Mapping[type, float] = {int: 2**63, float: math.inf}
"""Beyond every number of a record: JSON that is too large for a float is read as infinity."""
LARGEST_RECORD = 2**30
"""The most bytes of an unpacked record: more than any run wrote, but a small packed file of zeros can hold more."""
# The exact types of a line's fields. A subtype is not enough: true is no number.
TYPES: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("run", "task", "model", "split"), (str, type(None))),
    **dict.fromkeys(("seed", "step", "length", "position"), (int, type(None))),
    **dict.fromkeys(("total", "count"), (float, int, type(None))),
    "metric": (str,),
    "extra": (dict, type(None)),
}


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")


DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
"""Made once: `json.loads` would make one a line."""


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
        extra=dict(extra or {}),
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
    fields, total = dict(entry), entry["total"]
    if total is not None and not math.isfinite(total):
        fields |= {"total": None, "extra": {**entry["extra"], "value": str(float(total))}}
    fields["extra"] = _plain(fields["extra"]) or None
    return json.dumps({name: fields[name] for name in FIELDS}, allow_nan=False, separators=(",", ":"))


def encode_header(header: Header) -> str:
    """The header as one line of JSON, fields in fixed order."""
    fields = {name: _plain(getattr(header, name)) for name in HEADER_FIELDS}
    return json.dumps(fields, allow_nan=False, separators=(",", ":"))


def decode(line: bytes) -> Header | Row:
    """A line of the record as a header or a row; raises UserError if it is neither."""
    path = Path(FILE)
    return _header(line, path) or _decode(line, path, 0)


class RowLog:
    """Appends to `metrics.jsonl`, which is made where it is missing; a row is with the system when a call returns.

    With `offset` (bytes, from `sync`), everything after it is removed first: that is how a run resumes. A last line
    that was only half written is removed in any case. Raises `UserError` if the file is shorter than `offset` or cannot
    be written.
    """

    def __init__(self, path: str | Path, offset: int | None = None) -> None:
        self.path = Path(path)
        with writing(self.path):
            self.path.touch()
            data = self.path.read_bytes()
        if offset is not None and len(data) < offset:
            raise UserError(
                f"{path} has {len(data)} bytes but its checkpoint {offset}: rows were lost; start a new run"
            )
        self.offset = _complete(data[:offset])
        with writing(self.path):
            self._file = FileIO(self.path, "r+")
            self._file.truncate(self.offset)
            self._file.seek(self.offset)

    def begin(self, header: Header) -> None:
        """Writes the header, before any row. Raises `UserError` naming the file when the disk refuses."""
        if self.offset:
            raise ValueError(f"{self.path} has {self.offset} bytes already, and a header is the first line")
        self._append(encode_header(header))

    def write(self, rows: Iterable[Row]) -> None:
        """Appends `rows`, one write a row. Raises `UserError` naming the file when the disk refuses."""
        for entry in rows:
            self._append(encode(entry))

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

    def _append(self, text: str) -> None:
        line = f"{text}\n".encode()
        rest = memoryview(line)
        try:
            with writing(self.path):
                while rest:
                    rest = rest[self._file.write(rest) :]
        except UserError:
            with suppress(OSError):  # what was written of the line goes
                self._file.truncate(self.offset)
                self._file.seek(self.offset)
            raise
        self.offset += len(line)


def record_file(run: str | Path) -> Path | None:
    """The record in one folder, packed or not; None where there is none."""
    return next((path for name in (FILE, PACKED) if (path := Path(run) / name).is_file()), None)


def with_records(folder: Path) -> list[Path]:
    """The folders in `folder` that have a record, in order, and those of the runs that a study packs."""
    own = (path.parent for name in (FILE, PACKED) for path in folder.rglob(name))
    return sorted({*own, *studies.packed_below(folder)})


def pack(run: Path, folder: Path) -> None:
    """Writes the record of `run` as `metrics.jsonl.gz` into `folder`: a tenth of its size."""
    if record_file(run) is not None:
        (folder / PACKED).write_bytes(gzip.compress(record_bytes(run), mtime=0))


def read(run: str | Path) -> Record:
    """The record in one run's folder, rows in the order written; a last line cut short by a kill is ignored.

    An archive keeps it packed, as `metrics.jsonl.gz`; a study keeps the records of many runs in one file.

    Records that were written before there was a header get one from their rows. Raises `UserError` if the folder has no
    record, or if a complete line is damaged.
    """
    path, data = Path(run) / FILE, record_bytes(run)
    lines = data[: _complete(data)].splitlines()
    header = _header(lines[0], path) if lines else None
    if header is not None:
        return Record(header, [_decode(line, path, number) for number, line in enumerate(lines[1:], start=2)])
    return _headed([_decode(line, path, number) for number, line in enumerate(lines, start=1)], path)


def record_bytes(run: str | Path) -> bytes:
    """The lines of the record in one run's folder, packed or not; raises UserError where there is none."""
    path = record_file(run)
    if path is not None:
        with reading(path):
            data = path.read_bytes()
        return data if path.name == FILE else _unpacked(data, path)
    packed = studies.packed(Path(run))
    if packed is None:
        raise UserError(f"no {FILE} in {run}: give the folder of a run (runs/<task>/<model>/<timestamp>)")
    return _unpacked(packed.record(), Path(run))


def offset_after(run: str | Path, count: int) -> int:
    """The bytes of a record's first line and its first `count` rows: where `RowLog` cuts off what follows."""
    lines = (Path(run) / FILE).read_bytes().splitlines(keepends=True)
    return sum(map(len, lines[: 1 + count]))


def _unpacked(data: bytes, path: Path) -> bytes:
    """The lines of a packed record; raises UserError for one that is damaged."""
    unpack = zlib.decompressobj(wbits=31)  # as gzip, with a limit
    try:
        content = unpack.decompress(data, LARGEST_RECORD)
    except zlib.error as error:
        raise UserError(f"{path} cannot be unpacked ({error}): the file was damaged") from error
    if unpack.unconsumed_tail:
        raise UserError(f"{path} unpacks to more than {LARGEST_RECORD:,} bytes, which is no record of a run")
    if not unpack.eof:
        raise UserError(f"{path} cannot be unpacked: the file was cut short")
    return content


def _header(line: bytes, path: Path) -> Header | None:
    """The header that this line is, None if it is something else; raises UserError for one that is damaged."""
    content = None
    with suppress(ValueError, RecursionError):
        content = DECODER.decode(line.decode())
    if not isinstance(content, dict) or not {"run", "kind", "task", "model"} <= set(content) <= set(HEADER_FIELDS):
        return None
    for name, value in content.items():
        if not _fits(value, HEADER_TYPES[name]):
            raise UserError(f"{path}:1 has {name}={str(value)[:60]!r}: the file was damaged or edited")
    # Tuples, so that a header comes back equal to the one that was written.
    fields: dict[str, Any] = {name: tuple(x) if isinstance(x, list) else x for name, x in content.items()}
    return Header(**{**fields, "kind": moved.KINDS.get(fields["kind"], fields["kind"])})


def _fits(value: Any, annotation: Any) -> bool:
    """Whether JSON has the type that a field of the header is annotated with."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is UnionType:
        return any(_fits(value, argument) for argument in arguments)
    if origin is Mapping:
        return isinstance(value, dict) and all(_fits(held, arguments[1]) for held in value.values())
    if origin is Sequence:
        return isinstance(value, list) and all(_fits(held, arguments[0]) for held in value)
    kinds = (int, float) if annotation is float else (annotation,)
    return type(value) in kinds and (type(value) not in LIMITS or abs(value) < LIMITS[type(value)])


def _headed(rows: Sequence[Row], path: Path) -> Record:
    """The record of rows without a header; the first one of the metric `parameters`, if any, has facts in `extra`."""
    first = next((entry for entry in rows if entry["metric"] == "parameters"), None)
    facts = {} if first is None else {name: first["extra"][name] for name in HEADER_FIELDS if name in first["extra"]}
    lengths = (entry["length"] for entry in rows if entry["split"] == "validation" and entry["length"] is not None)
    notes = facts.get("notes") or ()
    named = first or (rows[0] if rows else row(metric="", run=path.parent.name))
    header = Header(
        **{
            **facts,
            "run": named["run"] or path.parent.name,
            "task": named["task"] or "",
            "model": named["model"] or "",
            "kind": _kind(rows, facts),
            "parameters": None if first is None or first["total"] is None else int(first["total"]),
            "train_length": facts.get("train_length") or min(lengths, default=None),
            "notes": (notes,) if isinstance(notes, str) else tuple(notes),
            "seeds": tuple(facts.get("seeds") or ()),
        }
    )
    return Record(header, [entry for entry in rows if entry["metric"] != "parameters"])


def _kind(rows: Sequence[Row], facts: Mapping[str, Any]) -> str:
    """The kind of report of old rows."""
    if facts.get("text"):
        return moved.TEXT
    if any(entry["metric"] in RECALL_METRICS for entry in rows):
        return moved.RECALL
    by_task = {"phonebook_lookup": moved.PHONEBOOK, "downstream": moved.BENCHMARKS}
    return by_task.get(str(rows[0]["task"]), moved.ACCURACY) if rows else moved.ACCURACY


def _decode(line: bytes, path: Path, number: int) -> Row:
    try:
        fields = DECODER.decode(line.decode())
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}:{number} is not JSON ({error}): the file was damaged or edited") from error
    if not isinstance(fields, dict) or fields.keys() != TYPES.keys():
        raise UserError(f"{path}:{number} is not a row: each line has exactly the fields {', '.join(FIELDS)}")
    for name, value in fields.items():
        kind = type(value)
        if kind not in TYPES[name] or (kind in LIMITS and not abs(value) < LIMITS[kind]):
            raise UserError(f"{path}:{number} has {name}={str(value)[:60]!r}: the file was damaged or edited")
    fields["extra"] = fields["extra"] or {}
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
