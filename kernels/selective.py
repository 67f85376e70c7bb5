"""The selective recurrence of Mamba (Gu and Dao 2023, arXiv 2312.00752, eq. 2 and algorithm 2), with its gradient.

Shapes: b batch, t time, d channels, n numbers of state of each channel. Products and sums are float32 whatever the
dtype of the inputs, or float64 for float64 inputs.
"""

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float

from evalkit.checks import refuse_other
from evalkit.kernels.dispatch import check_shapes
from evalkit.kernels.matrix.loop import loop_in_groups
from evalkit.kernels.scan import linear_scan
from evalkit.kernels.sharded import is_split, split_scan
from evalkit.platforms import by_platform

IMPLEMENTATIONS = ("auto", "loop", "scan")


def selective_scan(
    u: Float[Array, "b t d"],
    delta: Float[Array, "b t d"],
    rate: Float[Array, "d n"],
    into: Float[Array, "b t n"],
    out: Float[Array, "b t n"],
    h0: Float[Array, "b d n"] | None = None,
    *,
    reset: Bool[Array, "b t"] | None = None,
    implementation: str = "auto",
) -> tuple[Float[Array, "b t d"], Float[Array, "b d n"]]:
    """Returns `y [b, t, d]` in the dtype of `u`, and the last state `[b, d, n]`.

        h_t = exp(−delta_t rate) h_{t-1} + delta_t u_t into_t
        y_t = out_t · h_t

    `rate` is `−A`, above 0. `h0` is the state before the first step (zero if None). Where `reset` is True the state
    before that step counts as zero. A step whose `delta` is 0 leaves the state as it is.

    `implementation` "loop" computes decays, inputs and outputs within a loop over time, so no array of `b t d n`
    numbers is ever in memory. "scan" makes such arrays and gives them to `linear_scan`, which is parallel in time.
    "auto" is "loop" on a CPU and "scan" elsewhere. Where time is split over devices, all of them use `split_scan`.
    Raises ValueError for another implementation, an empty time axis, and other shapes: nothing is broadcast.

    >>> one = jnp.ones((1, 3, 1))
    >>> y, last = selective_scan(one, one, jnp.log(jnp.full((1, 1), 2.0)), one, one)
    >>> y.ravel().tolist(), last.shape
    ([1.0, 1.5, 1.75], (1, 1, 1))
    """
    refuse_other("implementation", implementation, IMPLEMENTATIONS)
    if u.ndim != 3:
        raise ValueError(f"u has shape {u.shape}; it must be [batch, time, channels]")
    if not u.shape[1]:
        raise ValueError(f"a recurrence needs at least one step; u has shape {u.shape}")
    states = rate.shape[-1]
    of_states = (*u.shape[:2], states)
    in_time = {"delta": (delta, u.shape), "into": (into, of_states), "out": (out, of_states)}
    state = (u.shape[0], u.shape[2], states)
    check_shapes(in_time | {"rate": (rate, state[1:]), "h0": (h0, state), "reset": (reset, u.shape[:2])}, "u", u)
    wide = jnp.promote_types(jnp.result_type(u, delta, into, out), jnp.float32)
    if h0 is None:
        h0 = jnp.zeros(state, wide)
    dtype = u.dtype
    u, delta, rate, into, out, h0 = (array.astype(wide) for array in (u, delta, rate, into, out, h0))
    arrays = u, delta, rate, into, out, h0, reset
    if implementation == "scan" or is_split():
        y, last = _by_scan(*arrays)
    elif implementation == "loop":
        y, last = _by_loop(*arrays)
    else:
        y, last = by_platform(*arrays, cpu=_by_loop, default=_by_scan)
    return y.astype(dtype), last


def entering(u: Float[Array, "b t d"], delta: Float[Array, "b t d"], into: Float[Array, "b t n"]) -> Array:
    """Returns what is added to each state, `delta u into`, as `[b, t, d · n]`."""
    return ((delta * u)[..., None] * into[:, :, None]).reshape(*u.shape[:2], -1)


def _by_scan(
    u: Array, delta: Array, rate: Array, into: Array, out: Array, h0: Array, reset: Array | None
) -> tuple[Array, Array]:
    """Scans whole arrays `[b, t, d · n]` of decays and inputs into one of all states."""
    batch, length, channels = u.shape
    left = jnp.exp(-delta[..., None] * rate[None, None]).reshape(batch, length, -1)
    scan = split_scan if is_split() else linear_scan
    h, last = scan(entering(u, delta, into), left, h0.reshape(batch, -1), reset=reset)
    y = jnp.einsum("btdn,btn->btd", h.reshape(batch, length, channels, -1), out, precision=lax.Precision.HIGHEST)
    return y, last.reshape(h0.shape)


def _by_loop(
    u: Array, delta: Array, rate: Array, into: Array, out: Array, h0: Array, reset: Array | None
) -> tuple[Array, Array]:
    # Channels last: a step's products are along them.
    y, last = loop_in_groups(_step, rate.T, (delta * u, delta, into, out), reset, h0.swapaxes(-1, -2))
    return y, last.swapaxes(-1, -2)


def _step(
    rate: Array, state: Array, now: tuple[Array, Array, Array, Array], reset: Array | None
) -> tuple[Array, Array]:
    """The state `[b, n, d]` after one step, and what is read from it."""
    written, delta, into, out = now
    if reset is not None:
        state = jnp.where(reset[:, None, None], 0, state)
    state = jnp.exp(-delta[:, None] * rate[None]) * state + written[:, None] * into[..., None]
    return state, (state * out[..., None]).sum(-2)
