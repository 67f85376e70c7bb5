"""The compiled programs of a run: one takes many steps for all seeds, the data included."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.extend.core import ClosedJaxpr
from jax.sharding import NamedSharding, PartitionSpec

from evalkit.core import streams
from evalkit.core.batches import feed_of
from evalkit.core.contracts import LanguageModel, Task
from evalkit.core.devices import AXIS, RUNS_ONCE, mesh_for
from evalkit.tasks import Example
from evalkit.tasks.text import Text
from evalkit.training.settings import Stage, Training
from evalkit.training.state import Sums, TrainState
from evalkit.training.step import Step


class Trainer:
    """The compiled steps of one run: `init` once, then `advance` from stage to stage."""

    def __init__(self, task: Task | Text, model: LanguageModel, training: Training, seeds: Sequence[int]):
        self.task, self.model, self.training = task, model, training
        self.feed = feed_of(task)
        self.seeds = np.asarray(seeds, np.uint32)
        self.step = Step(self.feed, task.scored, model, training)
        self._programs: dict[Any, jax.stages.Compiled] = {}
        # Whole seeds on a device need no word between devices; where they do not divide, each batch is split.
        stages = training.stages(task.length)
        whole = mesh_for(len(self.seeds))
        self.by_seed = whole.size == jax.device_count()
        self.mesh = whole if self.by_seed else mesh_for(*(stage.batch_size for stage in stages))

    def init(self) -> TrainState:
        """Fresh parameters and optimiser state of every seed."""
        return jax.jit(self._fresh, compiler_options=RUNS_ONCE)(self.seeds)

    def start(self, meanwhile: Callable[[TrainState], None]) -> TrainState:
        """Fresh state; the first stage's program is compiled at the same time, which halves a user's wait.

        `meanwhile` looks at the state while that goes on; what it raises is raised at once.
        """
        first = self.training.stages(self.task.length)[0]
        loaded = self._load(first, 0)
        lowered = self.lower(first, loaded)
        pool = ThreadPoolExecutor(1)
        try:
            compiled = pool.submit(lowered.compile)
            state = self.init()
            meanwhile(state)
            self._programs[_key(first, loaded)] = compiled.result()
        finally:
            pool.shutdown(wait=False)
        return state

    @cached_property
    def abstract(self) -> TrainState:
        """The shapes and dtypes of the state, nothing computed."""
        return jax.eval_shape(self._fresh, self.seeds)

    def _fresh(self, seeds: Array) -> TrainState:
        def one(seed: Array) -> TrainState:
            params = self.model.init(streams.init_key(seed))
            optimizer_state = self.step.optimizer.init(self.step.layout.vectors(params))
            average = None if self.training.average is None else params
            passing = self.step.passing
            states = None if passing is None else passing.fresh(passing.count)
            return TrainState(params, optimizer_state, jnp.zeros((), jnp.int32), average, states)

        return lax.map(one, seeds)

    def advance(self, state: TrainState, stage: Stage, steps: int) -> tuple[TrainState, Sums]:
        """Takes `steps` of one stage, at most `log_every`, for every seed in one dispatch; `state` is consumed."""
        loaded = self._load(stage, state.step[0])
        return self.program(stage, loaded)(jax.device_put(state, self._shardings), self.seeds, steps, loaded)

    def _load(self, stage: Stage, first: Array | int) -> Any:
        # For a whole dispatch even where it is cut short, so that there is one program.
        return self.feed.load(self.seeds.tolist(), first, self.training.log_every, stage.batch_size, stage.length)

    def program(self, stage: Stage, loaded: Any = None) -> jax.stages.Compiled:
        """What `advance` calls as `(state, seeds, steps, loaded)` at this stage, compiled when first asked for.

        `loaded`: arrays, or shapes, of what is read; None for those that are usual.
        """
        loaded = self._usual(stage) if loaded is None else loaded
        key = _key(stage, loaded)
        if key not in self._programs:
            self._programs[key] = self.lower(stage, loaded).compile()
        return self._programs[key]

    def lower(self, stage: Stage, loaded: Any = None) -> jax.stages.Lowered:
        """The program of a stage, not yet compiled; `loaded` as for `program`."""
        placed = TrainState(*map(_shapes_on, self._shardings, self.abstract))
        loaded = self._usual(stage) if loaded is None else loaded
        return self._dispatch.lower(self, placed, self.seeds, 1, loaded, **_sizes(stage))

    def _usual(self, stage: Stage) -> Any:
        return self.feed.shapes(len(self.seeds), self.training.log_every, stage.batch_size, stage.length)

    def example(self, batch: int, length: int) -> Example:
        """The shapes and dtypes of a batch."""
        loaded = jax.tree.map(_first, self.feed.shapes(1, 1, batch, length))
        zero = jnp.zeros((), jnp.int32)
        return jax.eval_shape(lambda loaded: self.feed.batch(loaded, zero, zero, zero, batch, length), loaded)

    @property
    def shards(self) -> int:
        """Over how many devices a batch is split."""
        return 1 if self.by_seed else self.mesh.size

    @property
    def _shardings(self) -> Any:
        """How each part of the state lies on the devices that work on it, as a `TrainState`."""
        parts: Any = [NamedSharding(self.mesh, spec) for spec in _specs(self.by_seed)]
        return TrainState(*parts)

    def one_step(self, stage: Stage) -> ClosedJaxpr:
        """The operations of a single step of one seed."""
        step = partial(self.step.take, seed=jnp.asarray(self.seeds[0]), **_sizes(stage), shards=1)
        loaded = jax.tree.map(_first, self.feed.shapes(1, 1, stage.batch_size, stage.length))
        state = jax.eval_shape(self.step.packed, jax.tree.map(_first, self.abstract))
        return jax.make_jaxpr(step)(jnp.zeros((), jnp.int32), state, Sums.none(), loaded)

    @partial(jax.jit, static_argnames=("self", "length", "batch", "shortest"), donate_argnames="state")
    def _dispatch(
        self,
        state: TrainState,
        seeds: Array,
        steps: Array,
        loaded: Any,
        *,
        length: int,
        batch: int,
        shortest: int | None,
    ):
        seeds_on = PartitionSpec(AXIS) if self.by_seed else PartitionSpec()
        return jax.shard_map(
            partial(self._on_device, take=partial(self.step.take, length=length, batch=batch, shortest=shortest)),
            mesh=self.mesh,
            in_specs=(_specs(self.by_seed), seeds_on, PartitionSpec(), seeds_on),
            out_specs=(_specs(self.by_seed), seeds_on),
            check_vma=False,
        )(state, seeds, steps, loaded)

    def _on_device(
        self,
        state: TrainState,
        seeds: Array,
        steps: Array,
        loaded: Any,
        *,
        take: Callable[..., tuple[TrainState, Sums]],
    ):
        def one_seed(args: tuple[TrainState, Array, Any]) -> tuple[TrainState, Sums]:
            state, seed, loaded = args
            body = partial(take, seed=seed, shards=self.shards)
            start = (self.step.packed(state), Sums.none())
            # The number of steps is an argument, so that a short last dispatch runs the very same program.
            state, sums = lax.fori_loop(0, steps, lambda index, carry: body(index, carry[0], carry[1], loaded), start)
            return self.step.unpacked(state), sums

        # One seed after the other: on a CPU that is faster than vmap, whose larger arrays leave the cache.
        return lax.map(one_seed, (state, seeds, loaded))


def _sizes(stage: Stage) -> dict[str, int | None]:
    """What a step is compiled for, as `Step.take` calls it."""
    return {"length": stage.length, "batch": stage.batch_size, "shortest": stage.shortest}


def _key(stage: Stage, loaded: Any) -> tuple[Any, ...]:
    """What sets programs apart: the sizes, and whether positions are among what is read."""
    return stage.length, stage.batch_size, jax.tree.structure(loaded)


def _specs(by_seed: bool) -> Any:
    """Along which axis each part of a `TrainState` is split over devices: all by seeds, or the streams as the batch.

    Streams lie with the sequences that begin from them, so that no device asks another for a state.
    """
    whole: Any = PartitionSpec(AXIS) if by_seed else PartitionSpec()
    streams: Any = whole if by_seed else PartitionSpec(None, AXIS)
    return TrainState(whole, whole, whole, whole, streams)


def _shapes_on(sharding: NamedSharding, tree: Any) -> Any:
    """The shapes of a tree, each on the devices of `sharding`."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), tree)


def _first(leaf: Any) -> jax.ShapeDtypeStruct:
    """The shape of one of those that are stacked."""
    return jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype)
