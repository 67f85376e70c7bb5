"""Language models on bytes for the tests: one at random, and one that looks answers up in what it has read."""

import re
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evalkit.checkpoints.pretrained import digest
from evalkit.configuration import experiment as config
from evalkit.core.contracts import Pretrained
from evalkit.inference.scoring import Scorer
from evalkit.tasks.text.tokenizers import Bytes
from support.shrunk import overrides_of


def unused(*_: Any) -> Any:
    """In place of what a language model can do besides and nothing here asks for."""
    raise AssertionError


class Reader:
    """A model that looks the answer up in what it has read; with a `window`, in the last characters of the prompt."""

    init = parts = decay_mask = decays = staticmethod(unused)

    def __init__(self, window: int | None = None) -> None:
        self.window = window

    def init_cache(self, batch: int, length: int):
        return {"text": jnp.zeros((batch, length), jnp.int32), "written": jnp.zeros((batch,), jnp.int32)}

    def apply(self, params, tokens, positions=None, cache=None, at=None):
        valid = jnp.ones(tokens.shape, bool) if positions is None else positions >= 0
        slots = jnp.where(valid, cache["written"][:, None] + jnp.cumsum(valid, axis=1) - 1, cache["text"].shape[1])
        text = cache["text"].at[jnp.arange(tokens.shape[0])[:, None], slots].set(tokens, mode="drop")
        at = jnp.broadcast_to(jnp.arange(tokens.shape[1])[None], tokens.shape) if at is None else at
        ends = jnp.take_along_axis(slots, at, axis=1) + 1
        shape = jax.ShapeDtypeStruct((*at.shape, Bytes.vocab_size), jnp.float32)
        logits = jax.pure_callback(self._logits, shape, text, ends)
        return logits, {"text": text, "written": cache["written"] + valid.sum(axis=1, dtype=jnp.int32)}

    def _logits(self, text, ends):
        logits = np.zeros((*ends.shape, Bytes.vocab_size), np.float32)
        for b, t in np.ndindex(*ends.shape):
            read = Bytes().decode(np.asarray(text)[b, : ends[b, t]].tolist())
            logits[b, t, self._next(read)] = 6
        return logits

    def _next(self, text: str) -> int:
        """The character that goes on with the number of the name asked for; `?` where it is not to be found."""
        asked = re.search(r"([A-Z]\w+ [A-Z]\w+)(?::|\?\nAnswer:)( ?\d*)$", text)
        if asked is None:
            return ord("?")
        prompt = text[: asked.start(2)]
        seen = prompt if self.window is None else prompt[-self.window :]
        number = re.search(rf"^{asked[1]}: (\d{{10}})$", seen, flags=re.MULTILINE)
        whole = f" {number[1]}\n" if number else "?"
        return ord(whole[min(len(asked[2]), len(whole) - 1)])


def pretrained(model: Any, params: Any = None) -> Pretrained:
    return Pretrained(model, params, Bytes(), "runs/reader", "0", 256)


@lru_cache
def tiny_pretrained(model: str) -> Pretrained:
    """A random model on bytes, at width 16."""
    overrides = ["task=induction_heads", "task.vocab_size=258", f"model={model}", *overrides_of(model)]
    built = config.built(overrides).model
    params = jax.jit(built.init)(jax.random.key(0))
    return Pretrained(built, params, Bytes(), "tiny", digest(params), 256)


def scorer_of(pretrained: Pretrained, **settings: Any) -> Scorer:
    return Scorer(pretrained.model, pretrained.params, pretrained.tokenizer.vocab_size, **settings)


def logits_of(pretrained: Pretrained, tokens: tuple[int, ...]) -> np.ndarray:
    """`[t, v]` of one unpadded forward pass without a cache."""
    return np.asarray(jax.jit(pretrained.model.apply)(pretrained.params, jnp.asarray([tokens]))[0][0], np.float64)
