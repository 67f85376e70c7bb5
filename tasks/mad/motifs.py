"""Motifs: keys and values of several tokens, drawn, and placed one after another, as MAD's fuzzy recall has them."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int, Key


class Motifs(NamedTuple):
    """Keys with their values: the tokens of both, padded, how many of each there are, and a number that tells keys."""

    tokens: Int[Array, "n m"]
    key_size: Int[Array, " n"]
    size: Int[Array, " n"]
    code: Int[Array, " n"]


class Walk(NamedTuple):
    """What stands in the context: motif `chosen` from `start` on, where `active`."""

    start: Int[Array, " n"]
    chosen: Int[Array, " n"]
    active: Bool[Array, " n"]


def drawn(key: Key[Array, ""], count: int, keys: int, values: int, key_sizes: tuple[int, int], longest: int) -> Motifs:
    """Draws `count` keys, of `key_sizes` from the first to the second, each with its value of at most `longest` tokens.

    The tokens of keys are 0 to `keys` − 1, those of values the next ones. A value is drawn from a random key that its
    key names, so that a key that returns has the same value.
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
    """Places motifs one after another, and the last of `motifs` where a random place is reached; and where they end.

    Room is left for the last one once more, and before it for `longest` tokens.
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
    """Returns which of the keys that are `active` stood before, told by their numbers."""
    earlier = jnp.tri(len(codes), k=-1, dtype=bool) & active[None]
    return ((codes[:, None] == codes[None]) & earlier).any(axis=1) & active


def _ordered(uniform: Float[Array, "*n v"], count: int) -> Int[Array, "*n c"]:
    """Returns the first `count` of a random order of so many tokens, all orders equally likely."""
    return jnp.argsort(uniform, axis=-1)[..., :count]
