"""Chooses the implementation of a function for the platform for which a program is lowered."""

from collections.abc import Callable
from typing import Any

import jax


def by_platform(
    *arguments: Any, cpu: Callable[..., Any], default: Callable[..., Any], **others: Callable[..., Any]
) -> Any:
    """Calls with `arguments` the platform's function: `cpu`, one of `others` (`cuda`, `rocm`, `tpu`), or `default`.

    It is JAX's `lax.platform_dependent`. But that traces every function, kernels too, which takes a third of the
    time before a CPU's first step; so a process whose programs run on a CPU traces only the one of the CPU.
    """
    if runs_on_cpu():
        return cpu(*arguments)
    return jax.lax.platform_dependent(*arguments, cpu=cpu, default=default, **others)


def runs_on_cpu() -> bool:
    """Whether this process's programs run on a CPU by default; what it computes elsewhere then has no kernel."""
    return jax.default_backend() == "cpu"
