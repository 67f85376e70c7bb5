"""How well a pretrained model looks an answer up in its prompt, against the prompt's length in tokens."""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh
from jaxtyping import Float, Int

from evalkit.checks import above, at_least
from evalkit.core.contracts import AnyTask, Evaluation, LanguageModel, Params, Pretrained, Trained
from evalkit.core.rows import Row
from evalkit.evaluations.phonebook.rows import ALL, INSIDE, METRICS, OUTSIDE
from evalkit.inference.generation import decode
from evalkit.inference.prefill import Prefilled, bucket, by_length, placed, prefill, rows_within
from evalkit.inference.texts import ends_of
from evalkit.parallel.devices import by_rows, mesh_sharing
from evalkit.tasks import phonebook
from evalkit.tasks.text.tokenizers import Tokenizer


class Question(NamedTuple):
    """A lookup in tokens; `inside` says whether the entry that answers is within the model's window of the end."""

    prompt: Sequence[int]
    continuation: Sequence[int]
    answer: str
    inside: bool


@dataclass(frozen=True)
class Lookup(Evaluation):
    """Lookups at each of `lengths`, `prompts` of each.

    The model reads the prompt and generates up to `new_tokens` greedily; the text before the first newline, stripped,
    is its answer (Jelassi et al. 2024). Raises ValueError for an invalid value.

    Options:
      lengths (tokens): tokens of the prompt, with the tokenizer's beginning-of-text token; one measurement each.
      prompts (prompts): prompts of each length.
      new_tokens (tokens): tokens that the model generates, at most.
      batch_size (prompts): prompts that are in memory at a time.
      chunk (tokens): tokens of each prompt that are in memory at a time.
      cache_gib (GiB): where caches would take more, fewer prompts are read at a time, down to one per device.
    """

    kind = "evalkit.evaluations.phonebook.report"

    lengths: list[int]
    prompts: int = 400
    new_tokens: int = 50
    batch_size: int = 8
    chunk: int = 512
    cache_gib: float = 4.0  # the cache of Gemma 2B takes 1.1 for one prompt of 32K

    def __post_init__(self) -> None:
        above(self, 0, "cache_gib")
        at_least(self, 1, "prompts", "new_tokens", "batch_size", "chunk")
        if not self.lengths or min(self.lengths) < 1:
            raise ValueError(f"lengths={list(self.lengths)}; allowed: one length or more, each at least 1")

    @property
    def pieces(self) -> int:
        """The number of lengths."""
        return len(set(self.lengths))

    def check(self, task: AnyTask) -> None:
        """Raises ValueError for a task that is no phonebook in text."""
        if not isinstance(task, phonebook.Phonebook):
            raise ValueError("a lookup needs a phonebook in text; give task=phonebook checkpoint=FOLDER")

    def held(self) -> list[tuple[str, int, int]]:
        """One prompt of the longest length; how many are read together depends on the checkpoint."""
        return [("lengths", 1, max(self.lengths))]

    def kept(self, rows: Sequence[Row]) -> int:
        """How many rows belong to finished lengths; the last row of a length has the last metric over all prompts."""
        last = METRICS[-1], ALL
        ends = (number for number, row in enumerate(rows, 1) if (row["metric"], row["extra"].get("answer")) == last)
        return max(ends, default=0)

    def check_tokens(self, task: AnyTask, tokenizer: Tokenizer) -> None:
        """Raises ValueError for a length that is too short for any entry."""
        self._sizes(task, tokenizer)

    def _sizes(self, task: phonebook.Phonebook, tokenizer: Tokenizer) -> dict[int, int]:
        """The entries of the book by length, the shortest first."""

        def count(text: str) -> int:
            return len(tokenizer.encode(text)) + (tokenizer.bos is not None)

        return {length: task.entries_for(length, count) for length in sorted(set(self.lengths))}

    def run(self, trained: Trained) -> Iterator[Row]:
        """Rows of each length that is not in `trained.kept`.

        Each metric is averaged over the prompts with the answer inside the model's window, then over those outside it,
        if there is a window, and last over all. Raises ValueError for a length that the book cannot have.
        """
        assert isinstance(trained.task, phonebook.Phonebook)
        done = {row["length"] for row in trained.kept}
        pretrained = placed(trained.pretrained(), self.batch_size)
        for length, entries in self._sizes(trained.task, pretrained.tokenizer).items():
            if length in done:
                continue
            questions = [question(pretrained, trained.task.example(entries, index)) for index in range(self.prompts)]
            scores = self._scores(trained, pretrained, length, questions)
            make = partial(trained.make_row, split="test", length=length)
            for which, chosen in _groups(questions, pretrained.model.window).items():
                tokens = np.mean([len(questions[index].prompt) for index in chosen])
                extra = {"answer": which, "entries": entries, "prompt_tokens": round(float(tokens), 1)}
                for metric in METRICS:
                    total = float(scores[metric][chosen].sum())
                    yield make(metric=metric, total=total, count=len(chosen), extra=extra)

    def _scores(
        self, trained: Trained, pretrained: Pretrained, length: int, questions: Sequence[Question]
    ) -> Mapping[str, Float[np.ndarray, " n"]]:
        """One number a question and metric. Every batch is of one shape, so that each length has one program."""
        scores = {metric: np.zeros(len(questions)) for metric in METRICS}
        longest = max(len(question.continuation) for question in questions)
        size = bucket(max(len(question.prompt) for question in questions) + max(self.new_tokens, longest))
        rows, done = rows_within(pretrained, self.batch_size, size, self.cache_gib), 0
        for indices in by_length([question.prompt for question in questions], rows):
            trained.check_interrupt()
            batch = [questions[index] for index in indices]
            prompts = [question.prompt for question in batch]
            read = prefill(pretrained, prompts, rows=rows, size=size, chunk=self.chunk)
            # First, because decoding uses the cache up.
            logs = log_probabilities(pretrained, read, [question.continuation for question in batch], longest)
            scores["log_probability"][indices] = logs
            ends = ends_of(pretrained.tokenizer, ["\n"], pretrained.ends)
            texts = decode(pretrained, read, indices, self.new_tokens, ends)
            for index, (text, _) in zip(indices, texts, strict=True):
                reply, answer = text.strip(), questions[index].answer
                scores["exact_match"][index] = reply == answer
                scores["digit_accuracy"][index] = np.mean([reply[i : i + 1] == digit for i, digit in enumerate(answer)])
            done += len(indices)
            trained.progress.describe(length, done, len(questions))
        return scores


