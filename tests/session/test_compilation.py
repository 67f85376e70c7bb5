"""The compilation cache: the next command finds the programs, and a cache that is of no use is a line at most."""

import os
import subprocess
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import jax
import numpy as np
import pytest
from filelock import FileLock
from jax import monitoring
from jax.experimental.compilation_cache import compilation_cache

from evalkit.session import compilation
from evalkit.session.compilation import keep_programs
from support import tiny
from support.faults import files_up_to

HIT = "/jax/compilation_cache/cache_hits"
OURS = ("jax_compilation_cache_dir", "jax_compilation_cache_max_size", "jax_persistent_cache_min_compile_time_secs")


@pytest.fixture(autouse=True)
def as_a_user_has_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """JAX has no cache of the tests, and the user's cache folder is empty."""
    before = {name: jax.config.values[name] for name in OURS}
    for name in OURS:
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("EVALKIT_CACHE", str(tmp_path / "user"))
    monkeypatch.setattr(compilation, "LEAST_S", 0.0)
    jax.config.update("jax_compilation_cache_dir", None)
    yield
    compilation_cache.reset_cache()
    for name, value in before.items():
        jax.config.update(name, value)


def next_command() -> None:
    """What the next process of this user does first."""
    jax.config.update("jax_compilation_cache_dir", None)
    keep_programs("auto")


def hits() -> int:
    """How many programs JAX finds in its cache, where one is compiled; its result is right, and nothing is said."""
    events: list[str] = []
    listen = lambda event, **_: events.append(event)  # noqa: E731
    argument = np.arange(3, dtype=np.float32)
    monitoring.register_event_listener(listen)
    try:
        assert jax.jit(lambda x: (2 * x + 1).sum())(argument) == 9
    finally:
        monitoring.unregister_event_listener(listen)
    return events.count(HIT)


def entries(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*-cache"))


def test_what_is_compiled_is_found_again(tmp_path: Path) -> None:
    keep_programs("auto")
    assert hits() == 0
    keep_programs(str(tmp_path / "another"))
    assert hits() == 0
    compilation_cache.reset_cache()
    assert hits() == 1
    assert entries(tmp_path / "user") and entries(tmp_path / "another")
    keep_programs(None)
    assert hits() == 0


def test_the_folder_is_its_user_s_alone_and_bounded(tmp_path: Path) -> None:
    keep_programs("auto")
    folder = Path(jax.config.values["jax_compilation_cache_dir"])
    assert folder.parent == tmp_path / "user"
    assert folder.stat().st_mode & 0o077 == 0
    assert jax.config.values["jax_compilation_cache_max_size"] == compilation.MOST_BYTES


def test_a_cache_that_the_environment_set_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "theirs"))
    keep_programs("auto")
    assert jax.config.values["jax_compilation_cache_dir"] == str(tmp_path / "theirs")


def unusable(caplog: pytest.LogCaptureFixture) -> str:
    """The one line that is said; what is compiled is right."""
    next_command()
    assert hits() == 0
    assert jax.config.values["jax_compilation_cache_dir"] is None
    (record,) = caplog.records
    line = record.getMessage()
    assert line.startswith("compilation_cache: ") and "\n" not in line
    return line


def test_a_read_only_folder_is_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, shut: Path
) -> None:
    monkeypatch.setenv("EVALKIT_CACHE", str(shut))
    keep_programs("auto")
    (folder,) = shut.iterdir()
    folder.chmod(0o500)
    assert str(folder) in unusable(caplog)


