"""Fuzzy in-context recall: keys and values of one to three tokens (Poli et al. 2024)."""

from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int, Key

from evalkit.checks import one_of
from evalkit.tasks.base import Example, Synthetic

LOSSES = ("all", "answer")
SIZES = ("any", "longest")


@dataclass(frozen=True, kw_only=True)
class FuzzyRecall(Synthetic):
    """In-context recall with motifs: a key is one to three different tokens in order, and so is a value.

    Each sequence draws new values, and a repeated key has its earlier value. The key at the end occurred before; its
    first place is uniform, unless it occurred earlier by chance. Padding before the sequence fills the length. With
    keys of a to d and values of 1 to 4, an example is `· a b 3 1 c 2 a b 3 1`, and the answers are `3 1` after the
    second `a b`.

    As in MAD, training has keys of every size, and held-out sequences have the longest alone. In short sequences MAD
    may never show the key that it asks for; here it is always there. MAD's noise among motifs, 0 in its benchmark, is
    left out.

    Options (the defaults are those of MAD's benchmark):
      vocab_size (token ids): the size of the vocabulary: keys, values, padding and the special token.
      length (tokens): the length of a training sequence.
      k_motif_size (tokens): the longest key.
      v_motif_size (tokens): the longest value.
      multi_query: whether all repeated keys are asked for, or only the one at the end, after a special token.
      key_sizes: `any` size of keys up to the longest, or only the `longest`, as in held-out sequences.
      loss: what is scored in training: `all`, the next token at every position, or `answer`. Held-out sequences always
        score the answers alone.

    >>> task = FuzzyRecall(length=32)
    >>> task.judged.key_sizes, len(task.sample(jax.random.key(0), 32).tokens)
    ('longest', 32)
    """

    vocab_size: int = 16
    length: int = 128
    k_motif_size: int = 3
    v_motif_size: int = 3
    multi_query: bool = True
    key_sizes: str = "any"
    loss: str = "all"

    def __post_init__(self) -> None:
        one_of(self, "loss", LOSSES)
        one_of(self, "key_sizes", SIZES)
        for name, room in (("k_motif_size", self.keys), ("v_motif_size", self.padding - self.keys)):
            if not 1 <= getattr(self, name) <= room:
                raise ValueError(
                    f"{name}={getattr(self, name)}; allowed: 1 to {max(room, 0)}, the tokens for it "
                    f"with vocab_size={self.vocab_size}"
                )
        if self.padding - self.keys < 2:
            raise ValueError(f"vocab_size={self.vocab_size} has one token for values, so no choice; use a larger one")
        if (self.keys + 1) ** self.k_motif_size > 2**31:
            raise ValueError(
                f"k_motif_size={self.k_motif_size} with vocab_size={self.vocab_size} has more than 2^31 keys, which "
                "32-bit numbers cannot tell apart; give a smaller one"
            )
        self._check_length(self.length)

    @property
    def judged(self) -> Self:
        """Returns the task of held-out sequences: the longest keys, and the answers alone scored."""
        return replace(self, loss="answer", key_sizes="longest")

    @property
    def chance(self) -> float:
        """Returns the accuracy of guessing a token of a value."""
        return 1.0 / (self.padding - self.keys)

    @property
    def padding(self) -> int:
        """Returns the id of padding; tokens of keys and values have smaller ids."""
        return self.vocab_size - (1 if self.multi_query else 2)

    @property
    def keys(self) -> int:
        """Returns the number of tokens of keys, whose ids are the first."""
        return self.padding // 2

    def sample(self, key: Key[Array, ""], length: int) -> Example:
        self._check_length(length)
        for_motifs, for_place = jax.random.split(key)
        most = (length - self._longest) // 2
        key_sizes = (1 if self.key_sizes == "any" else self.k_motif_size, self.k_motif_size)
        # The last one is asked for.
        motifs = drawn(for_motifs, most + 1, self.keys, self.padding - self.keys, key_sizes, self.v_motif_size)
        walk, end = placed(for_place, motifs, length, self._longest)
        again = stood_before(motifs.code[walk.chosen], walk.active)
        special = [] if self.multi_query else [jnp.full((1,), self.vocab_size - 1)]
        last = end + len(special)
        starts, chosen = jnp.append(walk.start, last), jnp.append(walk.chosen, most)
        active, asked = jnp.append(walk.active, True), jnp.append(again & self.multi_query, True)
        inside = jnp.arange(self._longest)[None]
        filled = active[:, None] & (inside < motifs.size[chosen, None])
        places = jnp.where(filled, starts[:, None] + inside, length + 1)
        whole = jnp.zeros((length + 1,), jnp.int32).at[places].set(motifs.tokens[chosen], mode="drop")
        whole = whole if self.multi_query else whole.at[end].set(self.vocab_size - 1)
        due = jnp.zeros((length + 1,), bool)
        due = due.at[places].set(asked[:, None] & (inside >= motifs.key_size[chosen, None]), mode="drop")
        pads = length + 1 - (last + motifs.size[most])
        is_pad = jnp.arange(length + 1) < pads
        whole = jnp.where(is_pad, self.padding, jnp.roll(whole, pads))
        due = jnp.roll(due, pads) & ~is_pad
        mask = due[1:] if self.loss == "answer" else jnp.ones((length,), bool)
        return Example(whole[:-1], jnp.where(mask, whole[1:], 0), mask)

    def solve(self, tokens: Int[np.ndarray, " t"]) -> tuple[np.ndarray, np.ndarray]:
        known: dict[tuple[int, ...], tuple[int, ...]] = {}
        asked = np.zeros(len(tokens), bool)
        answer, place = 0, int((tokens == self.padding).sum())
        while place < len(tokens):
            place += int(tokens[place] > self.padding)
            key_end = self._run(tokens, place, values=False)
            key, end = tuple(tokens[place:key_end].tolist()), self._run(tokens, key_end, values=True)
            if end == len(tokens):
                asked[key_end - 1 :] = True
                answer = known[key][end - key_end]
            elif key in known:
                asked[key_end - 1 : end - 1] = self.multi_query
            else:
                known[key] = tuple(tokens[key_end:end].tolist())
            place = end
        targets = np.append(tokens[1:], answer)
        return (targets, np.ones(len(tokens), bool)) if self.loss == "all" else (np.where(asked, targets, 0), asked)

    def symbol(self, token: int) -> str:
        """Returns `k3` of a key, `v3` of a value, a dot for padding, a star for the special token."""
        if token >= self.padding:
            return "·" if token == self.padding else "★"
        return f"k{token}" if token < self.keys else f"v{token - self.keys}"

    def _run(self, tokens: Int[np.ndarray, " t"], place: int, values: bool) -> int:
        """Returns where the run of key tokens, or with `values` of value tokens, that begins at `place` ends."""
        while place < len(tokens) and tokens[place] < self.padding and (tokens[place] >= self.keys) == values:
            place += 1
        return place

    @property
    def _longest(self) -> int:
        """Returns the number of tokens of the longest key with the longest value."""
        return self.k_motif_size + self.v_motif_size

    def _check_length(self, length: int) -> None:
        if length <= 2 * self._longest:
            raise ValueError(
                f"length={length} is too short for k_motif_size={self.k_motif_size}, v_motif_size={self.v_motif_size}; "
                f"use a length of at least {2 * self._longest + 1}"
            )


