"""Recall by distance: questions to copies of a cache, facts that are planted, and what a state says of forgetting."""

import json
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from rich.console import Console

from evalkit.configuration import experiment as config
from evalkit.core.contracts import Recalls
from evalkit.core.rows import RECALL, Header, Record, read, row, value
from evalkit.evaluations.forgetting import undone
from evalkit.evaluations.planting import planted
from evalkit.evaluations.recall import Recall
from evalkit.inference.reader import Reader
from evalkit.models.layers.mixer import Decaying
from evalkit.models.mixers.cglru import ComplexRecurrentBlock
from evalkit.models.mixers.convex import ConvexRecurrentBlock
from evalkit.models.mixers.lru import UngatedRecurrentBlock
from evalkit.models.mixers.rglru import RecurrentBlock
from evalkit.models.mixers.s6 import S6Block
from evalkit.record.recall_rows import (
    DIFFERENCE,
    DRIFT,
    DRIFT_UNDONE,
    FORGETTING,
    FORGETTING_UNDONE,
    NOTHING_UNDONE,
    RECALLED,
    RESTORED,
)
from evalkit.reports.recall.summary import decayed, summarise
from evalkit.reports.writer import report
from evalkit.session import run
from evalkit.tasks.induction_heads import InductionHeads
from evalkit.tasks.selective_copying import SelectiveCopying
from support import tiny
from support.evaluated import trained_of
from support.shrunk import overrides_of

WIDTH = 8
MIXERS = {
    "rglru": partial(RecurrentBlock, WIDTH, width_rnn=12, gate_blocks=3),
    "cglru": partial(ComplexRecurrentBlock, WIDTH, width_rnn=12, gate_blocks=3),
    "convex": partial(ConvexRecurrentBlock, WIDTH, width_rnn=12, gate_blocks=3),
    "lru": partial(UngatedRecurrentBlock, WIDTH, width_rnn=12),
    "s6": partial(S6Block, WIDTH, states=3),
}


def shrunk(model: str) -> config.Experiment:
    return config.built(["task=induction_heads", f"model={model}", *overrides_of(model)])


@pytest.mark.parametrize("name", MIXERS)
def test_a_state_decays_as_the_mixer_says(name: str) -> None:
    """Two inputs that differ at one step: their states come together as exp(−Σ δ), channel by channel."""
    block = MIXERS[name](rngs=nnx.Rngs(0))
    assert isinstance(block, Decaying)
    x = jax.random.normal(jax.random.key(2), (2, 37, WIDTH))
    (delta, state), (_, moved) = block.decays(x), block.decays(x.at[:, 10].add(5.0))
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
        entry["metric"]
        for entry in Recall(length=64, before=[0], sequences=2, pair_length=80).run(trained_of(experiment))
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
    recall = Recall(length=64, before=[5], sequences=4, chunk=10, batch_size=4)
    tokens, answers = planted(experiment.task, np.arange(4), np.full(4, 5), 64)
    query = experiment.task.query
    asked = list(recall._answers(trained, trained.params[0], tokens, answers, query, 5))
    assert recall.distances_after(5) == [2, 4, 8, 16, 32] and len(asked) == 5
    for distance, right in zip(recall.distances_after(5), asked, strict=True):
        whole = tokens.at[:, 5 + distance].set(query)[:, : 5 + distance + 1]
        said = jax.jit(experiment.model.apply)(trained.params[0], whole)[0][:, -1].argmax(axis=-1)
        np.testing.assert_array_equal(right, np.asarray(said == answers))


