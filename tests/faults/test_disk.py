"""A disk that is full or may not be written: one line, the last checkpoint good, and the run goes on afterwards."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from evalkit.__main__ import main
from evalkit.checkpoints import loading
from evalkit.core.rows import read
from evalkit.disk import places
from evalkit.session import gates
from evalkit.training.checkpoints import Checkpoints
from support import faults, tiny
from support.faults import one_line

pytestmark = [pytest.mark.fault, pytest.mark.usefixtures("shared", "blank_figures")]
NO_START = "evalkit.session.gates.refuse_full"
# The limits lie between the sizes of the files that a tiny run writes: its settings, rows, checkpoints and report.
SIZES = (400, 1_000, 1_900, 2_500, 4_000, 7_000, 9_000, 12_000, 20_000, 30_000)
LEFT = (0, 8, 24, 40, 56, 72, 96, 128, 160, 192, 256)
"""Kilobytes that are left of a small disk when the run begins."""


class Outcome(NamedTuple):
    """How a run ends."""

    rows: Any
    results: Any
    state: Any


def outcome(folder: Path) -> Outcome:
    return Outcome(tiny.rows(folder), tiny.results(folder), tiny.state(folder))


@pytest.fixture(scope="module")
def undisturbed(tiny_run: Path) -> Outcome:
    return outcome(tiny_run)


def assert_goes_on(folder: Path, undisturbed: Outcome) -> None:
    """The same command, or `resume` where the run had begun, ends as a run that was never disturbed."""
    begun = (folder / "config.yaml").is_file()
    words = [f"resume={folder}"] if begun else [*tiny.OVERRIDES, f"hydra.run.dir={folder}"]
    assert main(words) == 0
    found = outcome(folder)
    assert found[:2] == undisturbed[:2]
    tiny.assert_identical(found.state, undisturbed.state)


def assert_last_checkpoint_good(folder: Path) -> None:
    """Every step but the last two has a checkpoint, which can be read, and its rows are in the record.

    Where the rows themselves are the first that the disk refused, there is none yet.
    """
    if not (folder / "metrics.jsonl").is_file():
        return
    step = tiny.last_step(read(folder).rows)
    trainer = loading.trainer_of(tiny.experiment())
    restored = Checkpoints(folder).restore(trainer.abstract, trainer.step.layout)
    if restored is None:
        assert step <= 2
    else:
        assert step - 2 <= restored.step <= step
        assert restored.meta["rows"] <= (folder / "metrics.jsonl").stat().st_size


@pytest.mark.slow
@pytest.mark.parametrize("sizes", faults.counts(SIZES[3:4], SIZES))
def test_a_full_disk_at_any_size_of_file_is_one_line_and_the_run_goes_on(
    undisturbed: Outcome, tmp_path: Path, sizes: tuple[int, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    for size in sizes:
        folder = tmp_path / str(size) / "run"
        with faults.full_beyond(size):
            code = main([*tiny.OVERRIDES, f"hydra.run.dir={folder}"])
        line = capsys.readouterr().err
        assert (code, line) == (0, "") or (code == 2 and "cannot write" in one_line(line)), (size, line)
        if code:
            assert_last_checkpoint_good(folder)
            assert_goes_on(folder, undisturbed)
            shutil.rmtree(folder)


@contextmanager
def small_disk(folder: Path, kilobytes: int) -> Iterator[Path]:
    """A disk of its own; skips the test for who may not mount one."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(folder)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("a small disk is mounted by the superuser alone")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


# With 192 kB the second checkpoint is refused, so that the first must stay.
@pytest.mark.slow
@pytest.mark.parametrize("left", faults.counts(LEFT[9:10], LEFT))
def test_a_disk_that_fills_up_at_any_write_is_one_line_and_the_run_goes_on(
    undisturbed: Outcome,
    tmp_path: Path,
    left: tuple[int, ...],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another program fills it after the run has begun."""
    monkeypatch.setattr(NO_START, lambda folder, trainer: None)
    codes = set()
    with small_disk(tmp_path / "disk", 4096) as disk, faults.no_programs_kept():
        for kilobytes in left:
            folder, other = disk / str(kilobytes) / "run", disk / "other"
            folder.parent.mkdir()
            other.write_bytes(bytes(places.free(disk) - 1024 * kilobytes))
            code = main([*tiny.OVERRIDES, f"hydra.run.dir={folder}"])
            line = capsys.readouterr().err
            assert (code, line) == (0, "") or (code == 2 and "cannot write" in one_line(line)), (kilobytes, line)
            codes.add(code)
            assert_last_checkpoint_good(folder)
            other.unlink()
            if code:
                assert_goes_on(folder, undisturbed)
            shutil.rmtree(folder.parent)
    assert 2 in codes


@pytest.mark.slow
@pytest.mark.exhaustive  # a full disk is refused at the same place, and a folder that may not be written below
@pytest.mark.parametrize("part", ["", "checkpoints"])
def test_a_folder_that_becomes_read_only_is_one_line_and_the_run_goes_on(
    undisturbed: Outcome, shut: Path, part: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, save = shut / "run", Checkpoints.save
    changed = folder / part

    def then_read_only(self: Checkpoints, *saved: object) -> None:
        save(self, *saved)  # type: ignore[arg-type]
        changed.chmod(0o555)

    with faults.no_programs_kept():
        with monkeypatch.context() as patched:
            patched.setattr(Checkpoints, "save", then_read_only)
            code = main([*tiny.OVERRIDES, f"hydra.run.dir={folder}"])
        line = one_line(capsys.readouterr().err)
        assert code == 2 and "cannot write" in line and "Permission denied" in line
        assert_last_checkpoint_good(folder)
        changed.chmod(0o755)
        assert_goes_on(folder, undisturbed)


@pytest.mark.slow
def test_a_folder_that_may_not_be_written_is_one_line(shut: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shut.joinpath("closed").mkdir(mode=0o555)
    with faults.no_programs_kept():
        assert main([*tiny.OVERRIDES, f"hydra.run.dir={shut / 'closed' / 'run'}"]) == 2
    assert "cannot write" in one_line(capsys.readouterr().err)


def test_a_run_that_would_fill_the_disk_is_refused_before_anything_is_written(
    tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(places.shutil, "disk_usage", lambda path: SimpleNamespace(free=1_000_000))
    folder, copy = tmp_path / "run", Path(shutil.copytree(tiny_run, tmp_path / "copy"))
    assert main([*tiny.OVERRIDES, "train.keep_every=2", f"hydra.run.dir={folder}"]) == 2
    line = one_line(capsys.readouterr().err)
    assert "has room for 1 MB, but the run writes about 17 MB, with 6 checkpoints of 0 MB; free space" in line
    assert not folder.exists()
    before = tiny.files(copy)
    assert main([f"resume={copy}", "train.steps=10"]) == 2
    assert "has room for 1 MB" in one_line(capsys.readouterr().err)
    assert tiny.files(copy) == before


def test_what_a_run_writes_is_not_more_than_was_estimated(tiny_run: Path) -> None:
    trainer = loading.trainer_of(tiny.experiment())
    count = gates.most_checkpoints(trainer.training)
    assert len(list((tiny_run / "checkpoints").iterdir())) < count
    assert places.used(tiny_run) < count * gates.state_bytes(trainer) + gates.RECORD_BYTES
