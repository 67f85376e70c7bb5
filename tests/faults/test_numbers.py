"""NaN and infinity: a run says where they began, may leave such steps out, and states stay bounded over 2^20 steps."""

import dataclasses
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evalkit.core.errors import UserError
from evalkit.core.rows import read
from evalkit.kernels.gated import rglru
from evalkit.kernels.matrix.linear_state import linear_state
from evalkit.tasks import Example
from evalkit.training import finite
from evalkit.training.checkpoints import Checkpoints
from evalkit.training.state import Sums
from evalkit.training.step import Step
from evalkit.training.trainer import Trainer
from support import matrix_oracle, tiny
from support.matrix_oracle import Arguments

pytestmark = [pytest.mark.fault, pytest.mark.usefixtures("shared", "blank_figures")]


@pytest.fixture(scope="module")
def trainer(shared: None) -> Trainer:
    experiment = tiny.experiment(
        tiny.TWO_BLOCKS, "seeds=2", "train.log_every=1", "train.eval_every=1", "train.checkpoint_every=1"
    )
    model, training = experiment.trained
    return Trainer(experiment.task, model, training, experiment.all_seeds)


@pytest.fixture(scope="module")
def params(trainer: Trainer) -> Any:
    return jax.jit(trainer.model.init)(jax.random.key(0))


@pytest.fixture(scope="module")
def example(trainer: Trainer) -> Example:
    (stage,) = trainer.training.stages(trainer.task.length)
    return finite._batch(trainer, stage, 0, 0)


def with_leaf(params: Any, name: str, change: Any) -> Any:
    """The parameters with one leaf, by its dotted name, changed."""

    def changed(path: Any, leaf: jax.Array) -> jax.Array:
        return change(leaf) if jax.tree_util.keystr(path, simple=True, separator=".") == name else leaf

    return jax.tree_util.tree_map_with_path(changed, params)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_all_is_finite_of_fresh_parameters(trainer: Trainer, params: Any, example: Example) -> None:
    assert finite.first_in(trainer, params, example) is None


@pytest.mark.parametrize(
    ("name", "began"),
    [
        ("embedding.table", "embedding"),
        ("blocks.0.mlp.down.kernel", "blocks.0"),
        ("blocks.1.mixer.output.kernel", "blocks.1.mixer"),
        ("norm.scale", "the logits"),
    ],
)
def test_the_first_part_that_overflows_is_named(
    name: str, began: str, trainer: Trainer, params: Any, example: Example
) -> None:
    """Finite parameters, of which one is so large that its products are not."""
    large = with_leaf(params, name, lambda leaf: jnp.full_like(leaf, 3e38))
    assert finite.first_in(trainer, large, example) == f"it begins in {began}"


def test_a_parameter_that_is_no_number_is_named(trainer: Trainer, params: Any, example: Example) -> None:
    for value in (jnp.nan, jnp.inf):
        name = "blocks.1.mlp.up.kernel"
        broken = with_leaf(params, name, lambda leaf, value=value: leaf.at[0, 0].set(value))
        assert finite.first_in(trainer, broken, example) == f"the parameter {name} was so before it"


