"""Killed at any moment, a run ends as one that was never disturbed, bit for bit; no row twice, none missing."""

import json
import math
import random
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from wandb.util import get_core_path

from evalkit.configuration.spec import Spec
from evalkit.core.rows import FILE
from support import faults, tiny
from support.killing import Attempt, Driver

pytestmark = [pytest.mark.fault, pytest.mark.slow]
# One program for all lengths; validations and checkpoints rarer than rows, so that a kill loses some.
# The experiment is ended in its second run: its first is finished.
SETTINGS = (
    *tiny.OVERRIDES[:-1],
    "model.pattern=[recurrent]",
    "train.steps=12",
    "train.eval_every=4",
    "train.checkpoint_every=4",
    "eval.lengths=[32,64]",
    "eval.chunk=16",
    "seeds=2",
    "wandb.mode=offline",
)
EXPERIMENT = """
# Two tiny runs.
options: {task: induction_heads}
runs:
  one: [model=griffin]
  other: [model=griffin, seed=1]
"""
LOG = "evalkit.core.rows.RowLog._append"
SAVING = (
    "orbax.checkpoint.Checkpointer.save",
    "evalkit.disk.sums.write",
    "evalkit.disk.sums.check",
    "evalkit.training.checkpoints.Checkpoints._remove",
    "pathlib.Path.rename",
)
REPORT = ("evalkit.reports.curves.save", "evalkit.session.session.report", "evalkit.record.files.write_whole")
# Where each kind of work is ended: in a step, an evaluation, a row of the log, a checkpoint, a file, the report.
WORK = (
    "evalkit.training.trainer.Trainer.advance",
    "evalkit.session.loop.validate",
    "evalkit.evaluations.extrapolation.measure.Extrapolation.score",
    LOG,
    *SAVING,
    "os.fsync",
    *REPORT,
)
FURTHER = (
    "evalkit.checkpoints.archives.write",
    "numpy.savez_compressed",
    "evalkit.checkpoints.archives.pack",
    "evalkit.session.run._describe",
    "evalkit.session.run.history.add",
    *WORK,
)
ARCHIVE = ("numpy.savez_compressed", "evalkit.checkpoints.archives.pack", "evalkit.disk.sums.write", "os.fsync")
RUN, A_ROUND = ("run", "run"), 4
STOPPED = (-signal.SIGKILL, -signal.SIGTERM, 128 + signal.SIGTERM)


class Work(NamedTuple):
    """What is done in a folder: the command that does it, or goes on with it, and where it may be ended."""

    words: Callable[[Path], Sequence[str]]
    functions: Sequence[str]
    folders: Sequence[str]
    """The runs of which the end is looked at."""
    given: tuple[str, str] | None = None
    """The work that was done before, and the folder of it that this one finds."""


def run_words(root: Path) -> Sequence[str]:
    if (root / "run" / "config.yaml").is_file():
        return [f"resume={root / 'run'}"]
    return [*SETTINGS, f"hydra.run.dir={root / 'run'}"]


def experiment_words(root: Path) -> Sequence[str]:
    own = root / "conf" / "experiment" / "mine.yaml"
    own.parent.mkdir(parents=True, exist_ok=True)
    own.write_text(EXPERIMENT.lstrip())
    settings = [text for text in SETTINGS if not text.startswith(("task=", "model=", "seeds="))]
    search = f"hydra.searchpath=['file://{root / 'conf'}']"
    return ["experiment=mine", search, *settings, f"hydra.run.dir={root / 'out'}"]


WORKS = {
    "run": Work(run_words, WORK, ["run"]),
    "further": Work(lambda root: [f"resume={root / 'run'}", "train.steps=20"], FURTHER, ["run", "run/before/12"], RUN),
    "archive": Work(lambda root: ["archive", str(root / "run"), str(root / "kept")], ARCHIVE, ["kept"], RUN),
    "experiment": Work(experiment_words, WORK, ["out/one", "out/other"], ("experiment", "out/one")),
}


class Campaign:
    """Does works again and again, ended at random moments, and holds each to one that was never disturbed."""

    def __init__(self, root: Path, drive: Driver, seed: int):
        self.root, self.drive = root, drive
        self.random = random.Random(seed)
        self.ended: Counter[str] = Counter()
        self.seconds = math.inf

    def undisturbed(self, name: str) -> Path:
        """Where a work was done at once, done when first asked for."""
        place = self.root / "undisturbed" / name
        if not place.exists():
            self.begin(name, place, afresh=True)
            self.finish(name, place)
        return place

    def begin(self, name: str, place: Path, afresh: bool = False) -> None:
        """A folder in which a work may begin, with what was done before it."""
        place.mkdir(parents=True)
        given = WORKS[name].given
        if given is not None and not (afresh and given[0] == name):
            shutil.copytree(self.undisturbed(given[0]) / given[1], place / given[1])

    def round(self, name: str, number: int, kills: int) -> None:
        """One work, ended `kills` times and then left alone."""
        work, whole = WORKS[name], self.undisturbed(name)
        place = self.root / f"{name}-{number}"
        self.begin(name, place)
        code = -1
        for _ in range(kills):
            attempt = self.attempt(work.words(place), work.functions)
            code = self.drive(attempt)
            if code == 0:  # it came to its end before
                break
            assert code in STOPPED, (code, attempt)
            self.ended[f"{name}: {attempt.function or 'at any time'}"] += 1
        if code:
            self.finish(name, place)
        for folder in work.folders:
            assert_same(place / folder, whole / folder)

    def finish(self, name: str, place: Path) -> None:
        """A work that is left alone; the shortest says when it may be ended at any time."""
        began = time.perf_counter()
        assert self.drive(Attempt(WORKS[name].words(place))) == 0, place
        self.seconds = min(self.seconds, time.perf_counter() - began)

    def kill(self, name: str, kills: int) -> None:
        """Rounds of one work, until it was ended so often."""
        number, done = 0, 0
        while done < kills:
            before = self.ended.total()
            self.round(name, number, min(A_ROUND, kills - done))
            number, done = number + 1, done + self.ended.total() - before

    def attempt(self, words: Sequence[str], functions: Sequence[str]) -> Attempt:
        draw = self.random
        number = draw.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM])
        if draw.random() < 0.15:
            return Attempt(words, None, milliseconds=1000 * draw.uniform(0.3, 1) * self.seconds, number=number)
        function = draw.choice(functions)
        later = draw.uniform(0, 60) if function.startswith("orbax") else None
        half = function == LOG and number == signal.SIGKILL
        nth = draw.randint(1, 8 if function == LOG else 4 if function in ("os.fsync", "pathlib.Path.rename") else 2)
        return Attempt(words, function, nth, later, number, half)


