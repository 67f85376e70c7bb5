"""Parameters, gradients and the optimiser's state divided over the devices of a mesh: Megatron and ZeRO.

The model axis divides each layer, as the model says by `Divisible` (Shoeybi et al. 2019). The data axis divides the
batch, and what the model axis leaves of parameters, gradients and moments (Rajbhandari et al. 2020).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import PartitionSpec

from evalkit.core.contracts import Divisible, LanguageModel, Params
from evalkit.core.errors import UserError
from evalkit.numerics import random_key
from evalkit.parallel.devices import AXIS, MODEL_AXIS
from evalkit.parallel.layouts.vectors import (
    DECAYS,
    STAYS,
    Layout,
    State,
    VectorLayout,
    computed_in,
    each,
    is_vectors,
)

AUTO = "auto"
Setting = str | Mapping[str, int]
"""`auto`, or how many devices each axis of the mesh has."""
Vectors = Any  # dict[str, dict[str, Array]]
"""A device's own part of all parameters: by whether they decay, then by how they are divided."""
Shape = tuple[int, ...]
MOVES = ("all_gather", "slice", "reshape", "transpose", "convert_element_type")
"""Operations that make a layer's parameters of its vectors: they are done again rather than kept."""
FLOAT = 4  # bytes of the numbers that gradients are summed in


class Sizes(NamedTuple):
    """How many devices the axes of a mesh have."""

    data: int
    model: int


def sizes_of(setting: Setting) -> Sizes | None:
    """Returns the sizes that `mesh` names, None for `auto`; raises ValueError for what names none."""
    if setting == AUTO:
        return None
    if (
        isinstance(setting, str)
        or set(setting) != set(Sizes._fields)
        or any(type(size) is not int or size < 1 for size in setting.values())
    ):
        shown = setting if isinstance(setting, str) else dict(setting)
        raise ValueError(f"mesh={shown}; allowed: auto, or devices of both axes, such as 'mesh={{data: 4, model: 2}}'")
    return Sizes(**setting)


def refuse_undivided(sizes: Sizes, batches: Sequence[int], devices: int) -> None:
    """Raises UserError if the mesh does not divide a batch, or the devices of all processes."""
    if devices % (sizes.data * sizes.model):
        raise UserError(
            f"mesh: data: {sizes.data} x model: {sizes.model} devices do not divide the {devices} that there are; "
            "give others, or mesh=auto"
        )
    for batch in batches:
        if batch % sizes.data:
            raise UserError(
                f"mesh: data: {sizes.data} does not divide a batch of {batch}; give a divisor, or another batch_size"
            )


class Rule(NamedTuple):
    """What a device of the model axis has of a parameter: its part along `axis`; None: all of it.

    `partial`: the gradient on a device is one term of a sum. `once`: a bias that the sum of outputs must have once, so
    that each device adds 1/model of it to its term.
    """

    axis: int | None = None
    partial: bool = False
    once: bool = False


WORDS = {"whole": Rule(), "term": Rule(partial=True), "once": Rule(partial=True, once=True)}
"""The rules of `Divisible.division` that name no axis."""


class Leaf(NamedTuple):
    """How one parameter is divided: by its `rule` over the model axis, along `axis` over the data axis (None: not).

    `gathered` is its shape on a device of the model axis, `own` what a device keeps of that between two steps. A step
    computes with it in `dtype`. `block` is the residual block that it is of.
    """

    number: int
    block: str
    rule: Rule
    axis: int | None
    decays: bool
    dtype: Any
    gathered: Shape
    own: Shape

    @property
    def kind(self) -> tuple[str, str]:
        """The keys in `Vectors` of the one vector that holds all leaves of this kind."""
        over_model = "share" if self.rule.axis is not None else "term" if self.rule.partial else "copy"
        return DECAYS if self.decays else STAYS, over_model + ("" if self.axis is not None else ", whole")

    @property
    def spec(self) -> PartitionSpec:
        """The mesh axes that divide each axis of this parameter, stacked over all seeds."""
        names: list[tuple[str, ...]] = [()] * len(self.own)
        for axis, name in ((self.rule.axis, MODEL_AXIS), (self.axis, AXIS)):
            if axis is not None:
                names[axis] = (*names[axis], name)
        return PartitionSpec(None, *(name or None for name in names))

    def copies(self, sizes: Sizes) -> int:
        """How many devices keep the same numbers of it."""
        return (1 if self.rule.axis is not None else sizes.model) * (1 if self.axis is not None else sizes.data)