def test_a_gradient_that_is_no_number_is_named(
    trainer: Trainer, params: Any, example: Example, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(params: Any, example: Example, begun: None) -> Any:
        """A gradient of ones, of which two leaves are no numbers."""
        tree = jax.tree.map(jnp.ones_like, params)
        for name in ("blocks.0.mixer.input.kernel", "blocks.1.mlp.gate.kernel"):
            tree = with_leaf(tree, name, lambda leaf: leaf * jnp.nan)
        return jnp.zeros(()), jnp.zeros(()), trainer.step.layout.vectors(tree)

    monkeypatch.setattr(trainer.step, "gradient", broken)
    assert finite.first_in(trainer, params, example) == "it begins in the gradient of blocks.1.mlp.gate.kernel"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("value", "said"),
    [
        (jnp.inf, "it begins in the state of a stream, from which"),
        pytest.param(0.0, "so suspect the machine", marks=pytest.mark.exhaustive),
    ],
)
def test_a_state_of_a_stream_that_is_no_number_is_named(
    value: float, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What sequences begin from is read again as well; the machine is not suspected of it."""
    experiment = tiny.experiment("train.state_passing=1e-6")
    model, training = experiment.trained
    trainer = Trainer(experiment.task, model, training, [0])
    state = trainer.init()
    stage = training.stages(experiment.task.length)[0]
    state = state._replace(streams=jax.tree.map(lambda leaf: jnp.full_like(leaf, value), state.streams))
    monkeypatch.setattr(finite, "_before", lambda *given: (state, stage))
    assert said in finite._where(trainer, Checkpoints(tmp_path), 0, 0)


def bad_at(step: int, count: int = 1) -> Sums:
    """What a dispatch of two seeds says where the second had such a step."""
    none = jnp.zeros(2)
    return Sums(none, none, jnp.array([-1, step]), jnp.array([0, count]))


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_machine_that_failed_once_is_told_from_a_model_that_does(trainer: Trainer, tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        finite.refuse_non_finite(bad_at(2), trainer, Checkpoints(tmp_path), 1)
    said = "not finite at step 2, seed 1: it was finite when the step was taken again, so suspect the machine"
    assert said in str(error.value) and "no checkpoint was kept yet" in str(error.value)


def test_nothing_is_refused_while_some_steps_are_skipped_and_others_are_not(
    trainer: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finite, "_where", lambda *given: "it begins somewhere")
    cadence = dict.fromkeys(("log_every", "eval_every", "checkpoint_every"), 2)
    training = dataclasses.replace(trainer.training, skip_nonfinite=True, **cadence)
    skipping = Trainer(trainer.task, trainer.model, training, [0, 1])
    finite.refuse_non_finite(bad_at(2, 1), skipping, Checkpoints(tmp_path), 2)
    finite.refuse_non_finite(bad_at(2, 1), skipping, Checkpoints(tmp_path), 1)  # a stage ended after one step
    more = {"log_every": 8, "eval_every": 8, "checkpoint_every": 8}
    seldom = Trainer(trainer.task, trainer.model, dataclasses.replace(training, steps=8, **more), [0, 1])
    for each in (skipping, seldom):  # a whole dispatch, and one that the end of training cut short
        with pytest.raises(UserError, match="not finite at step 2"):
            finite.refuse_non_finite(bad_at(2, 2), each, Checkpoints(tmp_path), 2)
    with pytest.raises(UserError, match="skips no step with"):
        tiny.experiment("train.skip_nonfinite=true", "train.log_every=1")


def test_what_goes_wrong_in_the_search_hides_neither_step_nor_seed(
    trainer: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finite, "_where", Mock(side_effect=RuntimeError("RESOURCE_EXHAUSTED: out of memory")))
    with pytest.raises(finite.NotFinite, match=r"seed 1: where it began was not found \(RuntimeError: RESOURCE"):
        finite.refuse_non_finite(bad_at(2), trainer, Checkpoints(tmp_path), 1)


DIVERGES = """
import sys
from pathlib import Path
from support import tiny
from evalkit.core.errors import UserError
try:
    tiny.start(Path(sys.argv[1]), tiny.TWO_BLOCKS, "train.state_passing=0.5", "train.learning_rate=1e25")
except UserError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.slow
@pytest.mark.exhaustive
def test_where_streams_are_on_two_devices_it_is_found_too(tmp_path: Path) -> None:
    """Each core of a CPU is a device."""
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=2"
    environment = {**os.environ, "PYTHONPATH": f"{tiny.ROOT}:{tiny.ROOT / 'tests'}", "XLA_FLAGS": flags}
    ended = subprocess.run(
        [sys.executable, "-c", DIVERGES, str(tmp_path / "run")], env=environment, capture_output=True, text=True
    )
    said = ended.stdout.splitlines()[-1]
    assert said.startswith("NotFinite the loss or its gradient was not finite at step "), ended.stderr[-2000:]
    assert "was not found" not in said and "suspect the machine" not in said


def overflowing(monkeypatch: pytest.MonkeyPatch, steps: list[int]) -> None:
    """Loss and gradient of these steps are no numbers, whatever the parameters."""
    take, gradient = Step.take, Step.gradient

    def taken(self: Step, state: Any, *given: Any, **named: Any) -> Any:
        def broken(*given: Any) -> Any:
            bad = jnp.isin(state.step, jnp.array(steps))
            return jax.tree.map(lambda leaf: jnp.where(bad, jnp.nan, leaf), gradient(self, *given))

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(self, "gradient", broken)
            return take(self, state, *given, **named)

    monkeypatch.setattr(Step, "take", taken)


@pytest.mark.slow
def test_skipped_steps_change_nothing_and_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    overflowing(monkeypatch, [1, 4])
    # A setting that no other test has, so that programs of before are not taken.
    words = ("train.skip_nonfinite=true", "train.b2=0.97", "train.steps=6")
    folder = tiny.trained(tmp_path / "run", *words)
    rows = [entry for entry in read(folder).rows if entry["split"] == "train"]
    told = {(entry["metric"], entry["step"]): (entry["total"], entry["count"]) for entry in rows}
    assert [told["skipped", step] for step in (2, 4, 6)] == [(1, 2), (0, 2), (1, 2)]
    assert [told["loss", step][1] for step in (2, 4, 6)] == [4, 8, 4]
    assert all(np.isfinite(total) for total, _ in told.values())
    state = tiny.state(folder)
    assert int(state.step[0]) == 6 and all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state))
    log = (folder / "evalkit.log").read_text(encoding="utf-8")
    assert "1 of 2 steps before step 2 were not finite and are skipped" in log
    assert json.loads((folder / "results.json").read_text())["steps"] == 6


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_run_that_skips_nothing_is_the_run_without_the_setting(tiny_run: Path, tmp_path: Path) -> None:
    folder = tiny.trained(tmp_path / "run", "train.skip_nonfinite=true")
    tiny.assert_identical(tiny.state(folder), tiny.state(tiny_run))
    assert [entry for entry in tiny.rows(folder) if entry["metric"] != "skipped"] == tiny.rows(tiny_run)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_the_line_names_step_seed_part_and_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loss that overflows at step 4, of a run whose program is no other's."""
    overflowing(monkeypatch, [4])
    with pytest.raises(UserError) as error:
        tiny.start(tmp_path / "run", "train.b2=0.96")
    said = str(error.value)
    assert "not finite at step 4, seed 0: " in said and "checkpoint 4 is kept; lower train.learning_rate" in said
    assert "\n" not in said
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(tiny.state(tmp_path / "run")))


