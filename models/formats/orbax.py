"""Reads the tensors of an Orbax checkpoint one at a time, whatever devices wrote it."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from evalkit.models.formats.described import first_line

MARKS = ("_METADATA", "_CHECKPOINT_METADATA", "checkpoint")


def is_checkpoint(folder: Path) -> bool:
    """Returns whether a folder holds what Orbax writes."""
    return any((folder / name).exists() for name in MARKS)


class OrbaxTensors:
    """The tensors of one checkpoint, named by their keys with slashes between; keys themselves may have dots in them.

    Raises ValueError for a folder that Orbax cannot read.
    """

    def __init__(self, folder: Path):
        self._folder = folder.absolute()
        self._checkpointer = ocp.PyTreeCheckpointer()
        try:
            metadata: Any = self._checkpointer.metadata(self._folder)
            tree = metadata.item_metadata.tree
            leaves = jax.tree_util.tree_leaves_with_path(tree, is_leaf=lambda node: not isinstance(node, dict))
            self.shapes: dict[str, tuple[int, ...]] = {
                "/".join(key.key for key in path): tuple(leaf.shape) for path, leaf in leaves
            }
        except Exception as error:  # a different type for each way a checkpoint can be broken
            raise ValueError(f"Orbax cannot read it ({first_line(error)}); download it again") from error

    def read(self, name: str) -> np.ndarray:
        """One tensor, in its stored dtype. Raises ValueError if its file is damaged."""
        # Restored as NumPy, because the devices that a checkpoint was written from need not exist here.
        item, as_numpy = 0, ocp.RestoreArgs(restore_type=np.ndarray)
        for key in reversed(name.split("/")):
            item, as_numpy = {key: item}, {key: as_numpy}
        arguments = ocp.args.PyTreeRestore(item=item, restore_args=as_numpy, partial_restore=True)  # type: ignore[call-arg]
        try:
            restored = self._checkpointer.restore(self._folder, args=arguments)
        except Exception as error:
            raise ValueError(f"the tensor {name} cannot be read ({first_line(error)}); download it again") from error
        (leaf,) = jax.tree.leaves(restored)
        return leaf
