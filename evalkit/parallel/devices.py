"""Splits a batch over the devices, whole sequences to each, and into parts that one device takes at a time."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from math import gcd
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from evalkit.numerics import IN_ORDER, NOT_TRIED

AXIS = "data"
MODEL_AXIS = "model"
"""The axis of a mesh whose devices share each layer; those of the other share a batch."""
COPIED_BYTES = 2**28  # parameters of up to 256 MiB are copied to every CPU device
# For a program that runs once, compiling less is faster: half the seconds for fresh parameters.
RUNS_ONCE: dict[str, Any] = {"xla_backend_optimization_level": 0}
# Measured on two cores with 1 MiB of second-level cache each: with more the activations leave the cache.
MICROBATCH_TOKENS = 512
COUNT_FLAG, COUNT_VARIABLE = "xla_force_host_platform_device_count", "JAX_NUM_CPU_DEVICES"


def cores() -> int:
    """Returns how many CPU cores this process may use."""
    # A container or `taskset` may give a process fewer cores than the machine has; macOS cannot say.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def use_every_core() -> None:
    """Makes each CPU core a JAX device, which is faster than one device with a thread for each core.

    Call it before JAX touches a device. Later it changes nothing, nor where the environment sets the number of devices.
    """
    if COUNT_FLAG in os.environ.get("XLA_FLAGS", "") or COUNT_VARIABLE in os.environ:
        return
    try:
        jax.config.update("jax_num_cpu_devices", cores())
    except RuntimeError:  # in use already: the process keeps the devices that it has
        return


def spare_memory() -> None:
    """Makes CPU programs run their operations in order, so that scoring with a large checkpoint needs less memory.

    By default XLA first converts every bfloat16 matrix to float32, which takes twice the checkpoint's size more.
    Call it before JAX compiles anything.
    """
    _set(IN_ORDER)


def compile_sooner() -> None:
    """Has XLA choose how it computes a fusion on a GPU by its estimate, and leave products to cuBLAS.

    Otherwise it compiles and times several ways of each, which is most of 23 to 30 s for a training program of 250K
    parameters on an H200; a step takes 4 % longer. Call it before JAX compiles anything.
    """
    for flag in NOT_TRIED:
        _set(flag)


def _set(flag: str) -> None:
    """Adds a flag to XLA_FLAGS, unless the environment says otherwise."""
    flags = os.environ.get("XLA_FLAGS", "")
    # XLA ends the process at a flag that it does not know, so only versions get it that are known to have it.
    known = tuple(map(int, jax.__version__.split(".")[:2])) in ((0, 10), (0, 11), (0, 12))
    if known and flag.partition("=")[0] not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {flag}".strip()


def mesh_for(*batches: int) -> Mesh:
    """Returns the largest one-dimensional mesh of this process's devices whose size divides every one of `batches`."""
    count = gcd(*batches)
    most = max(n for n in range(1, min(count, jax.local_device_count()) + 1) if count % n == 0)
    return Mesh(np.asarray(jax.local_devices()[:most]), (AXIS,))


def mesh_sharing(params: Any, *batches: int) -> Mesh:
    """The mesh of `mesh_for`, or one device if `params` are too large to copy to each CPU core."""
    return mesh_for(1) if jax.default_backend() == "cpu" and bytes_of(params) > COPIED_BYTES else mesh_for(*batches)


def bytes_of(tree: Any) -> int:
    """Returns the size of all arrays, or of all shapes, of a tree."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


@cache
def memory_bytes() -> int:
    """Returns the memory of this machine, or of a container that has less; without bound where nothing says it."""
    try:
        limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    except (ValueError, OSError, AttributeError):  # no such question on Windows
        return sys.maxsize
    with suppress(OSError, ValueError):
        limits.append(int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return min(limits)


@contextmanager
def on_host() -> Iterator[None]:
    """Within, programs run on the CPU, where small ones compile in a tenth of an accelerator's seconds.

    What they draw is then the same whatever the accelerator. It changes nothing where JAX_PLATFORMS leaves the CPU out.
    """
    try:
        host = jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        yield
        return
    with jax.default_device(host):
        yield


def accelerator_bytes() -> int:
    """Returns the memory of all accelerators together, 0 without one; call it after `use_every_core`."""
    return own_accelerator_bytes() * jax.process_count()


def own_accelerator_bytes() -> int:
    """Returns the memory of this process's accelerators, which evaluate by themselves; 0 without one."""
    stats = [device.memory_stats() for device in jax.local_devices() if device.platform != "cpu"]
    return sum((one or {}).get("bytes_limit", sys.maxsize) for one in stats)


def by_rows(function: Callable[..., Any], mesh: Mesh, whole: Any, *rows: Any) -> Any:
    """`function(whole, *rows)`, computed on each device for its own rows (axis 0); `whole` is the same on every one."""
    own = PartitionSpec(AXIS)
    specs = (PartitionSpec(), *[own] * len(rows))
    return jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=own, check_vma=False)(whole, *rows)


def own(tree: Any, shards: int) -> Any:
    """Returns this device's rows of arrays with equally many, within a program that `shards` devices share."""
    if shards == 1:
        return tree
    rows = len(jax.tree.leaves(tree)[0]) // shards
    first = lax.axis_index(AXIS) * rows
    return jax.tree.map(lambda x: lax.dynamic_slice_in_dim(x, first, rows), tree)


def averaged(value: jax.Array, shards: int) -> jax.Array:
    """Returns the mean of a value over the devices, within a program that `shards` devices share."""
    return value if shards == 1 else lax.pmean(value, AXIS)


def split(mesh: Mesh) -> NamedSharding:
    """Returns the sharding that splits axis 0 over the devices."""
    return NamedSharding(mesh, PartitionSpec(AXIS))


def copied(mesh: Mesh) -> NamedSharding:
    """Returns the sharding that copies an array to every device."""
    return NamedSharding(mesh, PartitionSpec())


def microbatch(wanted: int | None, sequences: int, length: int) -> int:
    """How many of `sequences` of `length` tokens one device takes at a time: a divisor of them, `wanted` at most."""
    if wanted is None:
        wanted = max(1, MICROBATCH_TOKENS // length) if jax.default_backend() == "cpu" else sequences
    return max(size for size in range(1, min(wanted, sequences) + 1) if sequences % size == 0)


def in_parts(tree: Any, size: int) -> Any:
    """Every array `[b, …]` as `[b / size, size, …]`."""
    return jax.tree.map(lambda x: x.reshape(x.shape[0] // size, size, *x.shape[1:]), tree)


def together(tree: Any) -> Any:
    """Every array `[parts, size, …]` as `[parts · size, …]`."""
    return jax.tree.map(lambda x: x.reshape(x.shape[0] * x.shape[1], *x.shape[2:]), tree)