SHORT, LONG = 2**12, 2**20
DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}
# Of the largest exact value, twice what 2^20 steps were measured to add up to; those of RG-LRU remember 10^6 steps.
RGLRU_DRIFT, MATRIX_DRIFT = 1e-4, 2e-6
LENGTHS = [SHORT, pytest.param(LONG, marks=[pytest.mark.slow, pytest.mark.exhaustive])]


def drift(found: Any, exact: np.ndarray) -> float:
    return float(np.abs(np.asarray(found, np.float64) - exact).max() / np.abs(exact).max())


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_states_of_the_rglru_stay_bounded_and_near_the_exact_ones(
    dtype: str, length: int, record_property: Any
) -> None:
    """Decays from 0.9 to 0.999999, so that some states remember nearly all of it."""
    draw = np.random.default_rng(0)
    channels = 6
    x, r, i = (jnp.asarray(draw.normal(size=(1, length, channels)), DTYPES[dtype]) for _ in range(3))
    rate = jnp.asarray(np.log([0.9, 0.99, 0.999, 0.9999, 0.99999, 0.999999]) * 2, jnp.float32)
    h, last = jax.jit(rglru)(x, r, i, rate)
    exact = np.zeros(channels)
    wide = [np.asarray(value, np.float64)[0] for value in (x, r, i)]
    gate = [1 / (1 + np.exp(-value)) for value in wide[1:]]
    a = np.exp(np.asarray(rate, np.float64) * gate[0])
    entered = np.sqrt(-np.expm1(2 * np.asarray(rate, np.float64) * gate[0])) * gate[1] * wide[0]
    largest = np.zeros(channels)
    for step in range(length):
        exact = a[step] * exact + entered[step]
        largest = np.maximum(largest, np.abs(exact))
    found = drift(last[0], exact)
    record_property("drift", found)
    assert bool(jnp.isfinite(h).all()) and found < RGLRU_DRIFT
    assert np.all(np.abs(np.asarray(h, np.float64)[0]).max(0) < 1.05 * largest + 0.05)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["linear attention with decay", "a decay for each key channel", "delta rule"])
def test_states_of_matrix_recurrences_stay_bounded_and_near_the_exact_ones(
    kind: str, dtype: str, length: int, record_property: Any
) -> None:
    draw = np.random.default_rng(1)
    heads, keys, values = 1, 4, 3
    q, k = (draw.normal(size=(1, length, heads, keys)) for _ in range(2))
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    v = draw.normal(size=(1, length, heads, values))
    cast = partial(jnp.asarray, dtype=DTYPES[dtype])
    shape = (1, length, heads, keys) if kind.startswith("a decay for") else (1, length, heads)
    decay = None if kind == "delta rule" else jnp.asarray(np.log(draw.uniform(0.99, 0.9999, shape)), jnp.float32)
    beta = jnp.asarray(draw.uniform(0.1, 1.0, (1, length, heads)), jnp.float32) if kind == "delta rule" else None
    given = Arguments(cast(q), cast(k), cast(v), jnp.zeros((1, heads, keys, values)), decay, beta, beta)
    named = {"log_decay": given.log_decay, "beta": given.beta, "write": given.write}
    o, last = jax.jit(linear_state)(given.q, given.k, given.v, given.h0, **named)
    exact = _last(given)
    found = drift(last, exact)
    record_property("drift", found)
    assert bool(jnp.isfinite(o).all()) and found < MATRIX_DRIFT


def _last(given: Arguments) -> np.ndarray:
    """The last state by the definition, without keeping the others."""
    q, k, v, h, decay, beta, write = matrix_oracle.wide(given)
    decay, k, v, beta, write = (np.ascontiguousarray(one[0].swapaxes(0, 1)) for one in (decay, k, v, beta, write))
    state = h[0]
    for t in range(q.shape[1]):
        state = decay[:, t, :, None] * state
        key = k[:, t, :, None]
        state = state - beta[:, t, None, None] * key * (key * state).sum(-2, keepdims=True)
        state = state + write[:, t, None, None] * key * v[:, t, None, :]
    return state[None]
