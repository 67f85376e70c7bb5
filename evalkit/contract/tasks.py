"""What a task promises: its numbers, its examples, and that `solve` and `sample` say the same."""

from functools import cached_property
from numbers import Integral, Real
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evalkit.contract.promises import Promise, promised
from evalkit.core.contracts import Cuts, Ordinary, Recalls, Task
from evalkit.core.streams import train_batch
from evalkit.numerics import random_key
from evalkit.parallel.devices import RUNS_ONCE
from evalkit.tasks import Example

EXAMPLES = 8


class TaskUnderCheck:
    """A task at one length, by default that of its training; what several promises need is computed once."""

    def __init__(self, task: Task, length: int | None = None):
        self.task, self.length = task, task.length if length is None else length

    def shapes(self, length: int) -> Any:
        """What `sample` returns at `length`, as shapes and dtypes; nothing is compiled."""
        return jax.eval_shape(lambda key: self.task.sample(key, length), random_key(0))

    @cached_property
    def batch(self) -> Example:
        """The first training examples of seed 0."""
        draw = jax.jit(lambda step: train_batch(self.task, 0, step, EXAMPLES, self.length), compiler_options=RUNS_ONCE)
        return jax.device_get(draw(0))

    def program(self) -> tuple[str, list[np.ndarray]]:
        """What `sample` does, traced anew: its operations as text, and its constants."""
        traced = jax.make_jaxpr(lambda key: self.task.sample(key, self.length))(random_key(0))
        return str(traced.jaxpr), [np.asarray(constant) for constant in traced.consts]


@promised("numbers", "vocab_size, length, answer_length, version and scored are whole numbers, and the task has a hash")
def _numbers(subject: TaskUnderCheck) -> str | None:
    task = subject.task
    try:
        hash(task)
    except TypeError as error:
        return f"it cannot be hashed ({error}); make it a frozen dataclass, with tuples for lists and arrays"
    for name, least in (("vocab_size", 2), ("length", 1), ("answer_length", 0), ("version", 0)):
        value = getattr(task, name)
        if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
            return f"{name} is {value!r}; allowed: a whole number from {least}"
    scored = task.scored
    if scored is not None and (not isinstance(scored, Integral) or not 1 <= scored <= task.length + task.answer_length):
        return (
            f"scored is {scored!r}; allowed: 1 to length + answer_length = {task.length + task.answer_length}, or None"
        )
    return None


@promised("chance", "chance is the accuracy of a guess, a number from 0 to 1")
def _chance(subject: TaskUnderCheck) -> str | None:
    chance = subject.task.chance
    number = isinstance(chance, Real) and not isinstance(chance, bool)
    return None if number and 0 <= chance <= 1 else f"it is {chance!r}"


@promised("example", "sample(key, length) gives an Example of length + answer_length: int32, int32 and bool")
def _example(subject: TaskUnderCheck) -> str | None:
    task = subject.task
    for length in (task.length, 2 * task.length):
        try:
            example = subject.shapes(length)
        except ValueError:
            if length == task.length:
                raise
            continue  # a task may refuse a length
        if not isinstance(example, Example):
            return f"it gives {type(example).__name__}"
        wanted = (length + task.answer_length,)
        for name, kind in (("tokens", np.int32), ("targets", np.int32), ("mask", np.bool_)):
            field = getattr(example, name)
            if field.shape != wanted or field.dtype != kind:
                return f"at length {length} {name} are {field.dtype} {field.shape}, not {np.dtype(kind)} {wanted}"
    return None


@promised("vocabulary", "tokens, and targets where they are scored, are 0 to vocab_size - 1")
def _vocabulary(subject: TaskUnderCheck) -> str | None:
    batch, size = subject.batch, subject.task.vocab_size
    scored = np.asarray(batch.targets)[np.asarray(batch.mask)]
    for name, values in (("tokens", np.asarray(batch.tokens)), ("targets", scored)):
        if values.size and (values.min() < 0 or values.max() >= size):
            return f"with vocab_size={size} {name} are {values.min()} to {values.max()}"
    return None


@promised("scored", "at most as many positions are scored as `scored` says, and at least one")
def _scored(subject: TaskUnderCheck) -> str | None:
    counts = np.asarray(subject.batch.mask).sum(axis=1)
    wanted = subject.task.scored
    if not counts.all():
        return "an example has none, so that there is no loss"
    if wanted is not None and (counts > wanted).any():
        return f"scored={wanted} and an example has {counts.max()}"
    return None


