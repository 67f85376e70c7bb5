"""Recurrent and hybrid language models on the Griffin paper's tasks: train, extrapolate, compare.

From Python: `evalkit.load(RUN) -> (apply, params, task)` and `evalkit.rows(RUN, ...)`.
"""

from typing import TYPE_CHECKING, Any

from evalkit.core.rows import rows as rows

if TYPE_CHECKING:
    from evalkit.checkpoints.loading import load as load


def __getattr__(name: str) -> Any:
    """`load` needs JAX, which takes a second to import, so it comes when it is asked for."""
    if name == "load":
        from evalkit.checkpoints.loading import load

        return load
    raise AttributeError(f"module 'evalkit' has no attribute {name!r}")
