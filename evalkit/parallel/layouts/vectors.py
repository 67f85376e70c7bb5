"""How one device keeps parameters while it trains: as the model has them, or as two long vectors."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array, lax
from jax.sharding import PartitionSpec

from evalkit.core.contracts import Params
from evalkit.parallel.devices import AXIS

State = Any  # what training changes: a NamedTuple with `params`, `optimizer`, `average` and `streams` among others
Vectors = dict[str, Array]
DECAYS, STAYS = "decays", "stays"
MASK = {DECAYS: True, STAYS: False}
"""Where weight decay applies, in the form that the optimiser takes."""


class Layout:
    """Every device has all parameters, as the model has them: what an optimiser of whole arrays takes.

    A step computes with matrices in `dtype`. `mask` is where weight decay applies, in the optimiser's form.
    `whole` is the layout of a device that has all of a seed; it converts the moments of checkpoints.
    """

    def __init__(self, params: Params, decays: Params, dtype: str = "float32"):
        self.mask = decays
        self.whole: Layout = self
        self.remat_policy: Any = None
        self._leaves, self.structure = jax.tree.flatten(params)
        self._dtypes = [computed_in(leaf, dtype) for leaf in self._leaves]

    def vectors(self, params: Params) -> Any:
        """The parameters, or whatever has their shapes, as the optimiser takes them."""
        return params

    def params(self, vectors: Any) -> Params:
        """The parameters, of what `vectors` made."""
        return vectors

    def by_array(self, transformation: optax.GradientTransformation) -> optax.GradientTransformation:
        """The stateless `transformation`, applied to each array of the parameters by itself."""
        return transformation

    def init_optimizer(self, init: Callable[[Any], Any], params: Params) -> Any:
        """The first state of an optimiser, as it is kept between dispatches."""
        return init(self.vectors(params))

    def packed(self, state: State) -> State:
        """The state as a step has it: parameters, and their average, as the optimiser takes them."""
        return _with(state, self.vectors)

    def unpacked(self, state: State) -> State:
        """The packed state as it is kept between dispatches."""
        return _with(state, self.params)

    def specs(self, state: State, seeds: PartitionSpec, streams: PartitionSpec) -> State:
        """How the state of all seeds is split: all of it by `seeds`, and the streams by `streams`."""
        return state._replace(**{**dict.fromkeys(state._fields, seeds), "streams": streams})

    def is_params(self, node: Any) -> bool:
        """Whether a part of a state is shaped as the parameters."""
        return jax.tree.structure(node) == self.structure

    def gathered(self, vectors: Any) -> Params:
        """The parameters that a step differentiates with respect to."""
        return self.cast(self.params(vectors))

    def cast(self, params: Params) -> Params:
        """The parameters in the dtypes that a step computes with."""
        leaves = jax.tree.leaves(params)
        cast = [leaf.astype(dtype) for leaf, dtype in zip(leaves, self._dtypes, strict=True)]
        return jax.tree.unflatten(self.structure, cast)

    def used(self, gathered: Params) -> Params:
        """The parameters as the model takes them, of what was `gathered`."""
        return gathered

    def rows(self, gradient: Params) -> Any:
        """The gradient with respect to `gathered`, as it is summed over micro-batches."""
        return jax.tree.map(lambda leaf: leaf.astype(jnp.float32), gradient)

    def summed(self, totals: Any, shards: int) -> Any:
        """Loss, accuracy and gradient, each summed over the `shards` devices that share a batch."""
        return lax.psum(totals, AXIS) if shards > 1 else totals

    def norm(self, gradient: Any) -> Array:
        """The norm of the whole gradient."""
        return optax.tree.norm(gradient)

    def clipped(self, gradient: Any, norm: Array, most: float) -> Any:
        """The gradient as the optimiser takes it, which scales it down to `most` by itself."""
        return gradient

    @property
    def gathered_bytes(self) -> int:
        """The bytes of `gathered`."""
        return sum(leaf.size * dtype.itemsize for leaf, dtype in zip(self._leaves, self._dtypes, strict=True))

    @property
    def gradient_bytes(self) -> int:
        """The bytes of `rows`."""
        return sum(leaf.size * leaf.dtype.itemsize for leaf in self._leaves)


class VectorLayout(Layout):
    """Every device has all parameters, as two vectors: a step then has a few operations for all, not a few for each.

    Parameters with weight decay form the first vector, so that an elementwise optimiser needs no other mask.
    """

    def __init__(self, params: Params, decays: Params, dtype: str = "float32"):
        super().__init__(params, decays, dtype)
        self.mask = MASK
        self._decays = jax.tree.leaves(decays)

    def vectors(self, params: Params) -> Vectors:
        """The parameters, or whatever has their shapes, as vectors."""
        leaves = jax.tree.leaves(params)
        return {
            name: jnp.concatenate([jnp.zeros(0), *(leaf.ravel() for leaf, own in self._with(leaves) if own is wanted)])
            for name, wanted in MASK.items()
        }

    def params(self, vectors: Vectors) -> Params:
        """The parameters that the vectors hold."""
        pieces = {}
        for name, wanted in MASK.items():
            sizes = [leaf.size for leaf, decays in self._with(self._leaves) if decays is wanted]
            pieces[name] = iter(jnp.split(vectors[name], np.cumsum(sizes, dtype=int)))
        leaves = [
            next(pieces[DECAYS if decays else STAYS]).reshape(leaf.shape).astype(leaf.dtype)
            for leaf, decays in self._with(self._leaves)
        ]
        return jax.tree.unflatten(self.structure, leaves)

    def by_array(self, transformation: optax.GradientTransformation) -> optax.GradientTransformation:
        """The stateless `transformation`, applied to each array of the parameters by itself, as one on vectors."""

        def update(updates: Any, _: Any) -> Any:
            return self.vectors(transformation.update(self.params(updates), optax.EmptyState())[0])

        return optax.stateless(update)

    def rows(self, gradient: Params) -> Vectors:
        """The gradient with respect to `gathered`, as it is summed over micro-batches."""
        return self.vectors(gradient)

    def _with(self, leaves: list[Any]) -> list[tuple[Any, bool]]:
        return list(zip(leaves, self._decays, strict=True))


def each(tree: Any, chosen: Callable[[Any], bool], function: Callable[[Any], Any]) -> Any:
    """The tree with each `chosen` part replaced by `function` of it."""
    return jax.tree.map(lambda node: function(node) if chosen(node) else node, tree, is_leaf=chosen)


def is_vectors(node: Any) -> bool:
    """Whether a part of a state is parameters, or their moments, as vectors."""
    return isinstance(node, dict) and set(node) == set(MASK)


def has_vectors(state: State) -> bool:
    """Whether the optimiser's moments are vectors; those of a mesh have parameters' shapes, which fit any mesh."""
    return any(is_vectors(node) for node in jax.tree.leaves(state.optimizer, is_leaf=is_vectors))


def as_vectors(state: State, layout: Layout) -> State:
    """The state of all seeds with its moments as vectors; `layout` is that of one seed."""
    return state._replace(optimizer=each(state.optimizer, layout.is_params, jax.vmap(layout.vectors)))


def as_parameters(state: State, layout: Layout) -> State:
    """The state of all seeds with its moments shaped as the parameters; `layout` is that of one seed."""
    return state._replace(optimizer=each(state.optimizer, is_vectors, jax.vmap(layout.params)))


def _with(state: State, form: Callable[[Any], Any]) -> State:
    average = None if state.average is None else form(state.average)
    return state._replace(params=form(state.params), average=average)


def computed_in(leaf: Any, dtype: str) -> Any:
    """The dtype in which a step computes with a parameter: what has one axis stays as it is, such as norms and Λ."""
    return jnp.dtype(dtype) if dtype == "bfloat16" and leaf.ndim > 1 else leaf.dtype