@promised("keys", "the same key gives the same example, and other keys others")
def _keys(subject: TaskUnderCheck) -> str | None:
    (first, constants), (again, others) = subject.program(), subject.program()
    same = first == again and len(constants) == len(others)
    if not same or not all(np.array_equal(a, b) for a, b in zip(constants, others, strict=True)):
        return "two calls of sample do different things; draw from the key alone"
    rows = {np.asarray(row).tobytes() for row in subject.batch.tokens}
    rows |= {np.asarray(row).tobytes() for row in subject.batch.targets}
    return f"{EXAMPLES} keys give one example" if len(rows) <= 2 else None


@promised("ordinary", "ordinary(key, length), where there is one, gives length tokens of the vocabulary")
def _ordinary(subject: TaskUnderCheck) -> str | None:
    task = subject.task
    if not isinstance(task, Ordinary):
        return None
    shape = jax.eval_shape(lambda key: task.ordinary(key, subject.length), random_key(0))
    if shape.shape != (subject.length,) or shape.dtype != np.int32:
        return f"it gives {shape.dtype} {shape.shape}, not int32 {(subject.length,)}"
    draw = jax.jit(lambda key: task.ordinary(key, subject.length), compiler_options=RUNS_ONCE)
    tokens = np.asarray(draw(random_key(0)))
    outside = tokens.min() < 0 or tokens.max() >= subject.task.vocab_size
    return f"they are {tokens.min()} to {tokens.max()}" if outside else None


@promised("cut", "cut(example, length), where there is one, gives what solve says of the beginning")
def _cut(subject: TaskUnderCheck) -> str | None:
    task, length = subject.task, subject.length
    if not isinstance(task, Cuts):
        return None
    cut = jax.jit(jax.vmap(task.cut, in_axes=(0, None)), compiler_options=RUNS_ONCE)
    for shorter in dict.fromkeys((max(1, length // 3), length - 1)):
        end = shorter + task.answer_length
        for tokens, wanted, scored in zip(*jax.device_get(cut(subject.batch, np.int32(shorter)))[:3], strict=True):
            if scored[end:].any():
                return f"at length {shorter} it scores position {end + int(np.argmax(scored[end:]))}"
            targets, mask = task.solve(np.array(tokens[:end]))
            if not np.array_equal(np.asarray(mask, bool), scored[:end]):
                return f"at length {shorter} solve scores other positions"
            if not np.array_equal(np.asarray(targets)[scored[:end]], wanted[:end][scored[:end]]):
                return f"at length {shorter} solve gives other targets"
    return None


@promised("plant", "plant(key, length, place, answer), where there is one, gives a context with the fact at its place")
def _plant(subject: TaskUnderCheck) -> str | None:
    task, length = subject.task, subject.length
    if not isinstance(task, Recalls):
        return None
    made = jax.jit(
        lambda answer: task.plant(random_key(0), length, jnp.int32(length // 2), answer), compiler_options=RUNS_ONCE
    )
    first, other = (np.asarray(made(np.int32(answer))) for answer in (0, task.answers - 1))
    if first.shape != (length,) or first.dtype != np.int32:
        return f"it gives {first.dtype} {first.shape}, not int32 {(length,)}"
    if min(first.min(), other.min()) < 0 or max(first.max(), other.max()) >= task.vocab_size:
        return f"its tokens are {min(first.min(), other.min())} to {max(first.max(), other.max())}"
    return "two answers give one context" if np.array_equal(first, other) else None


@promised("solve", "solve(tokens) gives the targets and the mask of sample")
def _solve(subject: TaskUnderCheck) -> str | None:
    batch = subject.batch
    for tokens, wanted, scored in zip(batch.tokens, batch.targets, batch.mask, strict=True):
        own_copy = np.array(tokens)
        targets, mask = subject.task.solve(own_copy)
        if not np.array_equal(own_copy, tokens):
            return "solve changes the tokens that it is given"
        if np.shape(targets) != wanted.shape or np.shape(mask) != wanted.shape:
            return f"for tokens {wanted.shape} they are {np.shape(targets)} and {np.shape(mask)}"
        if not np.array_equal(np.asarray(mask, bool), scored):
            place = np.flatnonzero(np.asarray(mask, bool) != scored)[0]
            return f"one of the two scores position {place} and the other does not"
        wrong = np.flatnonzero((np.asarray(targets) != wanted) & scored)
        if len(wrong):
            at = wrong[0]
            return f"at position {at} solve says {targets[at]} and sample {wanted[at]}"
    return None


@promised("describe", "describe(tokens) is text")
def _describe(subject: TaskUnderCheck) -> str | None:
    shown = subject.task.describe(np.asarray(subject.batch.tokens[0]))
    return None if isinstance(shown, str) and shown else f"it is {shown!r}"


PROMISES_OF_TASKS: tuple[tuple[Promise, ...], ...] = (
    (_numbers, _chance),
    (_example,),
    (_vocabulary, _scored, _keys),
    (_ordinary, _solve, _describe),
    (_cut, _plant),
)
"""In groups: a group is checked only if all promises of those before it are kept."""
