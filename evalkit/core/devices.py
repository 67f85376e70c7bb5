"""Which devices share the work: a batch is split over them, each one doing its sequences."""

import os
from math import gcd
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from evalkit.core.contracts import Params

AXIS = "data"
COPIED_BYTES = 2**28
IN_ORDER = "--xla_cpu_enable_concurrency_optimized_scheduler=false"
COUNT_FLAG, COUNT_VARIABLE = "xla_force_host_platform_device_count", "JAX_NUM_CPU_DEVICES"


def use_every_core() -> None:
    """Makes each CPU core a device of its own, which fills them better than one device with a thread a core.

    Comes before JAX touches a device; after that, or where the environment says how many there are, nothing changes.
    """
    if COUNT_FLAG in os.environ.get("XLA_FLAGS", "") or COUNT_VARIABLE in os.environ:
        return
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        jax.config.update("jax_num_cpu_devices", cores)
    except RuntimeError:  # in use already: the process keeps the devices that it has
        return


def spare_memory() -> None:
    """Makes CPU programs take their steps one after the other: by itself XLA begins by taking every bfloat16 matrix to
    float32, and scoring text with a large checkpoint needs twice its size more.

    Comes before JAX compiles anything. Of XLA's versions only those are asked that are known to have the setting, since
    others would end the process.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    known = tuple(map(int, jax.__version__.split(".")[:2])) in ((0, 10), (0, 11), (0, 12))
    if known and IN_ORDER.partition("=")[0] not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {IN_ORDER}".strip()


def mesh_for(*batches: int) -> Mesh:
    """As many devices, in a row, as divide every one of `batches`."""
    count = gcd(*batches)
    most = max(n for n in range(1, min(count, jax.device_count()) + 1) if count % n == 0)
    return Mesh(np.asarray(jax.devices()[:most]), (AXIS,))


def mesh_sharing(params: Params, *batches: int) -> Mesh:
    """As `mesh_for`, with room for a copy of `params` on every device: CPU cores share one memory, so large ones stay
    on one device, whose products fill all cores by themselves."""
    return mesh_for(1) if jax.default_backend() == "cpu" and bytes_of(params) > COPIED_BYTES else mesh_for(*batches)


def bytes_of(tree: Any) -> int:
    """Of all arrays, or shapes, of a tree."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def split(mesh: Mesh) -> NamedSharding:
    """Axis 0 split over the devices."""
    return NamedSharding(mesh, PartitionSpec(AXIS))


def copied(mesh: Mesh) -> NamedSharding:
    """The same on every device."""
    return NamedSharding(mesh, PartitionSpec())
