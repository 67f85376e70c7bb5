"""A loop over time whose gradient computes states again, instead of keeping each of them.

Shapes: b batch, t time. A state is `[b, …]`, what is read at each step `[b, t, …]`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

PIECE = 32  # steps between two states that are kept for the gradient; 16 and 64 are as fast
SMALL = 3072  # numbers in the states of a loop on a CPU: from 4096 on XLA fuses less of a step; docs/kernels.md
UNROLLED = 4  # up to so many steps are unrolled, such as those of one token of DeltaProduct in decoding


Step = Callable[[Any, Array, Any, Array | None], tuple[Array, Array]]
"""One step of a recurrence, `step(shared, state, now, reset)`: the state after it, and what is read from it.

`shared` are arrays that all steps read, `now` those of this step, `[b, …]`. `reset [b]` is True where the state before
counts as zero; None: nowhere. A step of zeros leaves the state as it is.
"""


def is_small(state: Array) -> bool:
    """Whether the states of one sequence are so small that a loop on a CPU is at its best."""
    return state[0].size <= SMALL


def loop(step: Step, shared: Any, steps: Any, reset: Array | None, state: Array) -> tuple[Array, Array]:
    """Returns what is read at each step `[b, t, …]`, and the last state."""
    length = jax.tree.leaves(steps)[0].shape[1]
    if length <= UNROLLED:
        return _unrolled(step, shared, steps, reset, state)
    size = min(PIECE, length)

    def cut(one: Array) -> Array:
        return in_pieces(one, 1, size).swapaxes(1, 2)

    read, last = _looped(step, shared, jax.tree.map(cut, steps), jax.tree.map(cut, reset), state)
    return jnp.moveaxis(read.reshape(-1, *read.shape[2:])[:length], 0, 1), last


def loop_in_groups(step: Step, shared: Any, steps: Any, reset: Array | None, state: Array) -> tuple[Array, Array]:
    """The same for groups of sequences, one after the other, so that a group's states are small; for a CPU.

    The last group is padded with sequences of zeros. Steps few enough to be unrolled are taken for the whole batch.
    """
    batch, length = jax.tree.leaves(steps)[0].shape[:2]
    groups = -(-batch // max(1, SMALL // state[0].size))
    if groups == 1 or length <= UNROLLED:
        return loop(step, shared, steps, reset, state)
    cut = partial(in_pieces, axis=0, size=-(-batch // groups))
    by_group = lax.map(lambda group: loop(step, shared, *group), jax.tree.map(cut, (steps, reset, state)))
    read, last = jax.tree.map(lambda one: one.reshape(-1, *one.shape[2:])[:batch], by_group)
    return read, last


def in_pieces(one: Array, axis: int, size: int) -> Array:
    """Pieces of `size` along `axis`, on a new first axis; the last one is filled with zeros."""
    widths = [(0, 0)] * one.ndim
    widths[axis] = (0, -one.shape[axis] % size)
    padded = jnp.pad(one, widths)
    return jnp.moveaxis(padded.reshape(*one.shape[:axis], -1, size, *one.shape[axis + 1 :]), axis, 0)


def _unrolled(step: Step, shared: Any, steps: Any, reset: Array | None, state: Array) -> tuple[Array, Array]:
    read = []
    for t in range(jax.tree.leaves(steps)[0].shape[1]):
        now, begun = jax.tree.map(lambda one, t=t: one[:, t], (steps, reset))
        state, out = step(shared, state, now, begun)
        read.append(out)
    return jnp.stack(read, axis=1), state


def _looped_primal(step: Step, shared: Any, pieces: Any, resets: Array | None, state: Array) -> tuple[Array, Array]:
    """Returns what is read, and the last state; arrays other than states and `shared` are `[pieces, steps, b, …]`."""
    return _looped_forward(step, shared, pieces, resets, state)[0]


_looped = jax.custom_vjp(_looped_primal, nondiff_argnums=(0,))


def _looped_forward(step: Step, shared: Any, pieces: Any, resets: Array | None, state: Array):
    def piece(state: Array, of: tuple[Any, Array | None]) -> tuple[Array, tuple[Array, Array]]:
        after, read = lax.scan(lambda state, at: step(shared, state, *at), state, of)
        return after, (read, state)

    last, (read, before) = lax.scan(piece, state, (pieces, resets))
    return (read, last), (shared, pieces, resets, before)


def _looped_backward(step: Step, kept: tuple[Any, Any, Array | None, Array], cotangents: tuple[Array, Array]):
    """The gradient of each step, from the states that are computed again, piece by piece.

    JAX's own gradient of a loop writes every state, and more of its size, to memory, and reads it again.
    """
    shared, pieces, resets, before = kept
    d_read, d_last = cotangents

    def one(carry: tuple[Array, Any], of: tuple[Array, Any, Array | None, Array]) -> tuple[tuple[Array, Any], Any]:
        (d_state, d_shared), (state, now, reset, d_now_read) = carry, of
        _, pull = jax.vjp(lambda shared, state, now: step(shared, state, now, reset), shared, state, now)
        more, d_before, d_now = pull((d_state, d_now_read))
        return (d_before, jax.tree.map(jnp.add, d_shared, more)), d_now

    def piece(carry: tuple[Array, Any], of: tuple[Any, Array | None, Array, Array]) -> tuple[tuple[Array, Any], Any]:
        steps, reset, before, d_piece = of
        _, states = lax.scan(lambda state, at: (step(shared, state, *at)[0], state), before, (steps, reset))
        return lax.scan(one, carry, (states, steps, reset, d_piece), reverse=True)

    none = jax.tree.map(jnp.zeros_like, shared)
    (d_state, d_shared), d_pieces = lax.scan(piece, (d_last, none), (pieces, resets, before, d_read), reverse=True)
    return d_shared, d_pieces, None, d_state


_looped.defvjp(_looped_forward, _looped_backward)
