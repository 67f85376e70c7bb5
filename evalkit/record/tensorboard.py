"""Writes a run's curves for TensorBoard, as event files in the run's folder."""

import shlex
import time
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from evalkit.core.contracts import Sink, SinkEnd, SinkStart
from evalkit.core.errors import UserError
from evalkit.core.rows import Header, Row
from evalkit.record.sinks import points

FOLDER = "tensorboard"
# How many events may wait for the thread that writes them; with tensorboard's default of 10, training would wait.
WAITING = 10_000
FLUSH_SECONDS = 10


class TensorBoard(Sink):
    """Curves by the same names as in W&B, in `tensorboard/seed_<seed>` of the run's folder.

    Every session replaces the earlier files with the whole record, so that no point is there twice. Each file begins
    with a START event, at which an open page forgets the old points.
    """

    def __init__(self) -> None:
        self._writers: dict[int, Any] = {}  # tensorboard is an extra, whose types are not known here

    def check(self) -> None:
        """Raises UserError where tensorboard is not installed."""
        if find_spec("tensorboard") is None:
            raise UserError("log=tensorboard needs tensorboard: pip install 'griffin-evalkit[tensorboard]'")

    def begin(self, header: Header, start: SinkStart) -> int:
        """Begins a new file for each seed."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # pyright: ignore[reportAttributeAccessIssue]
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._folder, self._train_length = start.folder / FOLDER, header.train_length
        for path in self._folder.glob("*/events.out.tfevents.*"):
            path.unlink()
        for seed in header.seeds or [start.config["seed"]]:
            writer = EventFileWriter(str(self._folder / f"seed_{seed}"), WAITING, FLUSH_SECONDS)
            writer.add_event(Event(wall_time=time.time(), step=0, session_log=SessionLog(status=SessionLog.START)))
            self._writers[seed] = writer
        return 0

    def write(self, rows: Sequence[Row]) -> None:
        """Adds an event for each point, at its step or, of an extrapolation, at its length."""
        from tensorboard.compat.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]
        from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]

        for point in points(rows, list(self._writers), self._train_length):
            values = [Summary.Value(tag=name, simple_value=value) for name, value in point.values.items()]
            event = Event(wall_time=time.time(), step=point.at or 0, summary=Summary(value=values))
            self._writers[point.seed].add_event(event)

    def finish(self, end: SinkEnd) -> list[str]:
        """Closes the files; says how they are looked at."""
        for writer in self._writers.values():
            writer.close()
        return [f"TensorBoard: tensorboard --logdir {shlex.quote(str(self._folder))}"]
