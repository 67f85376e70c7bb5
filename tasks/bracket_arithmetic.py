"""Arithmetic with brackets: a context-free language that asks for a stack (Delétang et al. 2023, arXiv 2207.02098)."""

from dataclasses import dataclass
from functools import cache
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int, Key

from evalkit.checks import refuse_below_1
from evalkit.tasks.base import Example, Synthetic
from evalkit.tasks.regular_language import MINUS, MODULUS, PLUS, TIMES

OPEN, CLOSE, QUESTION = range(TIMES + 1, TIMES + 4)
SYMBOLS = "01234+-×()="
LEAVES = 4
"""The longest expression without a binary operator, in tokens: d, −d, (d) and (−d) have the lengths 1 to 4."""


class Laid(NamedTuple):
    """An expression being written from left to right.

    `spans[i]` is the length of the expression that begins at place i, 0 where none does.
    """

    tokens: Int[Array, " t"]
    spans: Int[Array, " t"]
    lefts: Int[Array, " t"]


@dataclass(frozen=True, kw_only=True)
class BracketArithmetic(Synthetic):
    """A fully bracketed expression modulo 5, then `=`, the only position at which its value is scored.

    An expression of length n is drawn as Delétang et al. 2023 draw it: `d`, `-d`, `(d)` or `(-d)` up to four tokens;
    longer ones are `(left ∘ right)`, where the length of the left one is any from 1 to n − 4, and the operation any.
    With products, 0 is the most frequent value, and its share grows with the length: 0.253 at 5 tokens, 0.292 at 40,
    0.316 at 512. `chance` is that of the training length.

    Options:
      length (tokens): the length of a training expression; `train.lengths` draws eight lengths up to it.
      multiplication: draw products as well as sums and differences.

    >>> task = BracketArithmetic(length=5)
    >>> task.solve(np.array([8, 3, 7, 4, 9, 10]))[0].tolist()  # (3×4)=
    [0, 0, 0, 0, 0, 2]
    """

    answer_length: ClassVar[int] = 1
    scored: ClassVar[int | None] = 1
    vocab_size: ClassVar[int] = QUESTION + 1

    length: int = 160
    multiplication: bool = True

    def __post_init__(self) -> None:
        refuse_below_1(length=self.length)

    @property
    def chance(self) -> float:
        """Returns the accuracy of always giving the most frequent value of the training length, computed exactly."""
        return float(_values(self.length, self.multiplication)[self.length].max())

    def sample(self, key: Key[Array, ""], length: int) -> Example:
        refuse_below_1(length=length)
        for_digits, for_operators, for_splits = jax.random.split(key, 3)
        digits = jax.random.randint(for_digits, (length,), 0, MODULUS)
        operators = jax.random.randint(for_operators, (length,), PLUS, TIMES + self.multiplication)
        splits = jax.random.uniform(for_splits, (length,))
        empty = jnp.zeros((length,), jnp.int32)
        laid = Laid(empty, empty.at[0].set(length), empty)
        laid = jax.lax.fori_loop(0, length, lambda at, so_far: _write(so_far, at, digits, operators, splits), laid)
        values = jax.lax.fori_loop(0, length, lambda step, so_far: _evaluate(so_far, length - 1 - step, laid), empty)
        last = jnp.arange(length + 1) == length
        return Example(jnp.append(laid.tokens, QUESTION), jnp.where(last, values[0], 0), last)

    def solve(self, tokens: Int[np.ndarray, " t"]) -> tuple[np.ndarray, np.ndarray]:
        """Reduces what stands between innermost brackets until one value is left."""
        end = int(np.flatnonzero(tokens == QUESTION)[0])
        targets, mask = np.zeros(len(tokens), np.int32), np.arange(len(tokens)) == end
        stack: list[int] = []
        for token in [OPEN, *(int(token) for token in tokens[:end]), CLOSE]:
            stack.append(token)
            if token == CLOSE:
                begin = len(stack) - 1 - stack[::-1].index(OPEN)
                stack[begin:] = [_reduced(stack[begin + 1 : -1])]
        (targets[end],) = stack
        return targets, mask

    def symbol(self, token: int) -> str:
        """Returns a digit, an operator, a bracket, or `=` for the question."""
        return SYMBOLS[token]


def _reduced(flat: list[int]) -> int:
    """Returns the value of `a`, `-a`, `a ∘ b`, `-a ∘ b` or `a ∘ -b`; a minus before a digit binds most tightly."""
    numbers: list[int] = []
    operator, sign = PLUS, 1
    for place, token in enumerate(flat):
        if token < MODULUS:
            numbers, sign = [*numbers, sign * token], 1
        elif place == 0 or flat[place - 1] >= MODULUS:
            sign = -1
        else:
            operator = token
    left, right = numbers if len(numbers) == 2 else (0, numbers[0])
    return {PLUS: left + right, MINUS: left - right, TIMES: left * right}[operator] % MODULUS


def _write(
    laid: Laid,
    at: Array,
    digits: Int[Array, " t"],
    operators: Int[Array, " t"],
    splits: Float[Array, " t"],
) -> Laid:
    """Writes the tokens that the expression beginning at `at` has of its own, and the spans of its operands."""
    span = laid.spans[at]
    left = 1 + jnp.floor(splits[at] * (span - LEAVES)).astype(jnp.int32)
    bracketed, split = span > 2, span > LEAVES

    def put(row: Array, place: Array, value: Array | int, where: Bool[Array, ""]) -> Array:
        return row.at[jnp.where(where, place, len(row))].set(value, mode="drop")

    first = jnp.where(span == 1, digits[at], jnp.where(bracketed, OPEN, MINUS))
    tokens = put(laid.tokens, at, first, span > 0)
    tokens = put(tokens, at + span - 1, CLOSE, bracketed)
    tokens = put(tokens, at + 1 + left, operators[at], split)
    # In -d, (d) and (-d), the tokens inside are an expression too.
    inner = jnp.where(split, left, jnp.where(bracketed, span - 2, span - 1))
    spans = put(laid.spans, at + 1, inner, span > 1)
    spans = put(spans, at + 2 + left, span - 3 - left, split)
    return Laid(tokens, spans, laid.lefts.at[at].set(left))


def _evaluate(values: Int[Array, " t"], at: Array, laid: Laid) -> Int[Array, " t"]:
    """Sets the value of the expression that begins at `at`; the values at later places must be set already."""
    span, left, token = laid.spans[at], laid.lefts[at], laid.tokens[at]
    a, b = values[at + 1], values[at + 2 + left]
    operator = laid.tokens[at + 1 + left]
    both = jnp.where(operator == PLUS, a + b, jnp.where(operator == MINUS, a - b, a * b))
    value = jnp.where(span == 1, token, jnp.where(span == 2, -a, jnp.where(span <= LEAVES, a, both)))
    return values.at[at].set(value % MODULUS)


@cache
def _values(longest: int, multiplication: bool) -> Float[np.ndarray, "lengths values"]:
    """Returns the probability of each value of a random expression, by its length, from 0 to `longest`."""
    values = np.full((max(longest, LEAVES) + 1, MODULUS), 1 / MODULUS)
    a, b = np.arange(MODULUS)[:, None], np.arange(MODULUS)
    results = [a + b, a - b, *([a * b] if multiplication else [])]
    for length in range(LEAVES + 1, longest + 1):
        lefts = values[1 : length - 3]
        pairs = lefts.T @ lefts[::-1] / len(lefts)
        sums = [np.bincount((result % MODULUS).reshape(-1), pairs.reshape(-1), MODULUS) for result in results]
        values[length] = np.mean(sums, axis=0)
    return values
