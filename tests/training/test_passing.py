"""State passing: what streams read and when they begin anew, and that a sequence goes on from their states."""

from contextlib import closing
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evalkit.__main__ import main
from evalkit.configuration.spec import Spec
from evalkit.core import streams
from evalkit.core.batches import feed_of
from evalkit.core.errors import UserError
from evalkit.core.objective import tally
from evalkit.core.rows import read
from evalkit.record.history import record_of
from evalkit.training.checkpoints import Checkpoints
from evalkit.training.passing import StatePassing, check_bounded
from evalkit.training.settings import Training
from evalkit.training.trainer import Trainer
from support import tiny
from support.shrunk import every_model, experiment, params_of, shrunk

LENGTH, STREAMS, NEVER, ALWAYS = 16, 4, 1e-9, 1 - 1e-7


@cache
def after_three_steps(probability: float) -> tuple[Any, jax.Array]:
    """The states of streams after three steps of seed 5, and the tokens that they read, from the first to the last."""
    built = experiment("griffin")
    passing = StatePassing(feed_of(built.task), built.model, STREAMS, probability, 0.0)
    params, states, read = params_of(built.model), passing.init_states(STREAMS), []
    advance = jax.jit(lambda states, step: passing.advance(params, states, passing.drawn(5, step, LENGTH, 1), 2))
    for step in range(3):
        states = advance(states, jnp.int32(step))
        read.append(streams.ordinary_batch(built.task, 5, step, STREAMS, LENGTH))
    return states, jnp.concatenate(read, axis=1)


@pytest.mark.slow
def test_a_stream_runs_on_from_step_to_step() -> None:
    """Three steps, two streams at a time, leave the state that all tokens leave when they are read at once."""
    built = experiment("griffin")
    states, read = after_three_steps(NEVER)
    once = jax.jit(lambda cache: built.model.apply(params_of(built.model), read, None, cache)[1])
    expected = once(built.model.init_cache(STREAMS, 64))
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, atol=1e-5), states, expected)


@pytest.mark.slow
def test_a_stream_that_begins_anew_has_read_nothing() -> None:
    states, _ = after_three_steps(ALWAYS)
    jax.tree.map(np.testing.assert_array_equal, states, experiment("griffin").model.init_cache(STREAMS, 64))


@pytest.mark.slow
def test_a_sequence_goes_on_from_the_state_of_its_stream_without_gradient() -> None:
    """Two sequences of each stream: loss and gradient are those of a model that is given the states."""
    built = experiment("griffin")
    trainer = Trainer(built.task, built.model, replace(built.train, microbatch=2), [0])
    states, _ = after_three_steps(NEVER)
    example = streams.held_out_batch(built.task, streams.TEST, 0, 2 * STREAMS, LENGTH)
    params = params_of(built.model)
    loss, _, gradient = jax.jit(trainer.step.gradient)(params, example, states)
    twice = jax.tree.map(lambda leaf: np.asarray(leaf)[[0, 0, 1, 1, 2, 2, 3, 3]], states)

    def own_loss(params: Any, cache: Any) -> jax.Array:
        logits, _ = built.model.apply(params, example.tokens, None, cache)
        return tally(logits, example).scores()["loss"].sum()

    expected, own = jax.jit(jax.value_and_grad(own_loss))(params, twice)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    stopped = trainer.step.layout.vectors(own)
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, atol=1e-5), gradient, stopped)


def test_streams_read_what_seed_and_step_say_and_a_fact_now_and_then() -> None:
    task = experiment("griffin").task
    read = jax.jit(streams.ordinary_batch, static_argnums=(0, 3, 4, 5))
    plain, same, later, other = (np.asarray(read(task, *at, 8, 64, 0.0)) for at in ((0, 0), (0, 0), (0, 1), (1, 0)))
    np.testing.assert_array_equal(plain, same)
    assert (plain != later).any() and (plain != other).any() and len(np.unique(plain, axis=0)) == 8
    assert plain.min() == 0 and plain.max() < task.special
    facts = np.asarray(read(task, 0, 0, 400, 64, 0.25)) == task.special
    assert set(facts.sum(axis=1)) == {0, 1} and 60 < facts.sum() < 140 and not facts[:, -1].any()
    anew = np.mean([streams.begun_anew(seed, 3, 512, 1 / 16) for seed in range(8)])
    assert abs(anew - 1 / 16) < 0.02


