"""What positions mean to a mixer: where each row continues, and what resets and pads do to a state (see `Mixer`)."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int, Shaped

from evalkit.kernels import across, is_split, linear_scan, linear_state, selective_scan, split_scan
from evalkit.models.layers.mixer import Activations, Positions, PositionsOfAll, Rows

UNITS = 2**24
"""Parts of a turn: float32 represents each of them, and integer sums that overflow at 2³¹ lose only whole turns."""


def continued(next_position: Rows, steps: int) -> Positions:
    """Returns the positions of the next `steps` tokens of each row."""
    return next_position[:, None] + jnp.arange(steps, dtype=jnp.int32)[None]


def after(positions: PositionsOfAll, next_position: Rows) -> Rows:
    """Returns the next position of each row: one after its last token, or `next_position` if all of it is pads."""
    valid = positions >= 0
    last = jnp.argmax(jnp.where(valid, jnp.arange(positions.shape[1])[None], -1), axis=1)[:, None]
    position = jnp.take_along_axis(positions, last, axis=1)[:, 0] + 1
    return across(next_position, jnp.where(valid.any(axis=1), position, next_position).astype(jnp.int32))[1]


def after_all(next_position: Rows, steps: int) -> Rows:
    """Returns the next position of each row after `steps` tokens, none of them a pad."""
    return across(next_position, next_position + steps)[1]


def scanned(
    entering: Activations, a: Activations, positions: Positions | None, h: Float[Array, "b r"] | None
) -> tuple[Activations, Float[Array, "b r"]]:
    """Runs the linear scan from state `h`; returns all states and the last. Position 0 resets, pads change nothing."""
    reset = None
    if positions is not None:
        pad = (positions < 0)[..., None]
        a, entering, reset = jnp.where(pad, 1.0, a), jnp.where(pad, 0.0, entering), positions == 0
    scan = split_scan if is_split() else linear_scan
    return scan(entering, a, h, reset=reset)


def selective_scanned(
    u: Float[Array, "b t d"],
    delta: Float[Array, "b t d"],
    rate: Float[Array, "d n"],
    into: Float[Array, "b t n"],
    out: Float[Array, "b t n"],
    positions: Positions | None,
    h: Float[Array, "b d n"] | None,
) -> tuple[Float[Array, "b t d"], Float[Array, "b d n"]]:
    """Runs `kernels.selective_scan` from state `h`; position 0 resets, pads change nothing."""
    reset = None
    if positions is not None:
        delta, reset = _at_tokens(delta, positions >= 0), positions == 0
    return selective_scan(u, delta, rate, into, out, h, reset=reset)


def matrix_scanned(
    q: Float[Array, "b t h k"],
    k: Float[Array, "b t h k"],
    v: Float[Array, "b t h v"],
    positions: Positions | None,
    state: Float[Array, "b h k v"] | None,
    *,
    log_decay: Float[Array, "b t h"] | Float[Array, "b t h k"] | None = None,
    beta: Float[Array, "b t h"] | None = None,
    write: Float[Array, "b t h"] | None = None,
    erased: tuple[Float[Array, "b t h k"], Float[Array, "b t h k"]] | None = None,
    implementation: str = "auto",
) -> tuple[Float[Array, "b t h v"], Float[Array, "b h k v"]]:
    """Runs `kernels.linear_state` from `state`; position 0 resets, pads change nothing."""
    reset = None
    if positions is not None:
        valid = positions >= 0
        reset = positions == 0
        log_decay, beta = (None if x is None else _at_tokens(x, valid) for x in (log_decay, beta))
        write = _at_tokens(jnp.ones(k.shape[:3], jnp.float32) if write is None else write, valid)
        erased = None if erased is None else (_at_tokens(erased[0], valid), erased[1])
    return linear_state(
        *(q, k, v, state),
        log_decay=log_decay,
        beta=beta,
        write=write,
        erased=erased,
        reset=reset,
        implementation=implementation,
    )


def looped(
    step: Callable[[Float[Array, "b *n"], Float[Array, "b g"]], Float[Array, "b *n"]],
    entering: Float[Array, "b t g"],
    positions: Positions | None,
    state: Float[Array, "b *n"],
) -> tuple[Float[Array, "b t *n"], Float[Array, "b *n"]]:
    """Runs a step that is not linear in the state, one token after the other; returns all states and the last.

    `step` computes the next state from the state and a token's input. Position 0 resets, pads change nothing.
    """

    def following(state: Array, token: tuple[Array, Array | None]) -> tuple[Array, Array]:
        x, position = token
        if position is None:
            after = step(state, x)
        else:
            place = position.reshape(-1, *[1] * (state.ndim - 1))
            after = jnp.where(place < 0, state, step(jnp.where(place == 0, 0, state), x))
        return after, after

    by_time = None if positions is None else positions.swapaxes(0, 1)
    last, states = jax.lax.scan(following, state, (entering.swapaxes(0, 1), by_time))
    return states.swapaxes(0, 1), last


def preceding(
    x: Float[Array, "b t c"], positions: Positions | None, last: Float[Array, "b 1 c"]
) -> tuple[Float[Array, "b t c"], Float[Array, "b 1 c"]]:
    """Returns `x` of the token before each one, `last` before the first, and `x` of the last token; skips pads."""
    inputs = jnp.concatenate([last.astype(x.dtype), x], axis=1)
    if positions is None:
        return inputs[:, :-1], inputs[:, -1:]
    latest = _latest(positions >= 0)
    before = jnp.pad(latest[:, :-1], ((0, 0), (1, 0)))
    before, latest = before[..., None], latest[:, -1:, None]
    return jnp.take_along_axis(inputs, before, axis=1), jnp.take_along_axis(inputs, latest, axis=1)


def turned(
    turns: Float[Array, "b t *n"], positions: Positions | None, before: Float[Array, "b *n"]
) -> tuple[Float[Array, "b t *n"], Float[Array, "b *n"]]:
    """Returns running sums of `turns`, modulo 1, from `before` on or since a sequence began, and the last sum.

    The sums are integers in units of 2⁻²⁴ turns, so that any chunks give the same result, at any length.
    """
    part = jax.lax.stop_gradient(turns - jnp.round(turns))  # of a turn, exactly
    whole = jnp.round(part * UNITS).astype(jnp.int32)
    if positions is not None:
        whole, turns = (_at_tokens(x, positions >= 0) for x in (whole, turns))
    start = jnp.round(before * UNITS).astype(jnp.int32)[:, None]
    total = _since_reset(whole, positions, start) % UNITS
    exact = total.astype(turns.dtype) / UNITS
    gradient = _since_reset(turns, positions, jnp.zeros_like(turns[:, :1]))
    angle = exact + (gradient - jax.lax.stop_gradient(gradient))
    return angle, angle[:, -1]


def _since_reset(x: Shaped[Array, "b t *n"], positions: Positions | None, start: Array) -> Shaped[Array, "b t *n"]:
    """The running sums of `x` along time, from `start [b, 1, *n]` on, or from the latest position 0 on."""
    total = start + jnp.cumsum(x, axis=1)
    if positions is None:
        return total
    # The sums before each token; index 0, with sum 0, is for tokens without a position 0 so far.
    before = jnp.concatenate([jnp.zeros_like(start), total - x], axis=1)
    latest = _latest(positions == 0)
    return total - jnp.take_along_axis(before, latest.reshape(*latest.shape, *[1] * (x.ndim - 2)), axis=1)


def _latest(chosen: Bool[Array, "b t"]) -> Int[Array, "b t"]:
    """For each index, the latest one up to it where `chosen` is True, plus 1; 0 where there is none yet."""
    return jax.lax.cummax(jnp.where(chosen, jnp.arange(1, chosen.shape[1] + 1)[None], 0), axis=1)


def _at_tokens(x: Shaped[Array, "b t *n"], valid: Bool[Array, "b t"]) -> Shaped[Array, "b t *n"]:
    """`x` at tokens and 0 at pads."""
    return jnp.where(valid.reshape(*valid.shape, *[1] * (x.ndim - 2)), x, 0)
