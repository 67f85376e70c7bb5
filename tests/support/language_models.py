"""Language models on bytes for the tests: one at random, and one that looks answers up in what it has read."""

import re
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evalkit.checkpoints.pretrained import digest
from evalkit.core.contracts import Pretrained
from evalkit.inference.scoring import Scorer
from evalkit.parallel.devices import bytes_of
from evalkit.tasks.text.tokenizers import Bytes
from support.shrunk import applied, params_of, shrunk


def unused(*_: Any) -> Any:
    """Used in place of a language model's methods that no test here calls."""
    raise AssertionError


class Kept:
    """Base of models with a cache: the size of the cache, and a count of operations that no test checks."""

    def flops(self, length: int) -> int:
        return length

    def init_cache(self, batch: int, length: int) -> Any:
        raise NotImplementedError

    def cache_bytes(self, batch: int, length: int) -> int:
        return bytes_of(jax.eval_shape(lambda: self.init_cache(batch, length)))


class Reader(Kept):
    """A model that looks the answer up in what it has read; with a `window`, in the last characters of the prompt."""

    init = parts = decay_mask = decays = states = staticmethod(unused)

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
        """The next character of the number that belongs to the queried name; `?` if that is not found."""
        asked = re.search(r"([A-Z]\w+ [A-Z]\w+)(?::|\?\nAnswer:)( ?\d*)$", text)
        if asked is None:
            return ord("?")
        prompt = text[: asked.start(2)]
        seen = prompt if self.window is None else prompt[-self.window :]
        number = re.search(rf"^{asked[1]}: (\d{{10}})$", seen, flags=re.MULTILINE)
        whole = f" {number[1]}\n" if number else "?"
        return ord(whole[min(len(asked[2]), len(whole) - 1)])


class Finder(Reader):
    """A model that says every secret value that it is asked for."""

    def _next(self, text: str) -> int:
        """The next character of the values that belong to the queried keys; `?` if one is not found."""
        asked = re.search(r"\n\nThe secret \w+ of ([\w, -]+) (?:is|are)( ?[\w, -]*)$", text)
        if asked is None:
            return ord("?")
        seen = text[: asked.start()] if self.window is None else text[: asked.start()][-self.window :]
        given = re.findall(r"The secret \w+ of ([\w-]+) is ([\w-]+)\.", seen)
        keys = re.split(r", | and ", asked[1])
        whole = f" {', '.join(value for key in keys for name, value in given if name == key)}\n"
        return ord(whole[min(len(asked[2]), len(whole) - 1)])


class Fading(Kept):
    """A model that predicts from a decaying sum of all tokens read: it depends on their order, and compiles at once."""

    window, width = None, 8
    parts = decay_mask = decays = states = staticmethod(unused)

    def init(self, key):
        table, head = jax.random.normal(key, (2, Bytes.vocab_size, self.width))
        return {"table": table, "head": head}

    def init_cache(self, batch: int, length: int):
        return jnp.zeros((batch, self.width))

    def apply(self, params, tokens, positions=None, cache=None, at=None):
        valid = jnp.ones(tokens.shape, bool) if positions is None else positions >= 0

        def step(read, given):
            vector, real = given
            read = jnp.where(real[:, None], 0.9 * read + vector, read)
            return read, read

        start = self.init_cache(*tokens.shape) if cache is None else cache
        last, read = jax.lax.scan(step, start, (params["table"][tokens].swapaxes(0, 1), valid.T))
        read = read.swapaxes(0, 1)
        read = read if at is None else jnp.take_along_axis(read, at[..., None], axis=1)
        return read @ params["head"].T, None if cache is None else last


@lru_cache
def fading() -> Pretrained:
    """For tests of code that evaluates a model, where any model will do."""
    model = Fading()
    return Pretrained(model, params_of(model), Bytes(), "tiny", digest(params_of(model)), 256)


def pretrained(model: Any, params: Any = None) -> Pretrained:
    return Pretrained(model, params, Bytes(), "runs/reader", "0", 256)


@lru_cache
def tiny_pretrained(model: str) -> Pretrained:
    """A random model on bytes, at width 16."""
    built = shrunk(model, "task.vocab_size=258")
    return Pretrained(built, params_of(built), Bytes(), "tiny", digest(params_of(built)), 256)


def scorer_of(pretrained: Pretrained, **settings: Any) -> Scorer:
    return Scorer(pretrained.model, pretrained.params, pretrained.tokenizer.vocab_size, **settings)


PASS = 64
"""Tokens of which a pass without a cache takes a multiple, so that few programs serve all lengths."""


def logits_of(pretrained: Pretrained, tokens: tuple[int, ...]) -> np.ndarray:
    """Logits `[t, v]` of one forward pass without a cache; a causal model does not see the padding after `tokens`."""
    padded = np.zeros((1, -(-len(tokens) // PASS) * PASS), np.int32)
    padded[0, : len(tokens)] = tokens
    logits = applied(pretrained.model)(pretrained.params, padded)[0]
    return np.asarray(logits[0], np.float64)[: len(tokens)]
