"""Linear recurrences on arrays `[b, t, d]`: the one operation that everything recurrent here is made of."""

from kernels.cglru import cglru
from kernels.scan import linear_scan
from kernels.sharded import sharded_linear_scan

__all__ = ["cglru", "linear_scan", "sharded_linear_scan"]
