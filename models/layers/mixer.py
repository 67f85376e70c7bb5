"""The contract of a temporal mixer: one call serves training, prefill, chunked prefill and decoding.

Shapes: b batch, t time, d width, r recurrent width, n heads, h head width, s stored keys,
c width of values, v vocabulary.
"""

import re
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from jaxtyping import Float, Int, Key

Tokens = Int[Array, "b t"]
Positions = Int[Array, "b t"]
PositionsOfAll = Int[Array, "#b t"]  # a single row where all rows have the same positions
Places = Int[Array, "b n"]  # indices along t
Activations = Float[Array, "b t d"]
States = Float[Array, "b t r"]
Values = Float[Array, "b t c"]
Logits = Float[Array, "b t v"]
Queries = Float[Array, "b t n h"]
Keys = Float[Array, "b s h"]
Rows = Int[Array, " b"]
PRNGKey = Key[Array, ""]

NO_CONTAINERS = (nnx.Pytree, nnx.Variable, jax.Array, np.ndarray, str, bytes, range)
"""Types with a length that hold no layers, or whose layers Flax finds."""
Cache = Any  # each mixer has a pytree of its own
REQUIRED = "a mixer has __call__(x, positions, cache), init_cache(batch, length) and window, a whole number or None"
PLAIN = re.compile(
    r"value of type '?<class '(\w+)'>'? .*?static attribute '(\w+)' of Pytree type '<class '(?:[\w.<>]*\.)?(\w+)'>'"
)
"""Flax's error message for an attribute that is a plain Python container of layers."""


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


def built(make: Callable[..., Any], **given: Any) -> Mixer:
    """Returns the mixer that `make` builds; raises ValueError if it is no mixer, or hides layers from Flax."""
    try:
        mixer = make(**given)
    except ValueError as error:
        plain = PLAIN.search(str(error))
        if plain is None:
            raise
        name = getattr(make.func if isinstance(make, partial) else make, "__name__", "a mixer")
        kind, attribute, owner = plain.groups()
        raise ValueError(_hidden(name, owner, attribute, kind)) from error
    _refuse_hidden(mixer)
    return refuse_no_mixer(mixer)


def _refuse_hidden(mixer: Any) -> None:
    """Raises ValueError for layers in a set, or in a container of the user's own, which Flax does not report."""
    for _, node in nnx.iter_graph(mixer):
        for attribute, value in vars(node).items() if isinstance(node, nnx.Pytree) else ():
            is_plain = isinstance(value, Collection) and not isinstance(value, NO_CONTAINERS)
            held = value.values() if isinstance(value, Mapping) else value if is_plain else ()
            if is_plain and any(isinstance(one, nnx.Module | nnx.Variable) for one in held):
                raise ValueError(_hidden(type(mixer).__name__, type(node).__name__, attribute, type(value).__name__))


def _hidden(mixer: str, owner: str, attribute: str, kind: str) -> str:
    """Returns the error message for a plain Python container of layers or parameters, an attribute of `owner`."""
    wanted = "nnx.Dict" if "dict" in kind.lower() else "nnx.List"
    # The name of a Flax container does not say where it is, so the mixer is named.
    place = f"{mixer}: {attribute!r} of an nnx.{owner}" if owner in ("List", "Dict") else f"{owner}.{attribute}"
    return f"{place} is a plain {kind} of layers or parameters, in which Flax finds none; make it {wanted}(...)"


def refuse_no_mixer(mixer: Any) -> Mixer:
    """Returns `mixer`; raises ValueError, naming what is missing, for what lacks a part of the contract."""
    name = type(mixer).__name__
    missing = [part for part in ("__call__", "init_cache") if not callable(getattr(mixer, part, None))]
    if missing or not isinstance(mixer, Mixer):
        raise ValueError(f"{name} has no {', '.join(missing or ['window'])}; {REQUIRED}")
    window = mixer.window
    if window is not None and (isinstance(window, bool) or not isinstance(window, int) or window < 1):
        raise ValueError(f"{name} has window={window!r}; {REQUIRED}")
    if not isinstance(mixer, nnx.Module):
        raise ValueError(f"{name} is no flax.nnx.Module, in which its parameters are found; make it a subclass of that")
    for path, value in nnx.iter_graph(mixer):
        if isinstance(value, jax.Array | np.ndarray):
            place = ".".join(map(str, (name, *path)))
            raise ValueError(f"{place} is an array and no parameter; make it nnx.Param(...), or compute it in __call__")
    return mixer


@runtime_checkable
class Decaying(Protocol):
    """Optional: a mixer whose state, `h` of its cache, decays; evaluations then measure what it forgets."""

    def decays(self, x: Activations) -> tuple[States, States]:
        """Returns δ = −log |a| (1/tokens) and the states of whole sequences, both `[b, t, r]`."""
        ...


@runtime_checkable
class Split(Protocol):
    """Optional: a mixer that, given positions, works where time is split over devices (`kernels.across`)."""

    def check_split(self, steps: int) -> None:
        """Raises ValueError if it cannot, with `steps` tokens on each device."""
        ...


@runtime_checkable
class ValueSharing(Protocol):
    """Optional: a mixer whose values go on to the blocks of its own class above it, beside the residual stream.

    Blocks of other classes do not see them. The values belong to the tokens of this call, so no cache keeps them, and
    they must be as causal as the mixer's output. RWKV-7 mixes the values of its first block into those of later ones.
    """

    value_width: int
    """The channels of its values, the same for all blocks of its class in a model."""

    def with_values(
        self, x: Activations, positions: Positions | None, cache: Cache | None, values: Values | None
    ) -> tuple[Activations, Cache | None, Values]:
        """Mixes `x` as `Mixer` says; `values` are what the last such block returned, None to the first of a model."""
        ...


@runtime_checkable
class Counted(Protocol):
    """Optional: a mixer that counts its own operations; XLA counts those of other mixers (`flops_of`).

    The count is of floating-point operations in the mixer's equations: a multiply and an add are one each, and so is
    any other elementwise operation from input to output. It leaves out functions such as exp, tanh and roots, which XLA
    counts apart, and what an implementation adds: masked pairs, padding, masks, zeros of a dense form. It also leaves
    out what depends on the parameters alone.
    """

    def flops(self, length: int) -> int:
        """Returns the floating-point operations of a forward pass over one row of `length` tokens."""
        ...


def flops_of(mixer: Mixer, width: int, length: int) -> int:
    """Returns the floating-point operations of a forward pass over one row of `length` tokens.

    For a mixer that is not `Counted`, the result is `length` times XLA's count of one decoding step. The cache of that
    step has room for half of the tokens, so that a cost that grows with the cache is right on average. XLA counts the
    body of a loop once, so a mixer whose step has a loop should be `Counted`.
    """
    if isinstance(mixer, Counted):
        return mixer.flops(length)
    graph, state = nnx.split(mixer)

    def step(state: nnx.State, x: Array, cache: Cache) -> tuple[Array, Cache]:
        return nnx.merge(graph, state)(x, None, cache)

    cache = jax.eval_shape(lambda: mixer.init_cache(1, (length + 1) // 2))
    x = jax.ShapeDtypeStruct((1, 1, width), jnp.float32)
    cost = jax.jit(step).lower(state, x, cache).cost_analysis() or {}
    return round(length * cost.get("flops", 0.0))