def test_every_distance_that_fits_is_asked_about_whatever_the_batch() -> None:
    trained = trained_of(shrunk("hawk"), seeds=2)
    settings = {"length": 64, "before": [0, 40], "sequences": 37, "interval": None, "pairs": 1, "pair_length": 80}
    rows, other = ([*Recall(**settings, batch_size=size).run(trained)] for size in (8, 5))
    found = [entry for entry in rows if entry["metric"] == RECALLED]
    assert [(e["seed"], e["extra"]["before"], e["position"], e["length"], e["count"]) for e in found] == [
        (seed, before, distance, before + distance + 1, 37)
        for seed in (0, 1)
        for before, last in ((0, 32), (40, 16))
        for distance in (2, 4, 8, 16, 32)
        if distance <= last
    ]
    same = [e for e in other if e["metric"] == RECALLED]
    assert [(e["total"], e["extra"]) for e in found] == [(e["total"], e["extra"]) for e in same]
    for e in found:
        _, answers = planted(trained.task, np.arange(37), np.full(37, e["extra"]["before"]), 64)
        assert e["extra"]["asked"] == np.bincount(answers, minlength=trained.task.answers).tolist()
        assert sum(e["extra"]["right"]) == e["total"] and np.less_equal(e["extra"]["right"], e["extra"]["asked"]).all()
    every = Recall(**settings, distances=[30, 4, 16]).run(trained)
    chosen = [entry for entry in every if entry["metric"] == RECALLED]
    totals = {(e["seed"], e["extra"]["before"], e["position"]): e["total"] for e in [*found, *chosen]}
    own = [(e["extra"]["before"], e["position"]) for e in chosen if e["seed"] == 0]
    assert own == [(0, 4), (0, 16), (0, 30), (40, 4), (40, 16)]
    assert all(
        totals[e["seed"], e["extra"]["before"], e["position"]] == e["total"] for e in found if e["position"] in (4, 16)
    )


def test_contexts_are_enough_when_every_distance_is_narrow() -> None:
    recall = Recall(length=64, sequences=1000, interval=0.1, before=[0])
    assert not recall._narrow(np.array([32.0, 32.0]), 32) and recall._narrow(np.array([64.0, 0.0]), 64)
    assert not recall._narrow(np.array([64.0, 32.0]), 64)
    assert not Recall(length=64, before=[0], interval=None)._narrow(np.array([1e6]), 10**6)


def test_the_channels_that_carry_the_fact_are_found_and_their_decay_is_theirs() -> None:
    """Shares add up to one a block; the difference begins at 1; the decay of no gates is that of the parameters."""
    experiment = shrunk("hawk_ungated")
    trained = trained_of(experiment)
    rows = list(Recall(length=64, before=[0], sequences=2, pairs=3, pair_length=200).run(trained))
    forgetting = [entry for entry in rows if entry["metric"] == FORGETTING]
    for block in (0, 1):
        own = [entry for entry in forgetting if entry["extra"]["block"] == block]
        assert sum(entry["extra"]["share"] for entry in own) == pytest.approx(1)
        module = experiment.model.module(trained.params[0]).blocks[block].mixer
        expected = np.logaddexp(0, -np.asarray(module.rglru.decay[...], np.float64))
        np.testing.assert_allclose([entry["total"] / entry["count"] for entry in own], expected, rtol=1e-4)
    for metric, start in ((DIFFERENCE, 1.0), (DRIFT, 0.0)):
        first = [entry for entry in rows if entry["metric"] == metric and entry["position"] == 64]
        assert len(first) == 2
        for entry in first:
            assert entry["total"] / entry["count"] == pytest.approx(start)


