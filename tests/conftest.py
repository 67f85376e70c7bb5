"""What must be set before JAX is imported: tests run on the CPU unless told otherwise, and ranks never broadcast."""

import atexit
import ctypes
import gc
import itertools
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from absl import logging as absl_logging

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["JAX_NUMPY_RANK_PROMOTION"] = "raise"

# Nearly all the time of the tests goes into compiling small programs: once each is enough, for all processes, and
# without the compiler's expensive passes.
# One device here, whatever the tests call first; processes that a test starts may make a device of every core.
ONE_DEVICE = "--xla_force_host_platform_device_count=1"
FAST_TO_COMPILE = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    " --xla_cpu_parallel_codegen_split_count=1"
)
if version("jaxlib").startswith("0.10."):  # the older emitter is faster; later versions have none
    FAST_TO_COMPILE += " --xla_cpu_use_fusion_emitters=false"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', FAST_TO_COMPILE)} {ONE_DEVICE}"
# One place for all that tests, their workers and their processes leave; pytest's own folders stay where it has them.
if "PYTEST_XDIST_WORKER" not in os.environ:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    os.environ["TMPDIR"] = tempfile.mkdtemp(prefix="evalkit-tests-")
    os.chmod(os.environ["TMPDIR"], 0o755)  # for `shut`
    atexit.register(shutil.rmtree, os.environ["TMPDIR"], ignore_errors=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # or nothing would be left to remove it
tempfile.tempdir = None
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", f"{os.environ['TMPDIR']}/compiled")
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="named-")  # what the tests name is not what the user named
if "PYTEST_XDIST_WORKER" in os.environ:  # a folder each: one worker must not read what another is writing
    os.environ["JAX_COMPILATION_CACHE_DIR"] += "/" + os.environ["PYTEST_XDIST_WORKER"]
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"

# When Hydra sets up logging, absl's handler closes its stream unless that is a standard one; under pytest it would be
# the file that captures the output of all tests.
absl_logging.get_absl_handler().python_handler.setStream(sys.__stderr__)

# Each compiled program takes dozens of memory mappings; a process may have 65,530, and dies when it asks for more.
MAPS, MORE = Path("/proc/self/maps"), 20_000
# And memory: two workers and what they start are to fit a laptop.
STATM, MORE_BYTES = Path("/proc/self/statm"), 2 * 2**30
most, most_bytes, turns = MORE, MORE_BYTES, itertools.cycle(range(8))  # to count mappings takes milliseconds

NOBODY = 65_534  # a user that owns nothing


def mappings() -> int:
    return MAPS.read_bytes().count(b"\n") if MAPS.exists() else 0


def resident() -> int:
    """The bytes of memory that this process holds."""
    return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if STATM.exists() else 0


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A file goes to one process, because its tests share models and their programs."""
    from xdist.scheduler import LoadFileScheduling

    return LoadFileScheduling(config, log)


def pytest_collection_finish() -> None:
    """Leaves what was imported out of the search for garbage, which takes a second each time it reads all of that."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(700, 10, 1000)  # all of the rest is seldom read: `few_programs` does it when memory grows


@pytest.fixture(autouse=True)
def few_programs() -> Iterator[None]:
    """Forgets the compiled programs of earlier tests once there are many more than the last time, or they are large."""
    global most, most_bytes
    if next(turns) == 0 and (mappings() > most or resident() > most_bytes):
        import jax

        jax.clear_caches()
        gc.collect()  # what is in a cycle would be counted as what stays
        if sys.platform == "linux":
            ctypes.CDLL(None).malloc_trim(0)  # what is free goes back to the system
        most, most_bytes = mappings() + MORE, max(MORE_BYTES, resident() + MORE_BYTES // 4)
    yield


@pytest.fixture
def shut() -> Iterator[Path]:
    """A folder in which permissions count, whoever runs the tests: the superuser is somebody else meanwhile."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        superuser = os.geteuid() == 0
        if superuser:
            folder.chmod(0o777)
            os.seteuid(NOBODY)
        try:
            yield folder
        finally:
            if superuser:
                os.seteuid(0)


@pytest.fixture
def own_wandb(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Each test has a W&B of its own, with no key, no settings and no files of the machine's user."""
    import wandb

    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    for name in ("HOME", "NETRC", "WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "home" / name))
    wandb.teardown()
    yield
    wandb.teardown()


@pytest.fixture(scope="session")
def process() -> Any:
    """What the runs of this process share."""
    from support.sharing import Shared

    return Shared()


@pytest.fixture(scope="module")
def shared(process: Any) -> Iterator[None]:
    """Within a file: runs that have the same settings take the same model and trainer, and with them the programs."""
    with process.here():
        yield


@pytest.fixture(scope="module")
def blank_figures() -> Iterator[None]:
    """Within a file: figures are written as blank files."""
    from support.sharing import blank_figures

    with blank_figures():
        yield


@pytest.fixture
def blank() -> Iterator[None]:
    """Within a test: as `blank_figures`, in a file that has tests of what is drawn as well."""
    from support.sharing import blank_figures

    with blank_figures():
        yield


@pytest.fixture(scope="session")
def tiny_run(process: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished tiny run, to be read; a test that writes takes a copy."""
    from support import sharing, tiny

    with process.here(), sharing.blank_figures():
        return tiny.trained(tmp_path_factory.mktemp("tiny") / "run")
