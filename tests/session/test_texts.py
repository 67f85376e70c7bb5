"""A run on text from end to end: what it writes, how it goes on, what it refuses, and runs side by side."""

import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from omegaconf import OmegaConf
from rich.console import Console

from evalkit.__main__ import main
from evalkit.configuration.experiment import Experiment
from evalkit.configuration.saved import EVALUABLE
from evalkit.configuration.spec import Spec
from evalkit.core import batches as feeds
from evalkit.core.contracts import Trained
from evalkit.core.during import DURING
from evalkit.core.errors import UserError
from evalkit.core.rows import Row, read
from evalkit.evaluations.look import Look
from evalkit.evaluations.text import rows as text_rows
from evalkit.evaluations.text.summary import levels, table_of
from evalkit.record.sinks import points, written_together
from evalkit.reports import comparison as compare
from evalkit.tasks import Example
from evalkit.training.trainer import Trainer
from support import benchmark_data, tiny

pytestmark = pytest.mark.usefixtures("shared")

EVAL = (
    "eval.length=64",
    "eval.windows=2",
    "eval.contexts=[8,32,64]",
    "eval.passages=3",
    "eval.passage=4",
    "eval.gaps=[16]",
    "eval.chunk=32",
)
WRITTEN = (
    "config.yaml",
    "metrics.jsonl",
    "results.json",
    "positions.png",
    "context.png",
    "training.png",
    "report.html",
)


def texts(folder: Path, seed: int = 0) -> Path:
    """Two documents to train on and three that are held out, of words in no order."""
    folder.mkdir(exist_ok=True)
    words = [f"{chr(97 + i % 26)}{chr(97 + i // 26)}" for i in range(200)]
    for number, name in enumerate(["train-a", "train-b", "heldout-a", "heldout-b", "heldout-c"]):
        chosen = np.random.default_rng([seed, number]).choice(words, 1500)
        (folder / f"{name}.txt").write_text(" ".join(chosen), encoding="utf-8")
    return folder


def overrides(data: Path, *more: str) -> list[str]:
    return [
        *("task=books", "task.length=32", f"data.path={data}", f"task.cache={data.parent}/cache", "preset=cpu"),
        *tiny.MODEL,
        *tiny.TRAIN,
        *EVAL,
        "wandb.mode=disabled",
        *more,
    ]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return texts(tmp_path_factory.mktemp("data") / "texts")


