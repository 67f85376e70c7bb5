"""A language model as pure functions of a nested dictionary of arrays; no Flax type leaves this package."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle, islice
from typing import Any

import jax
from flax import nnx
from jaxtyping import Float

from evalkit.checks import refuse_below_1, refuse_other
from evalkit.models.layers.mixer import Cache, Mixer, Places, Positions, PRNGKey, States, Tokens
from evalkit.models.layers.modules import NoDecay
from evalkit.models.layers.recurrent import Recurrent, RecurrentCache
from evalkit.models.lm import LanguageModel
from evalkit.models.parts import Part, parts_of

Params = dict[str, Any]
DTYPES = ("float32", "bfloat16")
SPARED = ("bias", "scale")
"""The names of biases and norm scales in Flax's own layers, which have no weight decay, as ours have none."""


@dataclass(frozen=True, eq=False)
class Model:
    """A model as pure functions of its parameters; `build` makes one.

    `window` is the smallest window of its mixers, None if they have none; figures mark it.

        params = model.init(jax.random.key(0))
        logits, _ = model.apply(params, tokens)                              # tokens [b, t] -> logits [b, t, v]
        logits, cache = model.apply(params, prompt, cache=model.init_cache(batch, length))
    """

    vocab_size: int
    window: int | None
    init: Callable[[PRNGKey], Params]
    module: Callable[[Params], LanguageModel]
    """Returns the Flax module with these parameters; only `models` calls it."""
    _decay: Params
    _shapes: LanguageModel

    def apply(
        self,
        params: Params,
        tokens: Tokens,
        positions: Positions | None = None,
        cache: tuple[Cache, ...] | None = None,
        at: Places | None = None,
    ) -> tuple[Float[jax.Array, "b _ v"], tuple[Cache, ...] | None]:
        """Returns logits `[b, t, v]` in float32, and the new cache if one is given.

        `Mixer` explains positions and cache. With `at [b, n]`, indices along `t`, only the logits `[b, n, v]` there are
        computed, which costs less.
        """
        return self.module(params)(tokens, positions, cache, at)

    def over(self, axis: str) -> "Model":
        """Returns this model as each device of the mesh axis `axis` computes it, inside `jax.shard_map`.

        A device has a share of the heads, channels and blocks; the outputs of mixers and MLPs are summed over the axis.
        Norms and the embedding are whole on every device.
        """
        return replace(self, module=partial(_over, self.module, axis))

    def division(self, devices: int) -> Params:
        """Returns how `devices` devices share each parameter: the axis along which it is cut, or a rule's name.

        The rules: `whole`, every device has all of it; `term` and `once`, see `layers.shares.Division`. Raises
        ValueError for a mixer that cannot be shared.
        """
        rules = self._shapes.division(devices) if devices > 1 else {}
        dotted = partial(jax.tree_util.keystr, simple=True, separator=".")
        return jax.tree_util.tree_map_with_path(lambda path, _: rules.get(dotted(path), "whole"), self._decay)

    def init_cache(self, batch: int, length: int) -> tuple[Cache, ...]:
        """Returns an empty cache for `batch` rows of at most `length` tokens."""
        return self._shapes.init_cache(batch, length)

    def states(self, cache: Sequence[Cache]) -> dict[int, jax.Array]:
        """Returns the state `[b, …]` of each block that keeps one of fixed size in `cache`, by its index.

        It is that of the mixer's equations, whatever form the cache has. Attention keeps keys and values instead, and a
        convolution alone only its last inputs. Of a mixer of one's own that is no `Recurrent` it is the `h` of a
        `RecurrentCache`; a cache of another form has none here.
        """
        mixers = [block.mixer for block in self._shapes.blocks]
        states = {
            number: mixer.state(kept) if isinstance(mixer, Recurrent) else kept.h
            for number, (mixer, kept) in enumerate(zip(mixers, cache, strict=True))
            if isinstance(kept, RecurrentCache)
        }
        return {number: state for number, state in states.items() if state.size}

    def check_split(self, steps: int) -> None:
        """Raises ValueError if its time cannot be split over devices, `steps` tokens each (`kernels.sharded`)."""
        self._shapes.check_split(steps)

    def cache_bytes(self, batch: int, length: int) -> int:
        """Returns the bytes kept between tokens for `batch` rows of at most `length` tokens: those of `init_cache`.

        Nothing is allocated. Positions, and whatever else a mixer keeps, are counted with the state.
        """
        leaves = jax.tree.leaves(jax.eval_shape(lambda: self.init_cache(batch, length)))
        return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)

    def flops(self, length: int) -> int:
        """Returns the floating-point operations of a forward pass over one row of `length` tokens.

        `Counted` says what counts. It is a number of the model, not of an implementation: attention counts the pairs
        inside its window, and block-diagonal maps their blocks. A step of training takes about three times as many.

            model.flops(256) / 256   # for each token
        """
        return self._shapes.flops(length)

    def parts(self, params: Params, batch: int, length: int) -> list[Part]:
        """Returns the pieces of a forward pass over `[batch, length]` tokens, for timing them."""
        return parts_of(self.module(params), batch, length)

    def outputs(
        self, params: Params, tokens: Tokens, positions: Positions | None = None
    ) -> Iterator[tuple[str, jax.Array]]:
        """Yields what each part of a forward pass gives, in order, under its name, such as `blocks.0.mixer`."""
        return self.module(params).outputs(tokens, positions)

    def decays(self, params: Params, tokens: Tokens) -> dict[int, tuple[States, States]]:
        """Returns δ = −log |a| (1/tokens) and the state, both `[b, t, r]`, of each block that decays, by its index."""
        return self.module(params).decays(tokens)

    def decay_mask(self, params: Params) -> Params:
        """Returns True where weight decay applies: nowhere on biases, norms, the embedding, and what is `NoDecay`."""
        return jax.tree.map(lambda _, decays: decays, params, self._decay)


