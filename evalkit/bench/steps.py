"""`bench steps` (fig. 3): a training step by the length of its sequences, at as many tokens a batch."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from evalkit.bench.sampling import Log, curves_of, written
from evalkit.bench.stopwatch import times
from evalkit.configuration.models import Sized
from evalkit.core.errors import UserError, writing
from evalkit.reports.curves import COLOURS, Frame, save, seed_figure
from evalkit.tasks import Example
from evalkit.training.settings import Training
from evalkit.training.trainer import Trainer

STEPS = 2
"""Steps of a dispatch that is timed."""


@dataclass(frozen=True)
class Noise:
    """A task of random tokens, each predicted from those before it: it costs as much as a text, and needs none."""

    vocab_size: int
    length: int
    answer_length: int = 0
    scored: int | None = None
    chance: float = 0.0
    version: int = 1

    def sample(self, key: Array, length: int) -> Example:
        """One sequence, every position scored; jittable with `length` static."""
        tokens = jax.random.randint(key, (length + 1,), 0, self.vocab_size, jnp.int32)
        return Example(tokens[:-1], tokens[1:], jnp.ones((length,), bool))

    def solve(self, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """No rule knows the next token."""
        return np.zeros_like(tokens), np.zeros(tokens.shape, bool)

    def describe(self, tokens: np.ndarray) -> str:
        """The numbers of the tokens."""
        return " ".join(map(str, tokens.tolist()))


def measure(
    models: Sequence[Sized], log: Log, *, lengths: Sequence[int], tokens: int, vocab_size: int, repeats: int, out: str
) -> dict[str, Any]:
    """Milliseconds of a step of each model at each length, and relative to the first model's; raises UserError.

    At a length, the steps of all models are timed in turn, so that noise falls on all alike. Ratios are taken within
    a round.
    """
    for length in lengths:
        if tokens % length:
            raise UserError(f"lengths={length} does not divide tokens={tokens}; give lengths that do, or other tokens")
    with writing(Path(out)):
        Path(out).mkdir(parents=True, exist_ok=True)
    rows = [row for length in lengths for row in _at(models, length, tokens // length, vocab_size, repeats, log)]
    first = rows[0]["model"]
    shown = {"lengths": list(lengths), "tokens": tokens, "vocab_size": vocab_size, "repeats": repeats}
    frame = Frame("sequence length (tokens)", f"time of a step, {first} at its shortest = 1", scale="fitted")
    title = f"A training step on {tokens:,} tokens"
    notes = ["Medians of rounds in which the models take turns."]
    curves = curves_of(rows, "length", "ms_per_step", unit=rows[0]["ms_per_step"])
    save(seed_figure(curves, frame, title, notes, colours=COLOURS), Path(out) / "steps.png")
    return written(Path(out), {**shown, "rows": rows}, ["steps"])


def _at(
    models: Sequence[Sized], length: int, batch: int, vocab_size: int, repeats: int, log: Log
) -> Iterator[dict[str, Any]]:
    """A row for each model at one length."""
    dispatches = {}
    for sized in models:
        name = f"{sized.name} {sized.words}".strip()
        log(f"length {length:,}, batch {batch}, {name}: compiling")
        dispatches[name] = _dispatch(sized, length, batch, vocab_size)
    taken = times(dispatches, repeats)
    first = next(iter(taken.values()))
    for name, seconds in taken.items():
        ms = median(seconds) / STEPS * 1e3
        of_first = median(mine / theirs for mine, theirs in zip(seconds, first, strict=True))
        log(f"length {length:,}, {name}: {ms:,.1f} ms, {of_first:.2f} of the first model's")
        yield {
            "model": name,
            "length": length,
            "batch": batch,
            "ms_per_step": ms,
            "of_first": of_first,
            "tokens_per_s": batch * length / ms * 1e3,
            "rounds_ms": [each / STEPS * 1e3 for each in seconds],
        }


def _dispatch(sized: Sized, length: int, batch: int, vocab_size: int) -> Callable[[], Any]:
    """Takes the next steps of a fresh model, compiled already."""
    training = Training(
        steps=1_000_000, batch_size=batch, learning_rate=1e-3, log_every=STEPS, eval_every=STEPS, checkpoint_every=STEPS
    )
    trainer = Trainer(Noise(vocab_size, length), sized.built(vocab_size), training, [0])
    (stage,) = training.stages(length)
    trainer.program(stage)
    state = [trainer.init()]

    def take() -> Any:
        state[0], sums = trainer.advance(state[0], stage, STEPS)
        return state[0], sums

    return take
