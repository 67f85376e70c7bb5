"""The contract of a temporal mixer: one call serves training, prefill, chunked prefill and decoding."""

from typing import Any, Protocol, runtime_checkable

from evalkit.models.layers.shapes import Activations, Positions, States

Cache = Any  # each mixer has a pytree of its own
REQUIRED = "a mixer has __call__(x, positions, cache), init_cache(batch, length) and window, a whole number or None"


@runtime_checkable
class Mixer(Protocol):
    """Mixes information along time; it is built as `Mixer(width=..., rngs=..., <its own settings>)`.

    It returns a cache if and only if it is given one: in training the second result is None. `positions=None` continues
    each row, from position 0 without a cache. At `positions == 0` the state is reset. `positions == -1` is a pad,
    before or after a row's tokens: it writes nothing and changes no state; its output is unspecified but finite.

        y, _ = mixer(x, None, None)                          # training
        y, cache = mixer(prompt, None, mixer.init_cache(batch, length))
        y, cache = mixer(next_token, None, cache)            # decoding
    """

    window: int | None
    """The number of latest positions that the output can depend on; None if it is unbounded."""

    def __call__(
        self, x: Activations, positions: Positions | None, cache: Cache | None
    ) -> tuple[Activations, Cache | None]:
        """Mixes `x`; if a cache is given, continues from it and returns the new one."""
        ...

    def init_cache(self, batch: int, length: int) -> Cache:
        """Returns an empty cache for `batch` rows of at most `length` tokens.

        The first axis of each of its arrays is the batch. A mixer whose state has a fixed size ignores `length`.
        """
        ...


def refuse_no_mixer(mixer: Any) -> Mixer:
    """Returns `mixer`; raises ValueError, naming what is missing, for what lacks a part of the contract."""
    name = type(mixer).__name__
    missing = [part for part in ("__call__", "init_cache") if not callable(getattr(mixer, part, None))]
    if missing or not isinstance(mixer, Mixer):
        raise ValueError(f"{name} has no {', '.join(missing or ['window'])}; {REQUIRED}")
    window = mixer.window
    if window is not None and (isinstance(window, bool) or not isinstance(window, int) or window < 1):
        raise ValueError(f"{name} has window={window!r}; {REQUIRED}")
    return mixer


@runtime_checkable
class Decaying(Protocol):
    """Optional: a mixer whose state, `h` of its cache, decays; evaluations then measure what it forgets."""

    def decays(self, x: Activations) -> tuple[States, States]:
        """Returns δ = −log |a| (1/tokens) and the states of whole sequences, both `[b, t, r]`."""
        ...
