"""Describes what a result was measured on: versions, device, code, command."""

import os
import platform
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import jax

from evalkit.parallel.devices import cores
from evalkit.record import variables
from evalkit.record.history import command_line

PACKAGES = ("griffin-evalkit", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "hydra-core", "wandb")
OWN_CODE = "own_code"
OF_A_HOOK = ("GIT_COMMON_DIR", "GIT_DIR", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_WORK_TREE")
"""Variables that git sets in hooks and aliases; with them, git would answer about another repository."""
CHANGES = ("-c", "core.fsmonitor=false", "status", "--porcelain", "--untracked-files=normal")
"""The question for changes, to be answered alike whatever the user's own settings of git are."""
GIT_SECONDS = 10


def changed_code(folder: Path, own_code: Mapping[str, str]) -> str | None:
    """A sentence on the user's modules that changed since the run in `folder` was trained; None if none or unknown."""
    before = variables.kept_in(folder, OWN_CODE) or {}
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
        "git": git_state(Path(__file__).resolve().parents[2]),
        variables.FIELD: variables.variables(),
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


def git_state(root: Path) -> dict[str, Any] | None:
    """The commit, and whether the tree differs from it; None for an installed wheel, and for each that is unknown."""
    if not (root / ".git").exists():
        return None
    commit, changes = _answer(root, "rev-parse", "HEAD"), _answer(root, *CHANGES)
    return {"commit": commit or None, "dirty": None if changes is None else bool(changes)}


def _answer(root: Path, *question: str) -> str | None:
    """Git's answer about a repository; None where git is missing, fails or takes too long."""
    own = {name: value for name, value in os.environ.items() if name not in OF_A_HOOK}
    own["GIT_CEILING_DIRECTORIES"] = str(root.parent)  # a repository around a broken one is another
    command = ["git", "--no-optional-locks", "-C", str(root), *question]
    with suppress(OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return subprocess.run(
            command, capture_output=True, check=True, encoding="utf-8", env=own, timeout=GIT_SECONDS
        ).stdout.strip()
    return None