@pytest.mark.slow
@pytest.mark.parametrize("model", every_model())
def test_every_mixer_with_a_bounded_cache_takes_part(model: str) -> None:
    """What it keeps has the same shapes after a step, as a loop over steps wants; global attention is refused."""
    built = shrunk(model)
    if model in ("mqa", "mqa_conv", "mqa_nope"):
        with pytest.raises(ValueError, match="the cache of global attention grows with every token of a stream"):
            check_bounded(built)
        return
    check_bounded(built)
    passing = StatePassing(feed_of(experiment("hawk").task), built, STREAMS, 0.25, 0.0)
    params, states = jax.eval_shape(built.init, jax.random.key(0)), jax.eval_shape(lambda: passing.init_states(STREAMS))
    drawn = jax.eval_shape(lambda: passing.drawn(0, jnp.int32(0), LENGTH, 1))
    after = jax.eval_shape(lambda *given: passing.advance(*given, 2), params, states, drawn)
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), after) == jax.tree.map(
        lambda leaf: (leaf.shape, leaf.dtype), states
    )


def test_noise_in_place_of_states_is_as_they_are_and_another_at_each_step() -> None:
    """Fitted: the mean and the spread of each number over the streams. Else around 0, as large as the states are."""
    count = 4096
    states = (jnp.stack([3 + 0.5 * jnp.arange(count) / count, jnp.full((count,), -2.0)], axis=1), jnp.arange(count))

    def begun(first: str, step: int) -> Any:
        built = experiment("hawk")
        passing = StatePassing(feed_of(built.task), built.model, count, 0.5, 0.0, first)
        return passing.starts(states, passing.drawn(7, jnp.int32(step), 2, 1), 1)

    assert begun("passed", 0) is states
    fitted, counted = begun("fitted_noise", 0)
    np.testing.assert_array_equal(counted, states[1])  # what is counted is no state
    np.testing.assert_allclose(fitted.mean(axis=0), states[0].mean(axis=0), atol=0.02)
    np.testing.assert_allclose(fitted.std(axis=0), states[0].std(axis=0), rtol=0.05)
    noise, _ = begun("noise", 0)
    np.testing.assert_allclose(noise.mean(axis=0), 0, atol=0.2)
    assert float(jnp.square(noise).mean()) == pytest.approx(float(jnp.square(states[0]).mean()), rel=0.05)
    np.testing.assert_array_equal(noise, begun("noise", 0)[0])
    assert not np.array_equal(noise, begun("noise", 1)[0])


