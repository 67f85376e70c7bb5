"""Refuses what this machine cannot hold, before it takes memory: by a lower bound of the bytes, never an estimate."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax

from evalkit.configuration.experiment import Experiment
from evalkit.configuration.positions import TOKEN_BYTES, shown
from evalkit.core.errors import UserError
from evalkit.core.trust import BUILD
from evalkit.numerics import random_key
from evalkit.parallel.devices import accelerator_bytes, bytes_of, memory_bytes

ADAM, ANY = (3, "parameters and AdamW's moments"), (1, "parameters")
"""By optimiser (AdamW, any): how many times the parameters' bytes training needs at least, and what these hold."""
PLAINLY_SMALL = 10**8
"""Numbers in the matrices of a model; fewer are not counted, which takes as long as building it."""


class Need(NamedTuple):
    """The bytes that `setting` needs at least, what they hold (`of`), and what to give `instead`."""

    setting: str
    bytes: int
    of: str
    instead: str


def refuse_too_large(needs: Iterator[Need]) -> None:
    """Raises UserError for the first setting that needs more memory than this machine has, in every way to run it."""
    for need in needs:
        if need.bytes > memory_bytes() and need.bytes > accelerator_bytes():
            raise UserError(
                f"{need.setting} takes at least {shown(need.bytes)} ({need.of}), and this machine has "
                f"{shown(memory_bytes())}; {need.instead}"
            )


def of_training(experiment: Experiment) -> Iterator[Need]:
    """What training needs: a batch's tokens, one sequence's logits and block inputs, and parameters with their moments.

    Only what is certainly in memory at once is counted.
    """
    config, training, model, task = experiment.config, experiment.train, experiment.model, experiment.task
    if training is None or model is None:
        return
    length, batch = task.length, training.batch_size
    node: Mapping[str, Any] = config["model"]
    ours = node["_target_"] == BUILD  # of another model nothing is known but its logits
    blocks = (node.get("depth") or len(node["pattern"])) if ours else 0
    if ours and node["width"] ** 2 * blocks * config["seeds"] > PLAINLY_SMALL:
        size = bytes_of(jax.eval_shape(model.init, random_key(0)))
        setting = f"model.width={node['width']}" + (f" with seeds={config['seeds']}" if config["seeds"] > 1 else "")
        times, of = ANY if callable(training.optimizer) else ADAM
        yield Need(setting, times * size * config["seeds"], of, "give fewer or smaller ones")
    floats = length * (task.vocab_size + (blocks * node["width"] if ours else 0))
    held = "one sequence's logits" + (" and inputs of blocks" if ours else "")
    itemsize = 2 if ours and node.get("dtype") == "bfloat16" else 4
    yield Need(f"task.length={length}", itemsize * floats, held, "give a shorter one")
    tokens = TOKEN_BYTES * batch * length
    yield Need(f"train.batch_size={batch}", tokens, f"its tokens at length {length:,}", "give a smaller one")


def of_evaluation(experiment: Experiment) -> Iterator[Need]:
    """What a streamed evaluation needs: the tokens of a batch and the caches of its rows."""
    for setting, rows, length in experiment.eval.held():
        tokens = TOKEN_BYTES * rows * length
        cache = 0 if experiment.model is None else experiment.model.cache_bytes(rows, length)
        of = f"the tokens of {rows:,} sequences, {shown(tokens)}, and their caches, {shown(cache)}"
        many = f"{rows:,} sequences of {length:,} tokens (eval.{setting})"
        yield Need(many, tokens + cache, of, f"give a shorter length in eval.{setting}, or fewer in eval.batch_size")
