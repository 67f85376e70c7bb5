"""State passing: training sequences begin from the states that streams of ordinary tokens have reached."""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike

from evalkit.core import streams
from evalkit.core.contracts import LONGEST, Cache, Feed, LanguageModel, Params
from evalkit.parallel.devices import in_parts, own, together


def check_bounded(model: LanguageModel) -> None:
    """Raises ValueError for a model whose cache grows with the tokens that it has read."""
    if model.cache_bytes(1, LONGEST) != model.cache_bytes(1, LONGEST // 2):
        raise ValueError(
            "train.state_passing: the cache of global attention grows with every token of a stream; give "
            "train.state_passing=null, or the attention a window"
        )


class Drawn(NamedTuple):
    """The tokens `[b, t]` that streams read at a step, and `[b]`, which of them begin anew after it."""

    tokens: Array
    anew: Array


@dataclass(frozen=True)
class StatePassing:
    """`count` streams of ordinary tokens, each begun anew after a step with `probability` (arXiv 2507.02782).

    A stream reads as many tokens a step as a training sequence has, `facts` of the time with a fact among them. The
    batch begins from copies of the states after it, through which no gradient flows.
    """

    feed: Feed
    model: LanguageModel
    count: int
    probability: float
    facts: float

    def fresh(self, count: int) -> Cache:
        """The states of `count` streams that have read nothing."""
        return self.model.init_cache(count, LONGEST)

    def drawn(self, seed: ArrayLike, step: Array, length: int, shards: int) -> Drawn:
        """What the streams of this device read at `step`; `shards` devices have some each."""
        tokens = self.feed.ordinary(seed, step, self.count, length, self.facts)
        return own(Drawn(tokens, streams.begun_anew(seed, step, self.count, self.probability)), shards)

    def advance(self, params: Params, states: Cache, drawn: Drawn, size: int) -> Cache:
        """The states after what was `drawn` for a step, read `size` streams at a time."""
        tokens, anew = drawn

        def read(part: tuple[Cache, Array]) -> Cache:
            nowhere = jnp.zeros((size, 0), jnp.int32)  # no logits are asked for
            return self.model.apply(params, part[1], None, part[0], nowhere)[1]

        after = together(lax.map(read, in_parts((states, tokens), size)))

        def begun(fresh: Array, state: Array) -> Array:
            return jnp.where(anew.reshape(-1, *[1] * (state.ndim - 1)), fresh, state)

        return jax.tree.map(begun, self.fresh(len(anew)), after)


def copied_to(states: Cache, sequences: int) -> Cache:
    """The states that a batch begins from: of each stream as many copies, one after the other."""
    return jax.tree.map(lambda x: jnp.repeat(x, sequences // len(x), axis=0), states)
