"""Which devices share the work and what is said to XLA, and a signal that waits until the state is saved."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from types import FrameType

import jax
import jax.numpy as jnp
import pytest

from evalkit import numerics
from evalkit.parallel import devices
from evalkit.parallel.interrupt import SIGNALS, Interrupted, Watch
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


@pytest.mark.slow
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


class Requeued(Exception):
    """Stands in for the end of a process whose job is requeued."""


@pytest.fixture
def handled() -> Iterator[list[int]]:
    """The signals that the handlers of a scheduler's library got, as submitit has them: SIGUSR2 ends the process."""
    got: list[int] = []

    def bypass(number: int, _frame: FrameType | None) -> None:
        got.append(number)

    def requeue(number: int, _frame: FrameType | None) -> None:
        got.append(number)
        raise Requeued

    before = {signal.SIGTERM: signal.signal(signal.SIGTERM, bypass)}
    before[signal.SIGUSR2] = signal.signal(signal.SIGUSR2, requeue)
    yield got
    for number, handler in before.items():
        signal.signal(number, handler)


def send(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_stops_the_work_where_no_library_waits_for_it(number: int) -> None:
    with Watch() as watch:
        watch.check()
        send(number)
        assert watch.received == [number]
        with pytest.raises(Interrupted) as stopped:
            watch.check()
    assert stopped.value.number == number


def test_a_library_that_waits_for_a_signal_gets_it_once_the_state_is_saved(handled: list[int]) -> None:
    with Watch() as watch:
        for _ in range(2):  # where its handler returns, the next signal waits as the first
            send(signal.SIGTERM)
            assert handled == [] and watch.received
            watch.check()
            assert handled == [signal.SIGTERM] and not watch.received
            handled.clear()


def test_no_signal_is_lost_to_one_that_follows(handled: list[int]) -> None:
    with Watch() as watch, pytest.raises(Requeued):
        send(signal.SIGTERM)
        send(signal.SIGUSR2)
        watch.check()
    assert handled == [signal.SIGTERM, signal.SIGUSR2]


def test_a_second_signal_acts_at_once(handled: list[int]) -> None:
    with Watch(), pytest.raises(Requeued):
        send(signal.SIGUSR2)
        assert not handled
        send(signal.SIGUSR2)
