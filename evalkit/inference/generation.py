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
from jaxtyping import Bool, Int

from evalkit.checks import refuse_below_1
from evalkit.core.contracts import LanguageModel, Params, Pretrained
from evalkit.inference.prefill import Prefilled, bucket, by_length, check, placed, prefill, shortest_chunk
from evalkit.inference.sampling import GREEDY, Sampler
from evalkit.inference.texts import Ends, Generated, Row, ends_of
from evalkit.parallel.devices import by_rows, bytes_of, mesh_sharing

# Tokens that one call on the device decodes: at most, and in the first call if the host checks the text in between.
MOST_AT_ONCE, FIRST_LOOK = 256, 16
# A call reads at most so many bytes of parameters, which limits its tokens for a large model: chosen, not measured.
BYTES_AT_ONCE = 2**33
NO_TOKEN = -1
LARGEST_SEED = 2**31 - 1

Heard = Callable[[int, str], None]


def generate(
    pretrained: Pretrained,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    *,
    stop: Sequence[str] = (),
    stop_tokens: Sequence[int] = (),
    sampler: Sampler = GREEDY,
    seed: int = 0,
    batch_size: int = 8,
    chunk: int = 256,
    said: Callable[[int, Generated], None] = lambda index, said: None,
    heard: Heard | None = None,
) -> list[Generated]:
    """The text that the model generates after each of `prompts` (token ids, the first one included), in their order.

    A text ends before the tokenizer's end token, one of the model's other `ends` or of `stop_tokens`, before the first
    complete `stop` string, or after `max_new_tokens`. Random draws depend on `seed` and the prompt's index in
    `prompts`. The other prompts, `batch_size` and `chunk` (tokens of a prompt read at a time) do not change a text,
    unless two tokens are within rounding of each other. `heard` is called with a prompt's index and each new piece of
    its text, `said` with the index and the whole text once it is complete. Raises ValueError for an invalid value.

        generate(load("runs/text"), [list(b"Once upon a time")], 200, sampler=Sampler(temperature=0.8, top_p=0.95))
    """
    refuse_below_1(max_new_tokens=max_new_tokens, batch_size=batch_size, chunk=chunk)
    if not 0 <= seed <= LARGEST_SEED:
        raise ValueError(f"seed={seed}; allowed: 0 to {LARGEST_SEED}")
    check(prompts, pretrained.tokenizer.vocab_size)
    ends = ends_of(pretrained.tokenizer, stop, (*stop_tokens, *pretrained.ends))
    texts = [Generated("", ())] * len(prompts)
    pretrained = placed(pretrained, batch_size)
    chunk = shortest_chunk(prompts, chunk)
    for indices in by_length(prompts, batch_size):
        batch = [prompts[index] for index in indices]
        size = bucket(len(batch[0]) + max_new_tokens)
        read = prefill(pretrained, batch, rows=batch_size, size=size, chunk=chunk)
        decoded_texts = decode(pretrained, read, indices, max_new_tokens, ends, sampler=sampler, seed=seed, heard=heard)
        for index, text in zip(indices, decoded_texts, strict=True):
            texts[index] = text
            said(index, text)
    return texts


def decode(
    pretrained: Pretrained,
    read: Prefilled,
    indices: Sequence[int],
    max_new_tokens: int,
    ends: Ends,
    *,
    sampler: Sampler = GREEDY,
    seed: int = 0,
    heard: Heard | None = None,
) -> list[Generated]:
    """Decodes from prefilled prompts, as `generate` does. Row i belongs to prompt `indices[i]`; more rows are padding.

    The cache in `read` is used up; a global one needs room for `max_new_tokens`.
    """
    rows, tokenizer = read.logits.shape[0], pretrained.tokenizer
    mesh = mesh_sharing(pretrained.params, rows)
    settings = {"sampler": sampler, "ends": tuple(sorted(ends.tokens))}
    run = partial(decoded, pretrained.model, mesh, pretrained.params, **settings)
    said = [Row(tokenizer, ends) for _ in indices]
    ids = np.zeros(rows, np.int32)
    ids[: len(indices)] = indices
    most = min(MOST_AT_ONCE, max(1, BYTES_AT_ONCE // max(1, bytes_of(pretrained.params))))
    # If the host does not check the text meanwhile, calls are as long as allowed: the device checks end tokens.
    first, steps = 0, min(most, FIRST_LOOK if ends.strings or heard else most)
    while first < max_new_tokens and any(row.said is None for row in said):
        steps = min(steps, max_new_tokens - first)
        done = np.ones(rows, bool)
        done[: len(said)] = [row.said is not None for row in said]
        with jax.default_matmul_precision("highest"):
            read, new = run(read, jnp.asarray(done), jnp.asarray(ids), seed, first, steps)
        first += steps
        for index, row, tokens in zip(indices, said, np.asarray(new)[:, :steps].tolist(), strict=False):
            piece = row.hear(tokens, last=first >= max_new_tokens) if row.said is None else ""
            if heard and piece:
                heard(index, piece)
        steps = min(2 * steps, most)
    return [row.said for row in said if row.said is not None]


@partial(jax.jit, static_argnames=("model", "mesh", "sampler", "ends"), donate_argnames=("read",))
def decoded(
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
    sampler: Sampler,
    ends: tuple[int, ...],
) -> tuple[Prefilled, Int[Array, "b n"]]:
    """Decodes at most `steps` more tokens, the first of which has number `first`; ends early if every row is done."""

    def on_device(whole: tuple[Params, Array, Array, Array], read: Prefilled, done: Array, ids: Array) -> Any:
        params, seed, first, steps = whole

        def going(state: tuple[Array, Prefilled, Array, Array]) -> Array:
            return (state[0] < steps) & ~state[2].all()

        def step(state: tuple[Array, Prefilled, Array, Array]) -> tuple[Array, Prefilled, Array, Array]:
            count, read, done, tokens = state
            token = sampler.choose(read.logits, ids, seed, first + count)
            logits, cache = model.apply(params, token[:, None], None, read.cache)
            tokens = jax.lax.dynamic_update_slice_in_dim(tokens, token[:, None], count, axis=1)
            for end in ends:
                done |= token == end
            return count + 1, Prefilled(cache, logits[:, 0]), done, tokens

        tokens = jnp.full((ids.shape[0], MOST_AT_ONCE), NO_TOKEN, jnp.int32)
        _, read, _, tokens = jax.lax.while_loop(going, step, (jnp.zeros((), jnp.int32), read, done, tokens))
        return read, tokens

    whole = (params, *(jnp.asarray(number, jnp.int32) for number in (seed, first, steps)))
    return by_rows(on_device, mesh, whole, read, done, ids)
