"""MQA, Hawk and Griffin as patterns over mixers; `build` gives pure functions of plain parameters."""

from evalkit.models.model import Model, build

__all__ = ["Model", "build"]
