"""Contexts that are read once, through the cache, and asked on the way."""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from evalkit.core.contracts import Cache, LanguageModel, Params
from evalkit.core.objective import Tally
from evalkit.inference.streaming import advance, begun
from evalkit.parallel.devices import copied, mesh_for, split
from evalkit.tasks import Example


@dataclass(frozen=True)
class Reader:
    """Contexts, each with its answer to the token `query`; `chunk` tokens of each are in memory at a time."""

    model: LanguageModel
    params: Params
    answers: Array
    query: int
    chunk: int
    check_interrupt: Callable[[], None]

    def start(self, length: int) -> Cache:
        """An empty cache for contexts of `length` tokens."""
        batch = len(self.answers)
        return begun(self.model, mesh_for(batch), batch, length)[0]

    def read(self, tokens: Array | np.ndarray, cache: Cache) -> Cache:
        """The cache after `tokens [b, t]`; the one given is used up."""
        tokens = np.asarray(tokens)  # slices of a JAX array are a program for each length
        for at in range(0, tokens.shape[1], self.chunk):
            self.check_interrupt()
            part = tokens[:, at : at + self.chunk]
            cache, _ = self._advance(_example(part, np.zeros_like(part), scored=False), cache, scored=0)
        return cache

    def ask(self, cache: Cache) -> np.ndarray:
        """1 for each context that is answered right, else 0; the cache stays as it is."""
        batch = len(self.answers)
        query = np.full((batch, 1), self.query, np.int32)
        question = _example(query, np.asarray(self.answers)[:, None], scored=True)
        _, tally = self._advance(question, jax.tree.map(jnp.copy, cache), scored=None)
        return np.asarray(tally.correct)

    def _advance(self, part: Example, cache: Cache, scored: int | None) -> tuple[Cache, Tally]:
        batch, length = part.tokens.shape
        mesh = mesh_for(batch)
        part, cache, nothing = jax.device_put((part, cache, Tally.zero(batch)), split(mesh))
        params = jax.device_put(self.params, copied(mesh))
        return advance(self.model, mesh, params, part, cache, nothing, 1, scored, length)[:2]


def _example(tokens: np.ndarray, targets: np.ndarray, *, scored: bool) -> Example:
    return Example(*jax.device_put((tokens, targets, np.full(tokens.shape, scored))))
