"""What a sink promises: methods that a session can call, and every row once, after kills and resumes as well."""

import shutil
from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from evalkit.contract.promises import Promise, not_callable, promised
from evalkit.core.contracts import Sink, SinkEnd, SinkStart
from evalkit.core.rows import FILE, Header, Row, encode, encode_header, row
from evalkit.record.sinks import Recorder

METHODS = {"check": 0, "begin": 2, "write": 1, "repeat": 1, "finish": 1}
NAME, CONFIG = "check", {"seed": 0, "seeds": 1}
HEADER = Header("check", "check", "check", "evalkit.evaluations.extrapolation.report", seeds=[0], train_length=8)
AT: dict[str, Any] = {"seed": 0, "step": 6, "split": "test"}
# Each has a metric of its own, by which it is found in a file.
ROWS: Sequence[Row] = (
    *(row(metric=f"row_{i}", seed=0, step=i, split="train", length=8, total=1, count=2) for i in range(6)),
    row(metric="row_6", length=8, total=0.5, count=2, **AT),
    row(metric="row_7", length=16, count=0, extra={"not_run": "too long"}, **AT),
    row(metric="row_8", length=16, position=4, total=1, count=2, extra={"first": 1}, **AT),
    row(metric="row_9", split="benchmark", total=1, count=2),
)
# Sessions on one run: the row at which each begins, the row before which it stops, and whether it ends or is killed.
WHOLE = ((0, 10, True),)
LIVES = {
    "a kill and a resume": ((0, 5, False), (3, 10, True)),
    "a kill before the first checkpoint": ((0, 2, False), (0, 10, True)),
    "an interrupt and a resume": ((0, 5, True), (3, 10, True)),
    "an interrupt, a kill and a resume": ((0, 5, True), (3, 8, False), (4, 10, True)),
}


class SinkUnderCheck(NamedTuple):
    """A sink, which `make` builds anew, as each session does."""

    make: Callable[[], Any]


def counts(make: Callable[[], Any], sessions: Sequence[tuple[int, int, bool]]) -> list[int]:
    """How often each of the rows is in the files that a sink leaves after these sessions."""
    lengths = [len(encode_header(HEADER)) + 1, *(len(encode(entry)) + 1 for entry in ROWS)]
    killed = []
    with TemporaryDirectory() as name:
        for number, (first, last, ends) in enumerate(sessions):
            # Each session goes on in a copy of the folder, which the threads of a killed sink cannot reach.
            folder = Path(name) / str(number)
            shutil.copytree(Path(name) / str(number - 1), folder) if number else folder.mkdir()
            sink = make()
            with Recorder(folder, sum(lengths[: first + 1]) if first else 0, {NAME: sink}, CONFIG) as recorder:
                if not first:
                    recorder.begin(HEADER)
                for entry in ROWS[first:last]:
                    recorder.write([deepcopy(entry)])
                if ends:
                    recorder.finish(SinkEnd(0 if last == len(ROWS) else 130))
                else:
                    killed.append(sink)  # keeps the sink alive: a deleted one may write rows that it holds back
        own = {FILE, f"{NAME}_sent.json"}
        files = [path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name not in own]
        for sink in killed:
            sink.finish(SinkEnd(1))
    return [sum(text.count(entry["metric"].encode()) for text in files) for entry in ROWS]


@promised("sink", "it is a Sink of evalkit.core.contracts, whose methods a session can call")
def _sink(subject: SinkUnderCheck) -> str | None:
    sink = subject.make()
    if not isinstance(sink, Sink):
        return f"it is a {type(sink).__name__}"
    return not_callable(sink, METHODS)


@promised("session", "it takes every kind of row and changes none; begin returns None or a count, finish lines of text")
def _session(subject: SinkUnderCheck) -> str | None:
    for session in ([], [[entry] for entry in ROWS]):
        with TemporaryDirectory() as name:
            sink = subject.make()
            try:
                kept = sink.begin(HEADER, SinkStart(Path(name), CONFIG))
                if kept not in (None, 0) or isinstance(kept, bool):
                    return f"begin returns {kept!r} when it has received no row"
                for rows in deepcopy(session) if kept is not None else ():
                    before = deepcopy(rows)
                    sink.write(rows)
                    if rows != before:
                        return f"write changes {before[0]['metric']}"
            finally:
                lines = sink.finish(SinkEnd())
            if isinstance(lines, str) or not all(isinstance(line, str) for line in lines):
                return f"finish returns {lines!r}"
    return None


@promised("once", "each row is in its files as often after kills and resumes as after one session")
def _once(subject: SinkUnderCheck) -> str | None:
    whole = counts(subject.make, WHOLE)
    for name, sessions in LIVES.items():
        for entry, here, there in zip(ROWS, counts(subject.make, sessions), whole, strict=True):
            if here != there:
                return f"{entry['metric']} is there {here} times after {name}, and {there} times after one session"
    return None


QUICK_PROMISES_OF_SINKS: tuple[tuple[Promise, ...], ...] = ((_sink,),)
"""The promises whose check writes nothing; a group is checked only if all promises of those before it are kept."""
PROMISES_OF_SINKS: tuple[tuple[Promise, ...], ...] = (*QUICK_PROMISES_OF_SINKS, (_session,), (_once,))
