"""Finds where a loss or gradient stops being finite: takes the step once more and checks it part by part."""

import logging
from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Integer

from evalkit.core.contracts import Cache, Params
from evalkit.core.errors import UserError, first_line
from evalkit.tasks import Example
from evalkit.training.checkpoints import Checkpoints
from evalkit.training.passing import copied_to
from evalkit.training.settings import Stage
from evalkit.training.state import Sums, TrainState, params_of, streams_of
from evalkit.training.trainer import Trainer

log = logging.getLogger(__name__)


@runtime_checkable
class Inspectable(Protocol):
    """Optional: a model that gives what each of its parts computes, in order."""

    def outputs(
        self, params: Params, tokens: Integer[Array, "b t"], positions: Integer[Array, "_ t"] | None
    ) -> Iterator[tuple[str, Array]]:
        """The name of each part and its output."""
        ...


class NotFinite(UserError):
    """Training ended because its loss or gradient was no number; the same run would end so again."""


def refuse_non_finite(sums: Sums, trainer: Trainer, checkpoints: Checkpoints, steps: int) -> None:
    """Raises NotFinite if the loss or gradient of a dispatch of `steps` steps is not finite.

    It names the step, the seed, the part where it began and the last good checkpoint. With `train.skip_nonfinite`,
    single steps may be lost: it raises only if all steps of a dispatch were skipped, since parameters do not recover
    then. With several learning rates this must hold for every seed: the highest rates may fail while
    lower ones go on.
    """
    bad, training = np.asarray(sums.first_nonfinite), trainer.training
    if training.skip_nonfinite:
        lost = (np.asarray(sums.nonfinite_steps) == steps) & (steps > 1)
        # Of several rates the highest may lose their seeds; the others go on.
        bad = np.where(lost.all() if len(training.rates) > 1 else lost, bad, -1)
    for index in np.flatnonzero(bad >= 0)[:1].tolist():
        step, last = int(bad[index]), checkpoints.latest
        began = _found(trainer, checkpoints, index, step)
        kept = "no checkpoint was kept yet" if last is None else f"checkpoint {last} is kept"
        raise NotFinite(
            f"the loss or its gradient was not finite at step {step}, seed {trainer.seeds[index]}: {began}; {kept}; "
            "lower train.learning_rate or train.clip in a new run"
        )


def _found(trainer: Trainer, checkpoints: Checkpoints, index: int, step: int) -> str:
    """As `_where`; what goes wrong while it is looked for is told, since step and seed are known without it."""
    try:
        return _where(trainer, checkpoints, index, step)
    except Exception as error:  # such as a device without room for what is looked at
        log.info("where a loss stopped being finite was not found", exc_info=error)
        return f"where it began was not found ({type(error).__name__}: {first_line(error)[:200]})"


def _where(trainer: Trainer, checkpoints: Checkpoints, index: int, step: int) -> str:
    """Where the first value that is not finite comes from, as the step is taken again from the last good state."""
    state, stage = _before(trainer, checkpoints, step)
    params, example = params_of(state, index, "last"), _batch(trainer, stage, index, step)
    # By one device: the kernels of a whole model are not divided over the devices of a mesh.
    one = jax.local_devices()[0]
    params, streams, example = jax.device_put((params, _streams(trainer, state, index), example), one)
    begun = _begun_from(trainer, params, streams, stage, index, step, example.tokens.shape[1])
    size = max(1, trainer.step.microbatch(*example.tokens.shape) // trainer.placement.shards)
    for start in range(0, len(example.tokens), size):
        part, before = jax.tree.map(lambda leaf, at=slice(start, start + size): leaf[at], (example, begun))
        if (part_name := first_in(trainer, params, part, before)) is not None:
            return part_name
    return "it was finite when the step was taken again, so suspect the machine"


def first_in(trainer: Trainer, params: Params, example: Example, begun: Cache | None = None) -> str | None:
    """The first part of a step on `example` that is not finite; `begun` are states that the sequences begin from."""
    for name in _not_finite(params):
        return f"the parameter {name} was so before it"
    model, alone = trainer.model, trainer.on_one_device
    used = alone.layout.cast(params)
    if isinstance(model, Inspectable):
        for name, output in model.outputs(used, example.tokens, example.positions):
            if not bool(jnp.isfinite(output).all()):
                return f"it begins in {name}"
    if not all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(begun)):
        return "it begins in the state of a stream, from which train.state_passing begins a sequence"
    loss, _, gradient = jax.jit(alone.gradient)(used, example, begun)
    if not bool(jnp.isfinite(loss)):
        return "it begins in the loss"
    # The backward pass reaches the last layer first.
    names = _not_finite(alone.layout.params(gradient))
    return f"it begins in the gradient of {names[-1]}" if names else None


def _begun_from(
    trainer: Trainer, params: Params, streams: Cache | None, stage: Stage, index: int, step: int, tokens: int
) -> Cache | None:
    """With state passing, the states from which the sequences of a seed, of so many `tokens`, begin at a step."""
    alone, passing = trainer.on_one_device, trainer.on_one_device.passing
    if passing is None:
        return None
    used = alone.layout.cast(params)
    at, size = jnp.asarray(step, jnp.int32), alone.microbatch(passing.count, tokens)
    drawn = passing.drawn(trainer.seeds[index], at, tokens, 1)
    reached = passing.advance(used, streams, drawn, size)
    return copied_to(passing.starts(reached, drawn, 1), stage.batch_size)


def _streams(trainer: Trainer, state: TrainState, index: int) -> Cache | None:
    """The states of one seed's streams; None without state passing."""
    return None if trainer.on_one_device.passing is None else streams_of(state, index)


def _before(trainer: Trainer, checkpoints: Checkpoints, step: int) -> tuple[TrainState, Stage]:
    """The state before a step, trained again from the last checkpoint, and the stage that the step is of."""
    restored = checkpoints.restore(trainer.restorable, trainer.step.layout)
    state, at = (trainer.init(), 0) if restored is None else (trainer.with_streams(restored.state), restored.step)
    for stage in trainer.training.stages(trainer.task.length):
        while at < min(step, stage.stop):
            steps = min(trainer.training.log_every, min(step, stage.stop) - at)
            state, _ = trainer.advance(state, stage, steps)
            at += steps
        if step < stage.stop:
            return state, stage
    raise ValueError(f"step={step} is of no stage")


def _batch(trainer: Trainer, stage: Stage, index: int, step: int) -> Example:
    feed, seed = trainer.feed, trainer.seeds[index]
    loaded = feed.load([int(seed)], step, 1, stage.batch_size, stage.length)
    first = jax.tree.map(lambda leaf: jnp.asarray(leaf)[0], loaded)
    zero, at = jnp.zeros((), jnp.int32), jnp.asarray(step, jnp.int32)
    return feed.batch(first, zero, jnp.asarray(seed), at, stage.batch_size, stage.length, stage.shortest)


def _not_finite(params: Params) -> Sequence[str]:
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return [
        jax.tree_util.keystr(path, simple=True, separator=".") for path, leaf in leaves if not jnp.isfinite(leaf).all()
    ]
