"""Recall by distance: questions to copies of a cache, facts that are planted, and what a state says of forgetting."""

import json
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from rich.console import Console

from evalkit.core.contracts import LanguageModel, Params, Recalls, Trained
from evalkit.core.moved import RECALL
from evalkit.core.rows import Header, Record, Row, read, row, value
from evalkit.evaluations.recall.forgetting import sham, undone
from evalkit.evaluations.recall.measure import Recall
from evalkit.evaluations.recall.planting import planted
from evalkit.evaluations.recall.rows import (
    DIFFERENCE,
    DRIFT,
    DRIFT_SHAM,
    DRIFT_UNDONE,
    FORGETTING,
    FORGETTING_SHAM,
    FORGETTING_UNDONE,
    NOTHING_UNDONE,
    RECALLED,
    RESTORED,
)
from evalkit.evaluations.recall.summary import decayed, summarise
from evalkit.inference.reader import Reader
from evalkit.models.layers.mixer import Decaying
from evalkit.models.layers.recurrent import RecurrentCache
from evalkit.models.mixers.cglru import ComplexRecurrentBlock
from evalkit.models.mixers.convex import ConvexRecurrentBlock
from evalkit.models.mixers.lru import UngatedRecurrentBlock
from evalkit.models.mixers.rglru import RecurrentBlock
from evalkit.models.mixers.s6 import S6Block
from evalkit.reports.writer import report
from evalkit.tasks.induction_heads import InductionHeads
from evalkit.tasks.selective_copying import SelectiveCopying
from support import tiny
from support.evaluated import trained_of
from support.shrunk import applied, experiment

WIDTH = 8
MIXERS = {
    "rglru": partial(RecurrentBlock, WIDTH, width_rnn=12, gate_blocks=3),
    "cglru": partial(ComplexRecurrentBlock, WIDTH, width_rnn=12, gate_blocks=3),
    "convex": partial(ConvexRecurrentBlock, WIDTH, width_rnn=12, gate_blocks=3),
    "lru": partial(UngatedRecurrentBlock, WIDTH, width_rnn=12),
    "s6": partial(S6Block, WIDTH, states=3),
}


def read_of(model: LanguageModel, params: Params, tokens: np.ndarray) -> np.ndarray:
    """What the model says after each token `[b, t]`, without a cache."""
    return np.asarray(applied(model)(params, jnp.asarray(tokens))[0]).argmax(axis=-1)


@pytest.mark.parametrize("name", MIXERS)
def test_a_state_decays_as_the_mixer_says(name: str) -> None:
    """Two inputs that differ at one step: their states come together as exp(−Σ δ), channel by channel."""
    block = nnx.eval_shape(lambda: MIXERS[name](rngs=nnx.Rngs(0)))
    assert isinstance(block, Decaying)
    x = np.random.default_rng(2).standard_normal((2, 37, WIDTH)).astype(np.float32)
    moved = x.copy()
    moved[:, 10] += 5.0
    both = np.concatenate([x, moved])  # one program, parameters and all
    deltas, states = jax.jit(lambda given: MIXERS[name](rngs=nnx.Rngs(0)).decays(given))(both)
    delta = np.asarray(deltas)[:2]
    settled = 10 + block.conv.taps  # before, the convolution still sees the difference
    apart = np.asarray(states[:2], np.float64) - np.asarray(states[2:], np.float64)
    if name == "cglru":  # the modulus of a channel, whose parts lie half a width apart
        apart = np.concatenate([np.hypot(*np.split(apart, 2, axis=-1))] * 2, axis=-1)
    ratio, expected = apart[:, -1] / apart[:, settled], np.exp(-delta[:, settled + 1 :].sum(axis=1))
    clear = (np.abs(apart[:, settled]) > 1e-2) & (expected > 1e-2)
    assert clear.sum() > 10
    np.testing.assert_allclose(ratio[clear], expected[clear], rtol=1e-2)


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


