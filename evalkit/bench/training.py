"""`bench train`: what a training step takes, how much of the machine that is, and where the time goes."""

import resource
import time
from collections.abc import Callable, Iterator
from functools import partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr
from jax.sharding import PartitionSpec

from evalkit.bench.stopwatch import Quartiles, quartiles, rates, times
from evalkit.core.errors import UserError
from evalkit.numerics import random_key
from evalkit.parallel.devices import AXIS
from evalkit.training.settings import Stage
from evalkit.training.state import TrainState
from evalkit.training.trainer import Trainer


def measure(trainer: Trainer, repeats: int, steps: int) -> dict[str, Any]:
    """A step of the last stage, and its parts alone."""
    stage, alone = trainer.training.stages(trainer.task.length)[-1], len(trainer.seeds) == 1
    return measure_step(trainer, repeats, steps) | {"parts": parts(trainer, stage, repeats) if alone else []}


def measure_step(trainer: Trainer, repeats: int, steps: int) -> dict[str, Any]:
    """Compiles and times `repeats` dispatches of `steps` steps of the last stage, beside what the machine can do."""
    if trainer.placement.sizes is not None:
        raise UserError("bench train takes a step and its parts apart on mesh=auto alone; leave mesh out")
    stage = trainer.training.stages(trainer.task.length)[-1]
    began = time.perf_counter()
    trainer.program(stage)
    compile_s = time.perf_counter() - began
    step, machine = time_step(trainer, repeats, steps), rates(repeats)
    counted = len(trainer.seeds) * counted_bytes(trainer, stage)
    return {
        "compile_s": compile_s,
        **step,
        "machine_product_gflops_per_s": machine["product"] / 1e9,
        "counted_gb_per_step": counted / 1e9,
        "counted_gb_per_s": counted / step["ms_per_step"] / 1e6,
        "machine_copy_gb_per_s": machine["copy"] / 1e9,
    }


