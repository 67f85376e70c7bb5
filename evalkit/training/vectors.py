"""Parameters as two long vectors: a step then has a few operations for all of them, not a few for each."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from evalkit.core.contracts import Params

Vectors = dict[str, Array]
DECAYS, STAYS = "decays", "stays"
MASK = {DECAYS: True, STAYS: False}
"""Where weight decay applies, as the optimiser asks for it."""


class Layout:
    """Where each parameter lies in the vectors; `decays` is True for those that go into the first."""

    def __init__(self, params: Params, decays: Params):
        self._leaves, self._structure = jax.tree.flatten(params)
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
        pieces = {name: iter(jnp.split(vectors[name], self._bounds(wanted))) for name, wanted in MASK.items()}
        leaves = [
            next(pieces[DECAYS if decays else STAYS]).reshape(leaf.shape).astype(leaf.dtype)
            for leaf, decays in self._with(self._leaves)
        ]
        return jax.tree.unflatten(self._structure, leaves)

    def _with(self, leaves: list[Any]) -> list[tuple[Any, bool]]:
        return list(zip(leaves, self._decays, strict=True))

    def _bounds(self, wanted: bool) -> list[int]:
        """Where one vector's pieces end."""
        ends, end = [], 0
        for leaf, decays in self._with(self._leaves):
            if decays is wanted:
                end += leaf.size
                ends.append(end)
        return ends