@pytest.mark.slow
@pytest.mark.parametrize("model", ["griffin", "mqa", pytest.param("mamba", marks=pytest.mark.exhaustive)])
def test_a_question_to_a_copy_of_the_cache_is_a_question_at_the_end(model: str) -> None:
    """Asked while one long context streams by, each answer is that of the whole sequence cut there."""
    trained = trained_of(experiment(model))
    distances = [2, 9, 26, 32]  # in chunks of 7, 7, 7 + 7 + 3 and 6 tokens
    recall = Recall(length=64, before=[5], distances=distances, sequences=4, chunk=7, batch_size=4)
    tokens, answers = planted(trained.task, np.arange(4), np.full(4, 5), 64)
    query = trained.task.query
    asked = list(recall._answers(trained, trained.params[0], tokens, answers, query, 5))
    assert recall.distances_after(5) == distances and len(asked) == 4
    assert replace(recall, distances=None).distances_after(5) == [2, 4, 8, 16, 32]
    for distance, right in zip(distances, asked, strict=True):
        whole = np.array(tokens)
        whole[:, 5 + distance] = query  # what comes after it, a causal model does not see
        said = read_of(trained.model, trained.params[0], whole)[:, 5 + distance]
        np.testing.assert_array_equal(right, said == np.asarray(answers))


@pytest.mark.slow
def test_every_distance_that_fits_is_asked_about_whatever_the_batch() -> None:
    """Of attention, which has no decay to tell, that is all."""
    trained = trained_of(experiment("mqa"), seeds=2)
    assert jax.eval_shape(partial(trained.model.decays, trained.params[0]), jnp.zeros((1, 8), jnp.int32)) == {}
    settings = {"length": 64, "before": [0, 40], "sequences": 13, "interval": None, "chunk": 2}
    found, same = ([*Recall(**settings, batch_size=size).run(trained)] for size in (8, 5))
    assert {e["metric"] for e in found} == {RECALLED}
    assert [(e["seed"], e["extra"]["before"], e["position"], e["length"], e["count"]) for e in found] == [
        (seed, before, distance, before + distance + 1, 13)
        for seed in (0, 1)
        for before, last in ((0, 32), (40, 16))
        for distance in (2, 4, 8, 16, 32)
        if distance <= last
    ]
    assert [(e["total"], e["extra"]) for e in found] == [(e["total"], e["extra"]) for e in same]
    batches = [planted(trained.task, np.arange(first, first + 8), np.zeros(8, int), 64)[1] for first in (0, 8)]
    answers = np.concatenate(batches)[:13]  # a context's answer is its number's, wherever the fact stands
    for e in found:
        assert e["extra"]["asked"] == np.bincount(answers, minlength=trained.task.answers).tolist()
        assert sum(e["extra"]["right"]) == e["total"] and np.less_equal(e["extra"]["right"], e["extra"]["asked"]).all()
    chosen = list(Recall(**settings, batch_size=8, distances=[30, 4, 16]).run(trained))
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


LENGTH = 193
CHECKPOINTS = [64, 76, 91, 108, 128, 152, 181, 192]


@lru_cache
def forgotten() -> tuple[Trained, list[Row]]:
    """Two pairs, and two contexts of each answer, in two blocks whose decay does not depend on the input."""
    trained = trained_of(experiment("hawk_ungated", "model.pattern=[recurrent,recurrent]"))
    recalled = {"before": [0], "distances": [64], "sequences": 2, "batch_size": 30}  # read and asked by one program
    recall = Recall(**recalled, length=LENGTH, pairs=2, pair_length=LENGTH, contexts=2, chunk=64)
    return trained, list(recall.run(trained))


