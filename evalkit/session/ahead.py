"""Compiles the programs that a run will need next, by threads, while the first one is compiled and trains."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import jax

from evalkit.core.contracts import Trained
from evalkit.core.rows import Row
from evalkit.evaluations.extrapolation.measure import Extrapolation
from evalkit.numerics import for_threads
from evalkit.parallel.devices import cores
from evalkit.session import subjects
from evalkit.session.gates import Launch
from evalkit.training.state import TrainState

ENOUGH_CORES = 4
"""With fewer cores, compiling takes a core from training and saves no time."""
VALIDATION = Extrapolation(lengths=[], chunk=256)
"""How models are validated, at the training length."""


@contextmanager
def threads() -> Iterator[ThreadPoolExecutor | None]:
    """Threads that compile ahead; None where they would not help.

    Several processes run the same programs in the same order, so that none of them compiles ahead.
    """
    if cores() < ENOUGH_CORES or jax.process_count() > 1:
        yield None
        return
    pool = ThreadPoolExecutor(cores() // 2)
    try:
        yield pool
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def compile_next(pool: ThreadPoolExecutor | None, launch: Launch, state: TrainState, step: int) -> None:
    """Has `pool` compile what reads held-out sequences, and the stages of training after the one of `step`."""
    if pool is None:
        return
    # Two programs at a time on the devices of a CPU could wait for each other's threads for ever.
    if jax.default_backend() != "cpu":
        subject = subjects.uninterrupted(launch.experiment, launch.folder, state, step)  # has parameters of its own
        pool.submit(for_threads(partial(_read_one, subject, launch.experiment.task.length)))
    launch.trainer.compile_ahead(pool, step)


def _read_one(subject: Trained, length: int) -> list[Row]:
    return list(VALIDATION.score(subject, "validation", length, 1))
