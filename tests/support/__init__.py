"""Helpers of the tests."""

from importlib import import_module
from types import ModuleType


def __getattr__(name: str) -> ModuleType:
    """Imports `support.typecheck` when pytest asks for it: `benchmarks/gpu.py` runs where beartype is not installed."""
    if name != "typecheck":
        raise AttributeError(name)
    return import_module("support.typecheck")