@pytest.mark.slow
def test_the_channels_that_carry_the_fact_are_found_and_their_decay_is_theirs() -> None:
    """Shares add up to one a block; the difference begins at 1; the decay of no gates is that of the parameters."""
    trained, rows = forgotten()
    forgetting = [entry for entry in rows if entry["metric"] == FORGETTING]
    for block in (0, 1):
        own = [entry for entry in forgetting if entry["extra"]["block"] == block]
        assert sum(entry["extra"]["share"] for entry in own) == pytest.approx(1)
        module = trained.model.module(trained.params[0]).blocks[block].mixer
        expected = np.logaddexp(0, -np.asarray(module.rglru.decay[...], np.float64))
        np.testing.assert_allclose([entry["total"] / entry["count"] for entry in own], expected, rtol=1e-4)
    for metric, start in ((DIFFERENCE, 1.0), (DRIFT, 0.0)):
        first = [entry for entry in rows if entry["metric"] == metric and entry["position"] == 64]
        assert len(first) == 2
        for entry in first:
            assert entry["total"] / entry["count"] == pytest.approx(start)


@pytest.mark.slow
def test_the_drift_is_the_way_of_what_a_pair_has_in_common_in_its_differences() -> None:
    """Two pairs of contexts by hand, their states from the model itself, in float64."""
    trained, rows = forgotten()
    found = [entry for entry in rows if entry["metric"] == DRIFT and entry["extra"]["block"] == 1]
    states = jax.jit(lambda tokens: trained.model.decays(trained.params[0], tokens)[1][1])
    ways = []
    for number in range(2):
        answers = np.array([int(np.random.default_rng([number, 1]).integers(trained.task.answers)), 0])
        answers[1] = answers[0] + 1 + np.random.default_rng([number, 2]).integers(trained.task.answers - 1)
        answers %= trained.task.answers
        tokens, _ = planted(trained.task, np.array([number] * 2), np.zeros(2, int), LENGTH, answers)
        one, other = np.asarray(states(tokens), np.float64)
        middle = (one + other) / 2
        ways.append(np.linalg.norm(middle - middle[64], axis=1) / np.linalg.norm(one[64] - other[64]))
    assert [entry["position"] for entry in found] == CHECKPOINTS
    for entry in found:
        expected = np.mean([way[entry["position"]] for way in ways])
        assert value(entry) == pytest.approx(expected, rel=1e-3, abs=1e-6)


@pytest.mark.slow
def test_every_answer_is_asked_with_each_part_of_the_state_put_back() -> None:
    trained, every = forgotten()
    rows = [entry for entry in every if entry["metric"] == RESTORED]
    asked = [
        (NOTHING_UNDONE, None),
        *((what, block) for block in (None, 0, 1) for what in (DRIFT_UNDONE, DRIFT_SHAM)),
        *((what, block) for block in (None, 0, 1) for what in (FORGETTING_UNDONE, FORGETTING_SHAM)),
    ]
    assert [(e["position"], e["extra"]["undone"], e["extra"]["block"]) for e in rows] == [
        (distance, *one) for distance in (128, 192) for one in asked
    ]
    assert {entry["count"] for entry in rows} == {2}, "the facts of one context share all else"
    contexts = np.repeat([0, 1], 15), np.zeros(30, int), LENGTH, np.tile(np.arange(15), 2)
    tokens, answers = map(np.array, planted(trained.task, *contexts))
    tokens[:, 192] = trained.task.query
    said = read_of(trained.model, trained.params[0], tokens)[:, 192]
    (plain,) = [e for e in rows if e["position"] == 192 and e["extra"]["undone"] == NOTHING_UNDONE]
    assert plain["total"] == pytest.approx((said == answers).reshape(2, 15).mean(axis=1).sum())


