"""Recall by distance: questions to copies of a cache, facts that are planted, and what a state says of forgetting."""

import json
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from flax import nnx
from rich.console import Console
from shrunk import overrides_of

from evalkit import config, run
from evalkit.protocols import Recalls, Trained
from evalkit.recall import NEAREST, Recall, planted
from evalkit.recall_report import report
from evalkit.recall_rows import DIFFERENCE, FORGETTING, RECALLED
from evalkit.recall_summary import summarise
from evalkit.rows import read, row
from evalkit.run import Silent
from models.cglru import ComplexRecurrentBlock
from models.lru import UngatedRecurrentBlock
from models.mixer import Decaying
from models.rglru import RecurrentBlock
from models.s6 import S6Block
from tasks.induction_heads import InductionHeads
from tasks.selective_copying import SelectiveCopying

WIDTH = 8
MIXERS = {
    "rglru": partial(RecurrentBlock, WIDTH, width_rnn=12, gate_blocks=3),
    "cglru": partial(ComplexRecurrentBlock, WIDTH, width_rnn=12, gate_blocks=3),
    "lru": partial(UngatedRecurrentBlock, WIDTH, width_rnn=12),
    "s6": partial(S6Block, WIDTH, states=3),
}


def shrunk(model: str) -> config.Experiment:
    return config.experiment(config.compose(["task=induction_heads", f"model={model}", *overrides_of(model)]))


def trained_of(experiment: config.Experiment, seeds: int = 1) -> Trained:
    params = [jax.jit(experiment.model.init)(jax.random.key(seed)) for seed in range(seeds)]
    named = partial(row, run="r", task="induction_heads", model="m")
    return Trained(experiment.task, experiment.model, params, range(seeds), 7, named, lambda: None, Silent())


@pytest.mark.parametrize("name", MIXERS)
def test_a_state_decays_as_the_mixer_says(name: str) -> None:
    """Two inputs that differ at one step: their states come together as exp(−Σ δ), channel by channel."""
    block = MIXERS[name](rngs=nnx.Rngs(0))
    assert isinstance(block, Decaying)
    x = jax.random.normal(jax.random.key(2), (2, 37, WIDTH))
    (delta, state), (_, moved) = block.decays(x), block.decays(x.at[:, 10].add(1.0))
    settled = 10 + block.conv.taps  # before, the convolution still sees the difference
    apart = np.asarray(state - moved, np.float64)
    if name == "cglru":  # the modulus of a channel, whose parts lie half a width apart
        apart = np.concatenate([np.hypot(*np.split(apart, 2, axis=-1))] * 2, axis=-1)
    ratio, expected = apart[:, -1] / apart[:, settled], np.exp(-np.asarray(delta[:, settled + 1 :]).sum(axis=1))
    clear = (np.abs(apart[:, settled]) > 1e-2) & (expected > 1e-2)
    assert clear.sum() > 10
    np.testing.assert_allclose(ratio[clear], expected[clear], rtol=1e-2)


def test_attention_has_no_decay_to_tell() -> None:
    experiment = shrunk("mqa")
    params = jax.jit(experiment.model.init)(jax.random.key(0))
    assert experiment.model.decays(params, jnp.zeros((1, 8), jnp.int32)) == {}
    assert {
        entry["metric"] for entry in Recall(length=64, sequences=2, pair_length=80).run(trained_of(experiment))
    } == {RECALLED}


def test_a_planted_context_has_one_fact_and_no_question() -> None:
    task = InductionHeads(length=32)
    places = np.array([0, 5, 61])
    tokens, answers = planted(task, np.arange(3), places, 64)
    for context, place, answer in zip(np.asarray(tokens), places, answers, strict=True):
        assert np.flatnonzero(context == task.query).tolist() == [place]
        assert context[place + 1] == answer < task.answers
        asked = np.append(context, task.query)
        assert task.solve(asked)[0][-1] == answer, "the task's own rule gives another answer"
    again, _ = planted(task, np.arange(1, 3), places[1:], 64)
    np.testing.assert_array_equal(tokens[1:], again)
    other, _ = planted(task, np.arange(3), places, 64, (np.asarray(answers) + 1) % task.answers)
    assert (np.asarray(other != tokens).sum(axis=1) == 1).all(), "contexts of a pair differ in the fact alone"


@pytest.mark.parametrize("model", ["griffin", "mqa", "mamba"])
def test_a_question_to_a_copy_of_the_cache_is_a_question_at_the_end(model: str) -> None:
    """Asked while one long context streams by, each answer is that of the whole sequence cut there."""
    experiment = shrunk(model)
    trained = trained_of(experiment)
    recall = Recall(length=64, first=16, sequences=4, chunk=10, batch_size=4)
    numbers = np.arange(4)
    tokens, answers = planted(experiment.task, numbers, recall._places(numbers), 64)
    asked = dict(recall._asked(trained, trained.params[0], tokens, answers, experiment.task.query))
    assert list(asked) == [16, 32, 64]
    for length, right in asked.items():
        whole = tokens.at[:, length - 1].set(experiment.task.query)[:, :length]
        said = jax.jit(experiment.model.apply)(trained.params[0], whole)[0][:, -1].argmax(axis=-1)
        np.testing.assert_array_equal(right, np.asarray(said == answers))


