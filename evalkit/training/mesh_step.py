"""The step of a mesh, and where the devices of the mesh keep what it changes."""

from typing import Any

import jax
from jax.sharding import PartitionSpec

from evalkit.core.contracts import Divisible, Feed, LanguageModel, Params
from evalkit.parallel.devices import MODEL_AXIS
from evalkit.parallel.layouts.mesh import MeshLayout, layout_of
from evalkit.parallel.layouts.sizes import Sizes
from evalkit.training.forms import each, is_vectors
from evalkit.training.settings import Training
from evalkit.training.state import TrainState
from evalkit.training.step import Step


class MeshStep(Step):
    """The `Step` that the devices of a mesh take together, inside `jax.shard_map` over both axes.

    Between dispatches the state is whole parameters and moments, each divided over the devices, so that a checkpoint
    says nothing of the mesh. Within a dispatch each device has vectors of its parts. Raises UserError for a model that
    the mesh does not divide, and ValueError for training that looks at whole arrays.
    """

    def __init__(self, feed: Feed, scored: int | None, model: LanguageModel, training: Training, sizes: Sizes):
        training.check_divided()
        layout = layout_of(model, sizes, training.gather, training.parameter_dtype)
        share = model.over(MODEL_AXIS) if isinstance(model, Divisible) and sizes.model > 1 else model
        super().__init__(feed, scored, share, training, streams=0)
        self.layout: MeshLayout = layout

    def fresh(self, params: Params) -> Any:
        """The optimiser's first state, its moments as the model has parameters."""
        return each(self.optimizer.init(self.whole.vectors(params)), is_vectors, self.whole.params)

    def packed(self, state: TrainState) -> TrainState:
        """The state of this device as vectors, as `take` has it."""
        return each(state, self._is_params, self.layout.vectors)

    def unpacked(self, state: TrainState) -> TrainState:
        """The state of this device as its parts of parameters and moments."""
        return each(state, is_vectors, self.layout.params)

    def specs(self, state: TrainState) -> TrainState:
        """The axes of the mesh for each axis of the state of all seeds."""
        divided = each(state, self._is_params, lambda _: self.layout.specs)
        return jax.tree.map(
            lambda leaf: leaf if isinstance(leaf, PartitionSpec) else PartitionSpec(),
            divided,
            is_leaf=lambda leaf: isinstance(leaf, PartitionSpec),
        )

    def _is_params(self, node: Any) -> bool:
        return jax.tree.structure(node) == self.layout.structure
