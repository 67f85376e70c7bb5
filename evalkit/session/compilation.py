"""JAX's compilation cache for a command: the programs that one command compiles are there for the next.

A folder belongs to one user, because JAX runs what it finds there, and to one kind of processor, because a program for
another one may use instructions that this one lacks.
"""

import hashlib
import logging
import os
import platform
import subprocess
import sys
import tempfile
import warnings
from importlib.metadata import version
from pathlib import Path

import jax
from filelock import FileLock, Timeout
from jax.experimental.compilation_cache import compilation_cache

from evalkit.configuration.experiment import AUTO
from evalkit.core.errors import first_line
from evalkit.disk.files import write_whole
from evalkit.disk.places import expanded, kept_below
from evalkit.parallel.devices import compile_sooner

LOGGER = logging.getLogger(__name__)
MOST_BYTES = 2**30
LEAST_S = 0.1
"""What compiles faster is not kept: most programs have one operation, and a full folder is walked at each write."""
ENTRY, USED, LOCK = "-cache", "-atime", ".lockfile"
"""JAX's own names: a program, when it was last used, and what is locked to read or write."""
MEBIBYTE, WAIT_S = 2**20, 10
PROBE = """
import sys, jax, jax.numpy as jnp
function, x = jax.jit(lambda x: jnp.sin(x @ x).sum()), jnp.ones((8, 8))
function(x)
jax.clear_caches()
print("reads", file=sys.stderr, flush=True)
function(x)
"""


def keep_programs(setting: str | None) -> None:
    """Makes JAX keep compiled programs where `compilation_cache` says; a folder that cannot be used is only a warning.

    Call it before anything is compiled, and only in a process of evalkit's own. With `auto`, a cache that environment
    variables configure or switch off is left as it is.
    """
    compile_sooner()
    if setting is None:
        _use(None)
        return
    of_jax = jax.config.values
    if setting == AUTO and (of_jax["jax_compilation_cache_dir"] or not of_jax["jax_enable_compilation_cache"]):
        return
    try:
        root = kept_below("EVALKIT_CACHE", "~/.cache/evalkit") if setting == AUTO else expanded(setting)
        folder = root / f"compiled-{_user()}-{_processor()}"
        _prepare(folder)
        if setting == AUTO and not _is_quiet(folder):
            return
    except (OSError, ValueError, NotImplementedError) as error:  # the last of a file system without locks
        LOGGER.warning("compilation_cache: %s; programs are compiled anew each time", first_line(error))
        return
    _use(folder)


def _use(folder: Path | None) -> None:
    settings = {
        "jax_compilation_cache_dir": None if folder is None else str(folder),
        "jax_compilation_cache_max_size": MOST_BYTES,
        "jax_persistent_cache_min_compile_time_secs": LEAST_S,
    }
    compilation_cache.reset_cache()  # JAX asks once where it is
    for name, value in settings.items():
        if name == "jax_compilation_cache_dir" or name.upper() not in os.environ:
            jax.config.update(name, value)
    # JAX warns for each program that meets a full disk or an incomplete entry; it compiles the program and goes on.
    warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache entry")


def _prepare(folder: Path) -> None:
    """Makes the folder, and removes entries that were not written whole; raises OSError where it cannot be written.

    A process that is killed, or a full disk, leaves an entry without the time of its last use. JAX would fail to read
    that time whenever it adds another.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid != _user():
        raise PermissionError(f"{folder} is another user's")
    try:
        with FileLock(folder / LOCK, timeout=WAIT_S):
            for entry in folder.glob(f"*{ENTRY}"):
                if not entry.stat().st_size or not entry.with_name(entry.name.removesuffix(ENTRY) + USED).is_file():
                    entry.unlink()
    except Timeout as error:
        raise OSError(f"{folder}: another process has held it for {WAIT_S} s") from error
    with tempfile.TemporaryFile(dir=folder) as room:
        room.write(bytes(MEBIBYTE))


def _is_quiet(folder: Path) -> bool:
    """Whether XLA reads a program for this processor without printing errors, or this process has an accelerator.

    XLA's loader of CPU programs compares the processor's features with those that the compiler assumed. On some
    processors the two differ for every program, and each prints a page of errors. So a small program is tried once for
    each version of jaxlib, as soon as the cache has something to read.
    """
    verdict = folder / f"jaxlib-{version('jaxlib')}"
    if not verdict.is_file():
        if not any(folder.glob(f"*{ENTRY}")):
            return True
        write_whole(verdict, "quiet" if _reads_quietly() else "noisy")
    return verdict.read_text() == "quiet" or jax.default_backend() != "cpu"


def _reads_quietly() -> bool:
    """Whether a process says nothing while it reads what it has just compiled."""
    with tempfile.TemporaryDirectory() as folder:
        own = {
            "JAX_PLATFORMS": "cpu",
            "JAX_COMPILATION_CACHE_DIR": folder,
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
        command = [sys.executable, "-c", PROBE]
        ended = subprocess.run(command, env={**os.environ, **own}, capture_output=True, text=True)
    return ended.returncode == 0 and not ended.stderr.partition("reads\n")[2].strip()


def _user() -> int:
    return os.geteuid() if hasattr(os, "geteuid") else 0  # Windows has none


def _processor() -> str:
    """A short name of this kind of processor, by its features where the system lists them."""
    listed = Path("/proc/cpuinfo")
    lines = listed.read_text().splitlines() if listed.is_file() else []
    features = sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))})
    return hashlib.sha256("\n".join([platform.machine(), platform.processor(), *features]).encode()).hexdigest()[:12]
