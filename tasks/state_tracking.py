"""State tracking: the running product of a word over a group (Merrill et al. 2024, 2404.08819)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import permutations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int, Key

from evalkit.checks import one_of, refuse_below_1
from evalkit.tasks.base import Example, Synthetic

Permutation = tuple[int, ...]
CYCLIC = ("z2", "z60")


@dataclass(frozen=True, kw_only=True)
class StateTracking(Synthetic):
    """Random elements of a finite group; the answer at every position is the product of all elements so far.

    A token is an element, and element 0 is the identity. A product a·b applies a first, then b. The groups are
    those of Merrill et al. 2024, with parity and S₃: `z2` (parity), `s3`, `z60`, `a4xz5`, `a5`, `s5`, of 2, 6, 60, 60,
    60 and 120 elements. Z₂, S₃, Z₆₀ and A₄ × Z₅ are solvable; A₅ and S₅ are not, so that their word problems are
    complete for NC¹. For parity, `1 0 1 1` has the answers `1 1 0 1`.

    With `generators`, tokens are only that many elements, which generate the group: the first pair whose long words
    reach every product, then other elements in their order. With fewer of them, a word must be longer to reach every
    product, and a guess by the position alone is better.

    Options:
      group: which group: `z2`, `s3`, `z60`, `a4xz5`, `a5` or `s5`.
      generators (elements): how many elements stand in words; null: all of the group.
      length (tokens): the length of a training sequence; `train.lengths` draws shorter ones too.

    >>> task = StateTracking(group="z2", length=4)
    >>> task.solve(np.array([1, 0, 1, 1]))[0].tolist()
    [1, 1, 0, 1]
    """

    group: str = "s3"
    generators: int | None = None
    length: int = 40

    def __post_init__(self) -> None:
        one_of(self, "group", tuple(GROUPS))
        if self.generators is not None and not 2 <= self.generators <= self.vocab_size:
            raise ValueError(f"generators={self.generators}; allowed: 2 to {self.vocab_size} of {self.group}, or null")
        refuse_below_1(length=self.length)

    @property
    def vocab_size(self) -> int:
        """Returns the number of elements."""
        return len(elements(self.group))

    @property
    def chance(self) -> float:
        """Returns the accuracy of guessing: products are uniform, as their factors are.

        With generators it is the probability of the likeliest product, averaged over a training sequence.
        """
        if self.generators is None:
            return 1.0 / self.vocab_size
        return float(np.mean([law.max() for law in _laws(self.group, self.generators, self.length)]))

    def sample(self, key: Key[Array, ""], length: int) -> Example:
        refuse_below_1(length=length)
        table = jnp.asarray(table_of(self.group))
        tokens = jax.random.randint(key, (length,), 0, self.generators or len(table))
        if self.generators is not None:
            tokens = jnp.asarray(generating(self.group)[: self.generators])[tokens]
        products = jax.lax.associative_scan(lambda a, b: table[a, b], tokens)
        return Example(tokens, products, jnp.ones((length,), bool))

    def cut(self, example: Example, length: Int[Array, ""]) -> Example:
        """Returns the example at a shorter `length`: the answers there are the same, and later ones are not scored."""
        return example._replace(mask=example.mask & (jnp.arange(example.mask.shape[-1]) < length))

    def solve(self, tokens: Int[np.ndarray, " t"]) -> tuple[np.ndarray, np.ndarray]:
        """Points are moved, and no table is read."""
        group = elements(self.group)
        number = {element: index for index, element in enumerate(group)}
        points = np.arange(len(group[0]))
        targets = np.zeros(len(tokens), np.int32)
        for place, token in enumerate(tokens):
            points = np.asarray(group[token])[points]
            targets[place] = number[tuple(points.tolist())]
        return targets, np.ones(len(tokens), bool)

    def symbol(self, token: int) -> str:
        """Returns the number of an element of a cyclic group, else the cycles of a permutation, `e` for none."""
        return str(token) if self.group in CYCLIC else _cycles(elements(self.group)[token])


def _cyclic(order: int) -> list[Permutation]:
    """Returns the rotations of `order` points; element i turns by i."""
    return [tuple((point + turn) % order for point in range(order)) for turn in range(order)]


def _symmetric(points: int) -> list[Permutation]:
    return list(permutations(range(points)))


def _alternating(points: int) -> list[Permutation]:
    """Returns the even permutations."""
    return [p for p in _symmetric(points) if sum(a > b for i, a in enumerate(p) for b in p[i:]) % 2 == 0]


def _product(left: list[Permutation], right: list[Permutation]) -> list[Permutation]:
    """Returns the direct product, which moves the points of both side by side."""
    apart = len(left[0])
    return [(*a, *(apart + point for point in b)) for a in left for b in right]


GROUPS: Mapping[str, Callable[[], list[Permutation]]] = {
    "z2": lambda: _cyclic(2),
    "s3": lambda: _symmetric(3),
    "z60": lambda: _cyclic(60),
    "a4xz5": lambda: _product(_alternating(4), _cyclic(5)),
    "a5": lambda: _alternating(5),
    "s5": lambda: _symmetric(5),
}


@cache
def elements(group: str) -> tuple[Permutation, ...]:
    """Returns the elements as permutations, the identity first: element p takes point i to point p[i]."""
    return tuple(GROUPS[group]())


@cache
def table_of(group: str) -> Int[np.ndarray, "n n"]:
    """Returns the number of the product a·b at `[a, b]`: a first, b after it."""
    members = elements(group)
    number = {element: index for index, element in enumerate(members)}
    return np.array([[number[tuple(b[point] for point in a)] for b in members] for a in members], np.int32)


@cache
def generating(group: str) -> Int[np.ndarray, " n"]:
    """Returns every element, beginning with the first pair whose long words reach every product.

    Two odd permutations generate S₃, too, but then the position would give away the sign of a product.
    """
    order = len(table_of(group))
    pairs = ((a, b) for a in range(order) for b in range(a + 1, order))
    pair = next(pair for pair in pairs if all(law.all() for law in _law(group, pair, 2 * order)[-2:]))
    return np.array([*pair, *(element for element in range(order) if element not in pair)], np.int32)


@cache
def _laws(group: str, generators: int, length: int) -> list[Float[np.ndarray, " n"]]:
    return _law(group, generating(group)[:generators].tolist(), length)


def _law(group: str, tokens: Sequence[int], length: int) -> list[Float[np.ndarray, " n"]]:
    """Returns how likely each product is at each position of a word of these elements."""
    table, law = table_of(group), np.eye(len(table_of(group)))[0]
    laws = []
    for _ in range(length):
        after = np.zeros(len(table))
        for token in tokens:
            after[table[:, token]] += law / len(tokens)
        law = after
        laws.append(law)
    return laws


def _cycles(element: Permutation) -> str:
    """Returns the cycles of a permutation of at most nine points, counted from 1."""
    text, seen = "", set()
    for start in range(len(element)):
        cycle, point = "", start
        while point not in seen:
            seen.add(point)
            cycle, point = cycle + str(point + 1), element[point]
        text += f"({cycle})" if len(cycle) > 1 else ""
    return text or "e"
