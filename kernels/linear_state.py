"""The recurrence of a matrix: linear attention with decay, and the delta rules, as one operation.

Shapes: b batch, t time, h heads, k width of queries and keys, v width of values. States, products and sums are float32
whatever the dtype of the inputs, or float64 for float64 inputs.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float

from evalkit.kernels import chunks
from evalkit.kernels.chunks import Steps

IMPLEMENTATIONS = ("auto", "sequential", "chunked")
CHUNK = 32  # measured, docs/kernels.md
PIECE = 32  # steps of the loop between two states that are kept for the gradient; 16 and 64 are as fast
SMALL = 3072  # numbers in the states of a loop on a CPU: from 4096 on XLA fuses less of a step; docs/kernels.md
UNROLLED = 4  # so few steps are no loop: those of a token of DeltaProduct, when it is decoded


def linear_state(
    q: Float[Array, "b t h k"],
    k: Float[Array, "b t h k"],
    v: Float[Array, "b t h v"],
    h0: Float[Array, "b h k v"] | None = None,
    *,
    log_decay: Float[Array, "b t h"] | Float[Array, "b t h k"] | None = None,
    beta: Float[Array, "b t h"] | None = None,
    write: Float[Array, "b t h"] | None = None,
    reset: Bool[Array, "b t"] | None = None,
    implementation: str = "auto",
    chunk: int = CHUNK,
) -> tuple[Float[Array, "b t h v"], Float[Array, "b h k v"]]:
    """Returns `o [b, t, h, v]` in the dtype of `v`, and the last state `[b, h, k, v]`, the transpose of `S_t` below.

        S_t = S_{t-1} Diag(α_t) (I − β_t k_t k_tᵀ) + w_t v_t k_tᵀ
        o_t = S_t q_t

    The state decays first, then `k_t` is erased from it, then `v_t` is written. `log_decay` is `log α`, at most 0, a
    head's or a key channel's; None is α = 1. It may be −inf. `beta` None is β = 0, and `write` None is w = 1. Nothing
    is scaled by `1/√k` and no key is normalised: with β > 0 the state stays bounded where `β |k|²` is at most 2.
    `h0` is the state before the first step (zero if None). Where `reset` is True the state before that step counts as
    zero. A step whose `log_decay`, `beta` and `write` are 0 leaves the state as it is.

    Linear attention and GLA (arXiv 2312.06635) are β = 0. Mamba-2 (2405.21060) is β = 0, k = B, q = C, w = Δ. DeltaNet
    (2406.06484) is α = 1 and w = β. Gated DeltaNet (2412.06464) adds a decay of a head, and KDA (2510.26692) of a key
    channel. Several delta steps a token are as many steps of time, of which one reads `o` at the last.

    `implementation` "sequential" is one loop step per time step. "chunked" is one per `chunk` time steps, a power of
    two, with products of matrices within a chunk. "auto" is "chunked", except on a CPU where key channels decay and the
    states of a sequence have at most 3,072 numbers: there it is loops of a few sequences each. Up to 4 time steps are
    no loop, by any of them.
    Raises ValueError for shapes that do not fit, an empty time axis, an unknown implementation and another chunk.

    >>> q = k = jnp.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]).reshape(1, 3, 1, 2)
    >>> v = jnp.array([5.0, 7.0, 9.0]).reshape(1, 3, 1, 1)
    >>> erased, _ = linear_state(q, k, v, beta=jnp.ones((1, 3, 1)))
    >>> added, state = linear_state(q, k, v)
    >>> erased.ravel().tolist(), added.ravel().tolist(), state.shape
    ([5.0, 7.0, 9.0], [5.0, 12.0, 9.0], (1, 1, 2, 1))
    """
    given = Given(q, k, v, h0, log_decay, beta, write, reset)
    check(given, implementation, chunk)
    wide = jnp.promote_types(jnp.result_type(q, k, v), jnp.float32)
    if h0 is None:
        h0 = jnp.zeros((q.shape[0], q.shape[2], q.shape[3], v.shape[3]), wide)
    steps = _steps(given, wide)
    if q.shape[1] <= UNROLLED:
        o, state = _unrolled(steps, h0.astype(wide))
    else:
        o, state = _over_time(steps, h0.astype(wide), implementation, chunk)
    return o.astype(v.dtype), state


class Given(NamedTuple):
    """The arrays of a call, in its order."""

    q: Array
    k: Array
    v: Array
    h0: Array | None = None
    log_decay: Array | None = None
    beta: Array | None = None
    write: Array | None = None
    reset: Array | None = None


def check(given: Given, implementation: str = "auto", chunk: int = CHUNK) -> None:
    """Raises ValueError, one line, for what `linear_state` does not take."""
    if implementation not in IMPLEMENTATIONS:
        raise ValueError(f"implementation={implementation!r}; allowed: {', '.join(IMPLEMENTATIONS)}")
    if chunk < 2 or chunk > chunks.LONGEST or chunk & (chunk - 1):
        raise ValueError(f"chunk={chunk}; allowed: a power of two from 2 to {chunks.LONGEST}")
    if given.q.ndim != 4 or given.v.ndim != 4:
        raise ValueError(f"q has shape {given.q.shape} and v {given.v.shape}; q must be [b, t, h, k], v [b, t, h, v]")
    batch, steps, heads, keys = given.q.shape
    if not steps:
        raise ValueError(f"a recurrence needs at least one step; q has shape {given.q.shape}")
    each = (batch, steps, heads)
    allowed = {
        "k": [(*each, keys)],
        "v": [(*each, given.v.shape[-1])],
        "h0": [(batch, heads, keys, given.v.shape[-1])],
        "log_decay": [each, (*each, keys)],
        "beta": [each],
        "write": [each],
        "reset": [(batch, steps)],
    }
    for name, shapes in allowed.items():
        value = getattr(given, name)
        if value is not None and value.shape not in shapes:
            raise ValueError(f"{name} has shape {value.shape}; with q {given.q.shape} it must be {_or(shapes)}")


def _or(shapes: list[tuple[int, ...]]) -> str:
    return " or ".join(map(str, shapes))


def _steps(given: Given, dtype: jnp.dtype) -> Steps:
    """What the recurrence needs of a call: the weight of a write goes into v, and that of an erasure into its key."""
    q, k, v = given.q.astype(dtype), given.k.astype(dtype), given.v.astype(dtype)
    if given.write is not None:
        v = v * given.write.astype(dtype)[..., None]
    erase = None if given.beta is None else k * given.beta.astype(dtype)[..., None]
    decay = given.log_decay
    if decay is not None:
        decay = decay.astype(dtype).reshape(*q.shape[:3], -1)
    return Steps(q, k, v, erase, decay, given.reset)


def _over_time(steps: Steps, h0: Array, implementation: str, chunk: int) -> tuple[Array, Array]:
    in_chunks = partial(chunks.chunked, size=chunk)
    if implementation == "sequential":
        return _sequential(steps, h0)
    channels = steps.log_decay is not None and steps.log_decay.shape[-1] > 1
    if implementation == "auto" and channels and h0[0].size <= SMALL:
        # A chunk's products are slowest for decays of channels.
        return lax.platform_dependent(steps, h0, cpu=_in_groups, default=in_chunks)
    return in_chunks(steps, h0)


def _in_groups(steps: Steps, h0: Array) -> tuple[Array, Array]:
    """A loop over groups of sequences, and in each over time; a last group is filled with sequences of zeros."""
    batch = len(h0)
    groups = -(-batch // max(1, SMALL // h0[0].size))
    if groups == 1:
        return _sequential(steps, h0)

    def cut(one: Array) -> Array:
        one = jnp.pad(one, [(0, -batch % groups)] + [(0, 0)] * (one.ndim - 1))
        return one.reshape(groups, -1, *one.shape[1:])

    found = lax.map(lambda group: _sequential(*group), jax.tree.map(cut, (steps, h0)))
    o, last = jax.tree.map(lambda one: one.reshape(-1, *one.shape[2:])[:batch], found)
    return o, last


def _unrolled(steps: Steps, state: Array) -> tuple[Array, Array]:
    read = []
    for t in range(steps.q.shape[1]):
        state, o = _step(state, jax.tree.map(lambda one, t=t: one[:, t], steps))
        read.append(o)
    return jnp.stack(read, axis=1), state


def _sequential(steps: Steps, h0: Array) -> tuple[Array, Array]:
    """A loop over pieces of time, and in each a loop over its steps; a last piece is filled with steps of zeros."""
    length = steps.q.shape[1]
    size = min(PIECE, length)

    def cut(one: Array) -> Array:
        one = jnp.moveaxis(jnp.pad(one, [(0, 0), (0, -length % size)] + [(0, 0)] * (one.ndim - 2)), 1, 0)
        return one.reshape(-1, size, *one.shape[1:])

    o, state = _looped(jax.tree.map(cut, steps), h0)
    return jnp.moveaxis(o.reshape(-1, *o.shape[2:])[:length], 0, 1), state


@jax.custom_vjp
def _looped(pieces: Steps, h0: Array) -> tuple[Array, Array]:
    """Returns `o` and the last state; `pieces` and `o` are `[pieces, steps, b, h, …]`."""
    return _looped_forward(pieces, h0)[0]


def _looped_forward(pieces: Steps, h0: Array) -> tuple[tuple[Array, Array], tuple[Steps, Array]]:
    def piece(state: Array, steps: Steps) -> tuple[Array, tuple[Array, Array]]:
        after, o = lax.scan(_step, state, steps)
        return after, (o, state)

    last, (o, before) = lax.scan(piece, h0, pieces)
    return (o, last), (pieces, before)


def _looped_backward(kept: tuple[Steps, Array], given: tuple[Array, Array]) -> tuple[Steps, Array]:
    """The gradient of each step, from the states that are computed again, piece by piece.

    JAX's own gradient of a loop writes every state, and more of its size, to memory, and reads it again.
    """

    def piece(d_state: Array, of: tuple[Steps, Array, Array]) -> tuple[Array, Steps]:
        steps, before, d_o = of
        _, states = lax.scan(lambda state, now: (_step(state, now)[0], state), before, steps)
        return lax.scan(_step_backward, d_state, (states, steps, d_o), reverse=True)

    (pieces, before), (d_o, d_last) = kept, given
    d_h0, d_pieces = lax.scan(piece, d_last, (pieces, before, d_o), reverse=True)
    return d_pieces, d_h0


def _step_backward(d_state: Array, of: tuple[Array, Steps, Array]) -> tuple[Array, Steps]:
    state, now, d_o = of

    def step(state: Array, floats: Steps) -> tuple[Array, Array]:
        return _step(state, floats._replace(reset=now.reset))

    _, pull = jax.vjp(step, state, now._replace(reset=None))
    return pull((d_state, d_o))


_looped.defvjp(_looped_forward, _looped_backward)


def _step(state: Array, now: Steps) -> tuple[Array, Array]:
    """The state `[b, h, k, v]` after one step, and what is read from it."""
    if now.reset is not None:
        state = jnp.where(now.reset[:, None, None, None], 0, state)
    if now.log_decay is not None:
        state = state * jnp.exp(now.log_decay)[..., None]
    value = now.v
    if now.erase is not None:
        value = value - _read(state, now.erase)
    state = state + now.k[..., None] * value[..., None, :]
    return state, _read(state, now.q)


def _read(state: Array, by: Array) -> Array:
    return (state * by[..., None]).sum(-2)
