"""The two forms of the optimiser's moments: vectors, where each device has all of them, or shaped as the parameters.

A mesh divides the second form, which says nothing of the mesh; so a checkpoint goes from any mesh to any other.
"""

import jax

from evalkit.parallel.layouts.vectors import Layout, State, each, is_vectors


def has_vectors(state: State) -> bool:
    """Whether the moments of a state are vectors."""
    return any(is_vectors(node) for node in jax.tree.leaves(state.optimizer, is_leaf=is_vectors))


def as_vectors(state: State, layout: Layout) -> State:
    """The state of all seeds with its moments as vectors; `layout` is that of one seed."""
    return state._replace(optimizer=each(state.optimizer, layout.is_params, jax.vmap(layout.vectors)))


def as_parameters(state: State, layout: Layout) -> State:
    """The state of all seeds with its moments shaped as the parameters; `layout` is that of one seed."""
    return state._replace(optimizer=each(state.optimizer, is_vectors, jax.vmap(layout.params)))