def assert_same(folder: Path, whole: Path) -> None:
    """Rows, results, report, figures, parameters and what W&B was sent are the same, and nothing else is left over."""
    names = [
        {name for name in tiny.files(place) if not name.startswith(("wandb/", "checkpoints/"))}
        for place in (folder, whole)
    ]
    assert names[0] == names[1]
    for name in (FILE, "metrics.jsonl.gz", "results.json", "extrapolation.png", "training.png"):
        if (whole / name).is_file():
            assert (folder / name).read_bytes() == (whole / name).read_bytes(), name
    assert Spec.saved(folder).experiment.config == Spec.saved(whole).experiment.config
    pages = [(place / "report.html").read_text().partition("How it was made")[0] for place in (folder, whole)]
    assert pages[0] == pages[1]
    if (whole / "checkpoints").is_dir():
        kept = [sorted(path.name for path in (place / "checkpoints").iterdir()) for place in (folder, whole)]
        assert kept[0] == kept[1]
        if (whole / "wandb.json").is_file():
            assert sent(folder) == sent(whole)
    tiny.assert_identical(tiny.state(folder), tiny.state(whole))


def sent(folder: Path) -> dict[int, list[str]]:
    """What the offline sessions of each seed's run of W&B have, each point as JSON, in order."""
    found = {}
    for seed, run_id in json.loads((folder / "wandb.json").read_text()).items():
        points = []
        for session in sorted((folder / "wandb").glob(f"offline-run-*-{run_id}")):
            (file,) = session.glob("run-*.wandb")
            inspect = [get_core_path(), "leet", "inspect", "--no-observability", "--json"]
            command = [*inspect, "--run-file", str(file), str(session.parent)]
            lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
            points += [line["history"]["item"] for line in map(json.loads, lines) if line["type"] == "history"]
        own = [{name: value for name, value in point.items() if not name.startswith("_")} for point in points]
        found[int(seed)] = [json.dumps(point, sort_keys=True) for point in own if not is_media(point)]
    return found


def is_media(point: dict[str, Any]) -> bool:
    return any(name.startswith(("report/", "results")) for name in point)


@pytest.fixture
def campaign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Campaign]:
    for name in ("HOME", "NETRC", "WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "home" / name))
    with Driver(tmp_path / "log") as drive:
        yield Campaign(tmp_path, drive, seed=20)


# While the second checkpoint is written, and during an evaluation.
ENDS = ((signal.SIGKILL, "evalkit.disk.sums.write", 2), (signal.SIGTERM, WORK[2], 1))
MANY = {"run": 24, "further": 11, "archive": 4, "experiment": 11}


# What W&B has after a kill is also in tests/record/test_wandb.py, and its start is a third of these runs.
@pytest.mark.parametrize(
    ("ends", "more"),
    [(ENDS[:1], ("wandb.mode=disabled",)), pytest.param(ENDS, (), marks=faults.ALL_COUNTS)],
)
def test_a_signal_while_saving_or_evaluating_changes_nothing(
    campaign: Campaign,
    ends: Sequence[tuple[signal.Signals, str, int]],
    more: Sequence[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each time the run goes on, and ends as one that was left alone."""

    def words(root: Path) -> Sequence[str]:
        return [*run_words(root), *more]

    monkeypatch.setitem(WORKS, "run", WORKS["run"]._replace(words=words))
    whole, place = campaign.undisturbed("run"), campaign.root / "signalled"
    campaign.begin("run", place)
    for number, function, nth in ends:
        assert campaign.drive(Attempt(words(place), function, nth, number=number)) in (-number, 128 + number)
        assert not (place / "run" / "results.json").exists()
    campaign.finish("run", place)
    assert_same(place / "run", whole / "run")


@pytest.mark.exhaustive
def test_a_run_that_was_killed_ends_as_one_that_was_not(campaign: Campaign) -> None:
    for name, count in MANY.items():
        campaign.kill(name, count)
    print(json.dumps(campaign.ended, indent=1))  # for the page on reliability
    assert campaign.ended.total() == sum(MANY.values())
