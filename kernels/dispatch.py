"""Chooses an implementation: the caller's, or the best one for the platform that a program is lowered for."""

from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from evalkit.kernels import xla
from evalkit.kernels.passes import Kernel
from evalkit.platforms import by_platform, runs_on_cpu

SCANS = {"sequential": xla.sequential, "associative": xla.associative}
KERNELS = ("triton", "mosaic_gpu", "mosaic_tpu", "triton_interpret", "mosaic_tpu_interpret")
IMPLEMENTATIONS = ("auto", *SCANS, *KERNELS)
Implementation = str | Kernel
HOPPER_BLOCK, HOPPER_CHANNELS = 32, 128  # steps and channels of a block of `mosaic_gpu`
AMPERE = 8  # the first compute capability for which XLA compiles Triton
ENOUGH_LANES = 2**15  # least batch × channels for `mosaic_gpu`, as timed; with fewer, Triton's chunks may be faster
SERVED = (jnp.float32, jnp.bfloat16, jnp.int32)  # the dtypes that kernels take: values, and flags of resets


def check(implementation: Implementation, x: Array) -> None:
    """Raises ValueError for an unknown implementation, a dtype or shape that it does not take, or no time at all."""
    if not isinstance(implementation, Kernel) and implementation not in IMPLEMENTATIONS:
        raise ValueError(f"implementation={implementation!r}; allowed: {', '.join(IMPLEMENTATIONS)}")
    if x.ndim != 3:
        raise ValueError(f"x has shape {x.shape}; it must be [batch, time, channels]")
    if x.shape[1] == 0:
        raise ValueError(f"a recurrence needs at least one step; x has shape {x.shape}")
    pallas = isinstance(implementation, Kernel) or implementation in KERNELS
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise ValueError(f"a recurrence takes floating-point inputs, not {x.dtype}")
    if pallas and x.dtype not in SERVED:
        raise ValueError(f"a Pallas kernel takes float32 and bfloat16, not {x.dtype}; use implementation='sequential'")


def check_shapes(others: Mapping[str, tuple[Array | None, tuple[int, ...]]], name: str, first: Array) -> None:
    """Raises ValueError if one of `others` has not the shape that goes with the array `first`, called `name`.

    `others` gives each array with that shape. Without the check, a scan could broadcast an array silently, and a kernel
    could read beyond its end.
    """
    for other, (value, shape) in others.items():
        if value is not None and value.shape != shape:
            raise ValueError(f"{other} has shape {value.shape}; with {name} {first.shape} it must be {shape}")


def dispatch(
    implementation: Implementation,
    by_scan: Callable[..., Any],
    by_kernel: Callable[..., Any],
    *arguments: Any,
    plain: Array | None,
) -> Any:
    """Calls `by_scan(scan, *arguments)` with a scan of XLA's, or `by_kernel(kernel, *arguments)` with a Pallas kernel.

    "auto" is Mosaic on a TPU, and on a Hopper GPU for large arrays; else Triton on an NVIDIA GPU and the sequential
    scan elsewhere. Another vendor's GPU, a dtype that kernels do not take, and a JAX without that part of Pallas get
    the associative scan on a GPU or TPU. `plain` is one of the arrays `[b, t, d]`, if they are real and without resets.
    """
    if isinstance(implementation, Kernel):
        return by_kernel(implementation, *arguments)
    if implementation in SCANS:
        return by_scan(SCANS[implementation], *arguments)
    if implementation in KERNELS:
        return by_kernel(_kernel(implementation), *arguments)
    # On a GPU each step of a sequential loop launches a kernel, so logarithmic depth is faster there.
    sequential, associative = (partial(by_scan, scan) for scan in (xla.sequential, xla.associative))
    if any(leaf.dtype not in SERVED for leaf in jax.tree.leaves(arguments)):
        return by_platform(*arguments, cpu=sequential, cuda=associative, rocm=associative, default=sequential)
    if runs_on_cpu():
        return sequential(*arguments)
    cuda, tpu = _of_nvidia(plain), _kernel_if_there("mosaic_tpu")
    return by_platform(
        *arguments,
        cpu=sequential,
        cuda=associative if cuda is None else partial(by_kernel, cuda),
        rocm=associative,
        tpu=associative if tpu is None else partial(by_kernel, tpu),
        default=sequential,
    )


def _kernel(name: str) -> Kernel:
    """Returns the kernel of that name."""
    # Imported here: a plain scan must not pay for Pallas, nor a kernel fail if JAX drops what only another needs.
    module = import_module(f"evalkit.kernels.{name.removesuffix('_interpret')}")
    return module.kernel(interpret=True) if name.endswith("_interpret") else module.kernel()


def _of_nvidia(plain: Array | None) -> Kernel | None:
    """Returns the fastest kernel that JAX has for this process's NVIDIA GPUs; None where they are too old for any."""
    if plain is not None and _fills_hopper(plain) and _on_hopper() and (hopper := _kernel_if_there("mosaic_gpu")):
        return hopper
    return _kernel_if_there("triton") if _takes_triton() else None


def _fills_hopper(x: Array) -> bool:
    """Whether Mosaic was timed for such arrays: whole blocks in bfloat16, and enough of them for all processors."""
    batch, steps, width = x.shape
    whole = steps % HOPPER_BLOCK == 0 and width % HOPPER_CHANNELS == 0
    return x.dtype == jnp.bfloat16 and whole and batch * width >= ENOUGH_LANES


def _on_hopper() -> bool:
    """Whether this process's GPUs are Hopper's; Blackwell has Mosaic, too, but nothing was timed there."""
    return all(getattr(device, "compute_capability", "") == "9.0" for device in jax.local_devices())


def _takes_triton() -> bool:
    """Whether XLA compiles Triton for this process's GPUs: from Ampere on, so for no T4 and no V100."""
    majors = (str(getattr(device, "compute_capability", "")).partition(".")[0] for device in jax.local_devices())
    return all(int(major) >= AMPERE for major in majors if major.isdigit())  # of other vendors it is a name


def _kernel_if_there(name: str) -> Kernel | None:
    """Returns the kernel of that name, None where JAX lacks what it is made with."""
    try:
        return _kernel(name)
    except ImportError:
        return None