@pytest.fixture(scope="module")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeds."""
    folder = tmp_path_factory.mktemp("runs") / "two"
    assert tiny.start(folder, of=overrides(data, "seeds=2")) == 0
    return folder


@pytest.fixture(scope="module")
def asked(data: Path) -> list[str]:
    """A tiny run of two seeds that is asked for everything at step 4 of 6."""
    benchmarks = benchmark_data.write(data.parent / "benchmarks")
    return overrides(
        data,
        "seeds=2",
        "train.keep_every=2",
        "eval.during={every: 4, length: 32, windows: 1, contexts: [8], gaps: []}",
        "lookup.during={every: 2, lengths: [160], prompts: 2, new_tokens: 2}",
        f"downstream.during={{every: 6, tasks: [piqa], path: {benchmarks}}}",
    )


@pytest.fixture(scope="module")
def looked_at(asked: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "looked"
    assert tiny.start(folder, of=asked) == 0
    return folder


@pytest.mark.slow
def test_a_run_leaves_what_it_promises(looked_at: Path) -> None:
    assert [name for name in WRITTEN if not (looked_at / name).is_file()] == []
    rows, results = read(looked_at).rows, json.loads((looked_at / "results.json").read_text())
    assert {entry["metric"] for entry in rows if entry["split"] == "test"} == set(text_rows.RAW)
    assert {entry["metric"] for entry in rows if entry["split"] == "validation"} == {
        "loss",
        "accuracy",
        "bits_per_byte",
    }
    assert results["text"]["used"].startswith("text: 2 documents, 8,998 bytes, from ")
    assert results["seeds"] == [0, 1] and results["not_run"] == []
    assert [found["position"] for found in results["paired"]["difference"]] == [8, 32, 64]
    assert [found["position"] for found in results["paired_after_a_window"]["difference"]] == [8, 28, 64]
    assert results["paired"]["against"] == 28 and len(results["by_position"]) == 12
    bits = {
        entry["seed"]: results["validation"]["loss"][str(entry["seed"])] / np.log(2) for entry in rows if entry["seed"]
    }
    for seed, expected in bits.items():  # a token is a byte
        assert results["validation"]["bits_per_byte"][str(seed)] == pytest.approx(expected)


def test_seeds_read_other_windows_and_a_resumed_step_the_same(data: Path) -> None:
    experiment = Spec.of(overrides(data)).experiment
    feed = feeds.feed_of(experiment.task)
    whole, later = (feed.load([0, 1], first, 3, 4, 32) for first in (0, 2))
    assert whole.tokens.shape == (2, 3, 4, 32)
    np.testing.assert_array_equal(whole.tokens[:, 2], later.tokens[:, 0])
    assert (whole.tokens[0] != whole.tokens[1]).any()


def windows(experiment: Experiment) -> list[Example]:
    """Of 200 steps."""
    feed = feeds.feed_of(experiment.task)
    return [feed.load([0], step, 1, 4, 32) for step in range(200)]


@pytest.mark.slow
def test_positions_are_read_only_where_a_document_begins(data: Path) -> None:
    found = windows(Spec.of(overrides(data)).experiment)
    inside, across = ([one for one in found if (one.positions is None) == whole] for whole in (True, False))
    assert inside and across and all((one.positions[..., 1:] == 0).any() for one in across)


@pytest.mark.exhaustive  # of every model: its contract
def test_told_where_they_stand_or_not_the_tokens_of_one_document_are_the_same_training(data: Path) -> None:
    experiment = Spec.of(overrides(data)).experiment
    inside = [one for one in windows(experiment) if one.positions is None]
    trainer = Trainer(experiment.task, experiment.model, experiment.train, [0])
    part = jax.tree.map(lambda leaf: jnp.asarray(leaf[0, 0]), inside[0])
    told = part._replace(positions=jnp.broadcast_to(jnp.arange(32), (4, 32)))
    params, gradient = jax.jit(experiment.model.init)(jax.random.key(0)), jax.jit(trainer.step.gradient)
    for one, other in zip(*(jax.tree.leaves(gradient(params, each)) for each in (part, told)), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.exhaustive  # of a task that is drawn: test_run.py
def test_dispatches_change_nothing(data: Path) -> None:
    """Two steps at a time, or six at once: the same parameters, bit for bit."""
    ends = []
    for log_every in (2, 6):
        settings = [f"train.{name}_every={log_every}" for name in ("log", "eval", "checkpoint")]
        experiment = Spec.of(overrides(data, *settings)).experiment
        trainer = Trainer(experiment.task, experiment.model, experiment.train, [0])
        (stage,), state = experiment.train.stages(32), trainer.init()
        for _ in range(6 // log_every):
            state, _ = trainer.advance(state, stage, log_every)
        ends.append(trainer.step.layout.vectors(state.params))
    for one, other in zip(*(map(np.asarray, end) for end in ends), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
@pytest.mark.usefixtures("blank")
def test_it_is_evaluated_again_and_compared(looked_at: Path, tmp_path: Path) -> None:
    assert main([f"evaluate={looked_at}", "eval.length=32", "eval.contexts=[]", "eval.gaps=[]"]) == 0
    (again,) = (looked_at / "evaluate").iterdir()
    assert json.loads((again / "results.json").read_text())["paired"]["difference"] == []
    assert not (again / "training.png").exists(), "a figure of no training"
    assert "How it was made" in (again / "report.html").read_text()
    assert [work["step"] for work in json.loads((again / "history.json").read_text())] == [0, None]
    compare.compare([looked_at, again], tmp_path / "out", Console(quiet=True))
    assert {file.name for file in (tmp_path / "out").iterdir()} == {
        *("positions.png", "context.png", "training.png", "during_shares.png", "compare.csv", "compare.html")
    }


def test_no_interval_of_a_loss_reaches_below_0() -> None:
    (both,), (one,) = levels({8: {"a": {0: 0.01}, "b": {0: 1.0}}}), levels({8: {"a": {0: 0.01}}})
    assert both.low == 0 < both.mean < both.high and math.isnan(one.low)


@pytest.mark.slow
def test_another_text_is_refused_when_a_run_goes_on(looked_at: Path, data: Path, tmp_path: Path) -> None:
    folder, other = Path(shutil.copytree(looked_at, tmp_path / "run")), texts(tmp_path / "texts", seed=1)
    config = (folder / "config.yaml").read_text()
    assert f"path: {data}\n" in config
    (folder / "config.yaml").write_text(config.replace(f"path: {data}\n", f"path: {other}\n"))
    with pytest.raises(UserError, match=r"began with another text \(text: 2 documents"):
        tiny.resume(folder, ["train.steps=8"])


@pytest.mark.exhaustive  # in short: the benchmarks below, and a stopped evaluation in test_lookup.py
def test_a_checkpoint_is_read_with_its_own_tokenizer(trained: Path, data: Path, tmp_path: Path) -> None:
    """The run itself as a checkpoint: the same losses as its own evaluation found, and both in one comparison."""
    given = [f"checkpoint={trained}", f"data.path={data}", "wandb.mode=disabled", f"hydra.run.dir={tmp_path}/again"]
    assert main(["task=books", *given, *EVAL]) == 0
    again, before = tmp_path / "again", [entry for entry in read(trained).rows if entry["seed"] == 0]
    for metric in (text_rows.LOSS, text_rows.PAIRED, text_rows.REPEATED):
        wanted, found = (table_of(rows, metric) for rows in (before, read(again).rows))
        for position, documents in wanted.items():
            for document, losses in documents.items():
                assert found[position][document][0] == pytest.approx(losses[0], abs=1e-5)
    compare.compare([trained, again], tmp_path / "out", Console(quiet=True))
    assert (tmp_path / "out" / "positions.png").is_file()
    assert main(["task=books", *given]) == 2
    whole = (tmp_path / "again" / "metrics.jsonl").read_bytes()
    (tmp_path / "again" / "metrics.jsonl").write_bytes(whole[: len(whole) // 2])  # as if it was killed
    (tmp_path / "again" / "results.json").unlink()
    assert main([f"resume={tmp_path / 'again'}"]) == 0
    assert (tmp_path / "again" / "metrics.jsonl").read_bytes() == whole


@pytest.mark.slow
@pytest.mark.usefixtures("blank")
def test_what_was_trained_on_is_not_held_out(
    looked_at: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither of the run again, nor of the run as a checkpoint, unless it is wanted; then a comparison says so."""
    other = texts(tmp_path / "other", seed=7)
    (other / "heldout-z.txt").write_text((data / "train-b.txt").read_text())
    for given in (
        [f"evaluate={looked_at}"],
        ["task=books", f"checkpoint={looked_at}", f"hydra.run.dir={tmp_path}/again", "wandb.mode=disabled", *EVAL],
    ):
        assert main([*given, f"data.path={other}"]) == 2
        assert "1 of 4 held-out texts were trained on in this run; give others" in capsys.readouterr().err
    again = tmp_path / "again"
    assert not again.exists()
    wanted = ["task.allow_shared=true", "eval.length=32", "eval.contexts=[]", "eval.gaps=[]"]
    assert tiny.evaluate(looked_at, [f"data.path={other}", *wanted], again) == 0
    compare.compare([looked_at, again], tmp_path / "out", Console())
    assert "The held-out texts differ, so the lines do not compare" in " ".join(capsys.readouterr().out.split())


