"""Where batches come from: drawn inside the compiled step, or read on the host and handed to it by dispatches."""

from collections.abc import Sequence
from functools import cached_property
from hashlib import sha256
from math import log
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from evalkit.core import streams
from evalkit.core.contracts import AnyTask, BatchPart, Feed, Illustration, Judged, Ordinary, Recalls, Task
from evalkit.core.errors import Unavailable, UserError
from evalkit.core.network import Refused, Silent, ask_hub
from evalkit.numerics import random_key
from evalkit.parallel import peers
from evalkit.parallel.devices import on_host
from evalkit.tasks import Example
from evalkit.tasks.text import Text
from evalkit.tasks.text.corpus import Content, Span, Window, content_of, firsts
from evalkit.tasks.text.tokenizers import Bytes, Numbers, Tokenizer, WithoutBos

ANSWER_SECONDS = 1.0
SHOWN_LENGTH = 24
PARTS = ("vocab_size", "length", "answer_length", "scored", "chance", "version", "sample", "solve", "describe")
"""The attributes of a `Task`."""


def feed_of(task: AnyTask, ladder: Sequence[int] = ()) -> Feed:
    """What `task` gives to training and to evaluations, which draw held-out sequences of the lengths of `ladder`."""
    if isinstance(task, Text):
        return TextFeed(task)
    return SyntheticFeed(task, ladder) if isinstance(task, Task) else Feed()


def refuse_no_task(task: AnyTask) -> None:
    """Raises ValueError, naming what is missing, for what is no task that a model can be trained on."""
    if isinstance(task, Text | Task):
        return
    missing = [name for name in PARTS if name not in dir(task)]
    name = type(task).__name__
    raise ValueError(f"task: {name} has no {', '.join(missing)}; a task has {', '.join(PARTS)}")


class SyntheticFeed(Feed):
    """A synthetic task: every batch is drawn in the step itself, from the keys of `streams`, and nothing is loaded."""

    def __init__(self, task: Task, ladder: Sequence[int] = ()):
        self.task, self.ladder = task, tuple(sorted(set(ladder)))
        self.judged = task.judged if isinstance(task, Judged) else task

    def load(
        self,
        seeds: Sequence[int],
        first: Array | int,
        steps: int,
        batch: int,
        length: int,
        rows: BatchPart = slice(None),
    ) -> tuple[()]:
        return ()

    def shapes(self, seeds: int, steps: int, batch: int, length: int) -> tuple[()]:
        return ()

    def batch(
        self,
        loaded: Any,
        index: Array,
        seed: ArrayLike,
        step: Array,
        batch: int,
        length: int,
        shortest: int | None = None,
        shards: int = 1,
    ) -> Example:
        return streams.train_batch(self.task, seed, step, batch, length, shortest, shards)

    def held_out(self, stream: int, first: int, batch: int, length: int) -> Example:
        lengths = self.ladder if length in self.ladder else (length,)
        with on_host():
            drawn = streams.held_out_padded(self.judged, stream, first, lengths.index(length), batch, lengths)
        tokens = length + self.judged.answer_length
        return jax.tree.map(lambda field: np.asarray(field)[:, :tokens], drawn)

    @property
    def scored(self) -> int | None:
        return self.judged.scored

    def ordinary(self, seed: ArrayLike, step: Array, count: int, length: int, facts: float) -> Array:
        self.check_ordinary(facts)
        return streams.ordinary_batch(self.task, seed, step, count, length, facts)

    def check_ordinary(self, facts: float) -> None:
        if not isinstance(self.task, Ordinary):
            super().check_ordinary(facts)
        if facts and not isinstance(self.task, Recalls):
            raise ValueError("train.stream_facts: this task does not say what a fact is (a method `plant`); give 0")

    def check_length(self, length: int, shortest: int | None = None) -> None:
        for n in (length,) if shortest is None else (shortest, length):
            streams.check_length(self.task, n)

    def check_answers(self, length: int) -> None:
        """Every length that held-out sequences can have has answers."""
        streams.check_length(self.judged, length)

    def illustrate(self, seed: int, length: int | None) -> Illustration:
        """Each token as a symbol, and below it the answer that is due there."""
        if length is None:  # a length that fits in a line, or the task's own length if it cannot have that one
            length = SHOWN_LENGTH if streams.has_length(self.task, SHOWN_LENGTH) else self.task.length
        example = self.task.sample(random_key(seed), length)
        tokens, targets, mask = (np.asarray(field) for field in example[:3])
        symbols, answers = ([self.task.describe(row[i : i + 1]) for i in range(len(row))] for row in (tokens, targets))
        due = [symbol if scored else "" for symbol, scored in zip(answers, mask, strict=True)]
        return Illustration("the answers stand below the positions where they are due", length, symbols, due)

    @property
    def tokenizer(self) -> Tokenizer:
        """Bytes if the task has as many tokens as `Bytes`; otherwise its tokens stand for no text."""
        size = self.task.vocab_size
        return Bytes() if size == Bytes.vocab_size else Numbers(size)


