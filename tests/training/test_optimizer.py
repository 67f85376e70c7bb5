"""Schedules, optimisers and averages do what their names say, held against Optax's own and float64."""

import math
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from evalkit.configuration.experiment import Experiment
from evalkit.configuration.spec import Spec
from evalkit.core.errors import UserError
from evalkit.core.objective import tally
from evalkit.parallel.layouts.vectors import MASK, VectorLayout
from evalkit.tasks import Example
from evalkit.training import optimizer
from evalkit.training.checkpoints import Checkpoints
from evalkit.training.optimizer import OPTIMIZERS, SCHEDULES
from evalkit.training.state import TrainState, params_of
from evalkit.training.trainer import Trainer
from support import tiny

PARAMS = {"decays": jnp.full(3, 2.0), "stays": jnp.full(2, 2.0)}
RATE = 0.1


def made(kind: str, weight_decay: float = 0.0) -> optax.GradientTransformation:
    """An optimiser of a constant rate."""
    rate = optax.constant_schedule(RATE)
    return optimizer.optimizer(
        kind, rate, b1=0.9, b2=0.98, weight_decay=weight_decay, clip=1.0, mask=MASK, by_array=lambda clip: clip
    )


def updates_of(tx: optax.GradientTransformation, gradients: list[float]) -> list[dict[str, jax.Array]]:
    """The updates that gradients, each the same for every parameter, lead to."""
    state, found, update = tx.init(PARAMS), [], jax.jit(tx.update)
    for gradient in gradients:
        updates, state = update(jax.tree.map(lambda leaf, g=gradient: jnp.full_like(leaf, g), PARAMS), state, PARAMS)
        found.append(updates)
    return found


def test_each_schedule_warms_up_and_goes_where_it_says() -> None:
    expected = {
        "cosine": {0: 0.0, 50: 5e-3, 100: 1e-2, 600: 5.5e-3, 1100: 1e-3},
        "constant": {50: 5e-3, 100: 1e-2, 1099: 1e-2},
        "wsd": {0: 0.0, 50: 5e-3, 100: 1e-2, 880: 1e-2, 990: 5e-3, 1089: 1e-2 * 11 / 220, 1100: 0.0},
    }
    assert set(expected) == set(SCHEDULES)
    for kind, values in expected.items():
        rate = optimizer.schedule(kind, 1e-2, 100, 1100, 0.1)
        for step, value in values.items():
            assert math.isclose(float(rate(step)), value, rel_tol=1e-5, abs_tol=1e-9), (kind, step)
        short = optimizer.schedule(kind, 1e-2, 100, 2, 0.1)  # a run of two steps
        assert float(short(1)) == pytest.approx(1e-2), kind


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_decay_moves_only_what_the_mask_says(kind: str) -> None:
    (updates,) = updates_of(made(kind, weight_decay=0.5), [0.0])
    np.testing.assert_allclose(updates["decays"], -RATE * 0.5 * 2.0, rtol=1e-6)
    np.testing.assert_array_equal(updates["stays"], 0)


def test_the_default_is_optax_own_adamw_bit_for_bit() -> None:
    rate = optax.constant_schedule(RATE)
    own = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(rate, b1=0.9, b2=0.98, weight_decay=0.5, mask=MASK))
    assert jax.tree.structure(own.init(PARAMS)) == jax.tree.structure(made("adamw", 0.5).init(PARAMS))
    for mine, theirs in zip(*(updates_of(tx, [3.0, 0.1, -0.2]) for tx in (made("adamw", 0.5), own)), strict=True):
        jax.tree.map(np.testing.assert_array_equal, mine, theirs)


def test_one_hard_answer_after_easy_ones_moves_parameters_far_by_adamw_alone() -> None:
    """Adam's mean square has forgotten how large gradients can be; the others remember it, or bound what one does."""
    easy = [1e-6] * 300
    gradients = [0.1, *easy, 0.1, *easy[:40]]
    moved = {
        kind: -sum(float(updates["decays"][0]) for updates in updates_of(made(kind), gradients)[-41:]) / RATE
        for kind in OPTIMIZERS
    }
    assert moved["adamw"] > 5
    assert moved["amsgrad"] == pytest.approx(1.0, rel=0.1) and moved["clipped_adamw"] == pytest.approx(1.0, rel=0.1)


