"""Stacks: recall the top of one of many stacks, after pushes and pops (Kimi Team 2025, arXiv 2510.26692)."""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Int, Key

from evalkit.checks import at_least
from evalkit.tasks.base import Example, Synthetic, letter

STEP = 3
"""Tokens of an operation: push or pop, the stack, and the element."""


class Stacks(NamedTuple):
    """Stacks as linked lists of operations: `top[s]` is the one that pushed the top of stack s, −1 if it is empty.

    `below[t]` is the operation whose element lies below that of operation t, and `elements[t]` is the element of t.
    """

    top: Int[Array, " s"]
    below: Int[Array, " n"]
    elements: Int[Array, " n"]


@dataclass(frozen=True, kw_only=True)
class Stack(Synthetic):
    """Operations on many stacks, `push 7 c` and `pop 7 c`; at the stack of a pop, the popped element is scored.

    Each operation has a random stack. It is a push where that stack is empty, else a push or a pop with equal chance;
    the last one is a pop unless all stacks are empty. So a model must keep the order of the elements, and forget those
    that were popped. The 64 stacks are published; elements and proportions are ours. Where `length` is no multiple of
    3, up to two tokens at the end belong to no operation.

    Most pops need no stack: to answer with what was pushed last there, whatever was popped since, is right for 97% of
    them at the published size, and for 89% with 4 stacks in 48 tokens. Only above that does the task tell models apart.

    Options:
      stacks (stacks): how many stacks there are.
      elements (token ids): how many elements there are.
      length (tokens): the length of a training sequence; an operation has three.

    >>> task = Stack(stacks=2, elements=4, length=9)
    >>> task.describe(np.array([6, 4, 2, 6, 4, 3, 7, 4, 3]))
    'push 0 c push 0 d pop 0 d'
    >>> task.solve(np.array([6, 4, 2, 6, 4, 3, 7, 4, 3]))[0].tolist()
    [0, 0, 0, 0, 0, 0, 0, 3, 0]
    """

    stacks: int = 64
    elements: int = 26
    length: int = 256

    def __post_init__(self) -> None:
        at_least(self, 1, "stacks")
        at_least(self, 2, "elements")
        _operations(self.length)

    @property
    def vocab_size(self) -> int:
        """Returns the number of elements and stacks, and two for push and pop."""
        return self.pop + 1

    @property
    def push(self) -> int:
        """Returns the token that puts an element on a stack; those of stacks are between it and the elements."""
        return self.elements + self.stacks

    @property
    def pop(self) -> int:
        """Returns the token that takes an element off a stack."""
        return self.push + 1

    @property
    def chance(self) -> float:
        """Returns the accuracy of guessing an element."""
        return 1.0 / self.elements

    def sample(self, key: Key[Array, ""], length: int) -> Example:
        count = _operations(length)
        for_stacks, for_pops, for_elements, for_last = jax.random.split(key, 4)
        where = jax.random.randint(for_stacks, (count,), 0, self.stacks)
        pops = jax.random.bernoulli(for_pops, 0.5, (count,)).at[-1].set(True)
        pushed = jax.random.randint(for_elements, (count,), 0, self.elements)
        order = jax.random.permutation(for_last, self.stacks)
        nothing = jnp.full((count,), -1)

        def operate(stacks: Stacks, at: Array) -> tuple[Stacks, Int[Array, " 3"]]:
            # The last operation takes the first stack, in a random order, that is not empty.
            filled = order[jnp.argmax(stacks.top[order] >= 0)]
            stack = jnp.where(at == count - 1, filled, where[at])
            top = stacks.top[stack]
            pop = pops[at] & (top >= 0)
            element = jnp.where(pop, stacks.elements[top], pushed[at])
            after = Stacks(
                stacks.top.at[stack].set(jnp.where(pop, stacks.below[top], at)),
                stacks.below.at[at].set(top),
                stacks.elements.at[at].set(element),
            )
            return after, jnp.stack([jnp.where(pop, self.pop, self.push), self.elements + stack, element])

        empty = Stacks(jnp.full((self.stacks,), -1), nothing, nothing)
        _, tokens = jax.lax.scan(operate, empty, jnp.arange(count))
        scored = jnp.stack([jnp.zeros((count,), bool), tokens[:, 0] == self.pop, jnp.zeros((count,), bool)], axis=1)
        targets = jnp.where(scored, tokens[:, 2:], 0)
        rest = (0, length - STEP * count)
        return Example(*(jnp.pad(row.reshape(-1), rest) for row in (tokens, targets, scored)))

    def solve(self, tokens: Int[np.ndarray, " t"]) -> tuple[np.ndarray, np.ndarray]:
        stacks: list[list[int]] = [[] for _ in range(self.stacks)]
        targets, mask = np.zeros(len(tokens), np.int32), np.zeros(len(tokens), bool)
        for place in range(0, len(tokens) - STEP + 1, STEP):
            operation, stack, element = (int(token) for token in tokens[place : place + STEP])
            if operation == self.push:
                stacks[stack - self.elements].append(element)
            else:
                targets[place + 1], mask[place + 1] = stacks[stack - self.elements].pop(), True
        return targets, mask

    def symbol(self, token: int) -> str:
        """Returns `push`, `pop`, the number of a stack, or the letter of an element (numbers in brackets past z)."""
        if token >= self.push:
            return "push" if token == self.push else "pop"
        if token >= self.elements:
            return str(token - self.elements)
        return letter(token) if token < 26 else f"({token})"


def _operations(length: int) -> int:
    """Returns the number of operations; raises ValueError for a length of fewer than two."""
    if length < 2 * STEP:
        raise ValueError(f"length={length}; allowed: at least {2 * STEP} (a push and a pop)")
    return length // STEP
