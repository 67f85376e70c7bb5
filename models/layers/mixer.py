"""What every temporal mixer is: one call serves training, prefill, chunked prefill and decoding."""

from typing import Any, Protocol, runtime_checkable

from evalkit.models.layers.shapes import Activations, Positions, States

Cache = Any  # a typed pytree of the mixer's own


@runtime_checkable
class Mixer(Protocol):
    """Mixes along time. Built as `Mixer(width=..., rngs=..., <its own settings>)`.

    Cache in ⇔ cache out: without one (training) the second result is None. `positions=None` continues each row, from
    position 0 without a cache. `positions == 0` resets the state; `positions == -1`, before or after a row's tokens,
    writes nothing and leaves every state as it was (the output there is unspecified, but finite).
    """

    window: int | None
    """How many of the latest positions the output can depend on; None if unbounded."""

    def __call__(
        self, x: Activations, positions: Positions | None, cache: Cache | None
    ) -> tuple[Activations, Cache | None]:
        """Mixes `x`; continues from `cache` and returns the new one if one is given."""
        ...

    def init_cache(self, batch: int, length: int) -> Cache:
        """An empty cache for `batch` rows of at most `length` tokens (a bounded mixer ignores `length`).

        The first axis of each of its arrays is the batch.
        """
        ...


@runtime_checkable
class Decaying(Protocol):
    """A mixer whose state, `h` of its cache, decays: what it forgets can be looked at. None has to be one."""

    def decays(self, x: Activations) -> tuple[States, States]:
        """δ = −log |a| of every step and channel, in 1/tokens, and the states, both `[b, t, r]`, of whole sequences."""
        ...
