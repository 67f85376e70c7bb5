"""Linear recurrences on arrays `[b, t, d]`, with gradients, for CPU, GPU and TPU.

`linear_scan` is the plain recurrence; `rglru` and `cglru` are the gated units of Hawk and Griffin, gates included;
`sharded_linear_scan` splits a sequence over devices, `split_scan` and `across` a whole model's time.
`linear_state` is the recurrence of a matrix, on `[b, t, h, k]`, and `selective_scan` that of Mamba.
"""

from evalkit.kernels.gated import cglru as cglru
from evalkit.kernels.gated import gated_input as gated_input
from evalkit.kernels.gated import rglru as rglru
from evalkit.kernels.matrix.linear_state import linear_state as linear_state
from evalkit.kernels.scan import linear_scan as linear_scan
from evalkit.kernels.selective import selective_scan as selective_scan
from evalkit.kernels.sharded import SEQUENCE as SEQUENCE
from evalkit.kernels.sharded import across as across
from evalkit.kernels.sharded import is_split as is_split
from evalkit.kernels.sharded import sharded_linear_scan as sharded_linear_scan
from evalkit.kernels.sharded import split_scan as split_scan