def test_an_update_is_clipped_by_the_array_that_is_large_and_not_by_all_of_them() -> None:
    """A hundred arrays in one vector: the one whose gradient is far above its usual size is scaled down by itself."""
    params = {f"w{i}": jnp.zeros(4) for i in range(100)}
    layout = VectorLayout(params, jax.tree.map(lambda _: True, params))
    clip = layout.by_array(optax.clip_by_block_rms(1.0))
    updates = layout.vectors({name: jnp.full(4, 5.0 if name == "w7" else 0.1) for name in params})
    clipped = layout.params(clip.update(updates, clip.init(updates))[0])
    assert {name: float(leaf[0]) for name, leaf in clipped.items()} == pytest.approx(
        {name: 1.0 if name == "w7" else 0.1 for name in params}
    )


def test_an_average_has_weights_that_fall_and_sum_to_one() -> None:
    rng = np.random.default_rng(0)
    seen, decay = rng.normal(size=(50, 4)), 0.9
    average = jnp.full(4, 1e6)  # what the parameters were before the first step counts nothing
    for step, params in enumerate(seen):
        average = optimizer.ema_update(average, jnp.asarray(params, jnp.float32), decay, jnp.int32(step))
        weights = decay ** np.arange(step, -1, -1)
        np.testing.assert_allclose(average, weights @ seen[: step + 1] / weights.sum(), rtol=2e-5, atol=1e-6)


def test_label_smoothing_is_the_cross_entropy_of_a_target_that_is_spread() -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(2, 3, 5)).astype(np.float32)
    targets = rng.integers(0, 5, size=(2, 3)).astype(np.int32)
    example = Example(targets, targets, np.ones((2, 3), bool))
    log_p = logits - np.log(np.exp(logits.astype(np.float64)).sum(-1, keepdims=True))
    spread = 0.9 * np.eye(5)[targets] + 0.1 / 5
    found = tally(jnp.asarray(logits), example, 0.1)
    np.testing.assert_allclose(found.loss, -(spread * log_p).sum((1, 2)), rtol=1e-5)
    np.testing.assert_array_equal(found.correct, tally(jnp.asarray(logits), example).correct)


def node(target: str, **settings: object) -> str:
    """An optimiser of Optax, or what it evaluates, as a user types it."""
    words = ", ".join(
        f"{name}: {value}" for name, value in {"_target_": target, "_partial_": "true", **settings}.items()
    )
    return f"{{{words}}}"


OF_OPTAX = {
    "muon": [node("optax.contrib.muon", beta=0.9), None],
    "lion": [node("optax.lion"), 0.9],
    "adafactor": [node("optax.adafactor", min_dim_size_to_factor=4), None],
    "schedule_free": [
        node("optax.contrib.schedule_free_adamw", b1=0.95),
        node("optax.contrib.schedule_free_eval_params"),
    ],
}
SMALLEST = ("task=induction_heads", "task.length=16", "model=mqa", "model.width=8", "model.pattern=[attention]",
            "model.mlp_expansion=0", "model.mixers.attention.heads=2")  # fmt: skip


