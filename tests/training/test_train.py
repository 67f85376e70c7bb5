"""Training: every combination takes a step, the schedule is what it says, and what is scored is what counts."""

import dataclasses
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from evalkit.configuration import catalogue
from evalkit.configuration import experiment as config
from evalkit.core import streams
from evalkit.core.objective import Tally, tally
from evalkit.tasks import Example
from evalkit.tasks.selective_copying import SelectiveCopying
from evalkit.training import optimizer
from evalkit.training.settings import Stage, Training
from evalkit.training.trainer import Trainer
from support.shrunk import overrides_of

ROOT = Path(__file__).parents[2]
COMBINATIONS = [
    (task, model, preset)
    for task in catalogue.options("task")
    for model in catalogue.options("model")
    for preset in catalogue.options("preset")
]


@pytest.mark.parametrize(("task", "model", "preset"), COMBINATIONS)
def test_every_combination_builds(task: str, model: str, preset: str) -> None:
    experiment = config.built([f"task={task}", f"model={model}", f"preset={preset}"])
    assert experiment.preset == preset
    assert experiment.model.vocab_size == experiment.task.vocab_size


@pytest.mark.parametrize("task", catalogue.options("task"))
@pytest.mark.parametrize("model", catalogue.options("model"))
def test_every_task_and_model_take_a_step(task: str, model: str) -> None:
    """Shrunk, from the configuration that ships: the first loss is near that of guessing, and the parameters move."""
    experiment = config.built(
        [
            *[f"task={task}", f"model={model}", "task.length=40", *overrides_of(model)],
            "train.warmup_steps=1",  # the rate of a long one's first steps is lost in float32's last bit
        ]
    )
    trainer = Trainer(experiment.task, experiment.model, experiment.train, [0])
    state = trainer.init()
    before = jax.device_get(state.params)
    # The first step of a warm-up has rate 0: the second one moves.
    state, sums = trainer.advance(state, Stage(0, 2, 40, 4), 2)
    assert int(sums.bad_step[0]) == -1
    assert abs(float(sums.loss[0]) / 8 - math.log(experiment.task.vocab_size)) < 2
    moved = jax.tree.map(lambda old, new: float(np.abs(old - new).max()), before, jax.device_get(state.params))
    assert all(value > 0 for value in jax.tree.leaves(moved)), moved


def test_the_schedule_warms_up_and_comes_down() -> None:
    rate = optimizer.schedule("cosine", 1e-2, 100, 1100, 0.1)
    expected = {0: 0.0, 50: 5e-3, 100: 1e-2, 600: 5.5e-3, 1100: 1e-3}
    for step, value in expected.items():
        assert math.isclose(float(rate(step)), value, rel_tol=1e-5, abs_tol=1e-9)
    constant = optimizer.schedule("constant", 1e-2, 100, 1100, 0.1)
    assert float(constant(50)) == pytest.approx(5e-3) and float(constant(1099)) == pytest.approx(1e-2)
    assert float(optimizer.schedule("cosine", 1e-2, 100, 2, 0.1)(1)) == pytest.approx(1e-2)  # a run of two steps


def test_decay_moves_only_what_the_mask_says() -> None:
    params = {"decays": jnp.ones(3), "stays": jnp.ones(3)}
    tx = optimizer.adamw(
        optax.constant_schedule(0.1), b1=0.9, b2=0.98, weight_decay=0.5, clip=1.0, mask={"decays": True, "stays": False}
    )
    zero = jax.tree.map(jnp.zeros_like, params)
    updates, _ = tx.update(zero, tx.init(params), params)
    np.testing.assert_allclose(updates["decays"], -0.05, rtol=1e-6)
    np.testing.assert_array_equal(updates["stays"], 0)


def test_a_tally_counts_scored_positions_only_and_adds_up() -> None:
    rng = np.random.default_rng(0)
    logits = jnp.asarray(rng.normal(size=(3, 10, 7)), jnp.float32)
    targets = jnp.asarray(rng.integers(0, 7, size=(3, 10)))
    mask = jnp.asarray(rng.random((3, 10)) < 0.5).at[:, 0].set(True)
    example = Example(targets, targets, mask)
    whole = tally(logits, example)
    parts = [tally(logits[:, s], Example(*(f[:, s] for f in example[:3]))) for s in (slice(4), slice(4, None))]
    for one, other in zip(whole, parts[0] + parts[1], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)
    log_p = np.asarray(jax.nn.log_softmax(logits), np.float64)
    expected = [-log_p[b, np.arange(10), targets[b]][np.asarray(mask[b])].mean() for b in range(3)]
    np.testing.assert_allclose(whole.scores()["loss"], expected, rtol=1e-5)


