"""What TensorBoard is given is read back from its event files."""

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from evalkit.core.contracts import SinkEnd
from evalkit.core.errors import UserError
from evalkit.core.rows import FILE, Header, row
from evalkit.record.sinks import Recorder
from evalkit.record.tensorboard import TensorBoard

HEADER = Header("r", "copying", "hawk", "evalkit.evaluations.extrapolation.report", seeds=[3, 4], train_length=8)
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
        recorder.begin(HEADER)
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