@pytest.mark.slow
@pytest.mark.usefixtures("blank_figures")
def test_a_run_is_trained_further_with_passed_states(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As post-training (2507.02782): a run without streams gets some that have read nothing, and keeps them."""
    words = [
        "train.state_passing=null",
        "train.lengths=null",
        "train.curriculum=[]",
        "train.steps=2",
        "eval.lengths=[32]",
    ]
    run = tiny.trained(tmp_path / "run", *words)
    step = read(run).rows[-1]["step"]
    changes = [f"train.steps={step + 4}", "train.state_passing=0.5", "train.first_states=fitted_noise"]
    assert main(["resume", str(run), *changes[1:]]) == 2 and "give more train.steps too" in capsys.readouterr().err
    assert main(["resume", str(run), *changes]) == 0
    assert main(["resume", str(run), f"train.steps={step + 6}"]) == 0
    assert main(["resume", str(run), f"train.steps={step + 8}", "train.state_passing=null"]) == 2
    assert "goes on with it" in capsys.readouterr().err
    (noted,) = [note for note in record_of(run).header.notes if "set out for" in note and "state passing" in note]
    assert f"from step {step} on" in noted and "(fitted_noise, 0.5) since then alone" in noted
    after = Spec.saved(run)
    assert (after.plain["train"]["state_passing"], after.plain["train"]["first_states"]) == (0.5, "fitted_noise")
    trainer = Trainer(after.experiment.task, after.experiment.model, after.experiment.train, [0])
    with closing(Checkpoints(run)) as checkpoints:
        restored = checkpoints.restore(trainer.restorable, trainer.step.layout)
    assert restored is not None and restored.step == step + 6
    assert any(float(jnp.abs(leaf).max()) > 0 for leaf in jax.tree.leaves(restored.state.streams))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("model=mqa",), "give train.state_passing=null, or the attention a window"),
        (("model=hawk", "task=mqar"), "this task does not say what an ordinary token is"),
        (("model=hawk", "task=selective_copying", "train.stream_facts=0.5"), "does not say what a fact is"),
        (("model=hawk", "train.state_passing=1"), "allowed: between 0 and 1, or null"),
        (("model=hawk", "train.state_passing=null", "train.stream_facts=0.5"), "without streams"),
        (("model=hawk", "train.state_passing=null", "train.first_states=noise"), "without streams"),
        (("model=hawk", "train.first_states=zero"), "allowed: passed, fitted_noise, noise"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(words: tuple[str, ...], said: str) -> None:
    with pytest.raises(UserError, match=said) as refused:
        _ = Spec.of(["task=induction_heads", "train.state_passing=0.25", *words]).experiment
    assert "\n" not in str(refused.value)


def test_there_are_as_many_streams_as_divide_the_batch_of_each_stage() -> None:
    """A user who changes the batch alone is not asked to change the recipe's curriculum as well."""
    stages = [{"length": 64, "steps": 1, "batch_size": 64}, {"length": 128, "steps": 1, "batch_size": 32}]
    task = experiment("hawk").task
    for batch, count in ((16, 16), (64, 32), (24, 8), (15, 1)):
        training = replace(experiment("hawk").train, batch_size=batch, curriculum=stages)
        assert training.streams(task.length) == count and training.streams(length=64) == batch
        trainer = Trainer(task, shrunk("hawk"), training, [0])
        assert {leaf.shape[1] for leaf in jax.tree.leaves(trainer.abstract.streams)} == {count}  # of one seed


def test_without_it_a_state_has_no_streams_and_a_step_reads_none() -> None:
    training = Training(steps=10, batch_size=4, learning_rate=1e-3)
    trainer = Trainer(experiment("hawk").task, shrunk("hawk"), training, [0])
    assert trainer.abstract.streams is None and trainer.step.passing is None


@pytest.mark.slow
@pytest.mark.parametrize("model", ["lstm", pytest.param("rwkv7", marks=pytest.mark.exhaustive)])
def test_a_state_of_no_size_is_kept_with_the_others(model: str, tmp_path: Path) -> None:
    """RWKV-7's channel mixing has no state, and an LSTM no inputs of a convolution: Orbax writes no empty array."""
    built = experiment(model, "train.state_passing=0.5", "train.curriculum=[]", "task.length=16", "train.batch_size=4")
    assert built.model is not None
    trainer = Trainer(built.task, built.model, built.train, [0])
    state = trainer.init()
    assert any(leaf.size == 0 for leaf in jax.tree.leaves(state.streams))
    with closing(Checkpoints(tmp_path)) as checkpoints:
        checkpoints.save(state, 3, {})
        restored = checkpoints.restore(trainer.restorable, trainer.step.layout)
    assert restored is not None
    jax.tree.map(np.testing.assert_array_equal, restored.state, state)
