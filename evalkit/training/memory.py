"""What training keeps on one device, from the shapes and their division alone: nothing is allocated or compiled."""

from math import prod
from typing import Any, NamedTuple

import jax
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from evalkit.core.contracts import LanguageModel
from evalkit.parallel.devices import AXIS, MODEL_AXIS, bytes_of
from evalkit.parallel.layouts.mesh import Sizes, layout_of
from evalkit.training.trainer import Trainer

FLOAT = 4  # bytes of a parameter, and of each of its two moments


class DeviceBytes(NamedTuple):
    """Bytes on one device: between steps `parameters`, their `average` and the `optimizer`'s state, and a step's own.

    A step has the `gathered` parameters that it computes with, at most so many at once, and the `gradient` as it is
    summed over micro-batches. Activations are not counted.
    """

    parameters: int
    optimizer: int
    gathered: int
    gradient: int
    average: int = 0


def bytes_a_device(trainer: Trainer) -> DeviceBytes:
    """Returns what each device of the trainer's mesh keeps; for `mesh=auto`, of one seed, what every device keeps.

    A mesh of more devices than this machine has is counted too.
    """
    layout, kept, sizes = trainer.step.layout, trainer.abstract, trainer.placement.sizes
    if sizes is not None:
        mesh = AbstractMesh(sizes, (AXIS, MODEL_AXIS))

        def own(leaf: Any, spec: PartitionSpec) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(NamedSharding(mesh, spec).shard_shape(leaf.shape), leaf.dtype)

        kept = jax.tree.map(own, kept, trainer.placement.specs(kept))
    else:
        kept = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), kept)
    return DeviceBytes(
        parameters=bytes_of(kept.params),
        optimizer=bytes_of(kept.optimizer),
        gathered=layout.gathered_bytes,
        gradient=layout.gradient_bytes,
        average=bytes_of(kept.average),
    )


def of_model(model: LanguageModel, sizes: Sizes, gather: str) -> DeviceBytes:
    """What a device of a mesh keeps to train a model by AdamW, without an average.

    Raises UserError for a model that it does not divide.
    """
    layout = layout_of(model, sizes, gather, "float32")
    own = sum(prod(leaf.own) for leaf in layout.leaves)
    return DeviceBytes(FLOAT * own, 2 * FLOAT * own, layout.gathered_bytes, layout.gradient_bytes)
