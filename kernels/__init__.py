"""Recurrences on arrays `[b, t, d]`: the operations that everything recurrent here is made of."""

from evalkit.kernels.cglru import cglru
from evalkit.kernels.rglru import gated_input, rglru
from evalkit.kernels.scan import linear_scan
from evalkit.kernels.sharded import sharded_linear_scan

__all__ = ["cglru", "gated_input", "linear_scan", "rglru", "sharded_linear_scan"]