def test_a_file_in_its_place_is_one_line(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    (tmp_path / "user").write_text("")
    assert str(tmp_path) in unusable(caplog)


def test_a_home_that_is_not_known_is_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("EVALKIT_CACHE", "~nobody-has-this-name/cache")
    assert "home" in unusable(caplog)


def test_a_full_disk_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    with files_up_to(100):
        unusable(caplog)


def test_a_disk_that_becomes_full_leaves_nothing_behind() -> None:
    keep_programs("auto")
    with files_up_to(100):
        assert hits() == 0
    next_command()
    assert hits() == 0
    compilation_cache.reset_cache()
    assert hits() == 1


def test_entries_that_are_not_whole_are_made_anew_or_passed_over(tmp_path: Path) -> None:
    keep_programs("auto")
    hits()
    (entry,) = entries(tmp_path)
    content = entry.read_bytes()
    for left, again in ((b"", 1), (content[: len(content) // 2], 0)):
        entry.write_bytes(left)
        with warnings.catch_warnings(record=True) as said:
            next_command()
            assert hits() == 0
        assert not said
        compilation_cache.reset_cache()
        assert hits() == again


def test_an_entry_that_a_killed_process_left_spoils_no_other(tmp_path: Path) -> None:
    """JAX reads when each entry was used before it adds one."""
    keep_programs("auto")
    hits()
    (used,) = tmp_path.rglob("*-atime")
    used.unlink()
    next_command()
    assert hits() == 0
    compilation_cache.reset_cache()
    assert hits() == 1


def test_a_folder_that_another_process_holds_is_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    keep_programs("auto")
    monkeypatch.setattr(compilation, "WAIT_S", 0.1)
    (lock,) = tmp_path.rglob(compilation.LOCK)
    with FileLock(lock):
        assert "another process" in unusable(caplog)


def test_where_reading_is_noisy_there_is_no_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The processor is tried once there is something to read, once."""
    tried: list[int] = []
    monkeypatch.setattr(compilation, "_reads_quietly", lambda: tried.append(1))
    keep_programs("auto")
    hits()
    assert not tried
    for _ in range(2):
        next_command()
        assert jax.config.values["jax_compilation_cache_dir"] is None
    assert tried == [1]
    keep_programs(str(tmp_path / "named"))
    assert jax.config.values["jax_compilation_cache_dir"] is not None


@pytest.mark.parametrize(("said", "code", "quiet"), [("", 0, True), ("mismatch", 0, False), ("", 1, False)])
def test_a_processor_is_quiet_if_nothing_follows_the_mark(
    monkeypatch: pytest.MonkeyPatch, said: str, code: int, quiet: bool
) -> None:
    lines = ["import sys", "print('of compiling', file=sys.stderr)", "print('reads', file=sys.stderr)"]
    lines += [f"print({said!r}, file=sys.stderr)", f"sys.exit({code})"]
    monkeypatch.setattr(compilation, "PROBE", "\n".join(lines))
    assert compilation._reads_quietly() is quiet


PROGRAMS = """
import sys, jax, numpy as np
from evalkit.__main__ import main
from evalkit.session import compilation, run

def start(spec):
    for n in range(8):
        print(float(jax.jit(lambda x: (n * x + 1).sum())(np.arange(3, dtype=np.float32))))
    sys.exit()

compilation.LEAST_S, run.start = 0.0, start
main(sys.argv[1:])
"""


def said_by_two(tmp_path: Path, command: Sequence[str]) -> list[str]:
    """What two commands say that share the user's cache, each with a run of its own, begun at once."""
    environment = {name: value for name, value in os.environ.items() if name != OURS[0].upper()}
    words = [*tiny.OVERRIDES, "train.steps=2", "eval.lengths=[32]", "quiet=true", "compilation_cache=auto"]
    together = [
        subprocess.Popen(
            [sys.executable, *command, *words, f"hydra.run.dir={tmp_path / name / 'run'}"],
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for name in ("one", "two")
    ]
    return [process.communicate()[0] for process in together]


@pytest.mark.slow
def test_two_commands_at_once_share_a_cache(tmp_path: Path) -> None:
    """A few programs in place of a run."""
    assert said_by_two(tmp_path, ["-c", PROGRAMS]) == ["".join(f"{3 * n + 3.0}\n" for n in range(8))] * 2
    assert entries(tmp_path / "user")


@pytest.mark.exhaustive
def test_two_runs_at_once_share_a_cache(tmp_path: Path) -> None:
    assert said_by_two(tmp_path, ["-m", "evalkit"]) == ["", ""]
    rows = {(tmp_path / name / "run" / "metrics.jsonl").read_text() for name in ("one", "two")}
    assert len(rows) == 1
    assert entries(tmp_path / "user")
