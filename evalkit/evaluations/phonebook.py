"""How well a pretrained model looks an answer up in its prompt, against the prompt's length in tokens."""

from array import array
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Float, Int

from evalkit.checkpoints.pretrained import Pretrained
from evalkit.core.contracts import LanguageModel, Params
from evalkit.core.devices import AXIS, bytes_of, mesh_sharing
from evalkit.core.rows import Row
from evalkit.inference.generation import decode
from evalkit.inference.prefill import Prefilled, bucket, by_length, placed, prefill
from evalkit.record.phonebook_rows import ALL, INSIDE, METRICS, OUTSIDE
from evalkit.tasks.text.tokenizers import Tokenizer


@runtime_checkable
class Lookup(Protocol):
    """A prompt and the digits that answer it; `place` counts the characters before the entry that holds them."""

    @property
    def prompt(self) -> str:
        """What the model reads; the answer follows after a space."""
        ...

    @property
    def answer(self) -> str:
        """What it should say."""
        ...

    @property
    def entries(self) -> int:
        """Entries of the book."""
        ...

    @property
    def place(self) -> int:
        """Characters of the prompt before the entry that answers."""
        ...


@runtime_checkable
class Book(Protocol):
    """Lookups of any size, each a function of its size and number."""

    def example(self, entries: int, index: int) -> Lookup:
        """Lookup `index` in a book of `entries`."""
        ...

    def entries_for(self, tokens: int, count: Callable[[str], int]) -> int:
        """The entries that give prompts of about `tokens` tokens; ValueError if none do."""
        ...


class Question(NamedTuple):
    """A lookup in tokens; `inside` says whether the entry that answers is within the model's window of the end."""

    prompt: Sequence[int]
    continuation: Sequence[int]
    answer: str
    inside: bool


@dataclass(frozen=True)
class Retrieval:
    """Lookups at each of `lengths` (tokens of the prompt, the first one included), `prompts` of each.

    The model reads the prompt and says up to `new_tokens` greedily; what stands before the first newline, stripped, is
    its answer (Jelassi et al. 2024). `chunk` tokens of `batch_size` prompts are in memory at a time, or of so many
    fewer prompts, down to one a device, that their caches take at most `cache_gib`.
    Raises ValueError for a value that cannot be.
    """

    kind = "evalkit.reports.phonebook"

    book: Book
    lengths: Sequence[int]
    prompts: int = 400
    new_tokens: int = 50
    batch_size: int = 8
    chunk: int = 512
    cache_gib: float = 4.0

    def __post_init__(self) -> None:
        if not self.cache_gib > 0:
            raise ValueError(f"cache_gib={self.cache_gib}; allowed: above 0")
        for name in ("prompts", "new_tokens", "batch_size", "chunk"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}; allowed: 1 or more")
        if not self.lengths or min(self.lengths) < 1:
            raise ValueError(f"lengths={list(self.lengths)}; allowed: one length or more, each at least 1")

    def run(
        self,
        pretrained: Pretrained,
        make_row: Callable[..., Row],
        describe: Callable[[int, int, int], None] = lambda length, done, of: None,
        *,
        done: Collection[int] = (),
    ) -> Iterator[list[Row]]:
        """The rows of each length that is not `done`, the shortest first; `describe` hears how many prompts are.

        At a length, `exact_match`, `digit_accuracy` and `log_probability` (of the right answer, nats), each over those
        prompts whose answer lies inside and outside of the model's window, where it has one, and last over all;
        `extra` says which (`answer`), the book's `entries` and the mean `prompt_tokens`. Raises ValueError for a length
        that the book cannot have.
        """
        pretrained = placed(pretrained, self.batch_size)
        count = partial(_count, pretrained.tokenizer)
        sizes = {length: self.book.entries_for(length, count) for length in sorted(set(self.lengths))}
        for length, entries in sizes.items():
            if length in done:
                continue
            questions = [question(pretrained, self.book.example(entries, index)) for index in range(self.prompts)]
            scores = self._scores(pretrained, questions, partial(describe, length))
            rows = []
            for which, chosen in _groups(questions, pretrained.model.window).items():
                tokens = np.mean([len(questions[index].prompt) for index in chosen])
                extra = {"answer": which, "entries": entries, "prompt_tokens": round(float(tokens), 1)}
                sums = {metric: float(scores[metric][chosen].sum()) for metric in METRICS}
                make = partial(make_row, split="test", length=length, count=len(chosen), extra=extra)
                rows += [make(metric=metric, total=total) for metric, total in sums.items()]
            yield rows

    def _scores(
        self, pretrained: Pretrained, questions: Sequence[Question], describe: Callable[[int, int], None]
    ) -> Mapping[str, Float[np.ndarray, " n"]]:
        """One number a question and metric. Every batch is of one shape, so that each length has one program."""
        scores = {metric: np.zeros(len(questions)) for metric in METRICS}
        longest = max(len(question.continuation) for question in questions)
        size = bucket(max(len(question.prompt) for question in questions) + max(self.new_tokens, longest))
        rows, done = self.rows(pretrained, size), 0
        for indices in by_length([question.prompt for question in questions], rows):
            batch = [questions[index] for index in indices]
            prompts = [question.prompt for question in batch]
            read = prefill(pretrained, prompts, rows=rows, size=size, chunk=self.chunk)
            # First, because decoding uses the cache up.
            logs = log_probabilities(pretrained, read, [question.continuation for question in batch], longest)
            scores["log_probability"][indices] = logs
            texts = decode(pretrained, read, indices, self.new_tokens, stop=["\n"])
            for index, text in zip(indices, texts, strict=True):
                said, answer = text.strip(), questions[index].answer
                scores["exact_match"][index] = said == answer
                scores["digit_accuracy"][index] = np.mean([said[i : i + 1] == digit for i, digit in enumerate(answer)])
            done += len(indices)
            describe(done, len(questions))
        return scores

    def rows(self, pretrained: Pretrained, size: int) -> int:
        """Prompts at a time whose caches have room for `size` tokens: `batch_size`, or half, a quarter, … of it."""
        devices = mesh_sharing(pretrained.params, self.batch_size).size
        one, rows = bytes_of(jax.eval_shape(lambda: pretrained.model.init_cache(1, size))), self.batch_size
        while rows * one > self.cache_gib * 2**30 and rows % (2 * devices) == 0:
            rows //= 2
        return rows