def _refuse_impossible(
    vocab_size: int, width: int, depth: int | None, logits_soft_cap: float | None, dtype: str
) -> None:
    """Raises ValueError for sizes and a depth below 1, a cap that is not above 0, and another dtype than `DTYPES`."""
    refuse_below_1(vocab_size=vocab_size, width=width)
    if depth is not None and depth < 1:
        raise ValueError(f"depth={depth}; allowed: 1 or more, or null for as many blocks as pattern has")
    if logits_soft_cap is not None and logits_soft_cap <= 0:
        raise ValueError(f"logits_soft_cap={logits_soft_cap}; allowed: above 0, or null for none")
    refuse_other("dtype", dtype, DTYPES)


def build(
    *,
    vocab_size: int,
    width: int,
    pattern: Sequence[str],
    mixers: Mapping[str, Callable[..., Mixer]],
    depth: int | None = None,
    mlp_expansion: float = 3,
    mlp_bias: bool = False,
    embedding_scale: float | None = None,
    logits_soft_cap: float | None = None,
    dtype: str = "float32",
    remat: bool = False,
) -> Model:
    """Builds the model whose blocks have the mixers that `pattern` names; it allocates no array before `init`.

    Biases and the cap on logits are those of the released model; see `GatedMLP` and `Embedding`.
    Raises ValueError for a pattern with an unknown mixer and for impossible sizes.

    Options:
      width (channels): the model's width, D in the paper.
      pattern: the mixer of each block, from the first to the last, by its name in `mixers`.
      depth (blocks): the number of blocks: `pattern` is repeated, and may be cut off; null: `pattern` once.
      mixers: the mixers by name, each with settings of its own.
      mlp_expansion (× width): the MLP's width: 3 in the paper, 0 for no MLPs.
      mlp_bias: whether the MLP's maps have biases.
      embedding_scale (factor): multiplies token vectors; null: sqrt(width), as released; the paper does not say.
      logits_soft_cap: logits become c · tanh(logits / c), c being this; null: they stay as they are.
      dtype: the dtype of activations, `float32` or `bfloat16`; parameters, states, decays and logits are float32.
      remat: whether the backward pass recomputes each block from its input, a third more work, to save memory.

    >>> from functools import partial
    >>> from evalkit.models.mixers.attention import MQA
    >>> from evalkit.models.mixers.rglru import RecurrentBlock
    >>> mixers = {"r": partial(RecurrentBlock, width_rnn=32), "a": partial(MQA, heads=2, head_dim=16, window=8)}
    >>> griffin = build(vocab_size=16, width=32, pattern="rra", mixers=mixers)
    >>> tokens = jax.numpy.zeros((1, 4), int)
    >>> logits, _ = griffin.apply(griffin.init(jax.random.key(0)), tokens)
    >>> logits.shape, griffin.window
    ((1, 4, 16), 8)
    """
    unknown = sorted(set(pattern) - set(mixers))
    if unknown or not pattern:
        raise ValueError(f"pattern={list(pattern)} names {unknown or 'nothing'}; mixers given: {sorted(mixers)}")
    _refuse_impossible(vocab_size, width, depth, logits_soft_cap, dtype)
    make = partial(
        LanguageModel,
        vocab_size=vocab_size,
        width=width,
        pattern=tuple(islice(cycle(pattern), depth or len(pattern))),
        mixers=dict(mixers),
        mlp_width=_mlp_width(mlp_expansion, width),
        mlp_bias=mlp_bias,
        embedding_scale=embedding_scale,
        logits_soft_cap=logits_soft_cap,
        dtype=dtype,
        remat=remat,
    )
    # The structure is built once, from shapes alone; each call only fills in parameters. `init` reuses its trace.
    drawn = jax.jit(lambda key: nnx.split(make(rngs=_keys(key))), inline=True)
    graph, state = jax.eval_shape(drawn, jax.eval_shape(jax.random.key, 0))
    abstract = nnx.merge(graph, state)
    return Model(
        vocab_size=vocab_size,
        window=min(abstract.windows, default=None),
        init=lambda key: nnx.to_pure_dict(nnx.filter_state(drawn(key)[1], nnx.Param)),
        module=partial(_filled, graph, state),
        _decay=_decay_of(_parameters_alone(state)),
        _shapes=abstract,
    )


