"""The two forms of the optimiser's moments: vectors, where each device has all of them, or shaped as the parameters.

A mesh divides the second form, which says nothing of the mesh; so a checkpoint goes from any mesh to any other.
"""

from collections.abc import Callable
from typing import Any

import jax

from evalkit.parallel.layouts.vectors import MASK, Layout
from evalkit.training.state import TrainState


def each(tree: Any, chosen: Callable[[Any], bool], function: Callable[[Any], Any]) -> Any:
    """The tree with `function` of each part that is `chosen` in its place."""
    return jax.tree.map(lambda node: function(node) if chosen(node) else node, tree, is_leaf=chosen)


def is_vectors(node: Any) -> bool:
    """Whether a part of a state is parameters, or their moments, as vectors."""
    return isinstance(node, dict) and set(node) == set(MASK)


def has_vectors(state: TrainState) -> bool:
    """Whether the moments of a state are vectors."""
    return any(is_vectors(node) for node in jax.tree.leaves(state.optimizer, is_leaf=is_vectors))


def as_vectors(state: TrainState, layout: Layout) -> TrainState:
    """The state of all seeds with its moments as vectors; `layout` is that of one seed."""
    structure = jax.tree.structure(state.params)
    return state._replace(
        optimizer=each(state.optimizer, lambda node: jax.tree.structure(node) == structure, jax.vmap(layout.vectors))
    )


def as_parameters(state: TrainState, layout: Layout) -> TrainState:
    """The state of all seeds with its moments shaped as the parameters; `layout` is that of one seed."""
    return state._replace(optimizer=each(state.optimizer, is_vectors, jax.vmap(layout.params)))