def time_step(trainer: Trainer, repeats: int, steps: int) -> dict[str, Any]:
    """Times `repeats` dispatches of `steps` steps of the last stage, and counts their products and memory."""
    stage = trainer.training.stages(trainer.task.length)[-1]
    memory = trainer.program(stage).memory_analysis()
    assert memory is not None, "this backend reports no memory"
    step = _step_time(trainer, trainer.init(), stage, steps, repeats)
    length, seeds = stage.length + trainer.task.answer_length, len(trainer.seeds)
    flops = seeds * product_flops(trainer.one_step(stage))
    return {
        "batch_size": stage.batch_size,
        "length": length,
        "seeds": seeds,
        "ms_per_step": step.median * 1e3,
        "ms_per_step_quartiles": [step.low * 1e3, step.high * 1e3],
        "tokens_per_s": stage.batch_size * length * seeds / step.median,
        "product_gflop_per_step": flops / 1e9,
        "product_gflops_per_s": flops / step.median / 1e9,
        "peak_bytes": memory.temp_size_in_bytes + memory.argument_size_in_bytes,
        "peak_process_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def _step_time(trainer: Trainer, state: TrainState, stage: Stage, steps: int, repeats: int) -> Quartiles:
    """Seconds a step, all seeds together."""

    def dispatch() -> Any:
        nonlocal state
        state, sums = trainer.advance(state, stage, steps)
        return sums

    taken = times({"step": dispatch}, repeats)["step"]
    return quartiles([seconds / steps for seconds in taken])


def counted_bytes(trainer: Trainer, stage: Stage) -> float:
    """Bytes that XLA counts as read and written by the gradients of one step, whichever cache they come from.

    A micro-batch is counted and multiplied; a loop in it (the recurrence in time) counts as one of its steps.
    """
    sequences, tokens = stage.batch_size // trainer.placement.shards, stage.length + trainer.task.answer_length
    size = trainer.step.microbatch(sequences, tokens)
    params = jax.eval_shape(trainer.model.init, random_key(0))
    costs = jax.jit(trainer.step.gradient).lower(params, trainer.example(size, stage.length)).compile().cost_analysis()
    assert costs is not None, "this backend does not count bytes"
    return costs["bytes accessed"] * stage.batch_size / size


def parts(trainer: Trainer, stage: Stage, repeats: int) -> list[dict[str, Any]]:
    """Name, count and milliseconds of each kind of piece, forward and backward, timed alone and in turn.

    Each is run as a step runs it: the batch split over the devices, a micro-batch at a time. All are taken at every
    position; a step leaves out what follows the last mixer where nothing is scored.
    """
    length = stage.length + trainer.task.answer_length
    pieces = trainer.model.parts(trainer.model.init(random_key(0)), stage.batch_size, length)
    functions: dict[str, Callable[[], Any]] = {
        **{piece.name: partial(_as_in_a_step(trainer, piece.function), *piece.arguments) for piece in pieces},
        "data": partial(_data(trainer, stage), 0, 0),
        "optimiser": _update(trainer),
    }
    counts = {name: 1 for name in functions} | {piece.name: piece.times for piece in pieces}
    rows = [
        {"name": name, "times": counts[name], "ms": quartiles(seconds).median * 1e3 * counts[name]}
        for name, seconds in times(functions, repeats).items()
    ]
    return sorted(rows, key=lambda row: -row["ms"])


def _as_in_a_step(trainer: Trainer, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function's gradient by its parameters, summed over micro-batches, and by its arrays `[b, ...]`.

    The cotangent is the function's own value.
    """

    def on_device(params: Any, *arrays: Any) -> Any:
        def one(total: Any, arrays: tuple[Any, ...]) -> tuple[Any, Any]:
            floats = [array for array in arrays if jnp.issubdtype(array.dtype, jnp.floating)]
            value, pull = jax.vjp(lambda params, *floats: function(params, *(floats or arrays)), params, *floats)
            gradient, *rest = pull(value)
            return jax.tree.map(jnp.add, total, gradient), rest

        sequences, length = arrays[0].shape[:2]
        size = trainer.step.microbatch(sequences, length)
        split = jax.tree.map(lambda x: x.reshape(sequences // size, size, *x.shape[1:]), arrays)
        return lax.scan(one, jax.tree.map(jnp.zeros_like, params), split)

    rows = PartitionSpec(AXIS)
    return jax.jit(
        lambda params, *arrays: jax.shard_map(
            on_device,
            mesh=trainer.placement.mesh,
            in_specs=(PartitionSpec(), *(rows for _ in arrays)),
            out_specs=(PartitionSpec(), PartitionSpec(None, AXIS)),
            check_vma=False,
        )(params, *arrays)
    )


def _data(trainer: Trainer, stage: Stage) -> Callable[..., Any]:
    sizes = stage.batch_size, stage.length

    @jax.jit
    def batch(loaded: Any, seed: Any, step: Any) -> Any:
        loaded = jax.tree.map(lambda leaf: leaf[0], loaded)
        return trainer.feed.batch(loaded, jnp.zeros((), jnp.int32), seed, step, *sizes, stage.shortest)[:3]

    return lambda seed, step: batch(trainer.feed.load([seed], step, 1, *sizes), seed, step)


def _update(trainer: Trainer) -> Callable[[], Any]:
    params = trainer.step.layout.vectors(trainer.model.init(random_key(0)))
    gradient = jax.tree.map(jnp.ones_like, params)
    update = jax.jit(trainer.step.optimizer.update)
    return partial(update, gradient, trainer.step.optimizer.init(params), params)


def product_flops(closed: ClosedJaxpr) -> int:
    """Floating-point operations of all matrix products in it, 2 per multiply-add; elementwise work is not counted.

    A `scan` counts each of its steps, a loop of unknown length counts one, and a branch counts its most expensive arm.
    """
    return _flops(closed.jaxpr)


def _flops(jaxpr: Jaxpr) -> int:
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            total += _product(equation)
            continue
        inner = [_flops(sub) for sub in _inner(equation.params)]
        if equation.primitive.name == "scan":
            total += equation.params["length"] * sum(inner)
        elif equation.primitive.name == "cond":
            total += max(inner, default=0)
        else:
            total += sum(inner)
    return total


def _product(equation: Any) -> int:
    (contracted, _), _ = equation.params["dimension_numbers"]
    left = equation.invars[0].aval.shape
    return 2 * prod(equation.outvars[0].aval.shape) * prod(left[axis] for axis in contracted)


def _inner(params: dict[str, Any]) -> Iterator[Jaxpr]:
    """The jaxprs that an equation calls; the rules of a custom derivative are functions and are not among them."""
    for value in jax.tree.leaves(list(params.values()), is_leaf=lambda x: isinstance(x, Jaxpr | ClosedJaxpr)):
        if isinstance(value, ClosedJaxpr):
            yield value.jaxpr
        elif isinstance(value, Jaxpr):
            yield value
