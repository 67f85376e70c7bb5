"""Linear recurrences on arrays `[b, t, d]`, with gradients, for CPU, GPU and TPU.

`linear_scan` is the plain recurrence; `rglru` and `cglru` are the gated units of Hawk and Griffin, gates included;
`sharded_linear_scan` splits a sequence over devices, `split_scan` and `across` a whole model's time.
`linear_state` is the recurrence of a matrix, on `[b, t, h, k]`, and `selective_scan` that of Mamba.
"""

from evalkit.kernels.cglru import cglru
from evalkit.kernels.matrix.linear_state import linear_state
from evalkit.kernels.rglru import gated_input, rglru
from evalkit.kernels.scan import linear_scan
from evalkit.kernels.selective import selective_scan
from evalkit.kernels.sharded import SEQUENCE, across, is_split, sharded_linear_scan, split_scan

__all__ = [
    "SEQUENCE",
    "across",
    "cglru",
    "gated_input",
    "is_split",
    "linear_scan",
    "linear_state",
    "rglru",
    "selective_scan",
    "sharded_linear_scan",
    "split_scan",
]