def of_optax(*words: str) -> Experiment:
    """The smallest run, of one block of attention."""
    return Spec.of([*SMALLEST, *tiny.TRAIN, *words]).experiment


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.exhaustive] * (name != "schedule_free")) for name in OF_OPTAX]
)
def test_an_optimiser_of_optax_trains_whole_arrays_and_resumes_bit_for_bit(name: str, tmp_path: Path) -> None:
    optimiser, average = OF_OPTAX[name]
    more = [] if average is None else [f"train.average={average}"]
    experiment = of_optax(f"train.optimizer={optimiser}", "train.weight_decay=0.1", "train.learning_rate=0.01", *more)
    trainer = Trainer(experiment.task, experiment.model, experiment.train, [0, 1])
    (stage,) = trainer.training.stages(16)
    begun, _ = trainer.advance(trainer.init(), stage, 2)
    moments = {leaf.shape[1:] for leaf in jax.tree.leaves(begun.optimizer)}
    assert (8, 32) in moments or name == "adafactor"  # of the map to queries, as the model has it
    kept = Checkpoints(tmp_path)
    kept.save(begun, 2, {})
    straight, sums = trainer.advance(begun, stage, 2)
    restored = kept.restore(trainer.restorable, trainer.step.layout)
    kept.close()
    assert restored is not None and np.isfinite(sums.loss).all()
    resumed, _ = trainer.advance(restored.state, stage, 2)
    tiny.assert_identical(resumed, straight)
    first = trainer.init()
    moved = jax.tree.map(lambda one, other: bool((one != other).any()), straight.params, first.params)
    assert all(jax.tree.leaves(moved))
    if name == "schedule_free":
        own = optax.contrib.schedule_free_eval_params
        expected = jax.vmap(own)(straight.optimizer[1], straight.params)
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-7), params_of_all(straight), expected)


def params_of_all(state: TrainState) -> Any:
    """What is evaluated of each seed, stacked."""
    each = [params_of(state, index, "average") for index in range(2)]
    return jax.tree.map(lambda *leaves: np.stack(leaves), *each)


def test_a_factory_gets_the_schedule_clipped_gradients_and_the_mask_and_decays_as_adamw() -> None:
    seen = {}

    def factory(learning_rate: optax.Schedule, mask: Any = None) -> optax.GradientTransformation:
        seen.update(mask=mask, rate=learning_rate(0))
        return optax.sgd(learning_rate)

    tx = optimizer.from_factory(factory, optax.constant_schedule(RATE), 0.5, 1.0, MASK)
    (still,) = updates_of(tx, [0.0])
    assert seen == {"mask": MASK, "rate": RATE}
    np.testing.assert_allclose(still["decays"], -RATE * 0.5 * 2.0, rtol=1e-6)
    np.testing.assert_array_equal(still["stays"], 0)
    (moved,) = updates_of(optimizer.from_factory(factory, optax.constant_schedule(RATE), 0.0, 1.0, MASK), [100.0])
    assert float(optax.tree.norm(moved)) == pytest.approx(RATE)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([f"train.optimizer={node('optax.scale_by_adam')}"], "is built with learning_rate, so name its arguments so"),
        ([f"train.optimizer={node('optax.lionn')}"], "optax.lionn cannot be imported"),
        ([f"train.optimizer={node('optax.lion', decay=1)}"], "unknown key 'train.optimizer.decay'"),
        ([f"train.optimizer={node('optax.lion', learning_rate=1)}"], "nearest valid one is 'train.learning_rate'"),
        (["train.optimizer={_target_: optax.lion, learning_rate: 1}"], "add _partial_: true"),
        ([f"train.optimizer={node('optax.lbfgs')}"], "train.optimizer takes no step: .* missing 3 required"),
        ([f"train.optimizer={node('optax.lion')}", "train.b1=0.5"], "train.b1 is AdamW's"),
        ([f"train.optimizer={node('optax.lion')}", "mesh={data: 1, model: 1}"], "takes whole arrays, which a mesh"),
        ([f"train.optimizer={OF_OPTAX['schedule_free'][0]}"], "keeps an average of its own, .* give 'train.average="),
        ([f"train.average={OF_OPTAX['schedule_free'][1]}"], "train.optimizer=adamw; give a decay"),
        ([f"train.optimizer={node('json.loads')}"], "would run code of the package json"),
        ([f"task={node('optax.lion')}"], "task._target_=optax.lion would run code of the package optax"),
        (["train.optimizer=muon"], "allowed: adamw, amsgrad, clipped_adamw"),
    ],
)  # fmt: skip
def test_a_wrong_optimiser_is_one_line(words: list[str], line: str) -> None:
    with pytest.raises(UserError, match=line):
        of_optax(*words)