class Motifs(NamedTuple):
    """Keys with their values: the padded tokens of both, the size of the key and of both, and a code for each key."""

    tokens: Int[Array, "n m"]
    key_size: Int[Array, " n"]
    size: Int[Array, " n"]
    code: Int[Array, " n"]


class Walk(NamedTuple):
    """The motifs of a context in order: number `chosen` begins at `start`, if it is `active`."""

    start: Int[Array, " n"]
    chosen: Int[Array, " n"]
    active: Bool[Array, " n"]


def drawn(key: Key[Array, ""], count: int, keys: int, values: int, key_sizes: tuple[int, int], longest: int) -> Motifs:
    """Draws `count` keys of `key_sizes[0]` to `key_sizes[1]` tokens, each with a value of at most `longest` tokens.

    The tokens of keys are 0 to `keys` − 1, those of values the next ones. The random key of a value depends on the code
    of its key, so that a repeated key has the same value.
    """
    for_keys, for_sizes, for_values = jax.random.split(key, 3)
    least, most = key_sizes
    tokens = _ordered(jax.random.uniform(for_keys, (count, keys)), most)
    key_size = jax.random.randint(for_sizes, (count,), least, most + 1)
    digits = jnp.where(jnp.arange(most)[None] < key_size[:, None], tokens + 1, 0)
    code = (digits * (keys + 1) ** jnp.arange(most)[None]).sum(axis=1)

    def value(code: Array) -> tuple[Array, Array]:
        for_size, for_tokens = jax.random.split(jax.random.fold_in(for_values, code))
        ordered = _ordered(jax.random.uniform(for_tokens, (values,)), longest)
        return keys + ordered, jax.random.randint(for_size, (), 1, longest + 1)

    value_tokens, value_size = jax.vmap(value)(code)
    # A value begins where its key ends.
    inside = jnp.arange(most + longest)[None]
    after = jnp.clip(inside - key_size[:, None], 0, longest - 1)
    padded = jnp.pad(tokens, ((0, 0), (0, longest)))
    both = jnp.where(inside < key_size[:, None], padded, jnp.take_along_axis(value_tokens, after, axis=1))
    return Motifs(both.astype(jnp.int32), key_size, key_size + value_size, code)


def placed(key: Key[Array, ""], motifs: Motifs, length: int, longest: int) -> tuple[Walk, Int[Array, ""]]:
    """Places motifs one after another, the last of `motifs` at a random place; returns them and where they end.

    At the end, room is left for the last motif once more, and before it for one of `longest` tokens.
    """
    asked = len(motifs.size) - 1
    limit = length - motifs.size[asked] - longest
    place = jax.random.randint(key, (), 0, jnp.maximum(length - 2 * motifs.size[asked], 1))

    def step(carry: tuple[Array, Array], index: Array) -> tuple[tuple[Array, Array], Walk]:
        start, there = carry
        active = start < limit
        last_chance = start + motifs.size[index] >= limit
        chosen = jnp.where(~there & ((start >= place) | last_chance), asked, index)
        there |= active & (motifs.code[chosen] == motifs.code[asked])
        return (start + jnp.where(active, motifs.size[chosen], 0), there), Walk(start, chosen, active)

    (end, _), walk = jax.lax.scan(step, (jnp.int32(0), jnp.bool_(False)), jnp.arange(asked))
    return walk, end


def stood_before(codes: Int[Array, " n"], active: Bool[Array, " n"]) -> Bool[Array, " n"]:
    """Returns which of the `active` keys occurred before, compared by their codes."""
    earlier = jnp.tri(len(codes), k=-1, dtype=bool) & active[None]
    return ((codes[:, None] == codes[None]) & earlier).any(axis=1) & active


def _ordered(uniform: Float[Array, "*n v"], count: int) -> Int[Array, "*n c"]:
    """Returns the first `count` of v tokens in random order, all orders equally likely."""
    return jnp.argsort(uniform, axis=-1)[..., :count]
