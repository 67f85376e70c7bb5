"""Recurrences on arrays `[b, t, d]`: the operations that everything recurrent here is made of."""

from kernels.rglru import gated_input, rglru
from kernels.scan import linear_scan

__all__ = ["gated_input", "linear_scan", "rglru"]
