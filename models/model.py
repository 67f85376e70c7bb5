"""A language model as pure functions of plain parameters: all that the rest of the project sees."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
from flax import nnx
from jaxtyping import Float

from evalkit.models.layers.mixer import Cache, Mixer
from evalkit.models.layers.modules import NoDecay
from evalkit.models.layers.shapes import Places, Positions, PRNGKey, States, Tokens
from evalkit.models.lm import LanguageModel
from evalkit.models.parts import Part, parts_of

Params = dict[str, Any]
DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True, eq=False)
class Model:
    """Pure functions over nested dictionaries of arrays.

    `window` is the smallest window of the mixers, None if none has one (for the marks in a figure).
    """

    vocab_size: int
    window: int | None
    init: Callable[[PRNGKey], Params]
    module: Callable[[Params], LanguageModel]
    """The Flax module with these parameters, for this package alone."""
    _decay: Params
    _init_cache: Callable[[int, int], tuple[Cache, ...]]

    def apply(
        self,
        params: Params,
        tokens: Tokens,
        positions: Positions | None = None,
        cache: tuple[Cache, ...] | None = None,
        at: Places | None = None,
    ) -> tuple[Float[jax.Array, "b _ v"], tuple[Cache, ...] | None]:
        """Logits `[b, t, v]` in float32, and the new cache if one is given (see `Mixer` for positions and cache).

        With `at [b, n]`, indices along `t`, the logits `[b, n, v]` there, for less than the price of all.
        """
        return self.module(params)(tokens, positions, cache, at)

    def init_cache(self, batch: int, length: int) -> tuple[Cache, ...]:
        """An empty cache for `batch` rows of at most `length` tokens."""
        return self._init_cache(batch, length)

    def parts(self, params: Params, batch: int, length: int) -> list[Part]:
        """The pieces of a forward pass over `[batch, length]` tokens, for timing them."""
        return parts_of(self.module(params), batch, length)

    def decays(self, params: Params, tokens: Tokens) -> dict[int, tuple[States, States]]:
        """Of each block whose state decays, by its number: δ = −log |a| (1/tokens) and the state, both `[b, t, r]`."""
        return self.module(params).decays(tokens)

    def decay_mask(self, params: Params) -> Params:
        """True where weight decay applies: not on Λ, biases, norms and the embedding."""
        return jax.tree.map(lambda _, decays: decays, params, self._decay)


def build(
    *,
    vocab_size: int,
    width: int,
    pattern: Sequence[str],
    mixers: Mapping[str, Callable[..., Mixer]],
    mlp_expansion: float = 3,
    mlp_bias: bool = False,
    embedding_scale: float | None = None,
    logits_soft_cap: float | None = None,
    dtype: str = "float32",
) -> Model:
    """The model whose block i mixes with `mixers[pattern[i]]`; nothing is allocated until `init`.

    `mlp_expansion` M = 3 is the paper's, 0 leaves MLPs out. `embedding_scale` multiplies token vectors; None is
    sqrt(width), which the paper does not say and its released model does. `mlp_bias` and `logits_soft_cap` are the
    released model's too (see `GatedMLP` and `Embedding`). `dtype` is that of activations; parameters, gates and logits
    stay float32.
    Raises ValueError for a pattern that names no mixer and for sizes that cannot be.
    """
    unknown = sorted(set(pattern) - set(mixers))
    if unknown or not pattern:
        raise ValueError(f"pattern={list(pattern)} names {unknown or 'nothing'}; mixers given: {sorted(mixers)}")
    for name, value in (("vocab_size", vocab_size), ("width", width)):
        if value < 1:
            raise ValueError(f"{name}={value}; allowed: 1 or more")
    mlp_width = round(mlp_expansion * width)
    if mlp_width < 0 or abs(mlp_width - mlp_expansion * width) > 1e-6 * mlp_width:
        wide = mlp_expansion * width
        raise ValueError(
            f"mlp_expansion={mlp_expansion} makes an MLP of width {wide:g}; use a whole one, or 0 for none"
        )
    if logits_soft_cap is not None and logits_soft_cap <= 0:
        raise ValueError(f"logits_soft_cap={logits_soft_cap}; allowed: above 0, or null for none")
    if dtype not in DTYPES:
        raise ValueError(f"dtype={dtype!r}; allowed: {', '.join(DTYPES)}")
    make = partial(
        LanguageModel,
        vocab_size=vocab_size,
        width=width,
        pattern=tuple(pattern),
        mixers=dict(mixers),
        mlp_width=mlp_width,
        mlp_bias=mlp_bias,
        embedding_scale=embedding_scale,
        logits_soft_cap=logits_soft_cap,
        dtype=dtype,
    )
    abstract = nnx.eval_shape(lambda: make(rngs=nnx.Rngs(0)))
    graph, state = nnx.split(abstract)

    def module(params: Params) -> LanguageModel:
        filled = jax.tree.map(lambda leaf: leaf, state)
        nnx.replace_by_pure_dict(filled, params)
        return nnx.merge(graph, filled)

    return Model(
        vocab_size=vocab_size,
        window=min(abstract.windows, default=None),
        init=lambda key: nnx.to_pure_dict(nnx.state(make(rngs=nnx.Rngs(key)), nnx.Param)),
        module=module,
        _decay=_decay_of(state),
        _init_cache=abstract.init_cache,
    )


def _decay_of(state: nnx.State) -> Params:
    """True for each parameter that decays, in the shape of the parameters."""
    decays = {path: not isinstance(leaf, NoDecay) for path, leaf in nnx.to_flat_state(state)}
    return nnx.traversals.unflatten_mapping(decays)
