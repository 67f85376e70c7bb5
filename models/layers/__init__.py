"""The parts of a mixer: its contract, shapes, linear maps, norm, convolution, gated MLP, and what positions mean.

A mixer of your own is a class with the methods of `Mixer`, made of these:

    from flax import nnx
    from evalkit.models.layers import Linear, after, continued, scanned

`evalkit/models/mixers/lru.py` is a short one to start from.
"""

from evalkit.models.layers.mixer import Cache, Counted, Decaying, Mixer
from evalkit.models.layers.modules import (
    BlockDiagonalLinear,
    CausalConv1D,
    GatedMLP,
    Linear,
    NoDecay,
    RMSNorm,
    gelu_times,
    side_by_side,
)
from evalkit.models.layers.positions import after, continued, matrix_scanned, scanned, selective_scanned
from evalkit.models.layers.shapes import Activations, Positions, Rows, States, Tokens
from evalkit.models.layers.shares import TERM, Division, into, out_of

__all__ = [
    "TERM",
    "Activations",
    "BlockDiagonalLinear",
    "Cache",
    "CausalConv1D",
    "Counted",
    "Decaying",
    "Division",
    "GatedMLP",
    "Linear",
    "Mixer",
    "NoDecay",
    "Positions",
    "RMSNorm",
    "Rows",
    "States",
    "Tokens",
    "after",
    "continued",
    "gelu_times",
    "into",
    "matrix_scanned",
    "out_of",
    "scanned",
    "selective_scanned",
    "side_by_side",
]
