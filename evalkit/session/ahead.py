"""Compiles the programs that a run will need while its first steps are taken."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import jax

from evalkit.numerics import for_threads
from evalkit.parallel.devices import cores
from evalkit.training.trainer import Trainer

ENOUGH_CORES = 4
"""With fewer, what compiles takes a core from training, and nothing is won."""


@contextmanager
def compiling_ahead(trainer: Trainer, step: int, reading: Callable[[], Callable[[], Any]]) -> Iterator[None]:
    """Within, threads compile the stages of training after the one of `step`, and what reads held-out sequences.

    `reading` makes what reads some of them. Several processes run the same programs in the same order, so that none of
    them compiles ahead.
    """
    if cores() < ENOUGH_CORES or jax.process_count() > 1:
        yield
        return
    pool = ThreadPoolExecutor(cores() // 2)
    try:
        trainer.compile_ahead(pool, step)
        # Two programs at a time on the devices of a CPU could wait for each other's threads for ever.
        if jax.default_backend() != "cpu":
            pool.submit(for_threads(reading()))
        yield
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
