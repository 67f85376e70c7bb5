"""Which devices share the work, and what is said to XLA before it is loaded."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

from evalkit import numerics
from evalkit.parallel import devices
from evalkit.record import variables
from support import tiny


def test_large_parameters_stay_on_one_cpu_device(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, mesh = [], devices.mesh_for(1)
    monkeypatch.setattr(devices, "mesh_for", lambda *batches: asked.append(batches) or mesh)
    small = {"kernel": jax.ShapeDtypeStruct((8, 8), jnp.float32)}
    large = {"kernel": jax.ShapeDtypeStruct((2**14, 2**14), jnp.bfloat16)}
    devices.mesh_sharing(small, 4, 6)
    devices.mesh_sharing(large, 4, 6)
    assert asked == [(4, 6), (1,)]


def test_xla_is_told_once_to_spare_memory_and_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=false")
    devices.spare_memory()
    devices.spare_memory()
    assert os.environ["XLA_FLAGS"] == f"--xla_cpu_enable_fast_math=false {devices.IN_ORDER}"
    code = "import jax.numpy as jnp; print(float(jnp.ones(3).sum()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=tiny.environment())
    assert done.stdout.strip() == "3.0", done.stderr
    monkeypatch.setenv("XLA_FLAGS", f"{devices.IN_ORDER.replace('false', 'true')}")
    devices.spare_memory()
    assert devices.IN_ORDER not in os.environ["XLA_FLAGS"]
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.setattr(jax, "__version__", "9.1.0")
    devices.spare_memory()
    assert os.environ["XLA_FLAGS"] == ""


def test_commands_have_xla_try_no_second_way_and_runs_do_not_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=false")
    devices.compile_sooner()
    devices.compile_sooner()
    assert os.environ["XLA_FLAGS"] == " ".join(["--xla_cpu_enable_fast_math=false", *numerics.NOT_TRIED])
    assert variables.variables()["XLA_FLAGS"] == "--xla_cpu_enable_fast_math=false"
    of_user, other = numerics.NOT_TRIED[0].replace("false", "true"), numerics.NOT_TRIED[1]
    monkeypatch.setenv("XLA_FLAGS", of_user)
    devices.compile_sooner()
    assert os.environ["XLA_FLAGS"] == f"{of_user} {other}"
