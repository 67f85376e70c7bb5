"""The arithmetic of the gates of the RG-LRU and the CG-LRU, element by element, and its gradient.

De et al. 2024, eqs. 1–4 and 6, and app. B. Every implementation of `kernels.rglru` and `kernels.cglru` calls these
functions, on whole arrays or on a tile of them; nothing here depends on time. Everything is float32, because in
bfloat16 a decay of 0.999 is 1.
"""

from collections.abc import Callable, Sequence
from functools import partial
from math import factorial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from evalkit.kernels.planes import Planes, inner, scaled

SMALLEST_ROOT = 0.5e-3  # caps the slope of sqrt(1 − a²) in a² at 1000 (arXiv 2404.07839)
# π in three parts, of which the first two have few digits, so that their multiples are exact (Cody and Waite 1980).
PI = (3.140625, 9.67502593994140625e-4, 1.509957990978376432e-7)
LOG2_E = 1.4426950408889634
GATES, TURN = 16, 41
"""Floating-point operations of `gates` and of `cosine_and_sine` for each channel, beside sigmoids, tanhs and roots."""
CLOSED = -1e30  # closes a gate before its sigmoid: with the recurrence gate closed, a = 1 and scale = 0 exactly


class Gates(NamedTuple):
    """The recurrence gate r, the input gate i, the decay a and the input's scale sqrt(1 − a²)."""

    r: Array
    i: Array
    a: Array
    scale: Array


class Instructions(NamedTuple):
    """Functions of float32 arrays that a GPU has one instruction for, where XLA or Pallas would emit many.

    `reciprocal` is for numbers from 1e-4 on, `root` for those from 0 on; `fused` is x · y + z.
    """

    exp2: Callable[[Array], Array]
    reciprocal: Callable[[Array], Array]
    root: Callable[[Array], Array]
    fused: Callable[[Array, Array, ArrayLike], Array]


class Arithmetic(NamedTuple):
    """How a platform computes the gates, from their values before the sigmoid and the rate, and a quotient."""

    gates: Callable[[Array, Array, Array], Gates]
    quotient: Callable[[Array, Array], Array] = jnp.divide


Gradients = tuple[tuple[Array, ...], tuple[Array, ...]]
"""Gradients: of x by plane and both gates before their sigmoid; of rate (and angle), not yet summed over time."""


def gates(recurrence: Array, input_gate: Array, rate: Array) -> Gates:
    """Returns the gates from their values before the sigmoid; `rate ≤ 0`, of the same rank, is log a at r = 1.

    With `u = tanh(log a / 2)`, `a = (1 + u) / (1 − u)` and `1 − a² = −4u / (1 − u)²`. One tanh gives both, and nothing
    cancels as a → 1.
    """
    # The sigmoid of i is computed by a tanh, which takes half the time on a CPU. That of r is not: the root would
    # enlarge its error near 0.
    r = jax.nn.sigmoid(recurrence.astype(jnp.float32))
    i = 0.5 + 0.5 * jnp.tanh(0.5 * input_gate.astype(jnp.float32))
    u = jnp.tanh(r * (0.5 * rate))
    inverse = 1 / (1 - u)
    # The same number twice, rounded once at the end: the first form keeps a near 1, the second near 0.
    a = jnp.where(u > -0.5, 1 + 2 * u * inverse, (1 + u) * inverse)
    return Gates(r, i, a, 2 * jnp.sqrt(-u) * inverse)


def _root(x: Array) -> Array:
    return x * jax.lax.rsqrt(jnp.maximum(x, 1e-30))  # Mosaic GPU has rsqrt, but no sqrt


def by_exponentials(instructions: Instructions) -> Arithmetic:
    """Returns the arithmetic of a GPU, where 2^x is one instruction and an exact tanh about thirty."""
    return Arithmetic(
        partial(gates_by_exponentials, instructions=instructions), lambda x, y: x * instructions.reciprocal(y)
    )


def gates_by_exponentials(recurrence: Array, input_gate: Array, rate: Array, *, instructions: Instructions) -> Gates:
    """Returns the same as `gates`; for gates in bfloat16, only to the precision of bfloat16."""
    exp2, reciprocal, root, _ = instructions
    r, i = (reciprocal(1 + exp2(-LOG2_E * gate.astype(jnp.float32))) for gate in (recurrence, input_gate))
    if recurrence.dtype == jnp.bfloat16:
        a, square = _decay_of_short(r * (LOG2_E * rate), instructions)
    else:
        a, square = _decay(r * rate, instructions)
    return Gates(r, i, a, root(square))


def _decay(log_a: Array, instructions: Instructions) -> tuple[Array, Array]:
    """Returns a and 1 − a²: near a = 1 from a Taylor polynomial of a − 1, since a GPU's 2^x is exact to 2^-22 only."""
    less = log_a * _polynomial([1 / factorial(power) for power in range(1, 9)], log_a, instructions)
    near, far = log_a > -0.5, instructions.exp2(LOG2_E * log_a)
    return jnp.where(near, 1 + less, far), jnp.where(near, -less * (2 + less), instructions.fused(-far, far, 1.0))


