"""Training: every combination takes a step, schedules are as they say, what is scored counts, threads save at once."""

import dataclasses
import gc
import json
import math
import subprocess
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from evalkit.configuration import catalogue
from evalkit.configuration import experiment as config
from evalkit.configuration.spec import Spec
from evalkit.core import streams
from evalkit.core.objective import Tally, tally
from evalkit.tasks import Example
from evalkit.tasks.selective_copying import SelectiveCopying
from evalkit.training.checkpoints import Checkpoints
from evalkit.training.settings import Stage, Training
from evalkit.training.state import Sums, TrainState
from evalkit.training.trainer import Trainer
from support import tiny
from support.shrunk import experiment, overrides_of

ROOT = Path(__file__).parents[2]
SAMPLED = ("books", "mqa")
"""What the slow tests train: a text, which no tiny run reads. Gradients of Griffin: `tests/contract/`."""
LENGTHS = {"needle": 130}
"""Of tasks for which 40 tokens are too few."""


PAIRS = [
    pytest.param(task, model, marks=[pytest.mark.exhaustive] * ((task, model) != SAMPLED))
    for task in catalogue.options("task")
    for model in catalogue.options("model")
]


@pytest.mark.slow
@pytest.mark.parametrize(("task", "model"), PAIRS)
def test_every_task_and_model_take_a_step(task: str, model: str) -> None:
    """Shrunk, from the configuration that ships: the first loss is near that of guessing, and the parameters move.

    A trainer that nobody needs is forgotten with its programs: a search and a suite train many in one process.
    """
    length = LENGTHS.get(task, 40)
    experiment = Spec.of(
        [
            *[f"task={task}", f"model={model}", f"task.length={length}", *overrides_of(model), "train.curriculum=[]"],
            "train.warmup_steps=1",  # the rate of a long one's first steps is lost in float32's last bit
        ]
    ).experiment
    trainer = Trainer(experiment.task, experiment.model, experiment.train, [0])
    state = trainer.init()
    before = jax.device_get(state.params)
    # The first step of a warm-up has rate 0: the second one moves.
    state, sums = trainer.advance(state, Stage(0, 2, length, 4), 2)
    assert int(sums.first_nonfinite[0]) == -1
    assert abs(float(sums.loss[0]) / 8 - math.log(experiment.task.vocab_size)) < 2
    moved = jax.tree.map(lambda old, new: float(np.abs(old - new).max()), before, jax.device_get(state.params))
    assert all(value > 0 for value in jax.tree.leaves(moved)), moved
    one = weakref.ref(trainer)
    del trainer
    gc.collect()
    assert one() is None


def test_a_tally_counts_scored_positions_only_and_adds_up() -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(3, 10, 7)).astype(np.float32)
    targets = rng.integers(0, 7, size=(3, 10)).astype(np.int32)
    mask = (rng.random((3, 10)) < 0.5) | (np.arange(10) == 0)
    example = Example(targets, targets, mask)
    counted = jax.jit(tally)
    whole = counted(logits, example)
    parts = [counted(logits[:, s], Example(*(f[:, s] for f in example[:3]))) for s in (slice(5), slice(5, None))]
    for one, other in zip(whole, parts[0] + parts[1], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)
    log_p = logits - np.log(np.exp(logits.astype(np.float64)).sum(-1, keepdims=True))
    expected = [-log_p[b, np.arange(10), targets[b]][mask[b]].mean() for b in range(3)]
    np.testing.assert_allclose(whole.scores()["loss"], expected, rtol=1e-5)


def test_exact_match_wants_every_answer() -> None:
    none = Tally(jnp.zeros(1), jnp.zeros(1), jnp.zeros(1)).scores()
    assert float(none["loss"][0]) == 0, "a document of one token has nothing that is scored"
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
    drawn = dataclasses.replace(training, lengths=[12, 32])
    assert [stage.shortest for stage in drawn.stages(32)] == [None, 12, 12], (
        "a stage below the shortest has its own length"
    )
    assert [stage.shortest for stage in drawn.stages(12)] == [None, None]
    assert training.stages(16) == [Stage(0, 30, 8, 2), Stage(30, 100, 16, 4)], "a stage as long as the task is none"


def trained(experiment: config.Experiment, steps: int, seeds: list[int]) -> tuple[Any, Any]:
    """The state after some steps, and their sums."""
    trainer = Trainer(experiment.task, experiment.model, experiment.train, seeds)
    return trainer.advance(trainer.init(), Stage(0, steps, 32, 8), steps)


class ScoringUnknown(SelectiveCopying):
    """The same task, not saying how many positions are scored."""

    scored = None  # type: ignore[assignment]


@cache
def gradient_of(task: SelectiveCopying, microbatch: int | None = None) -> list[np.ndarray]:
    """Loss, accuracy and gradient of a batch of 8, a leaf each."""
    experiment = shrunken("griffin")
    training = dataclasses.replace(experiment.train, microbatch=microbatch)
    step = Trainer(task, experiment.model, training, [0]).step
    assert step.microbatch(8, 32) == {None: 8, 3: 2}[microbatch], "not the largest divisor up to it"
    params = jax.jit(experiment.model.init)(jax.random.key(0))
    example = streams.held_out_batch(experiment.task, streams.TEST, 0, 8, 32)
    return jax.tree.leaves(jax.device_get(jax.jit(step.gradient)(params, example)))


