"""Checkpoints of several runs of one process."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import jax.numpy as jnp

from evalkit.training.checkpoints import Checkpoints
from evalkit.training.state import TrainState


def test_threads_save_at_once(tmp_path: Path) -> None:
    state = TrainState(params={"kernel": jnp.ones(4)}, optimizer=(), step=jnp.ones(1, jnp.int32))

    def saved(folder: Path) -> list[int]:
        with closing(Checkpoints(folder)) as checkpoints:
            for step in range(1, 6):
                checkpoints.save(state, step, {"rows": step})
            return checkpoints.steps

    with ThreadPoolExecutor(4) as threads:
        kept = list(threads.map(saved, [tmp_path / str(number) for number in range(4)]))
    assert kept == [[5, 4]] * 4
