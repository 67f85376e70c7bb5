"""A run that was stopped, by whatever means, and goes on ends as one never disturbed; so does one with an average."""

import json
import logging
import shutil
import signal
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Self

import jax
import numpy as np
import pytest

import evalkit
from evalkit.__main__ import main
from evalkit.core.errors import UserError
from evalkit.core.rows import read, value
from evalkit.parallel.interrupt import Watch
from evalkit.record.files import times_of
from evalkit.session import session
from evalkit.session.lock import alone
from evalkit.training.checkpoints import Checkpoints
from support import tiny

pytestmark = pytest.mark.usefixtures("shared", "blank_figures")

PROMISED = (
    "config.yaml",
    "metrics.jsonl",
    "results.json",
    "environment.json",
    "timing.json",
    "extrapolation.png",
    "training.png",
    "report.html",
    "checkpoints",
    "evalkit.log",
)


class StopAfterOneDispatch(Watch):
    """A signal has always come already, and the run is stopped as soon as that is possible."""

    def __enter__(self) -> Self:
        self.received = [signal.SIGINT]
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture
def short(tiny_run: Path) -> Path:
    return tiny_run


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that a signal stopped at step 2 of 6."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("evalkit.session.session.Watch", StopAfterOneDispatch)
        assert tiny.start(folder) == 130
    return folder


@pytest.fixture
def copy(short: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(short, tmp_path / "copy"))


def spoil(folder: Path, step: int) -> None:
    """Cuts every file of one checkpoint short."""
    for path in (folder / "checkpoints" / str(step)).rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[:7])


def assert_same(one: Path, other: Path) -> None:
    assert tiny.rows(one) == tiny.rows(other)
    tiny.assert_identical(tiny.state(one), tiny.state(other))


@pytest.mark.slow
@pytest.mark.usefixtures("own_wandb")
def test_a_command_leaves_what_it_promises_prints_one_json_object_and_logs_each_seed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    words = [*tiny.OVERRIDES, "seeds=2", "format=json", "wandb.mode=offline", f"hydra.run.dir={folder}"]
    assert main(words) == 0
    assert [name for name in PROMISED if not (folder / name).exists()] == []
    (line,) = capfd.readouterr().out.splitlines()
    told = json.loads(line)
    assert told.pop("folder") == str(folder)
    assert told == tiny.results(folder)
    found = [(entry["length"], entry["seed"]) for entry in told["extrapolation"]]
    assert found == [(length, seed) for length in (16, 32) for seed in (0, 1)]
    assert sorted(int(path.name) for path in (folder / "checkpoints").iterdir()) == [4, 6]
    assert {"first_dispatch", "training", "evaluation"} <= set(json.loads((folder / "timing.json").read_text()))
    assert len(list((folder / "wandb").glob("offline-run-*"))) == 2
    assert list(json.loads((folder / "wandb.json").read_text())) == ["0", "1"]
    assert {entry["seed"] for entry in read(folder).rows} == {0, 1}