def test_micro_batches_change_nothing() -> None:
    (loss, _, *whole), (own, _, *parts) = (gradient_of(shrunken("griffin").task, size) for size in (None, 3))
    np.testing.assert_allclose(own, loss, rtol=1e-5)
    for one, other in zip(whole, parts, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.slow
def test_only_scored_positions_are_computed_and_the_step_is_the_same() -> None:
    """Against the loss over the logits of all positions, its gradient included: the first Adam step shows its sign."""
    everything = ScoringUnknown(length=32, data_tokens=4)
    for one, other in zip(gradient_of(shrunken("griffin").task), gradient_of(everything), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.slow
def test_a_step_is_of_the_mean_over_the_batch() -> None:
    """Adam hides the size of a gradient, and its first moment shows it: a tenth of the gradient after one step."""
    experiment = shrunken("mqa")
    training = dataclasses.replace(experiment.train, clip=1e6)
    step = Trainer(experiment.task, experiment.model, training, [0]).step
    params = jax.jit(experiment.model.init)(jax.random.key(0))
    vectors = step.layout.vectors(params)
    state = TrainState(vectors, step.optimizer.init(vectors), jnp.zeros((), jnp.int32))
    sums = Sums.none()
    zero = jnp.int32(0)
    data = jax.jit(partial(step.data, length=32, batch=8, shards=1))(zero, zero, (), seed=jnp.uint32(0))
    after, _ = jax.jit(partial(step.take, batch=8, shards=1))(state, sums, data)
    example = jax.jit(lambda: streams.train_batch(experiment.task, 0, 0, 8, 32))()
    _, _, summed = jax.jit(step.gradient)(params, example)
    moment = optax.tree.get(after.optimizer, "mu")
    for name, leaf in summed.items():
        np.testing.assert_allclose(moment[name], (1 - training.b1) * leaf / 8, rtol=1e-4, atol=1e-8)


@pytest.mark.parametrize(("step", "solved", "lengths"), [(0, None, [16, 256]), (2, None, [256]), (0, 2, [])])
def test_later_stages_are_compiled_ahead_once_and_only_if_they_are_certain(
    step: int, solved: int | None, lengths: list[int]
) -> None:
    """The pool compiles nothing here: it notes what it is given."""
    given = experiment("hawk")
    stages = [{"length": length, "steps": 2, "batch_size": 4} for length in (8, 16)]
    training = dataclasses.replace(given.train, steps=8, curriculum=stages, stop_when_solved=solved)
    trainer, pool = Trainer(given.task, given.model, training, [0]), Noting()
    trainer.compile_ahead(pool, step)
    trainer.compile_ahead(pool, step)
    assert [length for length, *_ in trainer._programs] == lengths and pool.works == len(lengths)


class Noting(ThreadPoolExecutor):
    """A pool of threads that does nothing."""

    works = 0

    def submit(self, *work: Any) -> Any:
        self.works += 1


def test_what_is_drawn_ahead_is_what_the_steps_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    """An accelerator draws for a whole dispatch: the batches, what streams read, and which of them begin anew."""
    few = experiment("hawk")
    training = dataclasses.replace(few.train, state_passing=0.5)
    trainer = Trainer(few.task, few.model, training, [0])
    read = jax.jit(partial(trainer.step.data, loaded=(), seed=jnp.uint32(3), length=16, batch=4, shards=1))
    first = jnp.int32(5)
    by_step = trainer._ahead(read, first)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    ahead = trainer._ahead(read, first)
    for at in map(jnp.int32, (0, 1, training.log_every - 1)):
        jax.tree.map(np.testing.assert_array_equal, ahead(at, first + at), by_step(at, first + at))
    assert ahead is not read and by_step is read


DEVICES = """
import json, sys
import jax
jax.config.update("jax_num_cpu_devices", 2)
sys.path[:0] = ["tests", "tests/training"]
from test_train import of_one_and_of_two_seeds
print(json.dumps(of_one_and_of_two_seeds()))
assert jax.device_count() == 2
"""


def of_one_and_of_two_seeds() -> list[Any]:
    """The losses of five steps, and the size of each leaf of the state, of a batch alone and of two seeds.

    Of attention, and of Hawk with two sequences from the state of each stream.
    """
    found = []
    for model, passed, seeds in (("mqa", None, [0]), ("hawk", 0.25, [0]), ("hawk", 0.25, [0, 1])):
        own = shrunken(model)
        training = dataclasses.replace(own.train, state_passing=passed, batch_size=4, average=passed, curriculum=[])
        state, sums = trained(dataclasses.replace(own, train=training), 5, seeds)
        kept = (state.params, state.average, state.streams)
        sizes = [float(np.abs(leaf).sum()) for leaf in jax.tree.leaves(jax.device_get(kept))]
        found.append([sums.loss.tolist(), sizes])
    return found


@pytest.mark.slow
@pytest.mark.exhaustive  # meshes and two processes train as one device does
def test_devices_share_a_batch_or_seeds_and_change_nothing() -> None:
    child = subprocess.run(
        [sys.executable, "-c", DEVICES], capture_output=True, text=True, cwd=ROOT, env=tiny.environment()
    )
    assert child.returncode == 0, child.stderr
    assert jax.device_count() == 1
    for one, two in zip(of_one_and_of_two_seeds(), json.loads(child.stdout), strict=True):
        np.testing.assert_allclose(two[0], one[0], rtol=1e-5)
        np.testing.assert_allclose(two[1], one[1], rtol=1e-4)


@cache
def shrunken(model: str) -> config.Experiment:
    """Selective copying at 32 tokens, small."""
    overrides = ["task=selective_copying", f"model={model}", "task.length=32", "task.data_tokens=4"]
    return Spec.of([*overrides, *overrides_of(model)]).experiment


@pytest.mark.slow
def test_a_small_task_is_learned() -> None:
    """Selective copying of two tokens out of six, teacher-forced nowhere: Hawk at width 32 solves it in seconds."""
    experiment = Spec.of(
        ["task=selective_copying", "model=hawk", "task.length=6", "task.data_tokens=2", *overrides_of("hawk"),
         "model.pattern=[recurrent,recurrent]", "model.width=32", "model.mixers.recurrent.width_rnn=32",
         "train.learning_rate=1e-2", "train.warmup_steps=20", "train.steps=400"]
    ).experiment  # fmt: skip
    trainer = Trainer(experiment.task, experiment.model, experiment.train, [0])
    state, _ = trainer.advance(trainer.init(), Stage(0, 400, 6, 32), 375)
    _, sums = trainer.advance(state, Stage(0, 400, 6, 32), 25)
    assert float(sums.accuracy[0]) / (25 * 32) > 0.95


@pytest.mark.exhaustive  # two seeds of Hawk below, each with a rate of its own
@pytest.mark.parametrize("model", catalogue.options("model"))
def test_seeds_side_by_side_train_as_one_by_one(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on an accelerator, forced here: every parameter after 50 steps, with the streams of state passing."""
    held = experiment(model)
    training = dataclasses.replace(held.train, steps=50, batch_size=4, learning_rate=1e-3, curriculum=[], log_every=50)

    def after(seeds: list[int]) -> tuple[TrainState, Sums]:
        trainer = Trainer(held.task, held.model, training, seeds)
        return jax.device_get(trainer.advance(trainer.init(), Stage(0, 50, 32, 4), 50))

    alone = [after([seed]) for seed in (3, 4)]
    monkeypatch.setattr(Trainer, "side_by_side", True)
    stacked = jax.tree.map(lambda *leaves: np.concatenate(leaves), *alone)
    (state, sums), (wanted, wanted_sums) = after([3, 4]), stacked
    np.testing.assert_allclose(sums.loss, wanted_sums.loss, rtol=1e-5)
    # AdamW divides rounding by rounding where a gradient is nearly nothing.
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4), state.params, wanted.params)


@pytest.mark.slow
@pytest.mark.parametrize("side_by_side", [pytest.param(False, marks=pytest.mark.exhaustive), True])
def test_a_seed_with_a_rate_of_its_own_trains_as_by_itself(side_by_side: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rates are an array of one program: every parameter after 20 steps, with weight decay, which the rate scales.

    With the streams of state passing, which each seed has of its own.
    """
    held = shrunken("hawk")
    given = {"steps": 20, "batch_size": 4, "curriculum": [], "log_every": 20, "weight_decay": 0.1, "state_passing": 0.5}
    training = dataclasses.replace(held.train, **given)

    def after(seeds: list[int], rate: float | list[float]) -> TrainState:
        trainer = Trainer(held.task, held.model, dataclasses.replace(training, learning_rate=rate), seeds)
        return jax.device_get(trainer.advance(trainer.init(), Stage(0, 20, 32, 4), 20)[0])

    alone = [after([seed], rate) for seed, rate in ((3, 1e-3), (4, 1e-2))]
    monkeypatch.setattr(Trainer, "side_by_side", side_by_side)
    together = after([3, 4], [1e-3, 1e-2])
    for seed, one in enumerate(alone):
        jax.tree.map(
            lambda x, y, at=seed: np.testing.assert_allclose(x[at], y[0], rtol=1e-4, atol=1e-5),
            together.params, one.params,
        )  # fmt: skip


def test_threads_save_at_once(tmp_path: Path) -> None:
    state = TrainState(params={"kernel": jnp.ones(4)}, optimizer=(), step=jnp.ones(1, jnp.int32))

    def saved(folder: Path) -> list[int]:
        with closing(Checkpoints(folder)) as checkpoints:
            for step in range(1, 6):
                checkpoints.save(state, step, {"rows": step})
            return checkpoints.steps

    with ThreadPoolExecutor(4) as threads:
        kept = list(threads.map(saved, [tmp_path / str(number) for number in range(4)]))
    assert kept == [[5, 4]] * 4