def _decay_of_short(log2_a: Array, instructions: Instructions) -> tuple[Array, Array]:
    """Returns a and 1 − a²; near a = 1, where 1 − a² would cancel, it is a Taylor polynomial, exact to 2e-6."""
    a, factor = instructions.exp2(log2_a), 2 / LOG2_E
    terms = [-(factor**power) / factorial(power) for power in range(1, 4)]
    near_one = log2_a * _polynomial(terms, log2_a, instructions)
    return a, jnp.where(log2_a > -(2**-5) / factor, near_one, instructions.fused(-a, a, 1.0))


def _polynomial(coefficients: Sequence[float], x: Array, instructions: Instructions) -> Array:
    """Returns Σ coefficients[n] xⁿ, from the last term to the first."""
    total = jnp.full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total = instructions.fused(total, x, coefficient)
    return total


PLAIN = Instructions(jnp.exp2, jnp.reciprocal, _root, lambda x, y, z: jnp.add(jnp.multiply(x, y), z))
"""`Instructions` in operations that every platform has."""
BY_TANH, BY_EXPONENTIALS = Arithmetic(gates), by_exponentials(PLAIN)


def gates_with_reset(
    arithmetic: Arithmetic, recurrence: Array, input_gate: Array, rate: Array, reset: Array | None, unit_reset: bool
) -> Gates:
    """Returns the gates; with `unit_reset`, where `reset` is True, the scale is 1 and the decay 0 (RecurrentGemma)."""
    plain = arithmetic.gates(recurrence, input_gate, rate)
    if reset is None or not unit_reset:
        return plain
    return plain._replace(a=without(plain.a, reset), scale=jnp.where(reset, 1.0, plain.scale))


def without(values: Array, reset: Array | None) -> Array:
    """Returns `values` with zeros where `reset` is True: a reset removes the decay and the state before the step."""
    return values if reset is None else jnp.where(reset, 0.0, values)


def gate_gradients(arithmetic: Arithmetic, gates: Gates, x: Array, rate: Array, da: Array, dinput: Array) -> Gradients:
    """Returns the gradients from those of the decay `a` and of the input `scale · i · x`."""
    r, i, a, scale = gates
    # The scale's derivative in log a is −a² / scale, which is infinite at a = 1: SMALLEST_ROOT bounds it.
    dlog_a = a * (da - arithmetic.quotient(dinput * i * x * a, jnp.maximum(scale, SMALLEST_ROOT)))
    rows = dinput * scale * i, dlog_a * rate * r * (1 - r), dinput * scale * x * i * (1 - i)
    return rows, (dlog_a * r,)


def turned(gates: Gates, angle: Array, reset: Array | None) -> Planes:
    """Returns the complex decay of magnitude a and phase `r · angle` in radians; zero where `reset` is True."""
    return scaled(without(gates.a, reset), cosine_and_sine(gates.r * angle))


def cosine_and_sine(turn: Array) -> Planes:
    """Returns the cosine and the sine of `turn`, in radians, exact to 2.5e-7 up to 10⁴ radians.

    Both are Taylor polynomials of what is left after whole half turns. At 10⁴ radians float32 holds the turn itself to
    5e-4 only.
    """
    half_turns = jnp.floor(turn * (1 / sum(PI)) + 0.5)
    for part in PI:
        turn = turn - half_turns * part
    sign = 1 - 2 * half_turns + 4 * jnp.floor(0.5 * half_turns)  # −1 for an odd number of half turns
    z = turn * turn
    cosine, sine = 1 / factorial(12), 1 / factorial(11)
    for n in (10, 8, 6, 4, 2, 0):
        cosine = 1 / factorial(n) - z * cosine
    for n in (9, 7, 5, 3, 1):
        sine = 1 / factorial(n) - z * sine
    return sign * cosine, sign * turn * sine


def complex_gate_gradients(
    arithmetic: Arithmetic, gates: Gates, x: Planes, rate: Array, angle: Array, dlog_a: Planes, dinput: Planes
) -> Gradients:
    """Returns the gradients from those of `log |a| + j phase` and of the input `scale · i · x`."""
    r, i, magnitude, scale = gates
    dlog_magnitude, dturn = dlog_a
    dscale_i = inner(dinput, x)
    dlog_magnitude -= arithmetic.quotient(dscale_i * i * magnitude * magnitude, jnp.maximum(scale, SMALLEST_ROOT))
    drecurrence = (dlog_magnitude * rate + dturn * angle) * r * (1 - r)
    rows = *scaled(scale * i, dinput), drecurrence, dscale_i * scale * i * (1 - i)
    return rows, (dlog_magnitude * r, dturn * r)
