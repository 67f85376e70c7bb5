"""The implementations of the recurrences that the kernels' tests run."""

from collections.abc import Iterable
from typing import Any

import pytest

from evalkit.kernels import mosaic_tpu, triton

SMALL_TRITON = triton.Blocks(channels=32, ahead=2, chunks=3)
SMALL_TPU = mosaic_tpu.Blocks(steps=16, channels=128)
XLA = {"sequential": "sequential", "associative": "associative"}
PALLAS = {
    "triton": "triton_interpret",
    "triton in chunks": triton.kernel(SMALL_TRITON, interpret=True),
    "tpu": "mosaic_tpu_interpret",
    "tpu in small blocks": mosaic_tpu.kernel(SMALL_TPU, interpret=True),
}
ALL = {**XLA, **PALLAS}
FEW = (*XLA, "triton in chunks", "tpu in small blocks")
"""One of each kind, with blocks so small that a sequence takes several."""
QUICK = ("associative", "tpu in small blocks")


def often(few: tuple[str, ...], of: Iterable[str] = ALL) -> list[Any]:
    """Names of implementations to parametrise with: the `few` in every run, the rest by `-m exhaustive`."""
    return [*few, *(pytest.param(name, marks=pytest.mark.exhaustive) for name in of if name not in few)]


def quick(few: tuple[str, ...], of: Iterable[str] = ALL) -> list[Any]:
    """As `often`, but those that compile longest run only with the slow tests, whose programs they share."""
    slow = {name: pytest.param(name, marks=pytest.mark.slow) for name in few if name not in QUICK}
    return [slow.get(name, name) if isinstance(name, str) else name for name in often(few, of)]
