"""Computes the same in the way that suits the platform which a program is lowered for."""

from collections.abc import Callable
from typing import Any

import jax


def by_platform(
    *arguments: Any, cpu: Callable[..., Any], default: Callable[..., Any], **others: Callable[..., Any]
) -> Any:
    """Calls with `arguments` the way of the platform: `cpu`, one of `others` (`cuda`, `rocm`, `tpu`), or `default`.

    It is JAX's `lax.platform_dependent`. But that traces every way, kernels among them, which is a third of the time
    before a CPU's first step; so a process whose programs run on a CPU traces the CPU's alone.
    """
    if runs_on_cpu():
        return cpu(*arguments)
    return jax.lax.platform_dependent(*arguments, cpu=cpu, default=default, **others)


def runs_on_cpu() -> bool:
    """Whether this process's programs run on a CPU by default; what it computes elsewhere then has no kernel."""
    return jax.default_backend() == "cpu"
