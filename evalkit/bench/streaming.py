"""`bench evaluate`: the forward pass as the evaluation runs it, chunk by chunk through the cache."""

import resource
import time
from typing import Any

import jax

from evalkit.bench.stopwatch import quartiles, times
from evalkit.configuration.experiment import Experiment
from evalkit.core import streams
from evalkit.core.errors import UserError, first_line
from evalkit.inference.streaming import stream_tally
from evalkit.numerics import random_key


def measure(experiment: Experiment, repeats: int, length: int, batch_size: int, chunk: int) -> dict[str, Any]:
    """Seconds and tokens/s of scoring `batch_size` sequences of `length` tokens, `chunk` at a time.

    Raises UserError for a length that the task cannot have.
    """
    model, _ = experiment.trained
    params = model.init(random_key(experiment.seed))
    try:
        example = experiment.feed.held_out(streams.TEST, 0, batch_size, length)
    except ValueError as error:  # the task's own word on a length that it cannot have
        raise UserError(first_line(error)) from error

    def score() -> Any:
        return stream_tally(model, params, example, min(chunk, example.tokens.shape[1]), scored=experiment.feed.scored)

    began = time.perf_counter()
    jax.block_until_ready(score())
    first = time.perf_counter() - began
    taken = quartiles(times({"score": score}, repeats)["score"])
    tokens = example.tokens.size
    return {
        "task": experiment.task_name,
        "model": experiment.model_name,
        "batch_size": batch_size,
        "length": length,
        "chunk": chunk,
        "first_s": first,
        "s": taken.median,
        "s_quartiles": [taken.low, taken.high],
        "tokens_per_s": tokens / taken.median,
        "peak_process_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
