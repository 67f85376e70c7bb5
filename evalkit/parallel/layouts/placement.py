"""On which devices a run works, and how its state lies on them."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from evalkit.core.contracts import BatchPart
from evalkit.core.errors import UserError
from evalkit.parallel import peers
from evalkit.parallel.devices import AXIS, MODEL_AXIS, mesh_for
from evalkit.parallel.layouts.mesh import Sizes, refuse_undivided
from evalkit.parallel.layouts.vectors import Layout, State


class Placement:
    """The devices of a run with so many `seeds` and these `batches`; `sizes` are those of its mesh, None for `auto`."""

    def __init__(self, layout: Layout, sizes: Sizes | None, seeds: int, batches: Sequence[int]):
        self.layout, self.sizes, self._seeds, self._batches = layout, sizes, seeds, batches

    @cached_property
    def mesh(self) -> Mesh:
        """The devices that work; raises UserError for devices or batches that the mesh does not divide."""
        if self.sizes is None and not peers.several():
            return mesh_for(self._seeds) if self.by_seed else mesh_for(*self._batches)
        sizes = self.sizes or Sizes(jax.device_count(), 1)
        if self.sizes is None and any(batch % sizes.data for batch in self._batches):
            raise UserError(
                f"batches of {', '.join(map(str, self._batches))} are no multiples of the {sizes.data} devices of all "
                "processes; give such a train.batch_size, or a mesh"
            )
        refuse_undivided(sizes, self._batches, jax.device_count())
        if peers.several() and sizes.data * sizes.model != jax.device_count():
            raise UserError(
                f"mesh: data: {sizes.data} x model: {sizes.model} are not all {jax.device_count()} devices of the "
                f"{jax.process_count()} processes; give a mesh of all, or start fewer processes"
            )
        devices = jax.devices()[: sizes.data * sizes.model]  # those that share a layer are neighbours
        return jax.make_mesh(sizes, (AXIS, MODEL_AXIS), (AxisType.Auto,) * 2, devices=devices)

    @cached_property
    def by_seed(self) -> bool:
        """Whether each device works on whole seeds, which need no word between devices."""
        return self.sizes is None and mesh_for(self._seeds).size == jax.device_count() and not peers.several()

    @property
    def shards(self) -> int:
        """Over how many devices a batch is split."""
        return 1 if self.by_seed else self.mesh.shape[AXIS]

    @property
    def whole(self) -> bool:
        """Whether every device of the one process has all of the state."""
        return self.sizes is None and not peers.several()

    @property
    def loaded(self) -> PartitionSpec:
        """Along which axes what is read for `[seeds, steps, sequences]` is split: each device has what it uses."""
        return self.seeds if self.by_seed else PartitionSpec(None, None, AXIS)

    def rows(self, batch: int) -> BatchPart:
        """Which sequences of a batch this process's devices use, in order."""
        if not peers.several():
            return slice(None)
        parts = NamedSharding(self.mesh, PartitionSpec(AXIS)).addressable_devices_indices_map((batch,)).values()
        spans = {part[0].indices(batch) for part in parts if part is not None}
        return np.concatenate([np.arange(*span) for span in sorted(spans)])

    def together(self, loaded: Any, batch: int) -> Any:
        """The sequences of a `batch` that each process has read, joined into arrays of all processes."""
        if not peers.several():
            return loaded
        where = NamedSharding(self.mesh, self.loaded)

        def joined(leaf: np.ndarray) -> jax.Array:
            shape = (*leaf.shape[:2], batch, *leaf.shape[3:])
            return jax.make_array_from_process_local_data(where, leaf, shape)

        return jax.tree.map(joined, loaded)

    @property
    def seeds(self) -> PartitionSpec:
        """Along which axis of the mesh the seeds are split."""
        return PartitionSpec(AXIS) if self.by_seed else PartitionSpec()

    def specs(self, state: State) -> Any:
        """How the state is split over the axes; streams lie with the sequences that begin from them."""
        streams = self.seeds if self.by_seed else PartitionSpec(None, AXIS)
        return self.layout.specs(state, self.seeds, streams)

    def shardings(self, state: State) -> State:
        """How every array of the state lies on the devices."""

        def of_each(spec: PartitionSpec, part: Any) -> Any:
            return jax.tree.map(lambda _: NamedSharding(self.mesh, spec), part)

        return jax.tree.map(of_each, self.specs(state), state, is_leaf=lambda node: isinstance(node, PartitionSpec))

    def placed(self, state: State) -> State:
        """The shapes and dtypes of the state, and how it lies on the devices."""
        return jax.tree.map(
            lambda leaf, where: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where),
            state,
            self.shardings(state),
        )
