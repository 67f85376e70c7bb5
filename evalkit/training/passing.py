"""State passing: training sequences begin from the states that streams of ordinary tokens have reached."""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike

from evalkit.core import streams
from evalkit.core.contracts import LONGEST, Cache, Feed, LanguageModel, Params
from evalkit.parallel.devices import averaged, in_parts, own, together
from evalkit.training.settings import FITTED_NOISE, PASSED


def check_bounded(model: LanguageModel) -> None:
    """Raises ValueError for a model whose cache grows with the tokens that it has read."""
    if model.cache_bytes(1, LONGEST) != model.cache_bytes(1, LONGEST // 2):
        raise ValueError(
            "train.state_passing: the cache of global attention grows with every token of a stream; give "
            "train.state_passing=null, or the attention a window"
        )


class StreamInputs(NamedTuple):
    """The tokens `[b, t]` that streams read at a step, and `[b]`, which of them begin anew after it.

    `noise` `[b, k]` is the data of keys for what is drawn in place of their states, where sequences begin from noise.
    """

    tokens: Array
    anew: Array
    noise: Array | None = None


@dataclass(frozen=True)
class StatePassing:
    """`count` streams of ordinary tokens, each begun anew after a step with `probability` (arXiv 2507.02782).

    In each step a stream reads as many tokens as a training sequence has; with the probability `facts` they hold a
    fact. The batch then begins from copies of the new states, or from noise that is like them (`first`, one of
    `FIRST_STATES`); no gradient flows through either.
    """

    feed: Feed
    model: LanguageModel
    count: int
    probability: float
    facts: float
    first: str = PASSED

    def init_states(self, count: int) -> Cache:
        """The states of `count` streams that have read nothing."""
        return self.model.init_cache(count, LONGEST)

    def drawn(self, seed: ArrayLike, step: Array, length: int, shards: int) -> StreamInputs:
        """What the streams of this device read at `step`; `shards` devices have some each."""
        tokens = self.feed.ordinary(seed, step, self.count, length, self.facts)
        noise = None if self.first == PASSED else streams.noise_keys(seed, step, self.count)
        return own(StreamInputs(tokens, streams.begun_anew(seed, step, self.count, self.probability), noise), shards)

    def advance(self, params: Params, states: Cache, drawn: StreamInputs, size: int) -> Cache:
        """The states after what was `drawn` for a step, read `size` streams at a time."""
        tokens, anew, _ = drawn

        def read(part: tuple[Cache, Array]) -> Cache:
            nowhere = jnp.zeros((size, 0), jnp.int32)  # no logits are asked for
            return self.model.apply(params, part[1], None, part[0], nowhere)[1]

        after = together(lax.map(read, in_parts((states, tokens), size)))

        def begun(fresh: Array, state: Array) -> Array:
            return jnp.where(anew.reshape(-1, *[1] * (state.ndim - 1)), fresh, state)

        return jax.tree.map(begun, self.init_states(len(anew)), after)

    def starts(self, states: Cache, drawn: StreamInputs, shards: int) -> Cache:
        """The states that the batch begins from: those of this device's streams, or noise for their real numbers.

        The mean and the spread of noise are those of the streams of all `shards` devices.
        A number whose noise is not finite, such as the maximum of nothing in some stream, is left as it is.
        """
        if drawn.noise is None:
            return states
        keys = jax.random.wrap_key_data(drawn.noise)

        def noisy(number: int, state: Array) -> Array:
            if not jnp.issubdtype(state.dtype, jnp.floating):
                return state
            own_keys = jax.vmap(lambda key: jax.random.fold_in(key, number))(keys)
            noise = jax.vmap(lambda key: jax.random.normal(key, state.shape[1:], state.dtype))(own_keys)
            if self.first == FITTED_NOISE:
                mean = averaged(state.mean(axis=0, keepdims=True), shards)
                noise = mean + jnp.sqrt(averaged(jnp.square(state - mean).mean(axis=0, keepdims=True), shards)) * noise
            else:
                noise = jnp.sqrt(averaged(jnp.square(state).mean(), shards)) * noise
            return jnp.where(jnp.isfinite(noise), noise, state)

        leaves, kind = jax.tree.flatten(states)
        return jax.tree.unflatten(kind, [noisy(number, state) for number, state in enumerate(leaves)])


def copied_to(states: Cache, sequences: int) -> Cache:
    """The states that a batch begins from: equally many copies of each stream's state, one after the other."""
    return jax.tree.map(lambda x: jnp.repeat(x, sequences // len(x), axis=0), states)
