"""What `gpu.sh` runs: the parts of `gpu_parts.py` in the order of their worth, each in a process of its own.

A row is in the JSON file as soon as it is measured, whatever becomes of its part or of the others. Exit code 1: a part
failed, and the last line says which.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

SECONDS = {
    "exact": 45,
    "readme": 140,
    "seeds": 60,
    "reading": 50,
    "kernels": 50,
    "steps": 60,
    "decoding": 45,
    "matrix": 20,
    "lanes": 10,
}
"""The parts and what each may take, eight minutes together; one that ends earlier leaves its time to those after it."""
COMMAND = [sys.executable, "-u", str(Path(__file__).with_name("gpu_parts.py"))]
SMALL = {
    "JAX_PLATFORMS": "cpu",
    "JAX_NUM_CPU_DEVICES": "1",
    "XLA_FLAGS": "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true",
}
"""The environment of a try without a GPU, where compiling is nearly all that takes time."""
PATIENCE = 4
"""How often the time of a part a try may take, on a machine that does other work."""


def main(words: Sequence[str] | None = None) -> int:
    """Runs every part and says which of them failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="the JSON file")
    parser.add_argument("--small", action="store_true", help="tiny, in interpret mode: a try without a GPU")
    arguments = parser.parse_args(words)
    parts: dict[str, dict[str, Any]] = {}
    began = deadline = time.monotonic()
    for name, seconds in SECONDS.items():
        deadline += PATIENCE * seconds if arguments.small else seconds
        parts[name] = {"rows": []}
        measure(name, arguments.small, deadline, parts[name], lambda: _write(arguments.out, parts))
    failed = [name for name, part in parts.items() if "failed" in part]
    print(f"{time.monotonic() - began:.0f} s, {arguments.out}; failed: {', '.join(failed) or 'nothing'}")
    return 1 if failed else 0


def measure(name: str, small: bool, deadline: float, part: dict[str, Any], keep: Callable[[], None]) -> None:
    """Fills `part` with the rows of a part, its seconds and, if it did not end well, why; `keep` after each of them."""
    began = time.monotonic()
    command = [*COMMAND, name, *(["--small"] if small else [])]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, start_new_session=True, env=os.environ | (SMALL if small else {})
    ) as process:
        for row in _rows(process, max(0.0, deadline - began)):
            print(name, json.dumps(row), flush=True)
            part["rows"].append(row)
            keep()
    part["seconds"] = time.monotonic() - began
    missing = [row["not_run"] for row in part["rows"] if "not_run" in row]
    if process.returncode == -signal.SIGKILL:
        part["failed"] = f"killed after {part['seconds']:.0f} s: its time was over, or memory was"
    elif process.returncode or missing:
        part["failed"] = "; ".join(missing) or f"ended with {process.returncode}"
    keep()


def _rows(process: subprocess.Popen[str], seconds: float) -> Iterator[dict[str, Any]]:
    """What a part prints, a JSON object a line; after `seconds` it is killed with all that it started."""
    assert process.stdout is not None
    timer = threading.Timer(seconds, os.killpg, (process.pid, signal.SIGKILL))
    timer.start()
    try:
        yield from (json.loads(line) for line in process.stdout if line.startswith("{"))
    except BaseException:  # such as Ctrl-C: a session of its own does not hear of it
        os.killpg(process.pid, signal.SIGKILL)
        raise
    finally:
        timer.cancel()


def _write(out: Path, parts: dict[str, dict[str, Any]]) -> None:
    out.write_text(json.dumps(parts, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