def test_exact_match_wants_every_answer() -> None:
    scores = Tally(jnp.zeros(2), jnp.array([16.0, 15.0]), jnp.array([16.0, 16.0])).scores()
    assert scores["exact_match"].tolist() == [1.0, 0.0]
    assert scores["accuracy"].tolist() == [1.0, 15 / 16]


def test_stages_cover_the_steps_once() -> None:
    training = Training(
        steps=100, batch_size=4, learning_rate=1e-3,
        curriculum=[{"length": 8, "steps": 30, "batch_size": 2}, {"length": 16, "steps": 20, "batch_size": 2}],
    )  # fmt: skip
    assert training.stages(32) == [Stage(0, 30, 8, 2), Stage(30, 50, 16, 2), Stage(50, 100, 32, 4)]
    short = Training(steps=2, batch_size=4, learning_rate=1e-3, curriculum=training.curriculum)
    assert short.stages(32) == [Stage(0, 2, 8, 2)]
    assert training.stages(16) == [Stage(0, 30, 8, 2), Stage(30, 100, 16, 4)], "a stage as long as the task is none"


def trained(experiment: config.Experiment, steps: int, seeds: list[int], **changes: Any) -> tuple[Any, Any]:
    """The state after some steps, and their sums."""
    training = dataclasses.replace(experiment.train, **changes)
    trainer = Trainer(experiment.task, experiment.model, training, seeds)
    return trainer.advance(trainer.init(), Stage(0, steps, 32, 8), steps)


def test_micro_batches_change_nothing() -> None:
    experiment = shrunken("griffin")
    whole, sums = trained(experiment, 5, [0], microbatch=8)
    parts, own = trained(experiment, 5, [0], microbatch=3)  # the largest divisor up to it: 2
    np.testing.assert_allclose(own.loss, sums.loss, rtol=1e-5)
    for one, other in zip(jax.tree.leaves(whole.params), jax.tree.leaves(parts.params), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


class ScoringUnknown(SelectiveCopying):
    """The same task, not saying how many positions are scored."""

    scored = None  # type: ignore[assignment]


def test_only_scored_positions_are_computed_and_the_step_is_the_same() -> None:
    """Against the loss over the logits of all positions, its gradient included: the first Adam step shows its sign."""
    experiment = shrunken("griffin")
    everything = ScoringUnknown(length=32, data_tokens=4)
    some = Trainer(experiment.task, experiment.model, experiment.train, [0])
    every = Trainer(everything, experiment.model, experiment.train, [0])
    params = experiment.model.init(jax.random.key(0))
    example = streams.train_batch(experiment.task, 0, 0, 4, 32)
    for one, other in zip(*(jax.tree.leaves(t.step.gradient(params, example)) for t in (some, every)), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


DEVICES = """
import json, sys
import jax
jax.config.update("jax_num_cpu_devices", int(sys.argv[1]))
sys.path[:0] = ["tests", "tests/training"]
from test_train import shrunken, trained
state, sums = trained(shrunken("griffin"), 5, json.loads(sys.argv[2]))
assert jax.device_count() == int(sys.argv[1])
print(json.dumps([sums.loss.tolist(), [float(abs(leaf).sum()) for leaf in jax.tree.leaves(state.params)]]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("seeds", ["[0]", "[0, 1]"])
def test_devices_share_a_batch_or_seeds_and_change_nothing(seeds: str) -> None:
    one, two = (
        json.loads(
            subprocess.run(
                [sys.executable, "-c", DEVICES, count, seeds],
                check=True,
                capture_output=True,
                text=True,
                cwd=ROOT,
                env={**os.environ, "XLA_FLAGS": ""},
            ).stdout
        )
        for count in ("1", "2")
    )
    np.testing.assert_allclose(two[0], one[0], rtol=1e-5)
    np.testing.assert_allclose(two[1], one[1], rtol=1e-4)


def shrunken(model: str) -> config.Experiment:
    """Selective copying at 32 tokens, small."""
    overrides = ["task=selective_copying", f"model={model}", "task.length=32", "task.data_tokens=4"]
    return config.built([*overrides, *overrides_of(model)])


@pytest.mark.slow
def test_a_small_task_is_learned() -> None:
    """Selective copying of two tokens out of twelve, teacher-forced nowhere: Hawk at width 32 solves it in seconds."""
    experiment = config.built(
        ["task=selective_copying", "model=hawk", "task.length=12", "task.data_tokens=2", *overrides_of("hawk"),
         "model.width=32", "model.mixers.recurrent.width_rnn=32", "train.learning_rate=1e-2", "train.steps=600"]
    )  # fmt: skip
    trainer = Trainer(experiment.task, experiment.model, experiment.train, [0])
    state, _ = trainer.advance(trainer.init(), Stage(0, 600, 12, 64), 575)
    _, sums = trainer.advance(state, Stage(0, 600, 12, 64), 25)
    assert float(sums.accuracy[0]) / (25 * 64) > 0.95
