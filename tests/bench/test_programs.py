"""What is compiled: each program is in the table, a run has few, and threads compile ahead what it would have."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from evalkit.__main__ import main
from evalkit.bench.programs import PREFIX, Program, programs, read, table, totals
from evalkit.configuration.spec import Spec
from evalkit.core import rows
from evalkit.session import ahead
from evalkit.session.gates import Launch
from support import tiny
from support.shrunk import overrides_of


def test_what_is_compiled_within_the_block_is_collected() -> None:
    argument = jnp.ones(3)

    def doubled(x: jax.Array) -> jax.Array:
        return 2 * x

    with programs() as compiled:
        jax.jit(doubled)(argument)
        jax.jit(doubled)(argument)  # is compiled already
    jax.jit(lambda x: 3 * x)(argument)
    assert [name for name, _ in compiled] == ["doubled"]
    assert compiled[0].seconds > 0


def test_the_longest_program_comes_first_and_each_name_once() -> None:
    compiled = [Program("step", 2.0), Program("squeeze", 0.25), Program("step", 0.5)]
    assert table(compiled) == [
        {"program": "step", "times": 2, "seconds": 2.5},
        {"program": "squeeze", "times": 1, "seconds": 0.25},
    ]
    assert totals(compiled) == {"programs": 3, "programs_s": 2.75, "slow_programs": 1, "slow_programs_s": 2.0}


def test_a_program_is_read_from_its_line_alone() -> None:
    assert read(f"{PREFIX}1.250000 s <lambda> of a class\n") == Program("<lambda> of a class", 1.25)
    assert read("training: step 1/20\n") is None


@pytest.mark.slow
@pytest.mark.exhaustive
def test_bench_start_lists_the_programs_of_the_first_step(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["task=induction_heads", "model=griffin", "task.length=32", "train.batch_size=2", *overrides_of("griffin")]
    words += ["model.pattern=[recurrent,attention]", "repeats=1", "format=json"]
    assert main(["bench", "start", *words]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["command_to_first_step_s"] > 0
    assert sum(row["times"] for row in result["rows"]) == result["programs"] > 0
    assert "_dispatch" in {row["program"] for row in result["rows"]}


QUICK = ("_begun", "_of_seed")
"""Programs of the README's run that two idle cores compile in a tenth of a second; the others take one and more."""


@pytest.mark.slow
@pytest.mark.usefixtures("blank")
def test_a_run_compiles_eight_programs_at_most_and_an_evaluation_four(tmp_path: Path) -> None:
    """Three stages of a curriculum, validation, looks and seven lengths; then nine others, of the finished run."""
    stages = "train.curriculum=[{length: 8, steps: 2, batch_size: 4}, {length: 16, steps: 2, batch_size: 4}]"
    lengths = "eval.lengths=[8,16,32,64,128,256,512]"
    jax.clear_caches()
    with programs() as compiled:
        words = [stages, lengths, "eval.during=[64,128]", "train.state_passing=0.5", "train.average=0.9"]
        assert tiny.start(tmp_path / "run", "train.schedule=constant", *words) == 0
    assert len(compiled) <= 8, compiled
    assert len([name for name, _ in compiled if name not in QUICK]) <= 6, compiled
    jax.clear_caches()
    with programs() as compiled:
        assert tiny.evaluate(tmp_path / "run", ["eval.lengths=[8,16,24,32,48,64,96,128,256]"]) == 0
    assert len(compiled) <= 4, compiled


STAGES = "train.curriculum=[{length: 8, steps: 2, batch_size: 4}]"


def values(folder: Path) -> list[tuple[Any, ...]]:
    """What was measured; the folders' names differ."""
    return [(row["metric"], row["step"], row["split"], row["length"], row["total"]) for row in rows.read(folder).rows]


@pytest.mark.slow
@pytest.mark.usefixtures("blank")
def test_a_run_whose_later_stages_are_compiled_ahead_has_the_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ahead, "ENOUGH_CORES", 1)
    one = tiny.trained(tmp_path / "ahead", STAGES, "eval.lengths=[32]")
    monkeypatch.setattr(ahead, "ENOUGH_CORES", 10**6)
    assert values(one) == values(tiny.trained(tmp_path / "alone", STAGES, "eval.lengths=[32]"))


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