class _OfText(Feed):
    """What every feed of a text has: documents, and no answer that is right or wrong."""

    def __init__(self, task: Text):
        self.task = task

    def check_answers(self, length: int) -> None:
        """Raises ValueError: every token is predicted."""
        raise ValueError("a text has no answer to be right about; give eval=loss_by_position")

    def check_documents(self) -> None:
        """Every text has held-out documents."""

    def refuse_trained_on(self, before: Feed) -> str | None:
        """Compares the texts themselves, whatever their tokens."""
        if self.task.allow_shared or not isinstance(before, TextFeed):
            return None
        held_out = list(zip(self.contents, self.forms, strict=True))
        try:
            known = before.task.trained_on()
        except ValueError as error:
            return f"not known whether held-out texts were trained on: {error}"
        shared = sum(content in known or form in known for content, form in held_out)
        if shared:
            raise UserError(
                f"{shared} of {len(held_out)} held-out texts were trained on in this run; "
                "give others, or task.allow_shared=true"
            )
        return None

    @property
    def contents(self) -> Sequence[str]:
        """The SHA-256 of each held-out document's text."""
        return self.task.contents()

    @property
    def forms(self) -> Sequence[str]:
        """What names each held-out document and its copies."""
        return self.task.forms()


class TextFeed(_OfText):
    """A text: windows are read on the host."""

    def load(
        self,
        seeds: Sequence[int],
        first: Array | int,
        steps: int,
        batch: int,
        length: int,
        rows: BatchPart = slice(None),
    ) -> Example:
        """The windows of every seed and step; without positions if no document begins within a window of any process.

        Without positions the model needs no masks, which take a sixth of MQA's step.
        """
        numbers = range(int(first), int(first) + steps)
        windows = _stacked(
            [
                _stacked([_example_of(self.task.windows(int(seed), number, batch, length, rows)) for number in numbers])
                for seed in seeds
            ]
        )
        begun = (np.asarray(windows.positions)[..., 1:] == 0).any()
        return windows if peers.largest(int(begun)) else windows._replace(positions=None)

    def shapes(self, seeds: int, steps: int, batch: int, length: int) -> Example:
        """The shapes and dtypes of windows in which no document begins."""
        shape = (seeds, steps, batch, length)
        whole, flags = (jax.ShapeDtypeStruct(shape, dtype) for dtype in (jnp.int32, jnp.bool_))
        return Example(whole, whole, flags)  # type: ignore[arg-type]

    def batch(
        self,
        loaded: Any,
        index: Array,
        seed: ArrayLike,
        step: Array,
        batch: int,
        length: int,
        shortest: int | None = None,
        shards: int = 1,
    ) -> Example:
        return jax.tree.map(lambda leaf: leaf[index], loaded)

    def held_out(self, stream: int, first: int, batch: int, length: int) -> Example:
        """Windows of the text that is kept for validation, the same for every stream."""
        return _example_of(self.task.validation_windows(first, batch, length))

    def check_length(self, length: int, shortest: int | None = None) -> None:
        """Accepts any `length`, since texts are not read yet, but no `shortest`: all windows have one length."""
        if shortest is not None:
            raise ValueError(
                "train.lengths draws lengths of sequences, and a text has windows; give train.lengths=null"
            )

    def prepare(self) -> None:
        refuse_unreachable(self.task.remote)
        try:
            self.task.prepare()
        except ValueError as error:
            raise UserError(str(error)) from error

    def documents(self) -> Sequence[Span]:
        return self.task.documents()

    def provenance(self) -> dict[str, str]:
        """The facts of training and held-out texts."""
        held_out = _digest_of(self.contents)
        return {"used": self.task.used(), "digest": self.task.digest(), "held_out": held_out}

    def reported(self, totals: dict[str, float]) -> dict[str, float]:
        """The totals, with bits per byte, and without the exact match of a whole window, which is always 0."""
        kept = {metric: total for metric, total in totals.items() if metric != "exact_match"}
        return kept | {"bits_per_byte": totals["loss"] / (log(2) * self.task.bytes_per_token())}

    def refuse_unreachable(self) -> None:
        """Only what is streamed from a hub each time can be out of reach."""
        refuse_unreachable(self.task.streamed)

    def in_tokens_of(self, tokenizer: Tokenizer) -> "HeldOutTextFeed":
        """Reads the documents at once, so that one that cannot be read is reported before anything is written."""
        feed = HeldOutTextFeed(self.task, tokenizer)
        feed.prepare()
        return feed

    def illustrate(self, seed: int, length: int | None) -> Illustration:
        """The beginning of a training window as text."""
        self.prepare()
        length = self.task.length if length is None else length
        window = self.task.windows(seed, 0, 1, length)
        shown = self.task.describe(window.tokens[0])
        return Illustration("each token is predicted from those before it", length, [shown], [""], self.task.used())

    def refuse_trained_on(self, before: Feed) -> str | None:
        """A run's own texts were compared with each other when they were read."""
        same = isinstance(before, TextFeed) and before.task == self.task
        return None if same else super().refuse_trained_on(before)

    @property
    def tokenizer(self) -> Tokenizer:
        """The task's tokenizer, without a token for the beginning of a text, since training had none."""
        return WithoutBos(self.task.tokenizer_)


