"""Compiles every kernel for real for one target that is not there, and prints what each needs.

    python compile.py h200          registers, spilled bytes and instructions of the loop, one line a kernel
    python compile.py h200-mosaic   seconds to compile by Mosaic GPU, one line an operation
    python compile.py v4:2x2x1      seconds to compile, one line an operation; likewise v5e:2x2, v5p:2x2x1, v6e:2x2

Exits with 1 if a kernel spills registers to memory.
"""

import atexit
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

DUMP = tempfile.mkdtemp(prefix="kernels-")
atexit.register(shutil.rmtree, DUMP, ignore_errors=True)
os.environ.update(JAX_PLATFORMS="cpu", TPU_SKIP_MDS_QUERY="1", TPU_WORKER_HOSTNAMES="localhost")
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_dump_to={DUMP}"

import jax  # noqa: E402  its settings come from the environment
import jax.numpy as jnp  # noqa: E402
from jax.experimental import topologies  # noqa: E402
from jax.sharding import SingleDeviceSharding  # noqa: E402

from evalkit.kernels import cglru, linear_scan, rglru  # noqa: E402

BATCH, STEPS, WIDTH = 8, 2048, 1024


def operations(sharding: SingleDeviceSharding, implementation: str) -> Iterator[tuple[str, jax.stages.Lowered]]:
    """Each operation with its gradient, in both dtypes, lowered for the target of `sharding`."""

    def array(*shape: int, dtype=jnp.float32) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    h0, reset = array(BATCH, WIDTH), array(BATCH, STEPS, dtype=jnp.bool)
    for dtype in (jnp.float32, jnp.bfloat16):
        x, half = array(BATCH, STEPS, WIDTH, dtype=dtype), array(BATCH, STEPS, WIDTH // 2, dtype=dtype)
        gated = (x, x, x, array(WIDTH), h0)
        turned = (x, half, half, array(WIDTH // 2), array(WIDTH // 2), h0)
        for operation, given, flags in (
            (linear_scan, (x, x, h0), None),
            (rglru, gated, None),
            (rglru, gated, reset),
            (cglru, turned, None),
            (cglru, turned, reset),
        ):
            if operation is cglru and implementation == "mosaic_gpu":
                continue  # which refuses it

            def both(cotangents, flags, *given, operation=operation):
                values, pull = jax.vjp(lambda *g: operation(*g, reset=flags, implementation=implementation), *given)
                return values, pull(cotangents)

            traced = jax.jit(both).trace((x, h0), flags, *given)
            name = f"{operation.__name__}, {jnp.dtype(dtype).name}{'' if flags is None else ', resets'}"
            yield name, traced.lower(lowering_platforms=("tpu" if implementation == "mosaic_tpu" else "cuda",))


def compile_all(device: jax.Device, implementation: str) -> None:
    """Prints how long each operation took to compile; a failure is an exception."""
    for operation, lowered in operations(SingleDeviceSharding(device), implementation):
        start = time.perf_counter()
        lowered.compile()
        print(f"| {device.device_kind} | {operation} | {time.perf_counter() - start:.1f} s |", flush=True)


def tpu(name: str) -> jax.Device:
    """A chip of that generation."""
    return topologies.get_topology_desc(name, platform="tpu").devices[0]


def h200() -> jax.Device:
    """An H200."""
    target = Path(__file__).with_name("h200.textproto").read_text()
    return topologies.get_topology_desc(platform="cuda", target_config=target, topology="1x1x1").devices[0]


def needs_of_triton() -> bool:
    """Prints the needs of each kernel; whether none spills."""
    clean = True
    for operation, lowered in operations(SingleDeviceSharding(h200()), "triton"):
        for old in Path(DUMP).glob("*"):
            old.unlink()
        lowered.compile()
        kernels = [
            (kernel, ptx)
            for ptx in sorted(Path(DUMP).glob("*.ptx"))
            for kernel in re.findall(r"\.entry ((?:Complex)?(?:Linear|Gated)\w*)\(", ptx.read_text())
        ]
        assert kernels, f"{operation}: XLA wrote none of our kernels"
        for kernel, ptx in kernels:
            clean &= report(operation, kernel, ptx)
    return clean


def report(operation: str, kernel: str, ptx: Path) -> bool:
    """Prints one kernel's registers, spilled bytes and instructions; whether it spills nothing."""
    import nvidia.cuda_nvcc

    ptxas = Path(next(iter(nvidia.cuda_nvcc.__path__))) / "bin" / "ptxas"
    command = [str(ptxas), "-v", "-arch=sm_90a", str(ptx), "-o", os.devnull]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    registers = re.search(r"Used (\d+) registers", said)
    spilled = sum(int(count) for count in re.findall(r"(\d+) bytes spill", said))
    assert registers, said
    print(f"| {operation} | {kernel} | {registers[1]} | {spilled} | {in_loop(ptx.read_text())} |", flush=True)
    return spilled == 0


def in_loop(ptx: str) -> int:
    """Instructions of the longest loop."""
    lines = [line.strip() for line in ptx.splitlines()]
    labels = {line[:-1]: at for at, line in enumerate(lines) if re.fullmatch(r"\$L\w+:", line)}
    loops = [
        lines[labels[found[1]] : at]
        for at, line in enumerate(lines)
        if (found := re.search(r"bra(?:\.uni)?\s+(\$L\w+);", line)) and labels.get(found[1], at) < at
    ]
    instructions = re.compile(r"(@!?%p\d+ )?[a-z]+[\w.]*\s.*;")
    return max((sum(bool(instructions.match(line)) for line in loop) for loop in loops), default=0)


if __name__ == "__main__":
    target = sys.argv[1]
    if target == "h200":
        sys.exit(0 if needs_of_triton() else 1)
    compile_all(*((h200(), "mosaic_gpu") if target == "h200-mosaic" else (tpu(target), "mosaic_tpu")))
