"""What threads compile ahead is what the run would have compiled itself."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import pytest

from evalkit.configuration.spec import Spec
from evalkit.core.rows import read
from evalkit.session import ahead
from evalkit.session.gates import Launch
from support import tiny

STAGES = "train.curriculum=[{length: 8, steps: 2, batch_size: 4}]"


def values(folder: Path) -> list[tuple[Any, ...]]:
    """What was measured; the folders' names differ."""
    return [(row["metric"], row["step"], row["split"], row["length"], row["total"]) for row in read(folder).rows]


def test_a_run_whose_later_stages_are_compiled_ahead_has_the_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ahead, "ENOUGH_CORES", 1)
    one = tiny.trained(tmp_path / "ahead", STAGES)
    monkeypatch.setattr(ahead, "ENOUGH_CORES", 10**6)
    assert values(one) == values(tiny.trained(tmp_path / "alone", STAGES))


class Kept(ThreadPoolExecutor):
    """Threads that keep what they are given, and do it when they are asked."""

    def __init__(self) -> None:
        self.works: list[Any] = []

    def submit(self, *work: Any) -> Any:
        self.works.append(work[0])


def test_an_accelerator_reads_a_sequence_ahead(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    launch, pool = Launch(Spec.of([*tiny.OVERRIDES, STAGES], folder=tmp_path)), Kept()
    state = launch.trainer.init()
    ahead.compile_next(pool, launch, state, 0)
    stages = len(pool.works)
    with monkeypatch.context() as patched:
        patched.setattr(jax, "default_backend", lambda: "gpu")
        ahead.compile_next(pool, launch, state, 0)
    [reading] = pool.works[stages:]
    assert stages == 1 and {row["split"] for row in reading()} == {"validation"}
