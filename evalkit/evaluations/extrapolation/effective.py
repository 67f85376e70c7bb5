"""Effective length: how far a model keeps its accuracy beyond its training length, as one number a curve."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypedDict

import numpy as np
from jaxtyping import Float, Int

from evalkit.reports.canvas import length_label
from evalkit.reports.numbers import DASH

KEPT = (0.85, 0.99)
"""The shares of the accuracy at the training length that are reported."""
DRAWS = 1000
ROUNDING = 1e-9


class Tally(NamedTuple):
    """The sum of the accuracies of `count` sequences."""

    total: float
    count: float


class Effective(TypedDict):
    """An effective length with its 95% interval, in tokens; null where there is none.

    `longest` is the longest length that was evaluated. A length that equals it is a lower bound.
    """

    length: int | None
    low: int | None
    high: int | None
    longest: int | None


def effective_length(
    ladders: Sequence[Mapping[int, Tally]], trained: int | None, kept: float, chance: float | None = None
) -> Effective:
    """The longest length up to which accuracy keeps the share `kept` of the accuracy at the length `trained`.

    Every evaluated length from `trained` to this one keeps the share. `ladders` has one mapping per seed, from lengths
    to tallies; the curve is the median over seeds, at the lengths that all seeds have. The interval is a bootstrap: it
    draws seeds with replacement, and each accuracy from its posterior (a beta distribution, Jeffreys' prior). There is
    no effective length if the share to be kept is not above `chance`, and none unless the training length and a longer
    one were evaluated.

    >>> ladder = {256: Tally(64, 64), 512: Tally(60, 64), 1024: Tally(9, 64), 2048: Tally(63, 64)}
    >>> effective_length([ladder], 256, 0.85)
    {'length': 512, 'low': 512, 'high': 512, 'longest': 2048}
    """
    shared = set.intersection(*(set(ladder) for ladder in ladders)) if ladders else set[int]()
    lengths = sorted(length for length in shared if trained is not None and length >= trained)
    none = Effective(length=None, low=None, high=None, longest=lengths[-1] if lengths else None)
    if trained not in lengths or len(lengths) < 2:
        return none
    tallies = np.array([[ladder[length] for length in lengths] for ladder in ladders], np.float64)
    count = tallies[..., 1]
    total = np.clip(tallies[..., 0], 0, count)  # a sum in float32 may end a hair outside
    at = int(_last_kept(np.median(total / count, axis=0), kept, chance or 0.0))
    if at < 0:
        return none
    ends = np.quantile(
        _last_kept(_redrawn(total, count), kept, chance or 0.0), (0.025, 0.975), method="inverted_cdf"
    ).astype(int)
    low, high = max(0, min(at, ends[0])), max(at, ends[1])
    return Effective(length=lengths[at], low=lengths[low], high=lengths[high], longest=lengths[-1])


def shown(effective: Effective) -> str:
    """The length in a table: `≥` before one that is the longest evaluated."""
    return _shown(effective["length"], effective["longest"])


def interval_shown(effective: Effective) -> str:
    """The interval in a table."""
    if effective["low"] is None:
        return DASH
    return f"{_shown(effective['low'], effective['longest'])} {DASH} {_shown(effective['high'], effective['longest'])}"


def _shown(length: int | None, longest: int | None) -> str:
    if length is None:
        return DASH
    text = f"{length:,}" if length < 2**20 else length_label(length)
    return f"≥ {text}" if length == longest else text


def _last_kept(curves: Float[np.ndarray, "*curves length"], kept: float, chance: float) -> Int[np.ndarray, "*curves"]:
    """The index of each curve's effective length; -1 where the share to be kept is not above chance."""
    level = kept * curves[..., :1]
    reached = np.logical_and.accumulate(curves >= level - ROUNDING, axis=-1).sum(axis=-1)
    return np.where(level[..., 0] > chance, reached - 1, -1)


def _redrawn(
    total: Float[np.ndarray, "seed length"], count: Float[np.ndarray, "seed length"]
) -> Float[np.ndarray, "draw length"]:
    """Bootstrap samples of the curve of medians over seeds, the same samples in every call."""
    random = np.random.default_rng(0)
    seeds = random.integers(len(total), size=(DRAWS, len(total)))
    return np.median(random.beta(total[seeds] + 0.5, count[seeds] - total[seeds] + 0.5), axis=1)
