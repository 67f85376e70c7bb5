"""Training: one compiled program takes many steps for all seeds, the data included."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array, lax
from jax.extend.core import ClosedJaxpr
from jax.sharding import NamedSharding, PartitionSpec

from evalkit.core import batches as feeds
from evalkit.core import streams
from evalkit.core.contracts import LanguageModel, Params, Task, Texts
from evalkit.core.devices import AXIS, copied, mesh_for, split
from evalkit.core.errors import UserError
from evalkit.core.objective import scored_only, tally
from evalkit.tasks import Example
from evalkit.training import optimizer
from evalkit.training.vectors import MASK, Layout, Vectors

# For a program that runs once, compiling less is faster: half the seconds here.
RUNS_ONCE = {"xla_backend_optimization_level": 0}
# Measured on two cores with 1 MiB of second-level cache each: with more the activations leave the cache.
MICROBATCH_TOKENS = 512


@dataclass(frozen=True)
class Training:
    """How to train. The paper gives AdamW and nothing else for its synthetic tasks; the rest is measured here.

    `curriculum`: stages `{length, steps, batch_size}` of lengths below the task's, which come first and count within
    `steps`. A dispatch is `log_every` steps; validation and checkpoints fall on its multiples; checkpoints at
    multiples of `keep_every` are kept for good. `stop_when_solved`: end after so many validations in a row with
    accuracy 1 (off by default: extrapolation goes on growing after the task is solved).
    `microbatch`: sequences whose gradient is taken at a time on one device, the gradients then added up; None is as
    many as have 512 tokens on a CPU, so that activations stay in its cache, and all of them elsewhere.
    Raises ValueError for a value that cannot be.
    """

    steps: int
    batch_size: int
    learning_rate: float
    warmup_steps: int = 100
    schedule: str = "cosine"
    final_fraction: float = 0.05
    weight_decay: float = 0.0
    b1: float = 0.9
    b2: float = 0.98
    clip: float = 1.0
    log_every: int = 25
    eval_every: int = 100
    checkpoint_every: int = 100
    keep_every: int | None = None
    validation_sequences: int = 256
    curriculum: list[dict[str, int]] = field(default_factory=list)
    stop_when_solved: int | None = None
    microbatch: int | None = None

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "log_every", "eval_every", "checkpoint_every", "validation_sequences"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}; allowed: 1 or more")
        for name in ("learning_rate", "clip"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}={getattr(self, name)}; allowed: above 0")
        for name in ("eval_every", "checkpoint_every"):
            if getattr(self, name) % self.log_every:
                raise ValueError(
                    f"{name}={getattr(self, name)} is no multiple of log_every={self.log_every}; make it one"
                )
        if self.keep_every is not None and (self.keep_every < 1 or self.keep_every % self.checkpoint_every):
            raise ValueError(
                f"keep_every={self.keep_every}; allowed: multiples of checkpoint_every={self.checkpoint_every}, or null"
            )
        if self.schedule not in optimizer.SCHEDULES:
            raise ValueError(f"schedule={self.schedule!r}; allowed: {', '.join(optimizer.SCHEDULES)}")
        if self.warmup_steps < 0 or self.weight_decay < 0:
            raise ValueError(f"warmup_steps={self.warmup_steps}, weight_decay={self.weight_decay}; allowed: 0 or more")
        if self.stop_when_solved is not None and self.stop_when_solved < 1:
            raise ValueError(f"stop_when_solved={self.stop_when_solved}; allowed: 1 or more, or null")
        if self.microbatch is not None and self.microbatch < 1:
            raise ValueError(f"microbatch={self.microbatch}; allowed: 1 or more, or null")
        for stage in self.curriculum:
            if set(stage) != {"length", "steps", "batch_size"} or min(stage.values()) < 1:
                raise ValueError(f"curriculum stage {stage}; give length, steps and batch_size, each 1 or more")

    def stages(self, length: int) -> list["Stage"]:
        """The stages in order, the last one at the task's own `length`; they cover steps 0 to `steps`.

        Those of the curriculum that are not shorter are left out: a recipe's curriculum serves shorter tasks too.
        """
        stages, start = [], 0
        for stage in (stage for stage in self.curriculum if stage["length"] < length):
            stop = min(start + stage["steps"], self.steps)
            stages.append(Stage(start, stop, stage["length"], stage["batch_size"]))
            start = stop
        stages.append(Stage(start, self.steps, length, self.batch_size))
        return [stage for stage in stages if stage.stop > stage.start]


class Stage(NamedTuple):
    """Steps `start` to `stop` at one length and batch size."""

    start: int
    stop: int
    length: int
    batch_size: int


class TrainState(NamedTuple):
    """Everything that training changes; the leaves of all seeds are stacked on axis 0."""

    params: Params
    optimizer: Any
    step: Array


class Sums(NamedTuple):
    """Over a dispatch, `[seeds]`: sums over sequences, the first step with a loss or gradient not finite (or −1)."""

    loss: Array
    accuracy: Array
    bad_step: Array


class Trainer:
    """The compiled steps of one run: `init` once, then `advance` from stage to stage."""

    def __init__(self, task: Task | Texts, model: LanguageModel, training: Training, seeds: Sequence[int]):
        self.task, self.model, self.training = task, model, training
        self.feed = feeds.feed_of(task)
        self.seeds = np.asarray(seeds, np.uint32)
        rate = optimizer.schedule(
            training.schedule, training.learning_rate, training.warmup_steps, training.steps, training.final_fraction
        )
        self.optimizer = optimizer.adamw(
            rate,
            b1=training.b1,
            b2=training.b2,
            weight_decay=training.weight_decay,
            clip=training.clip,
            mask=MASK,
        )
        params = jax.eval_shape(model.init, jax.random.key(0))
        self.layout = Layout(params, model.decay_mask(params))
        self._programs: dict[Any, jax.stages.Compiled] = {}
        # Whole seeds on a device need no word between devices; where they do not divide, each batch is split.
        stages = training.stages(task.length)
        whole = mesh_for(len(self.seeds))
        self.by_seed = whole.size == jax.device_count()
        self.mesh = whole if self.by_seed else mesh_for(*(stage.batch_size for stage in stages))

    def init(self) -> TrainState:
        """Fresh parameters and optimiser state of every seed."""
        return jax.jit(self._fresh, compiler_options=RUNS_ONCE)(self.seeds)

    def start(self) -> TrainState:
        """Fresh state; the first stage's program is compiled at the same time, which halves a user's wait."""
        first = self.training.stages(self.task.length)[0]
        loaded = self._load(first, 0)
        lowered = self.lower(first, loaded)
        with ThreadPoolExecutor(1) as pool:
            compiled = pool.submit(lowered.compile)
            state = self.init()
            self._programs[_key(first, loaded)] = compiled.result()
        return state

    @cached_property
    def abstract(self) -> TrainState:
        """The shapes and dtypes of the state, nothing computed."""
        return jax.eval_shape(self._fresh, self.seeds)

    def _fresh(self, seeds: Array) -> TrainState:
        def one(seed: Array) -> TrainState:
            params = self.model.init(streams.init_key(seed))
            return TrainState(params, self.optimizer.init(self.layout.vectors(params)), jnp.zeros((), jnp.int32))

        return lax.map(one, seeds)

    def advance(self, state: TrainState, stage: Stage, steps: int) -> tuple[TrainState, Sums]:
        """Takes `steps` of one stage, at most `log_every`, for every seed in one dispatch; `state` is consumed."""
        loaded = self._load(stage, state.step[0])
        return self.program(stage, loaded)(jax.device_put(state, self._sharding), self.seeds, steps, loaded)

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
        placed = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=self._sharding), self.abstract
        )
        loaded = self._usual(stage) if loaded is None else loaded
        return self._dispatch.lower(self, placed, self.seeds, 1, loaded, length=stage.length, batch=stage.batch_size)

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
    def _sharding(self) -> NamedSharding:
        """How the state lies on the devices that work on it."""
        return split(self.mesh) if self.by_seed else copied(self.mesh)

    def one_step(self, stage: Stage) -> ClosedJaxpr:
        """The operations of a single step of one seed."""
        sums = Sums(jnp.zeros(()), jnp.zeros(()), jnp.zeros((), jnp.int32))
        step = partial(
            self._step, seed=jnp.asarray(self.seeds[0]), length=stage.length, batch=stage.batch_size, shards=1
        )
        loaded = jax.tree.map(_first, self.feed.shapes(1, 1, stage.batch_size, stage.length))
        state = jax.eval_shape(self._packed, jax.tree.map(_first, self.abstract))
        return jax.make_jaxpr(step)(jnp.zeros((), jnp.int32), state, sums, loaded)

    def microbatch(self, sequences: int, length: int) -> int:
        """How many of `sequences` of `length` tokens one device takes at a time: a divisor of them."""
        wanted = self.training.microbatch
        if wanted is None:
            wanted = max(1, MICROBATCH_TOKENS // length) if jax.default_backend() == "cpu" else sequences
        return max(size for size in range(1, min(wanted, sequences) + 1) if sequences % size == 0)

    @partial(jax.jit, static_argnames=("self", "length", "batch"), donate_argnames="state")
    def _dispatch(self, state: TrainState, seeds: Array, steps: Array, loaded: Any, *, length: int, batch: int):
        seeds_on = PartitionSpec(AXIS) if self.by_seed else PartitionSpec()
        return jax.shard_map(
            partial(self._on_device, length=length, batch=batch, shards=self.shards),
            mesh=self.mesh,
            in_specs=(seeds_on, seeds_on, PartitionSpec(), seeds_on),
            out_specs=(seeds_on, seeds_on),
            check_vma=False,
        )(state, seeds, steps, loaded)

    def _on_device(
        self, state: TrainState, seeds: Array, steps: Array, loaded: Any, *, length: int, batch: int, shards: int
    ):
        def one_seed(args: tuple[TrainState, Array, Any]) -> tuple[TrainState, Sums]:
            state, seed, loaded = args
            body = partial(self._step, seed=seed, length=length, batch=batch, shards=shards)
            start = (self._packed(state), Sums(jnp.zeros(()), jnp.zeros(()), jnp.full((), -1, jnp.int32)))
            # The number of steps is an argument, so that a short last dispatch runs the very same program.
            state, sums = lax.fori_loop(0, steps, lambda index, carry: body(index, carry[0], carry[1], loaded), start)
            return state._replace(params=self.layout.params(state.params)), sums

        # One seed after the other: on a CPU that is faster than vmap, whose larger arrays leave the cache.
        return lax.map(one_seed, (state, seeds, loaded))

    def _packed(self, state: TrainState) -> TrainState:
        """The state with its parameters as vectors."""
        return state._replace(params=self.layout.vectors(state.params))

    def _step(
        self,
        index: Array,
        state: TrainState,
        sums: Sums,
        loaded: Any,
        *,
        seed: Array,
        length: int,
        batch: int,
        shards: int,
    ) -> tuple[TrainState, Sums]:
        example = self.feed.batch(loaded, index, seed, state.step, batch, length)
        if shards > 1:
            mine = lax.axis_index(AXIS) * (batch // shards)
            example = jax.tree.map(lambda x: lax.dynamic_slice_in_dim(x, mine, batch // shards), example)
        loss, accuracy, gradient = self.gradient(self.layout.params(state.params), example)
        if shards > 1:
            loss, accuracy, gradient = lax.psum((loss, accuracy, gradient), AXIS)
        gradient = jax.tree.map(lambda leaf: leaf / batch, gradient)
        updates, optimizer_state = self.optimizer.update(gradient, state.optimizer, state.params)
        bad = ~(jnp.isfinite(loss) & jnp.isfinite(optax.tree.norm(gradient)))
        sums = Sums(
            sums.loss + loss,
            sums.accuracy + accuracy,
            jnp.where((sums.bad_step < 0) & bad, state.step, sums.bad_step),
        )
        return TrainState(optax.apply_updates(state.params, updates), optimizer_state, state.step + 1), sums

    def gradient(self, params: Params, example: Example) -> tuple[Array, Array, Vectors]:
        """Loss, accuracy and gradient, each summed over the sequences, a micro-batch at a time."""

        def summed_loss(params: Params, part: Example) -> tuple[Array, Array]:
            at, scored = scored_only(part, self.task.scored)
            logits, _ = self.model.apply(params, part.tokens, part.positions, None, at)
            scores = tally(logits, scored).scores()
            return scores["loss"].sum(), scores["accuracy"].sum()

        def add(total: Any, part: Example) -> tuple[Any, None]:
            (loss, accuracy), gradient = jax.value_and_grad(summed_loss, has_aux=True)(params, part)
            return jax.tree.map(jnp.add, total, (loss, accuracy, self.layout.vectors(gradient))), None

        sequences, length = example.tokens.shape
        size = self.microbatch(sequences, length)
        parts = jax.tree.map(lambda x: x.reshape(sequences // size, size, *x.shape[1:]), example)
        zero = (jnp.zeros(()), jnp.zeros(()), jax.tree.map(jnp.zeros_like, self.layout.vectors(params)))
        return lax.scan(add, zero, parts)[0]


def refuse_non_finite(sums: Sums, seeds: Sequence[int], last_checkpoint: int | None) -> None:
    """Raises UserError that names the step, the seed and the last good checkpoint if a loss was not finite."""
    for seed, step in zip(seeds, np.asarray(sums.bad_step).tolist(), strict=True):
        if step >= 0:
            kept = "no checkpoint was kept yet" if last_checkpoint is None else f"checkpoint {last_checkpoint} is kept"
            raise UserError(
                f"the loss or its gradient was not finite at step {step}, seed {seed}; {kept}; "
                "lower train.learning_rate or train.clip"
            )


def _key(stage: Stage, loaded: Any) -> tuple[Any, ...]:
    """What sets programs apart: the sizes, and whether positions are among what is read."""
    return stage.length, stage.batch_size, jax.tree.structure(loaded)


def _first(leaf: Any) -> jax.ShapeDtypeStruct:
    """The shape of one of those that are stacked."""
    return jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype)


def params_of(state: TrainState, index: int) -> Params:
    """The parameters of one seed."""
    return jax.tree.map(lambda leaf: leaf[index], state.params)
