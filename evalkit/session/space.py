"""What a run will write, and whether the disk has room for it."""

from pathlib import Path

import jax

from evalkit.core.errors import UserError
from evalkit.disk.places import free, used
from evalkit.training.checkpoints import FOLDER, KEPT
from evalkit.training.settings import Training
from evalkit.training.trainer import Trainer

RECORD = 2**24
"""Bytes for all but checkpoints: rows, logs, figures and the report."""


def refuse_full(folder: Path, trainer: Trainer) -> None:
    """Raises UserError, with the bytes that are missing, if the run in `folder` would fill the disk."""
    one, count = state_bytes(trainer), checkpoints(trainer.training)
    needed = one * count + RECORD - used(folder / FOLDER)
    room = free(folder)
    if room < needed:
        raise UserError(
            f"{folder} has room for {_size(room)}, but the run writes about {_size(needed)}, with {count} checkpoints "
            f"of {_size(one)}; free space, choose another folder, or give a larger train.keep_every"
        )


def state_bytes(trainer: Trainer) -> int:
    """The bytes of what one checkpoint holds."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(trainer.abstract))


def checkpoints(training: Training) -> int:
    """How many checkpoints there are at most at one time: those that are kept, and one that is being written."""
    forever = 0 if training.keep_every is None else training.steps // training.keep_every
    return KEPT + 1 + forever


def _size(count: int) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.0f} MB"
