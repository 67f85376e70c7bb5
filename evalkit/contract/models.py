"""The promises of a model, and so of each of its mixers; `evalkit.models.layers.Mixer` has them in full.

The quick promises are checked before every training, in two small programs of 32 tokens.
"""

import warnings
from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from evalkit.contract.promises import Promise, promised
from evalkit.core.contracts import LanguageModel, Params
from evalkit.numerics import quick_key, random_key
from evalkit.parallel.devices import RUNS_ONCE

TOKENS, CHUNK, ODD_CHUNK = 32, 16, 7
ROWS = 5  # of `_rows`
LONG, MOST = 128, 512
# Where tokens begin to be replaced: odd and even places, and both sides of a chunk's edge.
CUTS = (1, 5, 11, 16, 17, 24, 31)
# Where the later documents of a row begin; the pads before a row; the pads after a row's first tokens.
RESETS, LEFT, RIGHT = (1, 9, 20), 5, 6
# Relative to the largest logit: the error of sums in another order, in float32 and in bfloat16.
CLOSE = {"float32": 1e-3, "bfloat16": 0.1}
NO_PAD = "position -1 writes nothing and changes no state"


class ModelUnderCheck:
    """A model under check, with parameters; what several promises need is computed once.

    `params` may be those of a run; by default they are fresh. A parameter that is zero gets small random values, since
    a layer that adds nothing would hide its faults. `dtype` is that of the activations.
    Promises about many tokens are checked on about `length` tokens, from 128 to 512.
    """

    def __init__(
        self,
        model: LanguageModel,
        vocab_size: int,
        params: Params | None = None,
        *,
        dtype: str = "float32",
        length: int = LONG,
    ):
        self.model, self.vocab_size, self.dtype = model, vocab_size, dtype
        self.length = min(max(length, LONG), MOST) // (2 * TOKENS) * 2 * TOKENS
        self._given = params

    @cached_property
    def shapes(self) -> Params:
        """Shapes and dtypes of the parameters."""
        return jax.eval_shape(self.model.init, random_key(0))

    @cached_property
    def params(self) -> Params:
        """The parameters, none of them zero throughout."""
        params = self._given
        if params is None:
            params = jax.jit(self.model.init, compiler_options=RUNS_ONCE)(quick_key(0))
        random = np.random.default_rng(0)
        return jax.tree.map(lambda leaf: _without_zeros(random, leaf), params)

    @cached_property
    def tokens(self) -> np.ndarray:
        """`[rows, TOKENS]`: three rows, each before its changed copies; then the first row's later documents, alone.

        In a row's copies the tokens from each of `CUTS` on are replaced. The second row has tokens of one half of the
        vocabulary and its copies of the other half, the third the other way round: if a mixer takes a maximum over
        time, it changes in one of the two.
        """
        random = np.random.default_rng(1)
        half = max(self.vocab_size // 2, 1)
        drawn = random.integers(0, self.vocab_size, (2, TOKENS))
        drawn[1] = np.where(drawn[1] == drawn[0], (drawn[0] + 1) % self.vocab_size, drawn[1])
        low, high = drawn[0] % half, half + drawn[1] % (self.vocab_size - half)
        after = np.arange(TOKENS) >= np.array([TOKENS, *CUTS])[:, None]
        rows = [np.where(after, other, first) for first, other in (drawn, (low, high), (high, low))]
        documents = [np.roll(drawn[0], -start) for start in RESETS]
        return np.concatenate([*rows, documents]).astype(np.int32)

    @cached_property
    def lowered(self) -> jax.stages.Lowered:
        """The forward pass of training on `tokens`: its shapes, and then its program, from one trace."""
        tokens = jax.ShapeDtypeStruct(self.tokens.shape, jnp.int32)
        with jax.default_matmul_precision("highest"):
            return jax.jit(self.model.apply).lower(self.shapes, tokens)

    @cached_property
    def lowered_with_cache(self) -> jax.stages.Lowered:
        """The same through the cache, with positions, on `CHUNK` tokens of what `_rows` makes."""
        part = jax.ShapeDtypeStruct((ROWS, CHUNK), jnp.int32)
        with jax.default_matmul_precision("highest"):
            return jax.jit(self.model.apply).lower(self.shapes, part, part, self.empty)

    @cached_property
    def empty(self) -> Any:
        """The shapes of an empty cache for what `_rows` makes."""
        return jax.eval_shape(partial(self.model.init_cache, ROWS, TOKENS + 1))

    @cached_property
    def first(self) -> Any:
        """The program of `lowered`, compiled."""
        return self.lowered.compile(RUNS_ONCE)

    @cached_property
    def logits(self) -> np.ndarray:
        """`[rows, TOKENS, v]` of `tokens`, in one forward pass as in training."""
        return np.asarray(self.first(self.params, jnp.asarray(self.tokens))[0], np.float64)

    @cached_property
    def cached(self) -> Any:
        """The forward pass, with a cache or without, compiled for each kind of call."""
        return jax.jit(self.model.apply, compiler_options=RUNS_ONCE)

    @cached_property
    def pieces(self) -> np.ndarray:
        """The logits `[rows, TOKENS, v]` of the rows of `_rows`, in chunks through the cache."""
        tokens, positions = (jnp.asarray(x) for x in _rows(self.tokens[0]))
        program = self.lowered_with_cache.compile(RUNS_ONCE)
        cache, chunks = self.model.init_cache(len(tokens), TOKENS + 1), []
        for start in range(0, TOKENS, CHUNK):
            part = slice(start, start + CHUNK)
            logits, cache = program(self.params, tokens[:, part], positions[:, part], cache)
            chunks.append(np.asarray(logits, np.float64))
        return np.concatenate(chunks, axis=1)

    def applied(self, tokens: np.ndarray, positions: np.ndarray | None = None, *others: Any) -> tuple[np.ndarray, Any]:
        """Logits of `tokens`, and the cache where one is given."""
        with jax.default_matmul_precision("highest"):
            logits, cache = self.cached(self.params, jnp.asarray(tokens), positions, *others)
        return np.asarray(logits, np.float64), cache

    def through_cache(self, tokens: np.ndarray, positions: np.ndarray | None, sizes: Sequence[int]) -> np.ndarray:
        """Logits of `tokens`, given to the cache in chunks of these sizes."""
        cache, start, chunks = self.model.init_cache(len(tokens), tokens.shape[1] + 1), 0, []
        for size in sizes:
            part = slice(start, start + size)
            where = None if positions is None else positions[:, part]
            logits, cache = self.applied(tokens[:, part], where, cache)
            chunks.append(logits)
            start += size
        return np.concatenate(chunks, axis=1)

    @cached_property
    def tolerance(self) -> float:
        """The largest allowed difference between two computations of the same logits."""
        return CLOSE[self.dtype] * max(float(np.abs(self.logits).max()), 1e-6)

    def differ(self, actual: np.ndarray, expected: np.ndarray, when: str = "") -> str | None:
        """Says, after the words `when`, where logits `[t, v]` first differ and by how much; None if nowhere."""
        off = np.abs(actual - expected).max(axis=-1)
        wrong = np.flatnonzero(~(off <= self.tolerance))
        if not len(wrong):
            return None
        return f"{when}the logits differ from position {wrong[0]} on, by {np.nanmax(off[wrong]):.2g}"

    def documents_differ(self, actual: np.ndarray) -> str | None:
        """As `differ`, for each document in the row of `_rows` that packs several: compared with the document alone."""
        for row, start, stop in _documents():
            when = f"in the document that begins at {start} "
            if differs := self.differ(actual[start:stop], self.logits[row, : stop - start], when):
                return differs
        return None


@promised("shapes", "logits are float32 [b, t, v], and without a cache there is none")
def _shapes(subject: ModelUnderCheck) -> str | None:
    logits, cache = subject.lowered.out_info
    if cache is not None:
        return f"without one it returns {type(cache).__name__}"
    wanted = (*subject.tokens.shape, subject.vocab_size)
    if logits.shape != wanted or logits.dtype != jnp.float32:
        return f"for tokens {subject.tokens.shape} they are {logits.dtype} {logits.shape}, not float32 {wanted}"
    return None


@promised("cache", "cache in, cache out: the same arrays, of the same shapes and dtypes, the batch first")
def _cache(subject: ModelUnderCheck) -> str | None:
    before = subject.empty
    for leaf in jax.tree.leaves(before):
        if not leaf.shape or leaf.shape[0] != ROWS:
            return f"for a batch of {ROWS} an array of init_cache is {leaf.shape}"
    logits, after = subject.lowered_with_cache.out_info
    if logits.shape != (ROWS, CHUNK, subject.vocab_size):
        return f"with a cache the logits of tokens {(ROWS, CHUNK)} are {logits.shape}"
    if jax.tree.structure(before) != jax.tree.structure(after):
        return f"{_named(jax.tree.structure(before))} goes in and {_named(jax.tree.structure(after))} comes out"
    for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        if old.shape != new.shape or old.dtype != new.dtype:
            return f"{old.dtype} {old.shape} goes in and {new.dtype} {new.shape} comes out"
    return None


@promised("parameters", "init(key) is a nested dictionary of float32 arrays")
def _parameters(subject: ModelUnderCheck) -> str | None:
    for path, leaf in jax.tree_util.tree_leaves_with_path(subject.shapes):
        if leaf.dtype != jnp.float32:
            return f"{jax.tree_util.keystr(path)} is {leaf.dtype}; train.parameter_dtype is for training in bfloat16"
    return None if jax.tree.leaves(subject.shapes) else "it has none"


@promised("account", "flops(length) is a whole number of operations, 0 or more")
def _account(subject: ModelUnderCheck) -> str | None:
    flops = subject.model.flops(TOKENS)
    return None if type(flops) is int and flops >= 0 else f"it is {flops!r}"


@promised("finite", "the logits of fresh parameters are finite")
def _finite(subject: ModelUnderCheck) -> str | None:
    bad = np.argwhere(~np.isfinite(subject.logits).all(axis=-1))
    return f"those at position {bad[0][1]} are not" if len(bad) else None


@promised("causality", "a position sees itself and those before it")
def _causality(subject: ModelUnderCheck) -> str | None:
    size = 1 + len(CUTS)
    for start in range(0, 3 * size, size):
        base = subject.logits[start]
        for row, cut in enumerate(CUTS, start + 1):
            off = np.abs(subject.logits[row, :cut] - base[:cut]).max(axis=-1)
            seen = np.flatnonzero(off > subject.tolerance * 1e-2)
            if len(seen):
                return (
                    f"the logits at position {seen[0]} change by {off[seen[0]]:.2g} "
                    f"when the tokens from position {cut} on are replaced"
                )
    return None


@promised("batch", "a row does not depend on the others")
def _batch(subject: ModelUnderCheck) -> str | None:
    kept = len(subject.tokens) // 2
    others = np.concatenate([np.zeros_like(subject.tokens[kept:]), subject.tokens[:kept][::-1]])
    beside = np.asarray(subject.first(subject.params, jnp.asarray(others))[0], np.float64)[::-1]
    differences = (
        subject.differ(*rows, "beside other rows, and in another place, ")
        for rows in zip(beside[:kept], subject.logits[:kept], strict=True)
    )
    return next(filter(None, differences), None)


@promised("chunks", "tokens in chunks through the cache give what they give at once")
def _chunks(subject: ModelUnderCheck) -> str | None:
    return subject.differ(subject.pieces[0], subject.logits[0], f"in chunks of {CHUNK} ")


@promised("padding", NO_PAD)
def _padding(subject: ModelUnderCheck) -> str | None:
    base, pieces = subject.logits[0], subject.pieces
    if not np.isfinite(pieces).all():
        return "with pads in a row some logits are not finite"
    joined = np.concatenate([pieces[2, : CHUNK - RIGHT], pieces[2, CHUNK:]])
    return (
        subject.differ(pieces[1, LEFT:], base[: TOKENS - LEFT], f"after {LEFT} pads ")
        or subject.differ(joined, base[: TOKENS - RIGHT], f"with {RIGHT} pads after position {CHUNK - RIGHT - 1} ")
        or subject.differ(pieces[4, CHUNK:], base[: TOKENS - CHUNK], "after a chunk of pads alone ")
    )


@promised("resets", "position 0 begins a new document, which sees nothing of the one before")
def _resets(subject: ModelUnderCheck) -> str | None:
    return subject.documents_differ(subject.pieces[3])


@promised("steps", "one token at a time gives what all tokens at once give")
def _steps(subject: ModelUnderCheck) -> str | None:
    tokens = subject.tokens[:2]
    for sizes in ([1] * TOKENS, [ODD_CHUNK, 9, 1, 1, ODD_CHUNK, ODD_CHUNK]):
        when = f"in chunks of {', '.join(map(str, dict.fromkeys(sizes)))} "
        if differs := subject.differ(subject.through_cache(tokens, None, sizes)[0], subject.logits[0], when):
            return differs
    return None


@promised("packing", "documents in one row, without a cache, are as if each were alone")
def _packing(subject: ModelUnderCheck) -> str | None:
    tokens, positions = _rows(subject.tokens[0])
    logits, _ = subject.applied(tokens, positions)
    return subject.documents_differ(logits[3]) or subject.differ(
        logits[1, LEFT:], subject.logits[0, : TOKENS - LEFT], f"after {LEFT} pads "
    )


@promised("state under padding", "pads alone change nothing of what follows")
def _state(subject: ModelUnderCheck) -> str | None:
    # In odd chunks through a cache of this size, because `_steps` has that program.
    tokens, cache = subject.tokens[:2], subject.model.init_cache(2, TOKENS + 1)
    for start in (0, ODD_CHUNK):
        _, cache = subject.applied(tokens[:, start : start + ODD_CHUNK], None, cache)
    following = tokens[:, 2 * ODD_CHUNK : 3 * ODD_CHUNK]
    _, after = subject.applied(following, np.full((2, ODD_CHUNK), -1, np.int32), cache)
    # Compares the logits that follow, not the cache's arrays: a cache may move empty places.
    expected, _ = subject.applied(following, None, cache)
    logits, _ = subject.applied(following, None, after)
    return subject.differ(logits[0], expected[0], f"after {ODD_CHUNK} pads ")


@promised("chosen positions", "the logits at chosen positions are those of all")
def _at(subject: ModelUnderCheck) -> str | None:
    at = np.array([[0, TOKENS // 2, TOKENS - 1]] * 2, np.int32)
    some, _ = subject.applied(subject.tokens[:2], None, None, at)
    if some.shape != (2, 3, subject.vocab_size):
        return f"for at {at.shape} they are {some.shape}"
    return subject.differ(some[0], subject.logits[0, at[0]])


@promised("length", "what holds of a few tokens holds of many: causality, chunks through the cache, resets and pads")
def _long(subject: ModelUnderCheck) -> str | None:
    length = subject.length
    first, other = np.random.default_rng(2).integers(0, subject.vocab_size, (2, length))
    cuts = [length, TOKENS + 1, length // 2 + 1, length - 1]
    tokens = np.stack([np.where(np.arange(length) < cut, first, other) for cut in cuts]).astype(np.int32)
    logits, _ = subject.applied(tokens)
    for row, cut in enumerate(cuts):
        when = f"of {length} tokens, when those from position {cut} on are replaced, "
        if differs := subject.differ(logits[row, :cut], logits[0, :cut], when):
            return differs
    sizes = [TOKENS * 2] * (length // (TOKENS * 2))
    last_alone = [*sizes[:-1], *[1] * sizes[-1]]
    in_chunks = subject.through_cache(tokens[:2], None, last_alone)[0]
    when = f"of {length} tokens in chunks of {TOKENS * 2}, the last {sizes[-1]} one at a time, "
    differs = subject.differ(in_chunks, logits[0], when)
    return differs or _long_documents(subject, tokens[0], logits[0], sizes)


def _long_documents(
    subject: ModelUnderCheck, tokens: np.ndarray, logits: np.ndarray, sizes: Sequence[int]
) -> str | None:
    """Two documents after pads, each the beginning of `tokens`, must have the `logits` that it has alone."""
    length, second = len(tokens), len(tokens) // 2 + ODD_CHUNK
    row = np.concatenate([tokens[:LEFT], tokens[: second - LEFT], tokens[: length - second]])[None]
    where = np.concatenate([np.full(LEFT, -1), np.arange(second - LEFT), np.arange(length - second)])[None]
    at_once, _ = subject.applied(row, where.astype(np.int32))
    in_chunks = subject.through_cache(row, where.astype(np.int32), sizes)
    for how, logits_of_row in (("", at_once[0]), (f", in chunks of {TOKENS * 2}", in_chunks[0])):
        for start, stop in ((LEFT, second), (second, length)):
            when = f"of {length} tokens{how}, in the document that begins at {start} after {LEFT} pads, "
            if differs := subject.differ(logits_of_row[start:stop], logits[: stop - start], when):
                return differs
    return None


@promised("window", "with a window, a position sees no more than that many latest positions, itself among them")
def _window(subject: ModelUnderCheck) -> str | None:
    window = subject.model.window
    if window is None or window >= subject.length:
        return None
    before = np.arange(subject.length) < subject.length - window
    first, other = np.random.default_rng(3).integers(0, subject.vocab_size, (2, subject.length))
    tokens = np.stack([first, np.where(before, other, first)]).astype(np.int32)
    last = subject.applied(tokens)[0][:, -1]
    off = float(np.abs(last[0] - last[1]).max())
    return f"with window={window} older tokens change its logits by {off:.2g}" if off > subject.tolerance else None


@promised("causality by gradients", "a position has no gradient at those after it")
def _gradients_of_later(subject: ModelUnderCheck) -> str | None:
    # Each position gets its own token, so that the gradient of that token's row of the table belongs to this position.
    # The logit is that of the last token, which is at no position, since the table is the head, too.
    tokens = jnp.arange(min(subject.vocab_size - 1, 4 * TOKENS))[None]
    if "table" not in subject.params.get("embedding", {}) or tokens.shape[1] < 3:
        return None  # another embedding than ours, or too few tokens: `causality` must suffice
    at = tokens.shape[1] // 2

    def logit(table: Array) -> Array:
        return subject.model.apply({**subject.params, "embedding": {"table": table}}, tokens)[0][0, at, -1]

    gradient = jax.jit(jax.grad(logit), compiler_options=RUNS_ONCE)(jnp.asarray(subject.params["embedding"]["table"]))
    reached = np.flatnonzero(np.nan_to_num(np.abs(np.asarray(gradient)[: tokens.shape[1]])).sum(axis=1))
    later = reached[reached > at]
    return f"position {at} has one at {', '.join(map(str, later[:5]))}" if len(later) else None


@promised("gradients", "the gradients of all parameters are finite, and each parameter has some")
def _gradients(subject: ModelUnderCheck) -> str | None:
    def loss(params: Params) -> Array:
        return (subject.model.apply(params, jnp.asarray(subject.tokens[:2]))[0] ** 2).mean()

    gradients = jax.jit(jax.grad(loss), compiler_options=RUNS_ONCE)(subject.params)
    for path, leaf in jax.tree_util.tree_leaves_with_path(gradients):
        if not np.isfinite(np.asarray(leaf)).all():
            return f"that of {jax.tree_util.keystr(path)} is not finite"
        if not np.asarray(leaf).any():
            return f"that of {jax.tree_util.keystr(path)} is zero: nothing of it is learned, and it counts as one"
    return None


@promised("same key", "the same key gives the same parameters, and another key others")
def _same_key(subject: ModelUnderCheck) -> str | None:
    init, anew = (jax.jit(lambda key: subject.model.init(key), compiler_options=RUNS_ONCE) for _ in range(2))
    made = [init(quick_key(3)), init(quick_key(4))]
    # A setting of JAX that changes no number, so that a model which keeps its trace is traced anew.
    with warnings.catch_warnings(action="ignore"), jax.numpy_rank_promotion("warn"):
        made.append(anew(quick_key(3)))
    first, other, again = (jax.tree.leaves(params) for params in jax.device_get(made))
    if not all(map(np.array_equal, first, again)):
        return "the same key gives two sets"
    return "two keys give the same set" if all(map(np.array_equal, first, other)) else None


QUICK_PROMISES_OF_MODELS: tuple[tuple[Promise, ...], ...] = (
    (_parameters, _shapes, _cache, _account),
    (_finite,),
    (_batch,),
    (_causality, _chunks, _padding, _resets),
)
"""In groups: a group is checked only if all promises of those before it are kept."""
OF_A_TEXT: tuple[Promise, ...] = (_packing,)
"""What training on a text needs besides: it has several documents in a row, and no cache."""
OF_ONE_MIXER: tuple[Promise, ...] = (_window,)
"""Promises that are checked on a model of one block alone: several blocks reach further than each."""
SLOWER_PROMISES = (_long, _steps, _packing, _state, _at, _gradients, _gradients_of_later, _same_key)
EVERY_PROMISE_OF_MODELS: tuple[Promise, ...] = (*sum(QUICK_PROMISES_OF_MODELS, ()), *SLOWER_PROMISES)


def _rows(first: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and positions `[5, TOKENS]`: plain; pads first; pads in the middle; three documents; a chunk of pads."""
    where = np.arange(TOKENS)
    after = CHUNK - RIGHT
    tokens = np.stack([first, np.roll(first, LEFT), first, first, np.roll(first, CHUNK)])
    tokens[2, CHUNK:] = first[after : TOKENS - RIGHT]
    middle = np.where(where < after, where, np.where(where < CHUNK, -1, where - RIGHT))
    starts = np.array([0, *RESETS])
    documents = where - starts[np.searchsorted(starts, where, side="right") - 1]
    pads = [np.maximum(where - LEFT, -1), middle, documents, np.maximum(where - CHUNK, -1)]
    return tokens, np.stack([where, *pads]).astype(np.int32)


def _documents() -> list[tuple[int, int, int]]:
    """The row of `ModelUnderCheck.tokens` that begins with each document, and where it starts and ends."""
    rows = (0, *(3 * (1 + len(CUTS)) + number for number in range(len(RESETS))))
    return list(zip(rows, (0, *RESETS), (*RESETS, TOKENS), strict=True))


def _without_zeros(random: np.random.Generator, leaf: Array) -> Array:
    """The parameter on one device, since several would all do the same, or small random values where it is zero."""
    if np.asarray(leaf).any():
        return leaf.addressable_data(0) if leaf.is_fully_replicated else jax.device_put(np.asarray(leaf))
    return jax.device_put((0.02 * random.standard_normal(leaf.shape)).astype(leaf.dtype))


def _named(structure: Any) -> str:
    text = str(structure).removeprefix("PyTreeDef(").removesuffix(")")
    return text if len(text) <= 60 else f"{text[:60]}…"
