"""Synthetic tasks: pure, jittable sampling of one example, and beside it the rule in plain NumPy."""

from evalkit.tasks.base import Example

__all__ = ["Example"]
