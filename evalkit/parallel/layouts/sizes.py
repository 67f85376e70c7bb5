"""The setting `mesh`: how many devices share a batch, and how many share each layer."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from evalkit.core.errors import UserError

AUTO = "auto"
Setting = str | Mapping[str, int]
"""`auto`, or how many devices each axis of the mesh has."""


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
