"""The compiled programs of a run: one takes many steps for all seeds, the data included."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.extend.core import ClosedJaxpr
from jax.sharding import PartitionSpec

from evalkit.core import streams
from evalkit.core.batches import feed_of
from evalkit.core.contracts import LanguageModel, Task
from evalkit.numerics import for_threads
from evalkit.parallel.devices import COPIED_BYTES, RUNS_ONCE, bytes_of, on_host
from evalkit.parallel.layouts.mesh import AUTO, Setting, sizes_of
from evalkit.parallel.layouts.placement import Placement
from evalkit.tasks import Example
from evalkit.tasks.text import Text
from evalkit.training.settings import Stage, Training
from evalkit.training.state import Sums, TrainState
from evalkit.training.step import Data, Step

SMALL_BYTES = 2**24
"""Up to this size of one seed's parameters, four million in float32, a step costs mainly the launching of kernels."""


class Trainer:
    """The compiled steps of one run: `init` once, then `advance` from stage to stage."""

    def __init__(
        self, task: Task | Text, model: LanguageModel, training: Training, seeds: Sequence[int], mesh: Setting = AUTO
    ):
        self.task, self.model, self.training = task, model, training
        self.feed = feed_of(task)
        self.seeds = np.asarray(seeds, np.uint32)
        sizes = sizes_of(mesh)
        # The step as one device takes it by itself, which `one_step` and `finite` use on a mesh, too.
        self.on_one_device = Step(self.feed, task.scored, model, training, training.streams(task.length))
        self.step = self.on_one_device if sizes is None else Step(self.feed, task.scored, model, training, 0, sizes)
        batches = [stage.batch_size for stage in training.stages(task.length)]
        self.placement = Placement(self.step.layout, sizes, len(self.seeds), batches)
        self._programs: dict[Any, Future[jax.stages.Compiled]] = {}

    @cached_property
    def side_by_side(self) -> bool:
        """Whether all seeds of a device take each step together, or each seed takes all its steps before the next seed.

        On an accelerator a small model's step is mainly kernel launches, and eight seeds need as many as one. A large
        model fills the accelerator by itself; on a CPU the larger arrays would leave the cache.
        """
        return jax.default_backend() != "cpu" and bytes_of(self.abstract.params) <= SMALL_BYTES * len(self.seeds)

    def init(self) -> TrainState:
        """Fresh parameters and optimiser state of every seed."""
        if not self.placement.whole:
            return jax.jit(self._init, out_shardings=self._shardings, compiler_options=RUNS_ONCE)(self.seeds)
        small = bytes_of(self.abstract.params) <= COPIED_BYTES
        with on_host() if small else nullcontext():
            fresh = jax.jit(self._init, compiler_options=RUNS_ONCE)(self.seeds)
        # Through the host, since placing a device's array elsewhere would compile a program for each shape.
        return jax.device_put(jax.tree.map(np.asarray, fresh) if small else fresh, self._shardings)

    def start(self, meanwhile: Callable[[TrainState], None]) -> TrainState:
        """Fresh state, given to `meanwhile`, while the first stage's program is compiled: that halves a user's wait."""
        first = self.training.stages(self.task.length)[0]
        loaded = self._load(first, 0)
        lowered = self.lower(first, loaded)
        pool = ThreadPoolExecutor(1)
        try:
            self._programs[_key(first, loaded)] = compiled = pool.submit(lowered.compile)
            state = self.init()
            meanwhile(state)
            compiled.result()
        finally:
            pool.shutdown(wait=False)
        return state

    @cached_property
    def abstract(self) -> TrainState:
        """The shapes and dtypes of the state, nothing computed."""
        return jax.eval_shape(self._init, self.seeds)

    @cached_property
    def _shardings(self) -> TrainState:
        return self.placement.shardings(self.abstract)

    def with_streams(self, state: TrainState) -> TrainState:
        """The state with streams that have read nothing, where training passes states and none were passed before."""
        passing = self.step.passing
        if passing is None or state.streams is not None:
            return state
        fresh = jax.jit(
            lambda seeds: lax.map(lambda _: passing.init_states(passing.count), seeds),
            out_shardings=self._shardings.streams,
            compiler_options=RUNS_ONCE,
        )
        return state._replace(streams=fresh(self.seeds))

    @property
    def restorable(self) -> TrainState:
        """The form in which a checkpoint is read: each device reads its own part, or one device all of it."""
        return self.abstract if self.placement.whole else self.placement.placed(self.abstract)

    def _init(self, seeds: Array) -> TrainState:
        def one(seed: Array) -> TrainState:
            params = self.model.init(streams.init_key(seed))
            average = None if self.training.average is None else params
            passing = self.step.passing
            states = None if passing is None else passing.init_states(passing.count)
            return TrainState(params, self.step.init_optimizer(params), jnp.zeros((), jnp.int32), average, states)

        return lax.map(one, seeds)

    def advance(self, state: TrainState, stage: Stage, steps: int) -> tuple[TrainState, Sums]:
        """Takes `steps` of one stage, at most `log_every`, for every seed in one dispatch; `state` is consumed."""
        loaded = self._load(stage, state.taken)
        return self.program(stage, loaded)(jax.device_put(state, self._shardings), self.seeds, steps, loaded)

    def _load(self, stage: Stage, first: Array | int) -> Any:
        # Loads for a whole dispatch, even a shorter one, so that there is one program.
        batch, steps = stage.batch_size, self.training.log_every
        read = self.feed.load(self.seeds.tolist(), first, steps, batch, stage.length, self.placement.rows(batch))
        return self.placement.together(read, batch)

    def program(self, stage: Stage, loaded: Any = None) -> jax.stages.Compiled:
        """The program of `advance`, for `(state, seeds, steps, loaded)`; `loaded`: arrays, shapes, or None (usual)."""
        loaded = self._usual(stage) if loaded is None else loaded
        key = _key(stage, loaded)
        if key not in self._programs:
            made: Future[jax.stages.Compiled] = Future()
            made.set_result(self.lower(stage, loaded).compile())
            self._programs[key] = made
        return self._programs[key].result()

    def compile_ahead(self, pool: ThreadPoolExecutor, step: int) -> None:
        """Has `pool` compile the stages after the one of `step`, as soon as they are certain to be trained."""
        later = [stage for stage in self.training.stages(self.task.length) if stage.start > step]
        for stage in later if self.training.stop_when_solved is None else []:
            key = _key(stage, self._usual(stage))
            if key not in self._programs:
                self._programs[key] = pool.submit(for_threads(lambda stage=stage: self.lower(stage).compile()))

    def lower(self, stage: Stage, loaded: Any = None) -> jax.stages.Lowered:
        """The program of a stage, not yet compiled; `loaded` as for `program`."""
        loaded = self._usual(stage) if loaded is None else loaded
        return self.jitted.lower(self.placement.placed(self.abstract), self.seeds, 1, loaded, **_sizes(stage))

    @property
    def jitted(self) -> Any:
        """One dispatch as a function of JAX; it consumes the state."""
        # Of this trainer alone: JAX would keep a trainer that is a static argument for as long as the process lives.
        return jax.jit(self._dispatch, static_argnames=("length", "batch", "shortest"), donate_argnames="state")

    def _usual(self, stage: Stage) -> Any:
        return self.feed.shapes(len(self.seeds), self.training.log_every, stage.batch_size, stage.length)

    def example(self, batch: int, length: int) -> Example:
        """The shapes and dtypes of a batch."""
        loaded = jax.tree.map(_first, self.feed.shapes(1, 1, batch, length))
        zero = jnp.zeros((), jnp.int32)
        return jax.eval_shape(lambda loaded: self.feed.batch(loaded, zero, zero, zero, batch, length), loaded)

    def one_step(self, stage: Stage) -> ClosedJaxpr:
        """The operations of a single step of one seed."""
        read = partial(self.on_one_device.data, seed=jnp.asarray(self.seeds[0]), **_sizes(stage), shards=1)
        take = partial(self.on_one_device.take, batch=stage.batch_size, shards=1)
        loaded = jax.tree.map(_first, self.feed.shapes(1, 1, stage.batch_size, stage.length))
        state = jax.tree.map(_first, self.abstract)
        state = state._replace(optimizer=jax.eval_shape(self.on_one_device.init_optimizer, state.params))
        state = jax.eval_shape(self.on_one_device.layout.packed, state)
        index = jnp.zeros((), jnp.int32)
        return jax.make_jaxpr(lambda state, loaded: take(state, Sums.none(), read(index, state.step, loaded)))(
            state, loaded
        )

    def _rate(self, seed: Array) -> Array | None:
        """The learning rate of a seed over that of the first; None where all have the same."""
        rates = self.training.rates
        if len(rates) == 1:
            return None
        over_first = np.asarray(rates, np.float32) / np.float32(rates[0])
        return jnp.where(self.seeds == seed, over_first, 0).sum()

    def _ahead(self, read: Callable[[Array, Array], Data], first: Array) -> Callable[[Array, Array], Data]:
        """`read`, or on an accelerator a function that draws small data for all steps at once and gives each its part.

        Drawing for a dispatch needs as many kernel launches as drawing for one step.
        """
        at = jnp.arange(self.training.log_every, dtype=jnp.int32)
        every = jax.vmap(read)
        if jax.default_backend() == "cpu" or bytes_of(jax.eval_shape(every, at, first + at)) > SMALL_BYTES:
            return read
        drawn = every(at, first + at)
        return lambda at, _: jax.tree.map(lambda leaf: lax.dynamic_index_in_dim(leaf, at, keepdims=False), drawn)

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
        shards = self.placement.shards
        read = partial(self.step.data, length=length, batch=batch, shortest=shortest, shards=shards)
        take = partial(self.step.take, batch=batch, shards=shards)

        def on_device(state: TrainState, seeds: Array, steps: Array, loaded: Any) -> tuple[TrainState, Sums]:
            def one_seed(args: tuple[TrainState, Array, Any]) -> tuple[TrainState, Sums]:
                state, seed, loaded = args
                data = partial(read, loaded=loaded, seed=seed)
                if not jax.tree.leaves(loaded):
                    data = self._ahead(data, state.step)

                def body(at: Array, carry: tuple[TrainState, Sums]) -> tuple[TrainState, Sums]:
                    return take(*carry, data(at, carry[0].step), rate=self._rate(seed))

                start = (self.step.layout.packed(state), Sums.none())
                # The number of steps is an argument, so that a short last dispatch runs the very same program.
                state, sums = lax.fori_loop(0, steps, body, start)
                return self.step.layout.unpacked(state), sums

            every = (state, seeds, loaded)
            return jax.vmap(one_seed)(every) if self.side_by_side else lax.map(one_seed, every)

        seeds_on, state_on = self.placement.seeds, self.placement.specs(self.abstract)
        return jax.shard_map(
            on_device,
            mesh=self.placement.mesh,
            in_specs=(state_on, seeds_on, PartitionSpec(), self.placement.loaded),
            out_specs=(state_on, seeds_on),
            check_vma=False,
        )(state, seeds, steps, loaded)


def _sizes(stage: Stage) -> dict[str, int | None]:
    return {"length": stage.length, "batch": stage.batch_size, "shortest": stage.shortest}


def _key(stage: Stage, loaded: Any) -> tuple[Any, ...]:
    """What differs between programs: the sizes, and whether the loaded data has positions."""
    return stage.length, stage.batch_size, jax.tree.structure(loaded)


def _first(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype)