def test_every_length_is_asked_at_every_distance_that_it_has() -> None:
    experiment = shrunk("hawk")
    recall = Recall(length=64, first=16, sequences=48, pairs=2, pair_length=80)
    rows = list(recall.run(trained_of(experiment, seeds=2)))
    found = {(entry["seed"], entry["length"], entry["position"]) for entry in rows if entry["metric"] == RECALLED}
    assert found == {
        (seed, length, 2**power)
        for seed in (0, 1)
        for length in (16, 32, 64)
        for power in range(1, 7)
        if 2**power <= length
    }
    at_the_end = [entry["count"] for entry in rows if entry["metric"] == RECALLED and entry["length"] == 64]
    assert sum(count or 0 for count in at_the_end) == 2 * 48
    other = list(
        Recall(length=64, first=16, sequences=48, pairs=2, pair_length=80, batch_size=5).run(
            trained_of(experiment, seeds=2)
        )
    )
    assert [(entry["total"], entry["count"]) for entry in rows if entry["metric"] == RECALLED] == [
        (entry["total"], entry["count"]) for entry in other if entry["metric"] == RECALLED
    ], "the batch size changes a number"


def test_the_channels_that_carry_the_fact_are_found_and_their_decay_is_theirs() -> None:
    """Shares add up to one a block; the difference begins at 1; the decay of no gates is that of the parameters."""
    experiment = shrunk("hawk_ungated")
    trained = trained_of(experiment)
    rows = list(Recall(length=64, sequences=2, pairs=3, pair_length=200).run(trained))
    forgetting = [entry for entry in rows if entry["metric"] == FORGETTING]
    for block in (0, 1):
        own = [entry for entry in forgetting if entry["extra"]["block"] == block]
        assert sum(entry["extra"]["share"] for entry in own) == pytest.approx(1)
        module = experiment.model.module(trained.params[0]).blocks[block].mixer
        expected = np.logaddexp(0, -np.asarray(module.rglru.decay[...], np.float64))
        np.testing.assert_allclose([entry["total"] / entry["count"] for entry in own], expected, rtol=1e-4)
    first = [entry for entry in rows if entry["metric"] == DIFFERENCE and entry["position"] == 64]
    assert len(first) == 2
    for entry in first:
        assert entry["total"] / entry["count"] == pytest.approx(1)


def test_the_summary_counts_within_and_beyond_the_window() -> None:
    def found(length: int, distance: int, total: int):
        return row(
            metric=RECALLED,
            run="r",
            task="t",
            model="m",
            seed=0,
            step=1,
            split="test",
            length=length,
            position=distance,
            total=total,
            count=10,
            extra={"after": distance // 2},
        )

    facts = row(metric="parameters", run="r", task="t", model="m", total=5, count=1, extra={"window": 8, "chance": 0.1})
    kept = [
        row(
            metric=FORGETTING,
            run="r",
            task="t",
            model="m",
            seed=0,
            step=1,
            split="test",
            length=99,
            total=total,
            count=2,
            extra={"block": 0, "channel": channel, "share": share},
        )
        for channel, (total, share) in enumerate([(0.02, 0.75), (0.2, 0.25)])
    ]
    apart = [
        row(
            metric=DIFFERENCE,
            run="r",
            task="t",
            model="m",
            seed=0,
            step=1,
            split="test",
            length=99,
            position=distance,
            total=total,
            count=2,
            extra={"block": 0, "first": 64},
        )
        for distance, total in [(64, 2.0), (80, 1.0), (99, 0.5)]
    ]
    rows = [
        facts,
        found(16, 8, 10),
        found(16, 16, 1),
        found(32, 4, 9),
        found(32, 8, 8),
        found(32, 32, 0),
        *kept,
        *apart,
    ]
    summary = summarise(rows)
    reach = {
        (entry["length"], entry["reach"]): (entry["accuracy"], entry["sequences"]) for entry in summary["by_reach"]
    }
    assert reach == {
        (16, "within"): (1.0, 10),
        (16, "beyond"): (0.1, 10),
        (32, "within"): (0.85, 20),
        (32, "beyond"): (0.0, 10),
    }
    (block,) = summary["forgetting"]
    assert block["predicted"] == pytest.approx(1 / (0.01 * 0.75 + 0.1 * 0.25))
    assert block["measured"] == 99 - 64


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"sequences": 0}, "sequences=0; allowed: 1 or more"),
        ({"first": 2}, "first=2; allowed: from 4 to length=16384"),
        ({"told_at": 4095}, "told_at=4095; allowed: from 16, below pair_length=4096"),
    ],
)
def test_an_impossible_evaluation_is_refused(settings: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Recall(**settings)


def test_a_task_without_a_fact_is_refused() -> None:
    assert not isinstance(SelectiveCopying(length=32), Recalls)
    with pytest.raises(ValueError, match="recall needs a task that can plant a fact; give task=induction_heads"):
        Recall().check(SelectiveCopying(length=32))


def test_a_finished_run_is_asked_and_reported(tmp_path: Path) -> None:
    folder = tiny.trained(tmp_path / "run")
    settings = [
        "eval=recall",
        "eval.length=64",
        "eval.first=16",
        "eval.sequences=6",
        "eval.pairs=2",
        "eval.pair_length=99",
    ]
    assert run.evaluate(folder, settings, tmp_path / "recall") == 0
    found = json.loads((tmp_path / "recall" / "results.json").read_text())
    assert found == json.loads(json.dumps(summarise(read(tmp_path / "recall"))))
    assert {entry["length"] for entry in found["recalled"]} == {16, 32, 64}
    for name in ("distance.png", "forgetting.png", "report.html"):
        assert (tmp_path / "recall" / name).stat().st_size > 1000
    one = (tmp_path / "recall" / "distance.png").read_bytes()
    report(tmp_path / "recall", read(tmp_path / "recall"), Console(quiet=True))
    assert (tmp_path / "recall" / "distance.png").read_bytes() == one
    assert all(entry["distance"] >= NEAREST for entry in found["recalled"])
