"""Text from prompts: prefill in chunks, then decode, a batch at a time."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh
from jax.typing import ArrayLike
from jaxtyping import Bool, Float, Int

from evalkit.core.contracts import LanguageModel, Params, Pretrained
from evalkit.core.devices import by_rows, mesh_sharing
from evalkit.inference.prefill import Prefilled, bucket, by_length, check, placed, prefill
from evalkit.tasks.text.tokenizers import Tokenizer

# Tokens decoded on the device before the text is looked at for stop strings.
AT_A_TIME = 16
NO_TOKEN = -1


def generate(
    pretrained: Pretrained,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    *,
    stop: Sequence[str] = (),
    temperature: float = 0.0,
    seed: int = 0,
    batch_size: int = 8,
    chunk: int = 256,
    said: Callable[[int, str], None] = lambda index, text: None,
) -> list[str]:
    """What the model says after each of `prompts` (token ids, the first one included), in their order.

    A text ends before the tokenizer's end token, before the first of the `stop` strings to be complete, or with
    `max_new_tokens`. `temperature` 0 takes the likeliest token; above, tokens are drawn by `seed` and the prompt's
    index in `prompts`. The other prompts, `batch_size` and `chunk` (tokens of a prompt read at a time) change no text
    but where two tokens are within rounding of each other. `said` hears each text and its prompt's index as soon as it
    is there. Raises ValueError for a value that cannot be.
    """
    for name, value in (("max_new_tokens", max_new_tokens), ("batch_size", batch_size), ("chunk", chunk)):
        if value < 1:
            raise ValueError(f"{name}={value}; allowed: 1 or more")
    check(prompts, pretrained.tokenizer.vocab_size)
    texts = [""] * len(prompts)
    pretrained = placed(pretrained, batch_size)
    for indices in by_length(prompts, batch_size):
        batch = [prompts[index] for index in indices]
        size = bucket(len(batch[0]) + max_new_tokens)
        read = prefill(pretrained, batch, rows=batch_size, size=size, chunk=chunk)
        found = decode(pretrained, read, indices, max_new_tokens, stop=stop, temperature=temperature, seed=seed)
        for index, text in zip(indices, found, strict=True):
            texts[index] = text
            said(index, text)
    return texts


def decode(
    pretrained: Pretrained,
    read: Prefilled,
    indices: Sequence[int],
    max_new_tokens: int,
    *,
    stop: Sequence[str] = (),
    temperature: float = 0.0,
    seed: int = 0,
) -> list[str]:
    """The texts after prompts that have been `read`, see `generate`; `indices` are the prompts', rows beyond are none.

    The cache in `read` is used up; a global one needs room for `max_new_tokens`. Raises ValueError for a temperature
    below 0 and an empty stop string.
    """
    if temperature < 0:
        raise ValueError(f"temperature={temperature}; allowed: 0 (the likeliest token) or more")
    if "" in stop:
        raise ValueError("stop holds an empty string, which is in every text; leave it out")
    rows = read.logits.shape[0]
    tokenizer = pretrained.tokenizer
    eos = NO_TOKEN if tokenizer.eos is None else tokenizer.eos
    mesh = mesh_sharing(pretrained.params, rows)
    run = partial(_decode, pretrained.model, mesh, pretrained.params, temperature=temperature, eos=eos)
    tokens: list[list[int]] = [[] for _ in indices]
    texts: list[str | None] = [None] * len(indices)
    ids = np.zeros(rows, np.int32)
    ids[: len(indices)] = indices
    for first in range(0, max_new_tokens, AT_A_TIME):
        steps = min(AT_A_TIME, max_new_tokens - first)
        done = np.ones(rows, bool)
        done[: len(indices)] = [text is not None for text in texts]
        with jax.default_matmul_precision("highest"):
            read, new = run(read, jnp.asarray(done), jnp.asarray(ids), seed, first, steps)
        for row, drawn in enumerate(np.asarray(new)[: len(indices), :steps].tolist()):
            if texts[row] is None:
                tokens[row] += drawn
                texts[row] = finished(tokenizer, tokens[row], stop)
        if None not in texts:
            break
    return [tokenizer.decode(said) if text is None else text for said, text in zip(tokens, texts, strict=True)]


def finished(tokenizer: Tokenizer, tokens: Sequence[int], stop: Sequence[str]) -> str | None:
    """The whole text if `tokens` hold the end token or a stop string, else None."""
    ended = tokenizer.eos is not None and tokenizer.eos in tokens
    said = tokens[: tokens.index(tokenizer.eos)] if ended else tokens
    text = tokenizer.decode(said)
    if not any(mark in text for mark in stop):
        return text if ended else None
    # Token by token, so that it does not matter how many were decoded before somebody looked.
    for count in range(1, len(said) + 1):
        text = tokenizer.decode(said[:count])
        places = [text.index(mark) for mark in stop if mark in text]
        if places:
            return text[: min(places)]
    return text


@partial(jax.jit, static_argnames=("model", "mesh", "temperature", "eos"), donate_argnames=("read",))
def _decode(
    model: LanguageModel,
    mesh: Mesh,
    params: Params,
    read: Prefilled,
    done: Bool[Array, " b"],
    ids: Int[Array, " b"],
    seed: ArrayLike,
    first: ArrayLike,
    steps: ArrayLike,
    *,
    temperature: float,
    eos: int,
) -> tuple[Prefilled, Int[Array, "b n"]]:
    """At most `steps` tokens more, of which number `first` comes first; ends early where every row is done."""

    def on_device(whole: tuple[Params, Array, Array, Array], read: Prefilled, done: Array, ids: Array) -> Any:
        params, seed, first, steps = whole

        def going(state: tuple[Array, Prefilled, Array, Array]) -> Array:
            return (state[0] < steps) & ~state[2].all()

        def step(state: tuple[Array, Prefilled, Array, Array]) -> tuple[Array, Prefilled, Array, Array]:
            count, read, done, tokens = state
            token = _choose(read.logits, ids, seed, first + count, temperature)
            logits, cache = model.apply(params, token[:, None], None, read.cache)
            tokens = jax.lax.dynamic_update_slice_in_dim(tokens, token[:, None], count, axis=1)
            return count + 1, Prefilled(cache, logits[:, 0]), done | (token == eos), tokens

        tokens = jnp.zeros((ids.shape[0], AT_A_TIME), jnp.int32)
        _, read, _, tokens = jax.lax.while_loop(going, step, (jnp.zeros((), jnp.int32), read, done, tokens))
        return read, tokens

    whole = (params, *(jnp.asarray(number, jnp.int32) for number in (seed, first, steps)))
    return by_rows(on_device, mesh, whole, read, done, ids)


def _choose(
    logits: Float[Array, "b v"], ids: Int[Array, " b"], seed: Array, step: Array, temperature: float
) -> Int[Array, " b"]:
    """The likeliest token, or one drawn by the seed, the prompt's index and the step, whatever else is in the batch."""
    if temperature:
        key = jax.random.key(seed)
        keys = jax.vmap(lambda index: jax.random.fold_in(jax.random.fold_in(key, index), step))(ids)
        logits = logits / temperature + jax.vmap(lambda k: jax.random.gumbel(k, logits.shape[1:]))(keys)
    return logits.argmax(axis=-1).astype(jnp.int32)
