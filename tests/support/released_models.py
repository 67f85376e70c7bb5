"""Tiny models of the released kind as folders, and calls of a model in every way that must give the same logits."""

from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evalkit.models import Model, build
from evalkit.models.formats import export
from evalkit.models.mixers.attention import MQA
from evalkit.models.mixers.rglru import RecurrentBlock

VOCABULARY, WINDOW, STEPS = 97, 8, 42
RECURRENT = {"width_rnn": 96, "gate_blocks": 4, "bias": True, "unit_reset": True}
ATTENTION = {"heads": 4, "head_dim": 16, "window": WINDOW, "rope_fraction": 0.5, "output_bias": True}
MODEL = {"embedding_scale": 8.0, "logits_soft_cap": 30.0, "mlp_expansion": 2.5, "mlp_bias": True}


def griffin(recurrent: dict[str, Any] | None = None, attention: dict[str, Any] | None = None, **settings: Any) -> Model:
    """A tiny Griffin as released, with other settings in place of its own."""
    return build(
        **{"vocab_size": VOCABULARY, "width": 64, "pattern": ["r", "a"], **MODEL, **settings},
        mixers={
            "r": partial(RecurrentBlock, **{**RECURRENT, **(recurrent or {})}),
            "a": partial(MQA, **{**ATTENTION, **(attention or {})}),
        },
    )


def random_params(model: Model) -> Any:
    """Parameters of which none, bias or norm, is where it starts."""
    rng = np.random.default_rng(1)

    def moved(leaf: jax.Array) -> jax.Array:
        return jnp.asarray(np.asarray(leaf) + 0.1 * rng.normal(size=leaf.shape).astype(np.float32))

    return jax.tree.map(moved, jax.jit(model.init)(jax.random.key(0)))


@lru_cache
def tiny_griffin() -> tuple[Model, Any]:
    """The tiny Griffin and its parameters, which all tests that take it as it is share."""
    model = griffin()
    return model, random_params(model)


def folder_of_griffin(folder: Path) -> tuple[Model, Any]:
    """Writes the tiny Griffin as a RecurrentGemma folder; returns what was written."""
    model, params = tiny_griffin()
    export.write(folder, model, params, bos=2, eos=1)
    return model, params


def tokens(rows: int = 3, steps: int = STEPS) -> np.ndarray:
    """Random tokens, none of them the pad of transformers."""
    return np.random.default_rng(0).integers(1, VOCABULARY, (rows, steps))


def every_way(model: Model, params: Any, given: np.ndarray, alone: Callable[[np.ndarray], Any]) -> Iterator[tuple]:
    """(name, our logits, those of `alone`, which takes rows of one length): one call, chunks, tokens, ragged rows."""
    apply, wanted = jax.jit(model.apply), np.asarray(alone(given))
    yield "one call", apply(params, jnp.asarray(given))[0], wanted
    for size in (7, 1):
        cache, parts = model.init_cache(*given.shape), []
        for start in range(0, given.shape[1], size):
            logits, cache = apply(params, jnp.asarray(given[:, start : start + size]), None, cache)
            parts.append(logits)
        yield f"chunks of {size}", np.concatenate(parts, axis=1), wanted
    yield from _ragged(apply, model.init_cache(*given.shape), params, given, alone)


def _ragged(apply: Callable, cache: Any, params: Any, given: np.ndarray, alone: Callable) -> Iterator[tuple]:
    """Rows of several lengths, pads on the left, at once and then in chunks through a cache."""
    steps = given.shape[1]
    lengths = [steps, steps // 2, 3][: len(given)]
    positions = np.stack([np.maximum(np.arange(steps) - (steps - length), -1) for length in lengths])
    whole, _ = apply(params, jnp.asarray(given), jnp.asarray(positions))
    parts = []
    for start in range(0, steps, 14):
        part = slice(start, start + 14)
        logits, cache = apply(params, jnp.asarray(given[:, part]), jnp.asarray(positions[:, part]), cache)
        parts.append(logits)
    chunks = np.concatenate(parts, axis=1)
    # Rolls each row's tokens to its beginning: the tokens after them change nothing before, and the shape stays.
    wanted = np.asarray(alone(np.stack([np.roll(row, n) for row, n in zip(given, lengths, strict=True)])))
    for row, length in enumerate(lengths):
        yield f"{length} of {steps}", whole[row, steps - length :], wanted[row, :length]
        yield f"{length} of {steps}, chunks", chunks[row, steps - length :], wanted[row, :length]
