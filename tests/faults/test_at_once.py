"""Many processes at once: one token cache is made once and never read by halves, and runs have folders of their own."""

import signal
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from unittest.mock import Mock

import pytest

from evalkit.__main__ import main
from evalkit.configuration.spec import Spec
from evalkit.core.contracts import Verdict
from evalkit.disk.files import write_whole
from evalkit.session import run
from evalkit.session.lock import alone
from evalkit.session.session import Outcome
from evalkit.tasks.text import corpus
from support import faults, tiny

pytestmark = pytest.mark.fault
TEXTS = 200
# A job's part in this: it makes or finds the tokens, slowly enough that the others come meanwhile.
JOB = f"""
import sys, time
from pathlib import Path
from evalkit.tasks.text import corpus
from evalkit.tasks.text.documents import Document
from evalkit.tasks.text.tokenizers import Bytes

class Slow(Bytes):
    def encode(self, text):
        time.sleep(float(sys.argv[2]) / {TEXTS})
        return super().encode(text)

write = corpus._write
def noted(*arguments):
    with open(sys.argv[1] + ".made", "a") as file:
        file.write("begun\\n")
    write(*arguments)
    with open(sys.argv[1] + ".made", "a") as file:
        file.write("ended\\n")
corpus._write = noted
made = corpus.build(lambda: [Document(str(n), f"text {{n}} " * 20) for n in range({TEXTS})], Slow(), Path(sys.argv[1]))
print(made.total, int(made.tokens.astype("int64").sum()), len(made))
"""


def job(folder: Path, seconds: float) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", JOB, str(folder), str(seconds)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=tiny.environment(), stdout=pipe, stderr=pipe, text=True)


def ended(jobs: "list[subprocess.Popen[str]]") -> list[tuple[str, str]]:
    return [one.communicate(timeout=tiny.HANGS) for one in jobs]


@pytest.mark.slow
@pytest.mark.exhaustive  # below two jobs wait as well, for one that is killed
@pytest.mark.parametrize("jobs", faults.counts(3, 16))
def test_many_jobs_make_the_tokens_of_one_text_once(tmp_path: Path, jobs: int) -> None:
    folder = tmp_path / "cache"
    told = ended([job(folder, 2.0) for _ in range(jobs)])
    assert len({printed for printed, _ in told}) == 1 and told[0][0].split()[2] == str(TEXTS), told
    assert Path(f"{folder}.made").read_text().split() == ["begun", "ended"]
    (place,) = folder.glob("[!.]*")
    assert corpus.load(place) is not None


@pytest.mark.slow
@pytest.mark.parametrize("jobs", faults.counts(2, 6))
def test_where_the_job_that_makes_them_is_killed_another_does(tmp_path: Path, jobs: int) -> None:
    folder, made = tmp_path / "cache", tmp_path / "cache.made"
    first = job(folder, 60.0)
    while not made.exists() and first.poll() is None:
        time.sleep(0.02)
    others = [job(folder, 0.5) for _ in range(jobs)]
    time.sleep(0.5)
    first.send_signal(signal.SIGKILL)
    assert ended([first])[0][0] == ""
    told = ended(others)
    assert len({printed for printed, _ in told}) == 1 and told[0][0].split()[2] == str(TEXTS), told
    assert made.read_text().split() == ["begun", "begun", "ended"]


@pytest.mark.slow
@pytest.mark.parametrize("jobs", faults.counts(2, 16))
def test_the_jobs_of_a_sweep_that_start_at_the_same_moment_have_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jobs: int
) -> None:
    """Its clock stands still."""
    monkeypatch.chdir(tmp_path)
    taken: list[Path] = []

    def started(spec: Spec, *_: object) -> Outcome:
        with alone(spec.folder):
            taken.append(spec.folder)
        return Outcome(spec.folder, verdict=Verdict(exit_code=1))

    monkeypatch.setattr(run, "start", started)
    clock = Mock(wraps=datetime)
    clock.now.return_value = datetime(2026, 1, 31, 12)
    monkeypatch.setattr("hydra.core.utils.datetime", clock)
    main(["-m", *tiny.OVERRIDES, f"seed={','.join(map(str, range(jobs)))}"])
    assert clock.now.called
    assert len(set(taken)) == jobs


def test_of_two_processes_that_chose_one_folder_the_second_is_told_so(tmp_path: Path) -> None:
    code = "import sys, pathlib; from evalkit.session.lock import alone; alone(pathlib.Path(sys.argv[1])).__enter__()"
    command = [sys.executable, "-c", code, str(tmp_path / "run")]
    with alone(tmp_path / "run"):
        other = subprocess.run(command, env=tiny.environment(), capture_output=True, text=True, check=False)
    assert "Unavailable: another process works on" in other.stderr.splitlines()[-1]


def test_processes_with_one_number_write_to_places_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of two containers that share a folder of caches."""
    places = []
    monkeypatch.setattr("os.getpid", lambda: 7)
    monkeypatch.setattr(Path, "replace", lambda self, _: places.append(self.name))
    for text in ("one", "other"):
        write_whole(tmp_path / "tokens.json", text)
    assert len({*places}) == 2
