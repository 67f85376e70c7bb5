"""What a run compiles: a program is seconds of a user's wait, on a GPU a quarter of a minute."""

from pathlib import Path

import jax
import pytest

from evalkit.bench.programs import programs
from support import tiny


@pytest.mark.slow
def test_a_run_compiles_twelve_programs_at_most_and_an_evaluation_four(tmp_path: Path) -> None:
    """Three stages of a curriculum, validation, looks and seven lengths; then nine others, of the finished run."""
    stages = "train.curriculum=[{length: 8, steps: 2, batch_size: 4}, {length: 16, steps: 2, batch_size: 4}]"
    lengths = "eval.lengths=[8,16,32,64,128,256,512]"
    jax.clear_caches()
    with programs() as compiled:
        words = [stages, lengths, "eval.during=[64,128]", "train.state_passing=0.5", "train.average=0.9"]
        assert tiny.start(tmp_path / "run", tiny.TWO_BLOCKS, "train.schedule=constant", *words) == 0
    assert len(compiled) <= 12, compiled
    jax.clear_caches()
    with programs() as compiled:
        assert tiny.evaluate(tmp_path / "run", ["eval.lengths=[8,16,24,32,48,64,96,128,256]"]) == 0
    assert len(compiled) <= 4, compiled