class MeshLayout(Layout):
    """Where each parameter lies on a mesh, and what its devices tell each other: the `Layout` of a mesh.

    Parameters are gathered over the data axis once a step, and the sums of their gradients are scattered once. Between
    dispatches each parameter and moment is divided over the devices; within one each device has vectors of its parts.
    All but `specs` and `leaves` is used inside `jax.shard_map` over both axes. Raises UserError for a model that the
    mesh does not divide.
    """

    def __init__(self, model: LanguageModel, sizes: Sizes, dtype: str):
        params = jax.eval_shape(model.init, random_key(0))
        decays = model.decay_mask(params)
        super().__init__(params, decays, dtype)
        self.sizes = sizes
        self.whole = VectorLayout(params, decays, dtype)
        paths = jax.tree.leaves_with_path(params)
        rules = _rules(model, len(paths), sizes.model)
        every = zip(paths, rules, jax.tree.leaves(decays), strict=True)
        self.leaves = [_leaf(number, *of_leaf, sizes, dtype) for number, of_leaf in enumerate(every)]
        self._divided = [leaf for leaf in self.leaves if leaf.axis is not None]
        if not self._divided:
            raise UserError(f"mesh: data: {sizes.data} divides no axis of any parameter; give a divisor of the widths")
        self._whole = [leaf for leaf in self.leaves if leaf.axis is None]
        kinds = sorted({leaf.kind for leaf in self.leaves})
        self._kinds = {kind: [leaf for leaf in self.leaves if leaf.kind == kind] for kind in kinds}

    def init_optimizer(self, init: Callable[[Any], Any], params: Params) -> Any:
        """The first state of an optimiser, with moments in the shapes of the model's parameters."""
        return each(init(self.whole.vectors(params)), is_vectors, self.whole.params)

    def packed(self, state: State) -> State:
        """The state of this device as vectors, as a step has it."""
        return each(state, self.is_params, self.vectors)

    def unpacked(self, state: State) -> State:
        """The state of this device as its parts of parameters and moments."""
        return each(state, is_vectors, self.params)

    def specs(self, state: State, *_: PartitionSpec) -> State:
        """The mesh axes that divide each array of the state of all seeds."""
        axes = jax.tree.unflatten(self.structure, [leaf.spec for leaf in self.leaves])
        divided = each(state, self.is_params, lambda _: axes)
        return jax.tree.map(
            lambda leaf: leaf if isinstance(leaf, PartitionSpec) else PartitionSpec(),
            divided,
            is_leaf=lambda leaf: isinstance(leaf, PartitionSpec),
        )

    def vectors(self, own: Params) -> Vectors:
        """This device's parts of the parameters as vectors."""
        return self._vectors({number: value.ravel() for number, value in enumerate(jax.tree.leaves(own))})

    def params(self, vectors: Vectors) -> Params:
        """This device's parts of the parameters, from its vectors."""
        pieces = self._pieces(vectors)
        return jax.tree.unflatten(self.structure, [pieces[leaf.number].reshape(leaf.own) for leaf in self.leaves])

    def gathered(self, vectors: Vectors) -> Any:
        """What a step differentiates with respect to: all parameters that this device has along the model axis."""
        return self._gathered(vectors, [self._divided])

    def used(self, gathered: Any) -> Params:
        """The parameters as the model takes them."""
        # Every device adds a `once` parameter to its term of the sum, so each adds an equal part of it.
        parts = [
            value / self.sizes.model if leaf.rule.once else value
            for leaf, value in zip(self.leaves, jax.tree.leaves(gathered), strict=True)
        ]
        return jax.tree.unflatten(self.structure, parts)

    def rows(self, gradient: Any) -> Any:
        """The gradient with respect to `gathered`, as it is summed over micro-batches: one row per receiving device."""
        values = [value.astype(jnp.float32) for value in jax.tree.leaves(gradient)]
        sent = [_by_device(values[leaf.number], leaf.axis or 0, self.sizes.data) for leaf in self._divided]
        return jnp.concatenate(sent, axis=1), [values[leaf.number].ravel() for leaf in self._whole]

    def summed(self, totals: Any, shards: int) -> Any:
        """Loss, accuracy and this device's part of the gradient, each the sum over all devices."""
        *scores, (sent, whole) = totals
        pieces = dict(_cut(self._divided, lax.psum_scatter(sent, AXIS)))
        pieces |= {leaf.number: value for leaf, value in zip(self._whole, whole, strict=True)}
        return *lax.psum(scores, AXIS), self._vectors(self._of_all(pieces))

    @property
    def gathered_bytes(self) -> int:
        """The bytes that are `gathered` at once on a device."""
        return sum(prod(leaf.gathered) * leaf.dtype.itemsize for leaf in self.leaves)

    @property
    def gradient_bytes(self) -> int:
        """The bytes of `rows` on a device."""
        return FLOAT * sum(prod(leaf.gathered) for leaf in self.leaves)

    def norm(self, gradient: Vectors) -> Array:
        """The norm of the whole gradient, of which this is one device's part."""
        squares = [
            jnp.sum(jnp.square(gradient[decays][kind])) / leaves[0].copies(self.sizes)
            for (decays, kind), leaves in self._kinds.items()
        ]
        return jnp.sqrt(lax.psum(sum(squares), (AXIS, MODEL_AXIS)))

    def clipped(self, gradient: Vectors, norm: Array, most: float) -> Vectors:
        """The gradient with its `norm` scaled down to `most`; the optimiser, which sees a part, clips no more."""
        return jax.tree.map(lambda part: part * jnp.minimum(1, most / norm), gradient)

    def _gathered(self, vectors: Vectors, parcels: Sequence[Sequence[Leaf]]) -> Params:
        """All parameters of this device of the model axis; each of the `parcels` is sent at once."""
        pieces = self._pieces(vectors)
        params = {leaf.number: pieces[leaf.number].reshape(leaf.own).astype(leaf.dtype) for leaf in self._whole}
        for leaves in parcels:
            for dtype in sorted({leaf.dtype for leaf in leaves}, key=str):
                alike = [leaf for leaf in leaves if leaf.dtype == dtype]
                rows: Any = _gather(dtype, jnp.concatenate([pieces[leaf.number] for leaf in alike]))
                for leaf, (number, piece) in zip(alike, _cut(alike, rows), strict=True):
                    params[number] = _joined(piece, leaf)
        return jax.tree.unflatten(self.structure, [params[leaf.number] for leaf in self.leaves])

    def _of_all(self, pieces: dict[int, Array]) -> dict[int, Array]:
        """Sums the pieces over the data axis if it does not divide them, and over the model axis if they are terms."""
        pieces = _total(pieces, [leaf.number for leaf in self._whole], AXIS)
        return _total(pieces, [leaf.number for leaf in self.leaves if leaf.rule.partial], MODEL_AXIS)

    def _vectors(self, pieces: Mapping[int, Array]) -> Vectors:
        vectors: Vectors = {DECAYS: {}, STAYS: {}}
        for (decays, kind), leaves in self._kinds.items():
            vectors[decays][kind] = jnp.concatenate([pieces[leaf.number] for leaf in leaves])
        return vectors

    def _pieces(self, vectors: Vectors) -> dict[int, Array]:
        kinds = self._kinds.items()
        return {n: piece for (decays, kind), leaves in kinds for n, piece in _cut(leaves, vectors[decays][kind])}


