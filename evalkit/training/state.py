"""What training changes, and what a dispatch of steps says of itself."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array

from evalkit.core.contracts import Cache, Params
from evalkit.core.errors import UserError

EVALUATED = ("average", "last")
"""Which parameters of a run are evaluated; without an average it is the last ones."""


class TrainState(NamedTuple):
    """Everything that training changes; the leaves of all seeds are stacked on axis 0.

    `average` is that of the parameters, None without `train.average`; `streams` are the states that training sequences
    begin from, None without `train.state_passing`.
    """

    params: Params
    optimizer: Any
    step: Array
    average: Params | None = None
    streams: Cache | None = None


class Sums(NamedTuple):
    """Over a dispatch, `[seeds]`: sums over sequences, the first step with a loss or gradient not finite (or −1)."""

    loss: Array
    accuracy: Array
    bad_step: Array


def params_of(state: TrainState, index: int, evaluated: str) -> Params:
    """The parameters of one seed: the `average` if there is one, or the `last`."""
    kept = state.params if evaluated == "last" or state.average is None else state.average
    return jax.tree.map(lambda leaf: leaf[index], kept)


def refuse_non_finite(sums: Sums, seeds: Sequence[int], last_checkpoint: int | None) -> None:
    """Raises UserError that names the step, the seed and the last good checkpoint if a loss was not finite."""
    for seed, step in zip(seeds, np.asarray(sums.bad_step).tolist(), strict=True):
        if step >= 0:
            kept = "no checkpoint was kept yet" if last_checkpoint is None else f"checkpoint {last_checkpoint} is kept"
            raise UserError(
                f"the loss or its gradient was not finite at step {step}, seed {seed}; {kept}; "
                "lower train.learning_rate or train.clip"
            )
