"""Greedy decoding of one prompt, token by token."""

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from evalkit.pretrained import Pretrained
from evalkit.protocols import Cache, LanguageModel, Params
from evalkit.scoring import bucket

CHUNK = 1024


def generate(pretrained: Pretrained, prompt: Sequence[int], max_new_tokens: int, *, stop: Sequence[str]) -> str:
    """The likeliest next tokens as text, until one of `stop` is in it, the text ends, or there are enough of them."""
    cache = pretrained.model.init_cache(1, bucket(len(prompt) + max_new_tokens))
    advance = partial(_advance, pretrained.model, pretrained.params)
    token = -1
    for first in range(0, len(prompt), CHUNK):
        token, cache = advance(cache, *_padded(prompt[first : first + CHUNK], first))
    written: list[int] = []
    while len(written) < max_new_tokens and int(token) != pretrained.tokenizer.eos:
        written.append(int(token))
        if any(end in pretrained.tokenizer.decode(written) for end in stop):
            break
        token, cache = advance(cache, *_padded(written[-1:], len(prompt) + len(written) - 1))
    return pretrained.tokenizer.decode(written)


def _padded(tokens: Sequence[int], start: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Tokens and positions `[1, t]`, padded to one of few lengths, and where the last token is."""
    size = 1 if len(tokens) == 1 else bucket(len(tokens))
    row, positions = np.zeros((1, size), np.int32), np.full((1, size), -1, np.int32)
    row[0, : len(tokens)] = tokens
    positions[0, : len(tokens)] = start + np.arange(len(tokens))
    return row, positions, len(tokens) - 1


@partial(jax.jit, static_argnames=("model",), donate_argnames=("cache",))
def _advance(
    model: LanguageModel, params: Params, cache: Cache, tokens: Array, positions: Array, last: Array
) -> tuple[Array, Cache]:
    """The likeliest token after the one at index `last`, and the cache."""
    logits, cache = model.apply(params, tokens, positions, cache, jnp.full((1, 1), last))
    return jnp.argmax(logits[0, 0]), cache