@pytest.mark.slow
@pytest.mark.parametrize("model", ["griffin", pytest.param("hawk_complex", marks=pytest.mark.exhaustive), "mamba"])
def test_what_a_context_does_and_what_its_fact_does_are_put_back_apart(model: str) -> None:
    """Both put back at once are the states of before; each leaves the other, and all that is no state, as it is."""
    trained = trained_of(experiment(model))
    tokens, answers = planted(trained.task, np.array([0, 0, 0, 1, 1, 1]), np.zeros(6, int), 64, np.arange(6) % 3)
    reader = Reader(trained.model, trained.params[0], answers, trained.task.query, 16, lambda: None)
    first = reader.read(tokens[:, :16], reader.start(64))
    before = jax.tree.map(np.array, first)
    cache = jax.tree.map(np.array, reader.read(tokens[:, 16:48], first))
    decays = jax.eval_shape(partial(trained.model.decays, trained.params[0]), jnp.zeros((1, 8), jnp.int32))
    blocks = sorted(decays)
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


def test_a_sham_moves_the_states_as_far_and_nowhere_near() -> None:
    """Channel by channel; of drift all facts of a context the same way; of forgetting their mean stays where it is."""
    rng = np.random.default_rng(0)
    shape, width = (2, 3, 4096), 4096
    states = jnp.asarray(rng.normal(size=(2, 6, width)), np.float32)
    now, then = (RecurrentCache(h, jnp.zeros((6, 3, width)), jnp.zeros(6, np.int32)) for h in states)
    for what in (DRIFT_UNDONE, FORGETTING_UNDONE):
        (real,), (moved,) = undone(what, (now,), (then,), [0], 3), sham(what, (now,), (then,), [0], 3)
        ways = [np.asarray(cache.h - now.h).reshape(shape) for cache in (real, moved)]
        np.testing.assert_allclose(*map(np.abs, ways), rtol=1e-3, atol=1e-5)
        cosines = np.sum(ways[0] * ways[1], axis=-1) / np.sum(np.square(ways[0]), axis=-1)
        assert np.abs(cosines).max() < 0.1, "random directions of so many numbers are nearly at right angles"
        alike = np.allclose(ways[1][:, :1], ways[1], rtol=1e-3, atol=1e-5)
        assert alike == (what == DRIFT_UNDONE)
        if what == FORGETTING_UNDONE:
            np.testing.assert_allclose(ways[1].mean(axis=1), 0, atol=1e-5)
        assert moved.conv is now.conv and moved.next_position is now.next_position


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
        ({"pair_length": 65}, "pair_length=65; allowed: from 66"),
    ],
)
def test_an_impossible_evaluation_is_refused(settings: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Recall(**settings)


def test_a_task_without_a_fact_is_refused() -> None:
    assert not isinstance(SelectiveCopying(length=32), Recalls)
    with pytest.raises(ValueError, match="recall needs a task that can plant a fact; give task=induction_heads"):
        Recall().check(SelectiveCopying(length=32))


@pytest.mark.slow
def test_a_finished_run_is_asked_and_reported(tiny_run: Path, tmp_path: Path) -> None:
    settings = [
        "eval=recall",
        "eval.length=64",
        "eval.before=[0,10]",
        "eval.sequences=6",
        "eval.pairs=2",
        "eval.pair_length=99",
        "eval.chunk=2",
    ]
    assert tiny.evaluate(tiny_run, settings, tmp_path / "recall") == 0
    found = json.loads((tmp_path / "recall" / "results.json").read_text())
    assert found == json.loads(json.dumps(summarise(read(tmp_path / "recall"))))
    assert {(entry["before"], entry["distance"]) for entry in found["recalled"]} == {
        *((0, 2**power) for power in range(1, 6)),
        *((10, 2**power) for power in range(1, 6)),
    }
    for name in ("distance.png", "forgetting.png", "drift.png", "restored.png", "report.html"):
        assert (tmp_path / "recall" / name).stat().st_size > 1000
    one = (tmp_path / "recall" / "distance.png").read_bytes()
    report(tmp_path / "recall", Console(quiet=True))
    assert (tmp_path / "recall" / "distance.png").read_bytes() == one
