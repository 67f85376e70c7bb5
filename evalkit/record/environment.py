"""Describes what a result was measured on: versions, device, code, command."""

import json
import platform
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import jax

from evalkit.parallel.devices import cores
from evalkit.record.history import command_line

PACKAGES = ("griffin-evalkit", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "hydra-core", "wandb")
OWN_CODE = "own_code"


def changed_code(folder: Path, own_code: Mapping[str, str]) -> str | None:
    """Which modules had another file when the run in `folder` was trained, in words; None where none, or unknown."""
    before: Any = {}
    with suppress(OSError, ValueError, RecursionError, KeyError, TypeError):
        before = json.loads((folder / "environment.json").read_text(encoding="utf-8"))[OWN_CODE]
    if not isinstance(before, dict):
        return None
    other = [name for name, digest in own_code.items() if before.get(name, digest) != digest]
    return f"note: {', '.join(other)} was changed since {folder} was trained" if other else None


def describe(
    matmul_precision: str, own_code: Mapping[str, str] | None = None, command: str | None = None
) -> dict[str, Any]:
    """The content of `environment.json`; `own_code` are sums of the user's modules, `command` by default this one."""
    device = jax.local_devices()[0]
    return {
        "command": command_line() if command is None else command,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": device.device_kind,
        "backend": device.platform,
        "devices": jax.device_count(),
        "cores": cores(),
        "matmul_precision": matmul_precision,
        "versions": {name: _version(name) for name in PACKAGES},
        "git": _git(),
        OWN_CODE: dict(own_code or {}),
    }


def machine(matmul_precision: str) -> str:
    """The device in one line, with what decides how exact its products are."""
    device = jax.local_devices()[0].device_kind
    return f"{device} × {jax.device_count()} ({cores()} cores), float32 products: {matmul_precision}"


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git() -> dict[str, Any] | None:
    """Returns the commit and whether the tree differs from it; None for an installed wheel."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None

    def git(*arguments: str) -> str:
        return subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False).stdout

    return {"commit": git("rev-parse", "HEAD").strip() or None, "dirty": bool(git("status", "--porcelain").strip())}
