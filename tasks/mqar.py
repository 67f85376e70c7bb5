"""Multi-query associative recall: pairs of keys and values, then the keys again (Arora et al. 2023, 2312.04927)."""

from dataclasses import dataclass, replace
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Int, Key

from evalkit.checks import above, at_least
from evalkit.numerics import GUMBEL
from evalkit.tasks.base import Example, Synthetic, distinct

FILLER = 0


@dataclass(frozen=True, kw_only=True)
class MQAR(Synthetic):
    """`pairs` keys, each with its value after it. Then every key stands once more, and its value is the answer there.

    The definition is zoology's (`multiquery_ar`, one pass). Keys are different tokens from 1 to V/2 − 1, values
    different ones from V/2 to V − 1. After the pairs, every second position may hold a query. Query i stands at the
    g-th of these, drawn without replacement with probability proportional to g^(power_a − 1), so that most come soon.
    Fillers stand everywhere else. With length 16, two pairs and fillers of 0, an example is
    `2 8 4 7 · · 4 · · · · · 2 · · ·`; the answers are 7 below the second 4, and 8 below the second 2.

    With `fewest_pairs`, a training sequence has a random number of pairs: a power of two times `fewest_pairs` below
    the most, or the most itself, which is `pairs` but at most a quarter of its length, so that a curriculum of lengths
    is also one of pairs. The room for pairs stays the same: its first places hold the drawn pairs, the others 0.
    Held-out sequences have all pairs.

    With `rewrites`, that many keys occur twice among the pairs, with another value each time, in random order. The last
    value counts, so that a mixer must overwrite, and not only add. This option is ours, not zoology's.

    A random filler at a place for queries may equal a key; nothing in the tokens tells it from the query. Then the
    first of them is scored here, but in zoology the one drawn as the query. The distribution of tokens is the same.

    Options (the defaults are zoology's):
      vocab_size (token ids): the size of the vocabulary: 0, keys, and values.
      length (tokens): the length of a training sequence, pairs and queries together.
      pairs (keys): how many keys there are; each takes two tokens of the context and one place for queries.
      fewest_pairs (keys): the smallest number of pairs that a training sequence has; null: all have `pairs`.
      power_a: the exponent of the gaps, plus one; 1 makes all gaps equally likely.
      rewrites (keys): how many keys are written twice; the last value is the answer.
      random_non_queries: whether fillers are random tokens; else they are 0.

    >>> task = MQAR(vocab_size=64, length=32, pairs=4)
    >>> example = task.sample(jax.random.key(0), 32)
    >>> len(example.tokens), int(example.mask.sum())
    (32, 4)
    """

    version: ClassVar[int] = (
        2  # 1 trained on fewer pairs than are asked where these are no power of two times the fewest
    )

    vocab_size: int = 8192
    length: int = 64
    pairs: int = 8
    fewest_pairs: int | None = None
    power_a: float = 0.01
    rewrites: int = 0
    random_non_queries: bool = True

    def __post_init__(self) -> None:
        at_least(self, 1, "pairs")
        if not 0 <= self.rewrites <= (0 if self.fewest_pairs else self.pairs):
            instead = "0 with fewest_pairs" if self.fewest_pairs else f"0 to pairs={self.pairs}"
            raise ValueError(f"rewrites={self.rewrites}; allowed: {instead}")
        if self.rewrites + self.pairs > self.vocab_size - self.vocab_size // 2:
            raise ValueError(
                f"vocab_size={self.vocab_size} has {self.vocab_size - self.vocab_size // 2} values, and "
                f"pairs={self.pairs} with rewrites={self.rewrites} take {self.pairs + self.rewrites}; use a larger one"
            )
        if self.vocab_size < 2 * (self.pairs + 1):
            raise ValueError(
                f"vocab_size={self.vocab_size} has {max(self.vocab_size // 2 - 1, 0)} keys; "
                f"use at least {2 * (self.pairs + 1)} for pairs={self.pairs}"
            )
        if self.fewest_pairs is not None and not 1 <= self.fewest_pairs <= self.pairs:
            raise ValueError(f"fewest_pairs={self.fewest_pairs}; allowed: 1 to pairs={self.pairs}, or null")
        above(self, 0, "power_a")
        # Held-out sequences have all pairs.
        (self if self.fewest_pairs is None else self.judged)._slots(self.length)

    @property
    def scored(self) -> int:
        """Returns the number of scored positions: one a key; fewer in a training sequence with fewer pairs."""
        return self.pairs

    @property
    def judged(self) -> "MQAR":
        """Returns the task of held-out sequences, which have all pairs."""
        return replace(self, fewest_pairs=None)

    @property
    def chance(self) -> float:
        """Returns the accuracy of guessing among all values."""
        return 1.0 / (self.vocab_size - self.first_value)

    @property
    def first_value(self) -> int:
        """Returns the smallest id of a value; keys are smaller."""
        return self.vocab_size // 2

    def sample(self, key: Key[Array, ""], length: int) -> Example:
        slots, pairs = self._slots(length), self._most(length)
        context = 2 * (pairs + self.rewrites)
        for_keys, for_values, for_gaps, for_fillers = jax.random.split(key, 4)
        keys = 1 + distinct(for_keys, pairs, self.first_value - 1)
        drawn = pairs + self.rewrites
        values = self.first_value + distinct(for_values, drawn, self.vocab_size - self.first_value)
        # The largest of log p plus independent Gumbel noise are draws from p one after another, without replacement.
        weights = (self.power_a - 1) * jnp.log(jnp.arange(1, slots + 1))
        _, gaps = jax.lax.top_k(weights + jax.random.gumbel(for_gaps, (slots,), mode=GUMBEL), pairs)
        rest = jnp.full((length - context,), FILLER)
        if self.random_non_queries:
            rest = jax.random.randint(for_fillers, (length - context,), 0, self.vocab_size)
        there = self._there(key, pairs)
        rest = rest.at[jnp.where(there, 2 * gaps, length)].set(keys, mode="drop")
        first = context + 2 * (rest[::2, None] == keys[None]).argmax(axis=0)
        first = jnp.where(there, first, length)
        shown = jnp.where(there[:, None], jnp.stack([keys, values[:pairs]], axis=1), FILLER)
        if self.rewrites:
            owner, value = self._rewritten(key, pairs)
            shown = jnp.stack([keys[owner], values[value]], axis=1)
        tokens = jnp.concatenate([shown.reshape(-1), rest])
        targets = jnp.zeros((length,), tokens.dtype).at[first].set(values[:pairs], mode="drop")
        return Example(tokens, targets, jnp.zeros((length,), bool).at[first].set(True, mode="drop"))

    def solve(self, tokens: Int[np.ndarray, " t"]) -> tuple[np.ndarray, np.ndarray]:
        """`targets` has the value wherever a key stands at a place for queries, also where it is not scored."""
        targets, mask = np.zeros(len(tokens), np.int32), np.zeros(len(tokens), bool)
        context = 2 * (self._most(len(tokens)) + self.rewrites)
        values = {int(k): int(v) for k, v in tokens[:context].reshape(-1, 2) if k != FILLER}
        unasked = set(values)
        for place in range(context, len(tokens), 2):
            token = int(tokens[place])
            targets[place] = values.get(token, 0)
            mask[place] = token in unasked
            unasked.discard(token)
        return targets, mask

    def _there(self, key: Key[Array, ""], pairs: int) -> Bool[Array, " pairs"]:
        """Draws how many pairs an example has; returns True for the first ones of `pairs`, up to that number."""
        if self.fewest_pairs is None:
            return jnp.ones((pairs,), bool)
        counts = [self.fewest_pairs << i for i in range((pairs // self.fewest_pairs).bit_length())]
        counts += [pairs] if counts[-1] < pairs else []  # what is asked of held-out sequences is trained on too
        # Folded in, so that all other draws stay as without it; 0 to 3 are the keys that `sample` splits off.
        chosen = jax.random.randint(jax.random.fold_in(key, max(self.pairs, 4)), (), 0, len(counts))
        return jnp.arange(pairs) < jnp.asarray(counts)[chosen]

    def _rewritten(self, key: Key[Array, ""], pairs: int) -> tuple[Int[Array, " n"], Int[Array, " n"]]:
        """Returns the indices of each pair's key and value; a key's last pair has the value of the same index."""
        owner = jnp.concatenate([jnp.arange(pairs), jnp.arange(self.rewrites)])
        # Folded in, as in `_there`.
        owner = jax.random.permutation(jax.random.fold_in(key, max(self.pairs, 4) + 1), owner)
        is_first = (owner[:, None] == owner[None]).argmax(axis=1) == jnp.arange(len(owner))
        return owner, jnp.where(is_first & (owner < self.rewrites), pairs + owner, owner)

    def _most(self, length: int) -> int:
        """Returns how many pairs a sequence of this length has at most."""
        return self.pairs if self.fewest_pairs is None else min(self.pairs, length // 4)

    def symbol(self, token: int) -> str:
        """Returns `k3` for a key, `v3` for a value, and a dot for 0."""
        if token == FILLER:
            return "·"
        return f"k{token}" if token < self.first_value else f"v{token - self.first_value}"

    def _slots(self, length: int) -> int:
        """Returns how many places for queries there are; raises ValueError if they are fewer than the pairs."""
        pairs = self.pairs if self.fewest_pairs is None else self.fewest_pairs
        least = 4 * pairs + 2 * self.rewrites
        if length < least:
            twice = f" and rewrites={self.rewrites}" if self.rewrites else ""
            raise ValueError(f"length={length} is too short for pairs={pairs}{twice}; use a length of at least {least}")
        return (length - 2 * (self._most(length) + self.rewrites)) // 2