class _Keys(nnx.RngStream):
    """Gives the keys that Flax's stream gives, without asking where their count lies.

    Flax asks at each key. While a function is traced, JAX then reads all operations so far to say that the count lies
    nowhere, so that the time to build a model grows with its depth squared.
    """

    def __call__(self) -> PRNGKey:
        key = jax.random.fold_in(self.key[...], self.count[...])
        self.count.set_value(self.count[...] + 1)
        return key


def _keys(key: PRNGKey) -> nnx.Rngs:
    rngs = nnx.Rngs(key)
    rngs.default = _Keys(key, tag="default")  # pyright: ignore[reportAttributeAccessIssue]
    return rngs


def _mlp_width(expansion: float, width: int) -> int:
    """The width of the MLPs; raises ValueError unless it is whole and 0 or more."""
    wide = expansion * width
    rounded = round(wide)
    # A released model's expansion is a quotient of integers, so its product with the width is whole up to rounding.
    if rounded < 0 or abs(rounded - wide) > 1e-6 * rounded:
        raise ValueError(f"mlp_expansion={expansion} makes an MLP of width {wide:g}; use a whole one, or 0 for none")
    return rounded


def _parameters_alone(state: nnx.State) -> nnx.State:
    """Returns `state`; raises ValueError for what a mixer keeps beside its parameters, as dropout and batch norm do."""
    for path, leaf in nnx.to_flat_state(state):
        if not isinstance(leaf, nnx.Param):
            place = ".".join(map(str, path))
            raise ValueError(
                f"{place} is a {type(leaf).__name__}, and a mixer keeps nothing but parameters (nnx.Param); "
                "its state is its cache, so leave dropout and batch norm out"
            )
    return state


def _filled(graph: nnx.GraphDef, state: nnx.State, params: Params) -> LanguageModel:
    """Returns the module of this structure with `params` in it."""
    filled = jax.tree.map(lambda leaf: leaf, state)  # a copy, because Flax replaces in place
    nnx.replace_by_pure_dict(filled, params)
    return nnx.merge(graph, filled)


def _over(module: Callable[[Params], LanguageModel], axis: str, params: Params) -> LanguageModel:
    """Returns the module of a device's `params`, which sums over `axis`."""
    share = module(params)
    share.axis = axis
    return share


def _decay_of(state: nnx.State) -> Params:
    """Returns True for each parameter with weight decay, in the structure of the parameters."""
    decays = {path: not isinstance(leaf, NoDecay) and path[-1] not in SPARED for path, leaf in nnx.to_flat_state(state)}
    return nnx.traversals.unflatten_mapping(decays)