def question(pretrained: Pretrained, lookup: phonebook.Lookup) -> Question:
    """A lookup as the tokens that the model reads, its tokenizer's first one included, and those of the answer."""
    tokenizer, window = pretrained.tokenizer, pretrained.model.window
    first = [] if tokenizer.bos is None else [tokenizer.bos]
    prompt = tokenizer.encode(lookup.prompt)
    whole = tokenizer.encode(f"{lookup.prompt} {lookup.answer}")
    # If one token spans the prompt's end and the answer's beginning, the answer is encoded alone.
    joined = whole[: len(prompt)] != prompt
    continuation = tokenizer.encode(f" {lookup.answer}") if joined else whole[len(prompt) :]
    distance = len(prompt) - len(tokenizer.encode(lookup.prompt[: lookup.place]))
    # An array: as a list, 400 prompts of 32K tokens would take half a gigabyte.
    tokens = array("i", [*first, *prompt])
    return Question(tokens, continuation, lookup.answer, window is not None and distance <= window)


def log_probabilities(
    pretrained: Pretrained, read: Prefilled, continuations: Sequence[Sequence[int]], longest: int
) -> Float[np.ndarray, " n"]:
    """The log-probability (nats) of each continuation, of `longest` tokens at most, after prefilled prompts."""
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
    model: LanguageModel, mesh: Mesh, params: Params, read: Prefilled, tokens: Int[Array, "b t"]
) -> Float[Array, "b t"]:
    def on_device(params: Params, read: Prefilled, tokens: Array) -> Array:
        logits = read.logits[:, None]
        if tokens.shape[1] > 1:
            after, _ = model.apply(params, tokens[:, :-1], None, read.cache)
            logits = jnp.concatenate([logits, after], axis=1)
        logs = jax.nn.log_softmax(logits.astype(jnp.float32), axis=-1)
        return jnp.take_along_axis(logs, tokens[..., None], axis=-1)[..., 0]

    return by_rows(on_device, mesh, params, read, tokens)


def _groups(questions: Sequence[Question], window: int | None) -> dict[str, list[int]]:
    """The questions' indices by where the answer lies, all of them last; groups without any are left out."""
    groups: dict[str, list[int]] = {}
    if window is not None:
        groups[INSIDE] = [index for index, each in enumerate(questions) if each.inside]
        groups[OUTSIDE] = [index for index, each in enumerate(questions) if not each.inside]
    groups[ALL] = list(range(len(questions)))
    return {which: chosen for which, chosen in groups.items() if chosen}
