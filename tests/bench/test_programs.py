"""The table of programs: what a process compiles is in it under the name of its function, once for each time."""

import json

import jax
import jax.numpy as jnp
import pytest

from evalkit.__main__ import main
from evalkit.bench.programs import PREFIX, Program, programs, read, table, totals
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
def test_bench_start_lists_the_programs_of_the_first_step(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["task=induction_heads", "model=griffin", "task.length=32", "train.batch_size=2", *overrides_of("griffin")]
    words += ["repeats=1", "format=json"]
    assert main(["bench", "start", *words]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["command_to_first_step_s"] > 0
    assert sum(row["times"] for row in result["rows"]) == result["programs"] > 0
    assert "_dispatch" in {row["program"] for row in result["rows"]}
