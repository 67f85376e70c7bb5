"""Recurrent and hybrid language models on the Griffin paper's tasks: train, extrapolate, compare.

From Python: `train`, `evaluate`, `resume`, `load`, `compare`, `rows`; `docs/python.md` shows each. Importing this
loads none of the heavy libraries; the first use of a function does.
"""

from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any

from evalkit.core.errors import UserError as UserError

if TYPE_CHECKING:
    from evalkit.api import compare as compare
    from evalkit.api import evaluate as evaluate
    from evalkit.api import resume as resume
    from evalkit.api import rows as rows
    from evalkit.api import train as train
    from evalkit.checkpoints.loading import Run as Run
    from evalkit.checkpoints.loading import load as load

    __version__: str

_HOMES = {
    "Run": "evalkit.checkpoints.loading",
    "compare": "evalkit.api",
    "evaluate": "evalkit.api",
    "load": "evalkit.checkpoints.loading",
    "resume": "evalkit.api",
    "rows": "evalkit.api",
    "train": "evalkit.api",
}
__all__ = ["Run", "UserError", "__version__", "compare", "evaluate", "load", "resume", "rows", "train"]


def __getattr__(name: str) -> Any:
    """Imports a function that needs JAX at its first use, because importing JAX takes a second."""
    if name == "__version__":
        return metadata.version("griffin-evalkit")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'evalkit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