class LayerwiseLayout(MeshLayout):
    """The `MeshLayout` whose parameters are gathered layer by layer, forward and backward, and never all at once."""

    def __init__(self, model: LanguageModel, sizes: Sizes, dtype: str):
        super().__init__(model, sizes, dtype)
        # Which results of the forward pass are kept for the backward pass.
        self.remat_policy = lambda operation, *_, **__: operation.name not in MOVES
        blocks = dict.fromkeys(leaf.block for leaf in self._divided)
        self._parcels = [[leaf for leaf in self._divided if leaf.block == block] for block in blocks]

    def gathered(self, vectors: Vectors) -> Any:
        """What a step differentiates with respect to: this device's vectors."""
        return vectors

    @property
    def gathered_bytes(self) -> int:
        """The bytes gathered at once on a device: the largest layer, and what the data axis does not divide."""
        layers = [[*self._whole, *leaves] for leaves in self._parcels]
        return max(sum(prod(leaf.gathered) * leaf.dtype.itemsize for leaf in leaves) for leaves in layers)

    @property
    def gradient_bytes(self) -> int:
        """The bytes of `rows` on a device."""
        return FLOAT * sum(prod(leaf.own) for leaf in self.leaves)

    def used(self, gathered: Any) -> Params:
        """The parameters as the model takes them; the backward pass gathers them again."""
        return super().used(self._gathered(gathered, self._parcels))

    def rows(self, gradient: Any) -> Any:
        """The gradient with respect to this device's vectors, which the backward pass has scattered layer by layer."""
        return gradient

    def summed(self, totals: Any, shards: int) -> Any:
        """Loss, accuracy and this device's part of the gradient, each the sum over all devices."""
        *scores, vectors = totals
        return *lax.psum(scores, AXIS), self._vectors(self._of_all(self._pieces(vectors)))