@pytest.mark.slow
def test_a_stop_after_every_dispatch_changes_nothing(
    short: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    with monkeypatch.context() as patched:
        patched.setattr("evalkit.session.session.Watch", StopAfterOneDispatch)
        assert tiny.start(folder) == 130
        for step in (2, 4):
            assert Checkpoints(folder).latest == step
            assert tiny.resume(folder, []) == 130
    assert f"go on with: python -m evalkit resume {folder}" in capsys.readouterr().out
    assert tiny.resume(folder, []) == 0
    assert_same(folder, short)


def kill(folder: Path) -> None:
    """What SIGKILL leaves: rows that no checkpoint knows, the last one half written."""
    lines = (folder / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    with (folder / "metrics.jsonl").open("ab") as file:
        file.write(lines[-1] + lines[-1][:20])


def test_a_killed_run_keeps_the_seconds_up_to_its_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a run that goes on would have trained in the time since alone."""
    monkeypatch.setattr(session, "Watch", StopAfterOneDispatch)
    monkeypatch.setattr(session.Session, "_close", lambda *_: None)  # a kill leaves no time for it
    assert tiny.start(tmp_path / "run") == 130
    assert times_of(tmp_path / "run")["training"] > 0


def trained_alike(folder: Path, short: Path) -> None:
    """All but what was measured at the end is as in the undisturbed run."""
    one, other = ([entry for entry in tiny.rows(place) if entry["split"] != "test"] for place in (folder, short))
    assert one[: len(other)] == other


FINISHED = "is finished: nothing is left to do"
INSTEAD = "its results stay; for other ones give python -m evalkit evaluate "


@pytest.mark.parametrize(
    ("state", "overrides", "code", "said", "kept"),
    [
        ("finished", [], 0, FINISHED, None),
        ("finished", ["train.steps=6", "wandb.mode=offline"], 0, FINISHED, None),
        ("finished", ["eval.lengths=[8]"], 2, f"{INSTEAD}RUN 'eval.lengths=[8]'", None),
        ("finished", ["lookup.during={}"], 2, "lookup.during={}: the run is finished; give more train.steps too", None),
        (
            "finished",
            ["train.steps=+4"],
            2,
            "train.steps=+4; give all steps, those before and those to come: train.st",
            None,
        ),
        ("finished", ["train.steps=4"], 2, "train.steps=4, but RUN is at step 6; give at least 6", None),
        ("stopped", [], 0, "going on from step 2", assert_same),
        ("stopped", ["eval.lengths=[16]"], 0, "going on from step 2", trained_alike),
        ("stopped", ["train.steps=10", "seed=1"], 2, "seed is fixed in an existing run", None),
        ("killed", [], 0, "going on from step 2", assert_same),
        ("stopped", ["train.keep_every=2"], 0, "going on from step 2", assert_same),
        ("running", [], 2, "another process works on RUN; wait for its end", None),
        ("an evaluation", [], 2, "RUN is an evaluation, which has no training to go on with", None),
        ("other samples", [], 2, "RUN was trained on version 7 of induction_heads, and version 1 draws other", None),
    ],
)
def test_what_resuming_does(
    short: Path,
    stopped: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    state: str,
    overrides: list[str],
    code: int,
    said: str,
    kept: Callable[[Path, Path], None] | None,
) -> None:
    """`kept`: what holds of the run afterwards, beside one that was never disturbed; None: no file has changed."""
    folder = tmp_path / "run"
    if state == "an evaluation":
        assert tiny.evaluate(short, ["eval.lengths=[16]"], folder) == 0
    else:
        shutil.copytree(short if state == "finished" else stopped, folder)
    if state == "killed":
        kill(folder)
    if state == "other samples":
        record = (folder / "metrics.jsonl").read_bytes()
        (folder / "metrics.jsonl").write_bytes(record.replace(b'"task_version":1', b'"task_version":7'))
    before = tiny.files(folder)
    capsys.readouterr()
    with alone(folder) if state == "running" else nullcontext():
        assert main([f"resume={folder}", *overrides]) == code
    printed = capsys.readouterr()
    assert said.replace("RUN", str(folder)) in (printed.err if code else printed.out)
    assert printed.err.count("\n") == (1 if code else 0)
    if code == 0:
        ends = printed.out.splitlines()[-4:]
        assert ends[0] == f"report:   {folder / 'report.html'}"
        assert ends[1].startswith(f"evaluate: python -m evalkit evaluate {folder} 'eval.lengths=[")
        assert ends[2] == f"resume:   python -m evalkit resume {folder} train.steps=12"
        assert ends[3] == f"compare:  python -m evalkit compare {folder} OTHER_RUN"
    if kept is None:
        assert tiny.files(folder) == before
    else:
        kept(folder, short)


@pytest.mark.slow
def test_more_steps_are_told_wherever_the_run_is_read(
    short: Path, copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tiny.resume(copy, ["train.steps=10"]) == 0
    trained_alike(copy, short)
    assert int(tiny.state(copy).step[0]) == 10
    assert read(copy / "before" / "6").rows == read(short).rows, "what six steps gave is not kept"
    assert tiny.evaluate(copy / "before" / "6", ["eval.lengths=[16]"], tmp_path / "of-six") == 0
    results = tiny.results(copy)
    note = "set out for 6 training steps, and from step 6 on for 10; from there the learning rate follows the cosine"
    assert results["step"] == results["steps"] == 10 and results["notes"][-1].startswith(note)
    assert results["extended"] == [{"step": 6, "before": 6, "after": 10, "schedule": "cosine", "starts": None}]
    page = (copy / "report.html").read_text()
    assert "  # from step 6" in page and note in page
    again = tmp_path / "again"
    assert tiny.evaluate(copy, ["eval.lengths=[16]"], again) == 0
    assert tiny.results(again)["extended"] == results["extended"], "an evaluation forgets how its run came to be"
    capsys.readouterr()
    assert main(["compare", str(short), str(copy), "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert "griffin · 10 steps, first 6" in printed and "griffin · 6 steps" in printed
    assert "The number of training steps differs" in printed


def test_a_history_that_went_nowhere_is_no_extension(stopped: Path, short: Path, tmp_path: Path) -> None:
    """Ten steps were wanted at step 2, and then six again: the run is the one of six."""
    folder = Path(shutil.copytree(stopped, tmp_path / "run"))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("evalkit.session.run.train", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            tiny.resume(folder, ["train.steps=10"])
    assert tiny.resume(folder, ["train.steps=6"]) == 0
    assert_same(folder, short)
    assert "extended" not in tiny.results(folder)
    assert [one["steps"] for one in json.loads((folder / "history.json").read_text())] == [6, 10, 6]


@pytest.mark.parametrize("change", ["model=hawk", "task=selective_copying", "model.width=32", "seed=1", "seeds=2"])
def test_another_model_or_task_or_seed_is_refused(copy: Path, change: str) -> None:
    before = tiny.files(copy)
    with pytest.raises(UserError) as refusal:
        tiny.resume(copy, [change])
    assert change.partition("=")[0] in str(refusal.value) and "\n" not in str(refusal.value)
    assert tiny.files(copy) == before


def test_looks_that_no_validation_meets_are_refused_before_anything_is_written(stopped: Path) -> None:
    before = tiny.files(stopped)
    with pytest.raises(UserError, match=r"eval.during_every=3, but models are validated every train.eval_every=2 "):
        tiny.resume(stopped, ["eval.during=[16]", "eval.during_every=3"])
    assert tiny.files(stopped) == before


@pytest.mark.slow
def test_a_broken_newest_checkpoint_falls_back_to_the_one_before(
    short: Path, copy: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spoil(copy, 6)
    (copy / "results.json").unlink()
    with caplog.at_level(logging.WARNING, "evalkit"):
        assert tiny.resume(copy, []) == 0
    (warning,) = [entry.getMessage() for entry in caplog.records if entry.levelno == logging.WARNING]
    assert warning.startswith("checkpoint 6 in ") and "\n" not in warning
    assert_same(copy, short)
    caplog.clear()
    # The broken one has been replaced: nothing is left to warn of.
    tiny.state(copy)
    assert not [entry for entry in caplog.records if entry.levelno >= logging.WARNING]


def test_no_readable_checkpoint_is_one_line(copy: Path) -> None:
    for step in (4, 6):
        spoil(copy, step)
    (copy / "results.json").unlink()
    before = tiny.files(copy)
    with pytest.raises(UserError, match=r"no checkpoint in .* can be read; start the run anew"):
        tiny.resume(copy, ["train.steps=10"])
    assert tiny.files(copy) == before, "the refused steps were written"


@pytest.mark.exhaustive  # a run that is killed while it saves the first, tests/faults/test_kill.py
def test_a_run_stopped_before_its_first_checkpoint_starts_anew(short: Path, copy: Path) -> None:
    shutil.rmtree(copy / "checkpoints")
    (copy / "results.json").unlink()
    assert tiny.resume(copy, []) == 0
    assert_same(copy, short)


WORDS = [
    *(text for text in tiny.OVERRIDES if not text.startswith(("task", "eval.lengths", "eval.sequences"))),
    *("task=state_tracking", "task.group=z2", "task.length=12", "train.lengths=[1,12]"),
    *("eval.lengths=[12,22]", "eval.span=8", "eval.sequences=12"),
]


@pytest.mark.slow
def test_lengths_are_drawn_positions_are_told_apart_and_a_stop_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    assert tiny.start(whole, of=WORDS) == 0
    with monkeypatch.context() as patched:
        patched.setattr("evalkit.session.session.Watch", StopAfterOneDispatch)
        assert tiny.start(stopped, of=WORDS) == 130
    assert tiny.resume(stopped, []) == 0
    rows = tiny.rows(whole)
    assert tiny.rows(stopped) == rows
    results = tiny.results(whole)
    assert results["notes"] == ["trained on lengths 1 to 12"]
    spans = {(span["length"], span["first"], span["last"]): span["accuracy"] for span in results["spans"]}
    assert list(spans) == [(12, 1, 8), (12, 9, 12), (22, 1, 8), (22, 9, 16), (22, 17, 22)]
    # Every position is scored, so that the spans, weighted by their positions, are the whole.
    (all_of_22,) = [
        value(entry) for entry in rows
        if (entry["split"], entry["length"], entry["position"], entry["metric"]) == ("test", 22, None, "accuracy")
    ]  # fmt: skip
    assert all_of_22 == pytest.approx((8 * spans[22, 1, 8] + 8 * spans[22, 9, 16] + 6 * spans[22, 17, 22]) / 22)
    assert "Accuracy by position" in (whole / "report.html").read_text()


OTHER = (
    "eval.lengths=[32]",
    "train.average=0.9",
    "train.schedule=wsd",
    "train.optimizer=amsgrad",
    "train.label_smoothing=0.1",
    "train.state_passing=0.25",
    "train.stream_facts=0.5",
    "model.mixers.recurrent.conv_init=0.05",
)


@pytest.fixture(scope="module")
def averaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.trained(tmp_path_factory.mktemp("averaged") / "run", *OTHER)


@pytest.mark.slow
def test_a_stop_after_every_dispatch_changes_no_average(
    averaged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    with monkeypatch.context() as patched:
        patched.setattr("evalkit.session.session.Watch", StopAfterOneDispatch)
        assert tiny.start(folder, *OTHER) == 130
        assert tiny.resume(folder, []) == 130
    assert tiny.resume(folder, []) == 0
    assert tiny.rows(folder) == tiny.rows(averaged)
    tiny.assert_identical(tiny.state(folder), tiny.state(averaged))


@pytest.mark.slow
def test_the_average_is_evaluated_and_the_last_parameters_beside_it(averaged: Path, tmp_path: Path) -> None:
    last = tmp_path / "last"
    assert tiny.evaluate(averaged, ["parameters=last"], last) == 0
    assert any(note.startswith("trained with state passing: ") for note in read(averaged).header.notes)
    said = {folder: [note for note in read(folder).header.notes if "parameters" in note] for folder in (averaged, last)}
    assert said[averaged] == ["the average of the parameters (decay 0.9) is evaluated"]
    assert said[last] == ["the last parameters are evaluated, not their average (decay 0.9)"]
    losses = [
        [value(entry) for entry in read(folder).rows if entry["metric"] == "loss" and entry["split"] == "test"]
        for folder in (averaged, last)
    ]
    assert len(losses[0]) == len(losses[1]) and losses[0] != losses[1]
    state = tiny.state(averaged)
    loaded = evalkit.load(averaged)
    tiny.assert_identical(loaded.params, jax.tree.map(lambda leaf: leaf[0], state.average))
    moved = jax.tree.map(lambda one, other: float(np.abs(one - other).max()), state.average, state.params)
    assert max(jax.tree.leaves(moved)) > 1e-5


@pytest.mark.slow
def test_an_archive_keeps_what_was_evaluated_and_refuses_the_other(averaged: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    assert main(["archive", str(averaged), str(kept)]) == 0
    tiny.assert_identical(evalkit.load(kept).params, evalkit.load(averaged).params)
    with pytest.raises(UserError, match="has the average parameters alone; give the run itself"):
        tiny.evaluate(kept, ["parameters=last"], tmp_path / "out")


@pytest.mark.slow
def test_a_run_from_before_averages_goes_on(tiny_run: Path, tmp_path: Path) -> None:
    """Its configuration names none of the settings of today, and its checkpoint has no place for an average."""
    folder = Path(shutil.copytree(tiny_run, tmp_path / "run"))
    tree = json.loads((folder / "checkpoints" / "6" / "state" / "_METADATA").read_text())["tree_metadata"]
    assert {entry["key_metadata"][0]["key"] for entry in tree.values()} == {"params", "optimizer", "step"}
    text = (folder / "config.yaml").read_text()
    new = ("parameters:", *(f"  {name}:" for name in ("optimizer", "label_smoothing", "average", "state_passing")))
    new = (*new, "  stream_facts:")
    lines = [line for line in text.splitlines() if not line.startswith(new)]
    assert len(lines) == len(text.splitlines()) - len(new)
    (folder / "config.yaml").write_text("\n".join(lines) + "\n")
    assert tiny.resume(folder, ["train.steps=8"]) == 0
    assert tiny.last_step(read(folder).rows) == 8