def test_the_drift_is_the_way_of_what_a_pair_has_in_common_in_its_differences() -> None:
    """Two pairs of contexts by hand, their states from the model itself, in float64."""
    experiment = shrunk("hawk")
    trained = trained_of(experiment)
    recall = Recall(length=64, before=[0], sequences=2, pairs=2, pair_length=200, contexts=1)
    found = [entry for entry in recall.run(trained) if entry["metric"] == DRIFT and entry["extra"]["block"] == 1]
    ways = []
    for number in range(2):
        answers = np.array([int(np.random.default_rng([number, 1]).integers(experiment.task.answers)), 0])
        answers[1] = answers[0] + 1 + np.random.default_rng([number, 2]).integers(experiment.task.answers - 1)
        answers %= experiment.task.answers
        tokens, _ = planted(experiment.task, np.array([number] * 2), np.zeros(2, int), 200, answers)
        one, other = np.asarray(experiment.model.decays(trained.params[0], tokens)[1][1], np.float64)
        middle = (one + other) / 2
        ways.append(np.linalg.norm(middle - middle[64], axis=1) / np.linalg.norm(one[64] - other[64]))
    assert [entry["position"] for entry in found] == [64, 76, 91, 108, 128, 152, 181, 199]
    for entry in found:
        expected = np.mean([way[entry["position"]] for way in ways])
        assert value(entry) == pytest.approx(expected, rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("model", ["griffin", "hawk_complex", "mamba"])
def test_what_a_context_does_and_what_its_fact_does_are_put_back_apart(model: str) -> None:
    """Both put back at once are the states of before; each leaves the other, and all that is no state, as it is."""
    experiment = shrunk(model)
    trained = trained_of(experiment)
    tokens, answers = planted(experiment.task, np.array([0, 0, 0, 1, 1, 1]), np.zeros(6, int), 64, np.arange(6) % 3)
    reader = Reader(trained.model, trained.params[0], answers, experiment.task.query, 8, lambda: None)
    before = reader.read(tokens[:, :20], reader.start(64))
    cache = reader.read(tokens[:, 20:50], jax.tree.map(jnp.copy, before))
    blocks = sorted(experiment.model.decays(trained.params[0], tokens[:2, :2]))
    drift = undone(DRIFT_UNDONE, cache, before, blocks[:1], 3)
    whole = undone(FORGETTING_UNDONE, undone(DRIFT_UNDONE, cache, before, blocks, 3), before, blocks, 3)
    for number, (now, then, moved, both) in enumerate(zip(cache, before, drift, whole, strict=True)):
        if number in blocks:
            np.testing.assert_allclose(both.h, then.h, atol=1e-5)
            assert (np.asarray(both.conv) == np.asarray(now.conv)).all()
        else:
            assert all((a == b).all() for a, b in zip(both, now, strict=True))
        if number == blocks[0]:
            for context in (slice(0, 3), slice(3, 6)):
                np.testing.assert_allclose(moved.h[context].mean(axis=0), then.h[context].mean(axis=0), atol=1e-5)
            np.testing.assert_allclose(moved.h[4] - moved.h[3], now.h[4] - now.h[3], atol=1e-5)
        elif number in blocks:
            assert (np.asarray(moved.h) == np.asarray(now.h)).all()


def test_every_answer_is_asked_with_each_part_of_the_state_put_back() -> None:
    experiment = shrunk("griffin")
    trained = trained_of(experiment)
    settings = {"length": 64, "before": [0], "sequences": 2, "pairs": 1, "pair_length": 200, "contexts": 2}
    rows = [entry for entry in Recall(**settings).run(trained) if entry["metric"] == RESTORED]
    blocks = sorted(experiment.model.decays(trained.params[0], jnp.zeros((1, 8), jnp.int32)))
    assert [(e["position"], e["extra"]["undone"], e["extra"]["block"]) for e in rows] == [
        (distance, what, block)
        for distance in (128, 199)
        for what, of in ((NOTHING_UNDONE, []), (DRIFT_UNDONE, blocks), (FORGETTING_UNDONE, blocks))
        for block in [None, *of]
    ]
    assert {entry["count"] for entry in rows} == {2 * experiment.task.answers}
    tokens, answers = planted(experiment.task, np.repeat([0, 1], 15), np.zeros(30, int), 200, np.tile(np.arange(15), 2))
    asked = tokens.at[:, 199].set(experiment.task.query)
    said = jax.jit(experiment.model.apply)(trained.params[0], asked)[0][:, -1].argmax(axis=-1)
    (plain,) = [e for e in rows if e["position"] == 199 and e["extra"]["undone"] == NOTHING_UNDONE]
    assert plain["total"] == int((said == answers).sum())


UNKNOWN = Header("r", "t", "m", RECALL)


def made(metric: str, **settings) -> dict:
    return row(metric=metric, run="r", task="t", model="m", seed=0, step=1, split="test", **settings)


def test_the_summary_is_within_the_window_and_beyond_it() -> None:
    header = Header("r", "t", "m", RECALL, window=8, chance=0.1)
    totals = {(0, 4): 10, (0, 8): 8, (0, 16): 0, (20, 4): 9, (20, 8): 9, (20, 16): 9}
    rows = [
        made(RECALLED, length=before + distance + 1, position=distance, total=total, count=10, extra=extra)
        for (before, distance), total in totals.items()
        for extra in [{"before": before, "right": [total], "asked": [10]}]
    ]
    summary = summarise(Record(header, rows))
    assert {(found["before"], found["reach"]): found["median"] for found in summary["by_reach"]} == pytest.approx(
        {(0, "within"): 0.9, (0, "beyond"): 0.0, (20, "within"): 0.9, (20, "beyond"): 0.9}
    )
    assert [found["distance"] for found in summary["half_way"]] == [16, None]
    assert summary["forgetting"] == []


def test_answers_lost_at_the_furthest_distance_are_told_from_the_others() -> None:
    """An answer that was never asked for is neither."""
    header = Header("r", "t", "m", RECALL, chance=0.2)
    rows = [
        made(RECALLED, length=distance + 1, position=distance, total=sum(right), count=30, extra=extra)
        for distance, right in [(16, [0, 10, 5, 0]), (4, [10, 10, 10, 0])]
        for extra in [{"before": 0, "right": right, "asked": [10, 10, 10, 0]}]
    ]
    (found,) = summarise(Record(header, rows))["by_answer"]
    assert (found["distance"], found["lost"], found["others"]) == (16, [0, 2], 1.0)
    rows = [made(RECALLED, length=9, position=8, total=0, count=5, extra={"before": 0, "right": [0], "asked": [5]})]
    (found,) = summarise(Record(header, rows))["by_answer"]
    assert (found["lost"], found["others"]) == ([0], None)


def test_what_the_decay_predicts_is_a_norm_over_channels() -> None:
    """A slow channel is what remains, however little it carried at first."""
    assert decayed([(0.01, 1.0)], 100) == pytest.approx(np.exp(-1))
    assert decayed([(0.01, 0.5), (1e-9, 0.5)], 10_000) == pytest.approx(np.sqrt(0.5), rel=1e-4)
    kept = [
        made(FORGETTING, length=99, total=total, count=2, extra={"block": 0, "channel": channel, "share": share})
        for channel, (total, share) in enumerate([(0.02, 0.5), (0.002, 0.5)])
    ]
    apart = [
        made(DIFFERENCE, length=99, position=distance, total=total, count=2, extra={"block": 0, "first": 64})
        for distance, total in [(64, 2.0), (80, 1.0), (99, 0.5)]
    ]
    moved = [
        made(DRIFT, length=99, position=distance, total=total, count=1, extra={"block": 0, "first": 64})
        for distance, total in [(99, 7.0), (64, 0.0), (80, 9.0)]
    ]
    (block,) = summarise(Record(UNKNOWN, [*kept, *apart, *moved]))["forgetting"]
    assert block["moved"] == 7.0
    assert decayed([(0.01, 0.5), (0.001, 0.5)], block["predicted"]) == pytest.approx(np.exp(-1))
    assert 600 < block["predicted"] < 700 and block["measured"] == pytest.approx(16 + 19 * (np.log(2) - 1) / -np.log(2))
    endless = [made(FORGETTING, length=9, total=0.0, count=1, extra={"block": 0, "channel": 0, "share": 1.0})]
    assert summarise(Record(UNKNOWN, endless))["forgetting"][0]["predicted"] is None


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"sequences": 0}, "sequences=0; allowed: 1 or more"),
        ({"before": []}, r"before=\[\]; allowed: from 0, below length=17409 less 2"),
        ({"before": [17408]}, r"before=\[17408\]; allowed: from 0"),
        ({"distances": [1, 9]}, r"distances=\[1, 9\]; allowed: numbers from 2, or null"),
        ({"distances": [9], "length": 12, "before": [5]}, r"distances=\[9\] do not fit into length=12"),
        ({"interval": 0.0}, "interval=0.0; allowed: between 0 and 1, or null"),
        ({"told_at": 16383}, "told_at=16383; allowed: from 16, below pair_length=16384"),
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
        "eval.before=[0,9]",
        "eval.sequences=6",
        "eval.pairs=2",
        "eval.pair_length=99",
    ]
    assert run.evaluate(folder, settings, tmp_path / "recall") == 0
    found = json.loads((tmp_path / "recall" / "results.json").read_text())
    assert found == json.loads(json.dumps(summarise(read(tmp_path / "recall"))))
    assert {(entry["before"], entry["distance"]) for entry in found["recalled"]} == {
        *((0, 2**power) for power in range(1, 6)),
        *((9, 2**power) for power in range(1, 6)),
    }
    for name in ("distance.png", "forgetting.png", "drift.png", "restored.png", "report.html"):
        assert (tmp_path / "recall" / name).stat().st_size > 1000
    one = (tmp_path / "recall" / "distance.png").read_bytes()
    report(tmp_path / "recall", Console(quiet=True))
    assert (tmp_path / "recall" / "distance.png").read_bytes() == one
