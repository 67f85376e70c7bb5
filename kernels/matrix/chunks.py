"""The matrix-state recurrence in chunks of time: products of matrices within a chunk, one loop step per chunk.

With `G` the sum of log decays since the chunk began, the values `u_i` that are written obey

    u_i = v_i − e_iᵀ (exp(G_i) H_0 + Σ_{j<i} exp(G_i − G_j) k_j u_jᵀ),

where `e = β k`. So `u` solves a triangular system, of which `H_0` is a part of the right side (the WY form). A chunk is
thereby two linear maps of the state before it: `H_0 → H_c` and `H_0 → o`. All chunks' maps are computed together, and
only `H_c` of one chunk waits for the one before. No exponent is ever positive, however strong the decay.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from evalkit.kernels.matrix.loop import in_pieces
from evalkit.platforms import by_platform

LONGEST = 256
# Numbers of one input that a CPU's caches hold beside all else of their chunks; measured, docs/kernels.md.
SEGMENT = 2**17
# exp(-100) is 0 in float32, so a stronger decay is the same; sums of at most 256 of them stay exact in `_totals`.
STRONGEST = -100.0
GRID = 512.0
# Smaller products than these are slow as `dot`s on a CPU.
LEAST_PRODUCT = 8
LEAF = 4

matmul = partial(jnp.matmul, precision=lax.Precision.HIGHEST)


class Steps(NamedTuple):
    """The recurrence `H ← Diag(exp(log_decay)) H;  H ← H + k (v − eraseᵀ H)ᵀ;  o = Hᵀ q`, for `H [k, v]`.

    With `along` what is erased lies along another key than k: `H ← H − along (eraseᵀ H)ᵀ + k vᵀ`.
    q, k, erase, along are `[..., k]`, v `[..., v]`, log_decay `[..., 1]` (a head's) or `[..., k]`, where `...` is
    `[b, t, h]`; reset is `[b, t]`.
    """

    q: Array
    k: Array
    v: Array
    erase: Array | None
    log_decay: Array | None
    reset: Array | None
    along: Array | None = None


class Maps(NamedTuple):
    """What a chunk does to the state H before it: `o = read H + own`, and `H_c = keep H + add`.

    read `[..., c, k]`, own `[..., c, v]`, add `[..., k, v]`. keep is a matrix `[..., k, k]` where something is erased;
    else it is what is left of each channel, `[..., 1 or k, 1]`.
    """

    read: Array
    own: Array
    keep: Array
    add: Array


def chunked(steps: Steps, h0: Array, size: int) -> tuple[Array, Array]:
    """Returns `o [b, t, h, v]` and the last state, like a loop over time; `size` is a power of two.

    On a CPU, many steps are computed in segments, one after the other: what a segment needs stays in the caches.
    """
    if steps.along is not None:
        o, last = chunked(_in_two(steps), h0, size)
        return o[:, 1::2], last
    length = steps.q.shape[1]
    size = min(size, max(2, 1 << (length - 1).bit_length()))
    segments = min(-(-length // size), -(-max(steps.q.size, steps.v.size) // SEGMENT))
    if segments == 1:
        return _at_once(steps, h0, size)
    in_segments = partial(_in_segments, size=size, segments=segments)
    return by_platform(steps, h0, cpu=in_segments, default=partial(_at_once, size=size))


def _in_two(steps: Steps) -> Steps:
    """Two steps in place of each, without `along`: the first decays and erases, the second writes and is read."""

    def first(one: Array | None) -> Array | None:
        return None if one is None else _between(one, jnp.zeros_like(one))

    return Steps(
        q=_between(jnp.zeros_like(steps.q), steps.q),
        k=steps.k if steps.along is None else _between(steps.along, steps.k),
        v=_between(jnp.zeros_like(steps.v), steps.v),
        erase=first(steps.erase),
        log_decay=first(steps.log_decay),
        reset=first(steps.reset),
    )


def _between(one: Array, other: Array) -> Array:
    """Interleaves two arrays `[b, t, …]` in time: each step of `one`, then that of `other`."""
    return jnp.stack([one, other], axis=2).reshape(one.shape[0], -1, *one.shape[2:])


def _in_segments(steps: Steps, h0: Array, size: int, segments: int) -> tuple[Array, Array]:
    """A loop over equal segments of time, each of whole chunks; the end is filled with steps whose keys are zero."""
    length = steps.q.shape[1]
    segment = -(-length // (segments * size)) * size

    def one_segment(state: Array, steps: Steps) -> tuple[Array, Array]:
        o, after = _at_once(steps, state, size)
        return after, o

    last, o = lax.scan(one_segment, h0, jax.tree.map(partial(in_pieces, axis=1, size=segment), steps))
    o = jnp.moveaxis(o, 0, 1)
    return o.reshape(o.shape[0], -1, *o.shape[3:])[:, :length], last


def _at_once(steps: Steps, h0: Array, size: int) -> tuple[Array, Array]:
    length = steps.q.shape[1]
    # The gradient computes the maps within chunks again: they are c numbers a step, the inputs are few.
    maps = jax.checkpoint(_maps)(_cut(steps, size))

    def chunk(state: Array, maps: tuple[Array, Array]) -> tuple[Array, Array]:
        keep, add = maps
        return (matmul(keep, state) if steps.erase is not None else keep * state) + add, state

    last, before = lax.scan(chunk, h0, (maps.keep, maps.add))
    return _joined(matmul(maps.read, before) + maps.own, length), last


def _cut(steps: Steps, size: int) -> Steps:
    """Time is cut into chunks, `[n, b, h, c, …]`; a last one is filled with steps whose keys are zero."""
    cut = jax.tree.map(partial(in_pieces, axis=1, size=size), steps)
    reset = None if cut.reset is None else cut.reset[:, :, None]
    return jax.tree.map(lambda one: one.swapaxes(2, 3), cut._replace(reset=None))._replace(reset=reset)


def _joined(o: Array, length: int) -> Array:
    n, b, h, c, v = o.shape
    return o.transpose(1, 0, 3, 2, 4).reshape(b, n * c, h, v)[:, :length]


def _maps(steps: Steps) -> Maps:
    """The maps of every chunk, `[n, b, h, …]`."""
    rows: tuple[Array, ...] = (steps.q,) if steps.erase is None else (steps.q, steps.erase)
    total = None if steps.log_decay is None else _totals(steps.log_decay)
    within = _within(rows, steps.k, total)
    leaving, kept = steps.k, jnp.ones((*steps.k.shape[:3], 1, 1), steps.k.dtype)
    entering = rows
    if total is not None:
        end, left = total[..., -1:, :], _decay_factor(total)
        entering = tuple(row * left for row in rows)
        leaving, kept = steps.k * _decay_factor(end - total), _decay_factor(end).swapaxes(-1, -2)
    if steps.reset is not None:
        begun = jnp.cumsum(steps.reset, axis=-1)  # how many resets so far
        same = begun[..., :, None] == begun[..., None, :]
        within = tuple(jnp.where(same, one, 0) for one in within)
        entering = tuple(jnp.where(begun[..., None] == 0, one, 0) for one in entering)
        leaving = jnp.where((begun == begun[..., -1:])[..., None], leaving, 0)
        kept = jnp.where(begun[..., -1:, None] == 0, kept, 0)
    leaving = leaving.swapaxes(-1, -2)
    if steps.erase is None:
        return Maps(entering[0], matmul(within[0], steps.v), kept, matmul(leaving, steps.v))
    written = matmul(inverse(within[-1]), jnp.concatenate([steps.v, entering[-1]], axis=-1))
    width = steps.v.shape[-1]
    out, state = matmul(within[0], written), matmul(leaving, written)
    keep = kept * jnp.eye(steps.k.shape[-1], dtype=kept.dtype)[None, None, None] - state[..., width:]
    return Maps(entering[0] - out[..., width:], out[..., :width], keep, state[..., :width])


def _totals(log_decay: Array) -> Array:
    """Running sums of log decays along the last axis but one, in two parts `[2, …]`.

    The first part sums multiples of 1/512 without rounding, the second the remainders, which are small. So the
    error of a difference of two sums is small beside the difference itself. A float32 sum in one part loses a weak
    decay's digits after a strong one.
    """
    log_decay = jnp.maximum(log_decay, STRONGEST)
    coarse = lax.stop_gradient(jnp.round(log_decay * GRID) / GRID)
    return jnp.cumsum(jnp.stack([coarse, log_decay - coarse]), axis=-2)


def _decay_factor(total: Array) -> Array:
    """Returns the factor of a state whose log decays have this `total`."""
    return jnp.exp(total[0] + total[1])


def _within(rows: tuple[Array, ...], keys: Array, total: Array | None) -> tuple[Array, ...]:
    """For each of `rows`, `Σ_d row_id exp(G_id − G_jd) key_jd` where j <= i, and 0 elsewhere: `[…, c, c]`."""
    if total is not None and total.shape[-1] > 1:
        batch = keys.shape[:-2]
        flat = _within_channels(tuple(map(_flat, rows)), _flat(keys), total.reshape(2, -1, *total.shape[-2:]))
        return tuple(one.reshape(*batch, *one.shape[-2:]) for one in flat)
    products = (matmul(row, keys.swapaxes(-1, -2)) for row in rows)
    if total is None:
        return tuple(map(jnp.tril, products))
    left = _decay_factor(_where_lower(total - total.swapaxes(-1, -2), -jnp.inf))
    return tuple(product * left for product in products)


def _where_lower(values: Array, other: float) -> Array:
    """`values [..., c, c]` on and below the diagonal, and `other` above."""
    # An exponent above the diagonal is positive: its exponential times 0 would be no number.
    return jnp.where(jnp.tril(jnp.ones(values.shape, bool)), values, other)


def _flat(values: Array) -> Array:
    """`[…, c, d]` as `[n, c, d]`: XLA's products on a CPU take seven axes, and every level of halves would add one."""
    return values.reshape(-1, *values.shape[-2:])


def _within_channels(rows: tuple[Array, ...], keys: Array, total: Array) -> tuple[Array, ...]:
    """The same where each channel has its own decay, so that no product of matrices has exactly these factors.

    The end of the first half lies between each step of the second half and each step of the first: both exponents to
    there are negative, so one product gives all these pairs. Each half is divided in the same way again. Up to four
    steps are computed pair by pair.
    """
    size = keys.shape[-2]
    if size <= LEAF:
        turned = total.swapaxes(-1, -2)  # channels first
        left = _decay_factor(_where_lower(turned[..., :, None] - turned[..., None, :], -jnp.inf))
        pairs = keys.swapaxes(-1, -2)[..., None, :] * left
        return tuple((row.swapaxes(-1, -2)[..., None] * pairs).sum(-3) for row in rows)
    first, second = slice(None, size // 2), slice(size // 2, None)
    middle = total[..., size // 2 - 1 : size // 2, :]
    late = _decay_factor(total[..., second, :] - middle)
    early = (keys[..., first, :] * _decay_factor(middle - total[..., first, :])).swapaxes(-1, -2)
    between = (matmul(row[..., second, :] * late, early) for row in rows)
    halves = total.reshape(2, -1, size // 2, total.shape[-1])
    inner = _within_channels(tuple(map(_halves, rows)), _halves(keys), halves)
    return tuple(_block(whole, corner) for whole, corner in zip(inner, between, strict=True))


def _halves(values: Array) -> Array:
    """`[n, c, d]` as `[2 n, c / 2, d]`, first and second halves by turns."""
    return values.reshape(-1, values.shape[-2] // 2, values.shape[-1])


def _block(diagonal: Array, corner: Array) -> Array:
    """The lower triangular matrices of two blocks on the diagonal, `[2 n, s, s]`, and one below, `[n, s, s]`."""
    top = jnp.concatenate([diagonal[::2], jnp.zeros_like(corner)], axis=-1)
    return jnp.concatenate([top, jnp.concatenate([corner, diagonal[1::2]], axis=-1)], axis=-2)


@jax.custom_vjp
def inverse(lower: Array) -> Array:
    """The inverse of `I + N`, where N is the part of `lower [..., c, c]` below the diagonal; c is a power of two.

    By halves: `[[A, 0], [B, C]]⁻¹ = [[A⁻¹, 0], [−C⁻¹ B A⁻¹, C⁻¹]]`. Each block is itself a coefficient of some delta
    steps, so it is small. The powers of N, whose sum is the inverse as well, grow without bound and cancel.
    """
    return _inverse(_flat(lower)).reshape(lower.shape)


def _inverse(lower: Array) -> Array:
    half = lower.shape[-1] // 2
    if not half:
        return jnp.ones_like(lower)
    first, second = slice(None, half), slice(half, None)
    both = _inverse(_flat(jnp.stack([lower[:, first, first], lower[:, second, second]], axis=1)))
    product = matmul if half >= LEAST_PRODUCT else _small_product
    corner = product(product(both[1::2], lower[:, second, first]), both[::2])
    return _block(both, -corner)


def _small_product(left: Array, right: Array) -> Array:
    return (left[..., :, :, None] * right[..., None, :, :]).sum(-2)


def _inverse_forward(lower: Array) -> tuple[Array, Array]:
    result = inverse(lower)
    return result, result


def _inverse_backward(result: Array, cotangent: Array) -> tuple[Array]:
    turned = result.swapaxes(-1, -2)
    return (-jnp.tril(matmul(matmul(turned, cotangent), turned), -1),)


inverse.defvjp(_inverse_forward, _inverse_backward)