def share_of(model: LanguageModel, sizes: Sizes) -> LanguageModel:
    """The model as one device of the model axis computes it; the mesh divides it."""
    return model.over(MODEL_AXIS) if isinstance(model, Divisible) and sizes.model > 1 else model


def layout_of(model: LanguageModel, sizes: Sizes, gather: str, dtype: str) -> MeshLayout:
    """Where the parameters of `model` lie on a mesh; see `train.gather` and `train.parameter_dtype`."""
    return (LayerwiseLayout if gather == "layer" else MeshLayout)(model, sizes, dtype)


def _rules(model: LanguageModel, parameters: int, devices: int) -> list[Rule]:
    """The rule of each parameter on a model axis of so many devices; raises UserError for what they cannot share."""
    if devices == 1:
        return [Rule()] * parameters
    if not isinstance(model, Divisible):
        raise UserError(f"no rule divides a {type(model).__name__} over the model axis; give a mesh with model: 1")
    try:
        return [WORDS[how] if isinstance(how, str) else Rule(how) for how in jax.tree.leaves(model.division(devices))]
    except ValueError as error:
        raise UserError(f"mesh: {error}") from error


def _leaf(number: int, parameter: tuple[Any, Any], rule: Rule, decays: bool, sizes: Sizes, dtype: str) -> Leaf:
    path, value = parameter
    gathered = _over(value.shape, rule.axis, sizes.model)
    # Along the first axis a device's part is one stretch of memory.
    axis = next((axis for axis, size in enumerate(gathered) if size % sizes.data == 0), None)
    own = _over(gathered, axis, sizes.data)
    block = jax.tree_util.keystr(path[:2]) if len(path) > 2 else ""
    return Leaf(number, block, rule, axis, decays, computed_in(value, dtype), gathered, own)


def _over(shape: Shape, axis: int | None, devices: int) -> Shape:
    return tuple(size // devices if here == axis else size for here, size in enumerate(shape))


def _cut(leaves: Sequence[Leaf], vectors: Array) -> Iterator[tuple[int, Array]]:
    """The stretch of each leaf on the last axis, by its number."""
    start = 0
    for leaf in leaves:
        yield leaf.number, vectors[..., start : start + prod(leaf.own)]
        start += prod(leaf.own)


def _by_device(value: Array, axis: int, devices: int) -> Array:
    """The parts along `axis` as flat rows, one for each device."""
    split = value.reshape(*value.shape[:axis], devices, -1, *value.shape[axis + 1 :])
    return jnp.moveaxis(split, axis, 0).reshape(devices, -1)


def _joined(rows: Array, leaf: Leaf) -> Array:
    """The parameter, of the flat parts of all devices."""
    return jnp.moveaxis(rows.reshape(-1, *leaf.own), 0, leaf.axis or 0).reshape(leaf.gathered)


def _total(pieces: dict[int, Array], which: Sequence[int], axis: str) -> dict[int, Array]:
    """The pieces, with those numbered `which` summed over a mesh axis in one message."""
    if not which:
        return pieces
    ends = np.cumsum([pieces[number].size for number in which])[:-1].tolist()
    total = jnp.split(lax.psum(jnp.concatenate([pieces[number] for number in which]), axis), ends)
    return pieces | dict(zip(which, total, strict=True))


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _gather(dtype: Any, own: Array) -> Array:
    """The parts of all devices of the data axis, `[data, n]` in `dtype`; gradients are summed in the dtype of `own`."""
    return lax.all_gather(own.astype(dtype), AXIS)


_gather.defvjp(
    lambda dtype, own: (lax.all_gather(own.astype(dtype), AXIS), jnp.zeros(0, own.dtype)),
    lambda dtype, like, gradient: (lax.psum_scatter(gradient.astype(like.dtype), AXIS),),
)