def question(pretrained: Pretrained, lookup: Lookup) -> Question:
    """A lookup as the tokens that the model reads, its tokenizer's first one included, and those of the answer."""
    tokenizer, window = pretrained.tokenizer, pretrained.model.window
    first = [] if tokenizer.bos is None else [tokenizer.bos]
    prompt = tokenizer.encode(lookup.prompt)
    whole = tokenizer.encode(f"{lookup.prompt} {lookup.answer}")
    # A tokenizer that joins the prompt's end with the answer cannot be scored across the join: the answer alone, then.
    joined = whole[: len(prompt)] != prompt
    continuation = tokenizer.encode(f" {lookup.answer}") if joined else whole[len(prompt) :]
    distance = len(prompt) - len(tokenizer.encode(lookup.prompt[: lookup.place]))
    # An array: as a list, 400 prompts of 32K tokens would take half a gigabyte.
    tokens = array("i", [*first, *prompt])
    return Question(tokens, continuation, lookup.answer, window is not None and distance <= window)


def log_probabilities(
    pretrained: Pretrained, read: Prefilled, continuations: Sequence[Sequence[int]], longest: int
) -> Float[np.ndarray, " n"]:
    """The log-probability (nats) of each continuation after prompts that have been `read`, padded to `longest` tokens.

    Leaves the cache as it was.
    """
    rows = read.logits.shape[0]
    tokens = np.zeros((rows, longest), np.int32)
    scored = np.zeros((rows, longest), bool)
    for row, continuation in enumerate(continuations):
        tokens[row, : len(continuation)] = continuation
        scored[row, : len(continuation)] = True
    mesh = mesh_sharing(pretrained.params, rows)
    with jax.default_matmul_precision("highest"):
        logs = _log_probabilities(pretrained.model, mesh, pretrained.params, read, jnp.asarray(tokens))
    return np.where(scored, np.asarray(logs, np.float64), 0.0).sum(axis=1)[: len(continuations)]


@partial(jax.jit, static_argnames=("model", "mesh"))
def _log_probabilities(
    model: LanguageModel,
    mesh: Mesh,
    params: Params,
    read: Prefilled,
    tokens: Int[Array, "b t"],
) -> Float[Array, "b t"]:
    """The log-probability of each of `tokens` after those before it."""

    def on_device(params: Params, read: Prefilled, tokens: Array) -> Array:
        logits = read.logits[:, None]
        if tokens.shape[1] > 1:
            after, _ = model.apply(params, tokens[:, :-1], None, read.cache)
            logits = jnp.concatenate([logits, after], axis=1)
        logs = jax.nn.log_softmax(logits.astype(jnp.float32), axis=-1)
        return jnp.take_along_axis(logs, tokens[..., None], axis=-1)[..., 0]

    rows = PartitionSpec(AXIS)
    return jax.shard_map(on_device, mesh=mesh, in_specs=(PartitionSpec(), rows, rows), out_specs=rows, check_vma=False)(
        params, read, tokens
    )


def _count(tokenizer: Tokenizer, text: str) -> int:
    return len(tokenizer.encode(text)) + (tokenizer.bos is not None)


def _groups(questions: Sequence[Question], window: int | None) -> dict[str, list[int]]:
    """The questions' indices by where the answer lies, all of them last; groups without any are left out."""
    groups: dict[str, list[int]] = {}
    if window is not None:
        groups[INSIDE] = [index for index, asked in enumerate(questions) if asked.inside]
        groups[OUTSIDE] = [index for index, asked in enumerate(questions) if not asked.inside]
    groups[ALL] = list(range(len(questions)))
    return {which: chosen for which, chosen in groups.items() if chosen}