class HeldOutTextFeed(_OfText):
    """The held-out documents of a text in a checkpoint's own tokens; nothing is trained on them."""

    def __init__(self, task: Text, tokenizer: Tokenizer):
        super().__init__(task)
        self._tokenizer = tokenizer

    def prepare(self) -> None:
        """Reads and tokenises the held-out documents, which must be there."""
        refuse_unreachable(self.task.streamed)
        try:
            documents = self._documents
        except ValueError as error:
            raise UserError(str(error)) from error
        if not documents:
            origin = self.task.origin
            raise UserError(f"no held-out text in {origin}; give data.path=FOLDER with files heldout-*.txt")

    def documents(self) -> Sequence[Span]:
        """The held-out documents that have any text."""
        return [document.span for document in self._documents]

    def provenance(self) -> dict[str, str]:
        """The facts of the held-out documents alone."""
        size = sum(document.span.size for document in self._documents)
        omissions = self.task.omissions(len(self._read) - len(self._documents), self._dropped)
        held_out = f"held-out text: {self.task.origin} ({len(self._documents)} documents, {size / 1e6:,.1f} MB)"
        return {
            "used": held_out + omissions,
            "digest": sha256(b"".join(document.span.tokens.tobytes() for document in self._documents)).hexdigest(),
            "held_out": _digest_of(self.contents),
        }

    @property
    def tokenizer(self) -> Tokenizer:
        """The checkpoint's; in its file it says what begins a text."""
        return self._tokenizer

    @property
    def contents(self) -> Sequence[str]:
        return [document.content.hash for document in self._documents]

    @property
    def forms(self) -> Sequence[str]:
        return [document.content.form for document in self._documents]

    @property
    def _dropped(self) -> int:
        return sum(document.dropped for document in self._documents)

    @cached_property
    def _documents(self) -> "Sequence[_Tokenised]":
        """The documents, each once: copies are left out."""
        return [self._read[index] for index in firsts([document.content.form for document in self._read])]

    @cached_property
    def _read(self) -> "Sequence[_Tokenised]":
        documents = []
        for document in self.task.texts():
            if document.text.strip():
                content, encoded = content_of(document), self._tokenizer.read(document.text)
                span = Span(np.asarray(encoded.tokens, np.int32), content.size, document.source)
                documents.append(_Tokenised(span, content, encoded.dropped))
        return documents


class _Tokenised(NamedTuple):
    """A document in a checkpoint's tokens, what names its text, and how many bytes of it are in no token."""

    span: Span
    content: Content
    dropped: int


def refuse_unreachable(data_set: str | None) -> None:
    """Raises UserError if a data set has to be fetched from a hub that does not answer, or does not give it."""
    if data_set is None:
        return
    try:
        ask_hub(data_set, "dataset", ANSWER_SECONDS)
    except Refused as refusal:
        raise UserError(f"the data set {data_set} {refusal}; or give data.path=FOLDER with texts") from refusal
    except Silent as error:
        raise Unavailable(
            f"{data_set} is not in the cache and {error}; give data.path=FOLDER with texts, "
            "bring the tokens of a machine that has them (EVALKIT_CACHE), or set HF_ENDPOINT to a mirror"
        ) from error


def _digest_of(contents: Sequence[str]) -> str:
    """Names a set of texts by the SHA-256 of each, in whatever order."""
    return sha256("\n".join(sorted(contents)).encode()).hexdigest()


def _example_of(window: Window) -> Example:
    """A window as an example, on the host."""
    return Example(window.tokens, window.targets, window.mask, window.positions)  # type: ignore[arg-type]


def _stacked(examples: Sequence[Example]) -> Example:
    return jax.tree.map(lambda *leaves: np.stack(leaves), *examples)
