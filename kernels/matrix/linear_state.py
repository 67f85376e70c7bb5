"""The recurrence of a matrix: linear attention with decay, and the delta rules, as one operation.

Shapes: b batch, t time, h heads, k width of queries and keys, v width of values. States, products and sums are float32
whatever the dtype of the inputs, or float64 for float64 inputs.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

from evalkit.checks import refuse_other
from evalkit.kernels.matrix import chunks
from evalkit.kernels.matrix.chunks import Steps
from evalkit.kernels.matrix.loop import UNROLLED, is_small, loop, loop_in_groups
from evalkit.platforms import by_platform

IMPLEMENTATIONS = ("auto", "sequential", "chunked")
CHUNK = 32  # measured, docs/kernels.md


def linear_state(
    q: Float[Array, "b t h k"],
    k: Float[Array, "b t h k"],
    v: Float[Array, "b t h v"],
    h0: Float[Array, "b h k v"] | None = None,
    *,
    log_decay: Float[Array, "b t h"] | Float[Array, "b t h k"] | None = None,
    beta: Float[Array, "b t h"] | None = None,
    write: Float[Array, "b t h"] | None = None,
    erased: tuple[Float[Array, "b t h k"], Float[Array, "b t h k"]] | None = None,
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

    With `erased = (a, b)` in place of `beta` the transition is the more general
    `S_t = S_{t-1} (Diag(α_t) − a_t b_tᵀ) + w_t v_t k_tᵀ`: the value read by `a` is subtracted along `b`, and the key
    that is written may be a third one. No step's `log_decay` may then be far below −10, as reading divides by `α`.

    Linear attention and GLA (arXiv 2312.06635) are β = 0. Mamba-2 (2405.21060) is β = 0, k = B, q = C, w = Δ. DeltaNet
    (2406.06484) is α = 1 and w = β. Gated DeltaNet (2412.06464) adds a decay of a head, and KDA (2510.26692) of a key
    channel. RWKV-7 (2503.14456) is `erased`. Several delta steps a token are as many steps of time; read `o` at the
    last of them.

    `implementation` "sequential" is one loop step per time step. "chunked" is one per `chunk` time steps, a power of
    two, with products of matrices within a chunk. "auto" is "chunked", except on a CPU where key channels decay and the
    states of a sequence have at most 3,072 numbers: there it is loops over a few sequences each. Every implementation
    unrolls up to 4 time steps.
    Raises ValueError for shapes that do not fit, an empty time axis, an unknown implementation and another chunk.

    >>> q = k = jnp.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]).reshape(1, 3, 1, 2)
    >>> v = jnp.array([5.0, 7.0, 9.0]).reshape(1, 3, 1, 1)
    >>> erased, _ = linear_state(q, k, v, beta=jnp.ones((1, 3, 1)))
    >>> added, state = linear_state(q, k, v)
    >>> erased.ravel().tolist(), added.ravel().tolist(), state.shape
    ([5.0, 7.0, 9.0], [5.0, 12.0, 9.0], (1, 1, 2, 1))
    """
    given = Given(q, k, v, h0, log_decay, beta, write, *(erased or (None, None)), reset)
    check(given, implementation, chunk)
    wide = jnp.promote_types(jnp.result_type(q, k, v), jnp.float32)
    if h0 is None:
        h0 = jnp.zeros((q.shape[0], q.shape[2], q.shape[3], v.shape[3]), wide)
    o, state = _over_time(_steps(given, wide), h0.astype(wide), implementation, chunk)
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
    read: Array | None = None
    along: Array | None = None
    reset: Array | None = None


def check(given: Given, implementation: str = "auto", chunk: int = CHUNK) -> None:
    """Raises ValueError, one line, for what `linear_state` does not take."""
    refuse_other("implementation", implementation, IMPLEMENTATIONS)
    if chunk < 2 or chunk > chunks.LONGEST or chunk & (chunk - 1):
        raise ValueError(f"chunk={chunk}; allowed: a power of two from 2 to {chunks.LONGEST}")
    if given.q.ndim != 4 or given.v.ndim != 4:
        raise ValueError(f"q has shape {given.q.shape} and v {given.v.shape}; q must be [b, t, h, k], v [b, t, h, v]")
    batch, steps, heads, keys = given.q.shape
    if not steps:
        raise ValueError(f"a recurrence needs at least one step; q has shape {given.q.shape}")
    if given.beta is not None and given.read is not None:
        raise ValueError("beta and erased are two ways to erase; give one of them")
    each = (batch, steps, heads)
    allowed = {
        "k": [(*each, keys)],
        "v": [(*each, given.v.shape[-1])],
        "h0": [(batch, heads, keys, given.v.shape[-1])],
        "log_decay": [each, (*each, keys)],
        "beta": [each],
        "write": [each],
        "read": [(*each, keys)],
        "along": [(*each, keys)],
        "reset": [(batch, steps)],
    }
    for name, shapes in allowed.items():
        value = getattr(given, name)
        if value is not None and value.shape not in shapes:
            raise ValueError(
                f"{name} has shape {value.shape}; with q {given.q.shape} it must be {' or '.join(map(str, shapes))}"
            )


def _steps(given: Given, dtype: jnp.dtype) -> Steps:
    """Returns the inputs of the recurrence: a write's weight multiplies v, and an erasure's weight its key."""
    q, k, v = given.q.astype(dtype), given.k.astype(dtype), given.v.astype(dtype)
    if given.write is not None:
        v = v * given.write.astype(dtype)[..., None]
    erase = None if given.beta is None else k * given.beta.astype(dtype)[..., None]
    decay = given.log_decay
    if decay is not None:
        decay = decay.astype(dtype).reshape(*q.shape[:3], -1)
    if given.read is None or given.along is None:
        return Steps(q, k, v, erase, decay, given.reset)
    erase = given.read.astype(dtype)
    erase = erase if decay is None else erase * jnp.exp(-decay)  # it is read once the state has decayed
    return Steps(q, k, v, erase, decay, given.reset, given.along.astype(dtype))


def _over_time(steps: Steps, h0: Array, implementation: str, chunk: int) -> tuple[Array, Array]:
    in_chunks = partial(chunks.chunked, size=chunk)
    if implementation == "sequential" or steps.q.shape[1] <= UNROLLED:
        return _looped(loop, steps, h0)
    channels = steps.log_decay is not None and steps.log_decay.shape[-1] > 1
    if implementation == "auto" and channels and is_small(h0):
        # A chunk's products are slowest for decays of channels.
        return by_platform(steps, h0, cpu=partial(_looped, loop_in_groups), default=in_chunks)
    return in_chunks(steps, h0)


def _looped(by: Callable[..., tuple[Array, Array]], steps: Steps, h0: Array) -> tuple[Array, Array]:
    return by(_step, (), steps._replace(reset=None), steps.reset, h0)


def _step(shared: tuple[()], state: Array, now: Steps, reset: Array | None) -> tuple[Array, Array]:
    """The state `[b, h, k, v]` after one step, and what is read from it."""
    if reset is not None:
        state = jnp.where(reset[:, None, None, None], 0, state)
    if now.log_decay is not None:
        state = state * jnp.exp(now.log_decay)[..., None]
    value = now.v
    if now.erase is not None and now.along is None:
        value = value - _read(state, now.erase)
    elif now.erase is not None and now.along is not None:
        state = state - now.along[..., None] * _read(state, now.erase)[..., None, :]
    state = state + now.k[..., None] * value[..., None, :]
    return state, _read(state, now.q)


def _read(state: Array, by: Array) -> Array:
    return (state * by[..., None]).sum(-2)