@pytest.mark.slow
def test_a_run_evaluated_on_another_task_keeps_its_training_length(looked_at: Path, data: Path) -> None:
    experiment = Spec.saved(looked_at, ["task=arxiv", f"data.path={data}"], allowed=EVALUABLE).experiment
    assert experiment.task_name == "arxiv" and experiment.task.length == 32
    with pytest.raises(UserError, match=r"task.length is what this run was trained at; give 'eval.lengths"):
        _ = Spec.saved(looked_at, ["task.length=64"], allowed=EVALUABLE).experiment


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["task=induction_heads", "data.path=x"], "data.path=x, but induction_heads is drawn, not read"),
        (["task=books", "eval=extrapolation"], "give eval=loss_by_position"),
        (["task=induction_heads", "eval=loss_by_position"], "loss by position needs a text"),
        (["task=books", "data.path=nowhere"], "path=nowhere is no folder"),
    ],
)
def test_what_cannot_be_is_one_line(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*arguments, "model=griffin"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("evalkit: ") and words in error and error.count("\n") == 1


def test_a_silent_hub_is_told_at_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    assert main(["task=books", "model=griffin", "task.hub.name=some/texts"]) == 2
    assert main(["task=books", "checkpoint=x", "task.hub.name=some/texts"]) == 2
    assert (
        capsys.readouterr().err.count("some/texts is not in the cache and the hub (http://127.0.0.1:9) does not") == 2
    )
    assert main(["task=books", "model=griffin", "task.hub.name=some/texts"]) == 2
    assert "some/texts is not in the cache and the hub (http://127.0.0.1:9) does not answer" in capsys.readouterr().err


SAME = ("eval.length=32", "eval.windows=1", "eval.contexts=[8]", "eval.gaps=[]")


def looked(folder: Path, *metrics: str) -> list[dict[str, Any]]:
    """The rows of looks whose metrics begin so, without the name of the run."""
    return [entry for entry in tiny.rows(folder) if entry["split"] == DURING and entry["metric"].startswith(metrics)]


@pytest.mark.slow
def test_rows_while_training_are_those_of_an_evaluation_at_that_step(looked_at: Path, tmp_path: Path) -> None:
    assert tiny.evaluate(looked_at, ["step=4", *SAME], tmp_path / "again") == 0
    again = [entry for entry in tiny.rows(tmp_path / "again") if entry["split"] == "test"]
    while_training = looked(looked_at, *text_rows.RAW)
    assert {entry["metric"] for entry in again} <= set(text_rows.RAW)
    assert {entry["step"] for entry in while_training} == {4}
    assert [{**entry, "split": "test"} for entry in while_training] == again


@pytest.mark.slow
def test_benchmarks_while_training_are_those_of_the_checkpoint(
    looked_at: Path, tmp_path: Path, asked: list[str]
) -> None:
    data = next(word for word in asked if word.startswith("downstream")).partition("path: ")[2].rstrip("}")
    measure = ["task=downstream", f"checkpoint={looked_at}", "task.names=[piqa]", f"data.path={data}", "format=json"]
    assert main([*measure, "wandb.mode=disabled", f"hydra.run.dir={tmp_path / 'piqa'}"]) == 0
    wanted = {entry["metric"]: (entry["total"], entry["count"]) for entry in tiny.rows(tmp_path / "piqa")}
    mine = {
        entry["metric"]: (entry["total"], entry["count"]) for entry in looked(looked_at, "piqa") if entry["seed"] == 0
    }
    assert mine == wanted and len(mine) > 1
    assert {(entry["step"], entry["seed"]) for entry in looked(looked_at, "piqa")} == {(6, 0), (6, 1)}


@pytest.mark.slow
def test_lookups_are_made_at_their_own_steps(looked_at: Path) -> None:
    exact = looked(looked_at, "exact_match")
    assert [(entry["seed"], entry["step"]) for entry in exact if entry["extra"]["answer"] == "all"] == [
        (seed, step) for step in (2, 4, 6) for seed in (0, 1)
    ]


@pytest.mark.exhaustive  # of other rows: test_resume.py and tests/faults/test_kill.py
def test_a_kill_in_the_middle_of_a_look_loses_nothing(
    looked_at: Path, asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe, folder = Look.probe, tmp_path / looked_at.name

    class Killed(BaseException):
        pass

    def kills(self: Look, subject: Trained) -> Iterator[Row]:
        for number, entry in enumerate(probe(self, subject)):
            if subject.step == 4 and number == 3:
                raise Killed
            yield entry

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(Look, "probe", kills)
        tiny.start(folder, of=asked)
    assert tiny.resume(folder) == 0
    assert (folder / "metrics.jsonl").read_bytes() == (looked_at / "metrics.jsonl").read_bytes()


@pytest.mark.slow
def test_the_report_and_the_sinks_have_curves_of_the_looks(looked_at: Path) -> None:
    summary, record = json.loads((looked_at / "results.json").read_text()), read(looked_at)
    assert {"loss@32", "exact_match@160", "piqa/acc"} <= set(summary["during"])
    assert (looked_at / "during_shares.png").is_file()  # lookups have three points; the others have one
    sent = [point for group in written_together(record.rows) for point in points(group, [0, 1], 32)]
    of_seed = [(point.at, point.values["during/loss@32"]) for point in sent if "during/loss@32" in point.values]
    assert [at for at, _ in of_seed] == [4, 4]
    # Each step is sent once: what W&B has of a step it takes no more of.
    steps = [(point.seed, point.at) for point in sent if "validation/loss" in point.values]
    assert len(steps) == len(set(steps)) == 6


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("eval.during={every: 3}", "eval.during.every=3, but models are validated every train.eval_every=2"),
        ("eval.during={windows: 1}", "eval.during has no every; give a number of steps"),
        ("eval.during={every: 0}", "eval.during.every=0; allowed: a number of steps from 1"),
        ("eval.during={every: 2, windows: many}", "eval.during.windows='many'; allowed: int"),
        ("eval.during={every: 2, window: 1}", "eval.during.window is no setting; allowed: every, length, windows"),
        ("eval.during={every: 2, windows: 0}", "windows=0; allowed: 1 or more"),
        ("lookup.during={every: 2}", "lookup.during has no lengths"),
        ("lookup.during={every: 2, lengths: [3]}", "3"),
        ("downstream.during={every: 2}", "downstream.during has no tasks"),
        (
            "downstream.during={every: 2, tasks: piqa}",
            "downstream.during.tasks='piqa'; allowed: a list of str",
        ),
        ("downstream.during={every: 2, tasks: [piqa], calibrate: x}", "downstream.during.calibrate is of a whole run"),
        ("lookup.during={every: 20, lengths: [200]}", "lookup.during.every=20 is never, of train.steps=6"),
        ("lookup.during=5", "lookup.during=5; allowed: a mapping"),
        # All of lm-eval's tasks are looked through for one of that name, which takes 20 s.
        pytest.param("downstream.during={every: 2, tasks: [piqua]}", "piqua", marks=pytest.mark.exhaustive),
        ("downstream.during={every: 2, tasks: [piqa], path: nowhere}", "task piqa reads validation of baber/piqa"),
    ],
)
def test_what_cannot_be_asked_is_one_line_before_anything_is_written(
    wrong: str, message: str, asked: list[str], tmp_path: Path
) -> None:
    plain = [word for word in asked if "during" not in word]
    with pytest.raises(UserError, match=message.replace("[", r"\[")):
        tiny.start(tmp_path / "run", wrong, of=plain)
    assert not (tmp_path / "run").exists()


def test_tasks_without_text_are_not_asked() -> None:
    with pytest.raises(UserError, match=r"lookup.during is asked of models of text; give task=books"):
        tiny.experiment("lookup.during={every: 2, lengths: [64]}")


@pytest.mark.slow
def test_a_run_from_before_there_were_looks_has_none(looked_at: Path, tmp_path: Path) -> None:
    saved = OmegaConf.to_container(OmegaConf.load(looked_at / "config.yaml"))
    assert isinstance(saved, dict)
    older = {key: value for key, value in saved.items() if key not in ("downstream", "lookup")}
    OmegaConf.save(older, tmp_path / "config.yaml")
    assert not Spec.saved(tmp_path).experiment.looks
