"""Text to train on and text that is held out: the user's, a data set's, or what comes with Python."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import ClassVar

import numpy as np
from jaxtyping import Integer

from evalkit.checks import at_least
from evalkit.disk.places import expanded, kept_below
from evalkit.tasks.text import corpus, tokenizers
from evalkit.tasks.text.corpus import Corpus, Span, Window
from evalkit.tasks.text.documents import Document
from evalkit.tasks.text.source import Source
from evalkit.tasks.text.tokenizers import Tokenizer


@dataclass(frozen=True, kw_only=True)
class Text(Source):
    """Documents: predict each next token. A model trains on windows of some texts, and is tested on whole others.

    A window packs successive documents: at the first token of a document the position is 0, so that nothing of the
    document before it is seen, and that token is not scored.

    Options, beside those of `Source`, which say where the text is:
      length (tokens): the length of a training window.
      tokenizer: a file, tokenizer.json or tokenizer.model; null: bytes.
      validation (share): the last part of every training document, kept for validation.
      cache: a folder where tokens are kept, made once; null: $EVALKIT_CACHE, or else ~/.cache/evalkit/corpora.
      allow_shared: whether a held-out document may be among the training texts.
    """

    length: int = 512
    tokenizer: str | None = None
    validation: float = 1 / 64
    cache: str | None = None
    allow_shared: bool = False

    answer_length: ClassVar[int] = 0
    scored: ClassVar[None] = None
    chance: ClassVar[float] = 0.0
    version: ClassVar[int] = 1

    def __post_init__(self) -> None:
        at_least(self, 1, "length")
        if not 0 < self.validation < 1:
            raise ValueError(f"validation={self.validation}; allowed: above 0 and below 1, such as {1 / 64}")
        super().__post_init__()

    @property
    def vocab_size(self) -> int:
        """The size of the tokenizer's vocabulary."""
        return self.tokenizer_.vocab_size

    @cached_property
    def tokenizer_(self) -> Tokenizer:
        """The tokenizer; raises ValueError if its file cannot be read."""
        return tokenizers.from_file(self.tokenizer)

    @property
    def remote(self) -> str | None:
        """The data set on the hub that has to be fetched first, None if there is none."""
        if self.hub.name is None or self.hub.is_local:
            return None
        built = [
            corpus.is_built(self.hub.identity(held_out, self.field), self.tokenizer_, self._folder)
            for held_out in (False, True)
        ]
        return None if all(built) else self.hub.name

    def prepare(self) -> None:
        """Reads and tokenises everything, once for all runs; raises ValueError, in one line, for what cannot be."""
        training, held_out = self._training, self._held_out
        if not self.allow_shared:
            try:
                corpus.refuse_shared(training, held_out)
            except ValueError as error:
                raise ValueError(f"{error}, or give task.allow_shared=true") from error
        self._check_lengths(self.length)

    def windows(self, seed: int, step: int, batch: int, length: int, rows: slice | np.ndarray = slice(None)) -> Window:
        """Windows `rows` of one seed's training batch at one step; raises ValueError if the texts are too short."""
        self._check_lengths(length)
        return self._heads.windows(seed, step, batch, length, rows)

    def validation_windows(self, first: int, batch: int, length: int) -> Window:
        """Windows `first`, `first + 1`, … of what is kept for validation; raises ValueError if it is too short."""
        self._check_lengths(length)
        return self._tails.spread(first, batch, length)

    def documents(self) -> Sequence[Span]:
        """The held-out documents, whole."""
        return [self._held_out.document(index) for index in range(len(self._held_out))]

    def texts(self) -> Iterator[Document]:
        """The held-out documents as text, for a model with a tokenizer of its own; raises ValueError as `prepare`."""
        return self.read(held_out=True)

    def used(self) -> str:
        """What text is read, in one line."""
        texts = [f"{_count(len(held), 'document')}, {_size(held.bytes)}" for held in (self._training, self._held_out)]
        if self.path is None and self.train is None and self.hub.name is None:
            used = f"text: {self.origin} ({texts[0]}; held out: {texts[1]})"
        elif self.train is not None:
            used = f"text: {texts[0]}, from {self.train}; held out: {texts[1]}, from {self.held_out}"
        else:
            used = f"text: {texts[0]}, from {self.path or self.hub.name}; held out: {texts[1]}"
        copies, dropped = len(self._all_held_out) - len(self._held_out), self._training.dropped + self._held_out.dropped
        return used + self.omissions(copies, dropped)

    def omissions(self, copies: int, dropped: int) -> str:
        """Says what is left out, to end a line: `copies` of held-out documents, hidden files, `dropped` bytes."""
        hidden = [path.name for path in self.hidden()]
        parts = [
            f"; {_count(copies, 'held-out document')} left out as copies of others" if copies else "",
            f"; hidden, and left out: {', '.join(dict.fromkeys(hidden))}" if hidden else "",
            f"; no token says what {_size(dropped)} of it are, so bits a byte are too low" if dropped else "",
        ]
        return "".join(parts)

    def digest(self) -> str:
        """A hash of all that is read: two tasks with the same digest give the same windows and documents."""
        facts = f"{self._training.digest} {self._held_out.digest} {self.validation}"
        return hashlib.sha256(facts.encode()).hexdigest()

    def contents(self) -> Sequence[str]:
        """The SHA-256 of each held-out document; raises ValueError as `prepare`."""
        return self._held_out.hashes

    def forms(self) -> Sequence[str]:
        """The `Content.form` of each held-out document, which its copies share."""
        return self._held_out.forms

    def trained_on(self) -> set[str]:
        """The `contents` and `forms` of the training documents; raises ValueError as `prepare`."""
        return {*self._training.hashes, *self._training.forms}

    def bytes_per_token(self) -> float:
        """The bytes of text for each token of what is kept for validation."""
        return self._tails.bytes_per_token

    def describe(self, tokens: Integer[np.ndarray, " t"]) -> str:
        """The text of `tokens`, ⏎ for newlines."""
        return self.tokenizer_.decode(tokens.tolist()).replace("\n", "⏎")

    @cached_property
    def _training(self) -> Corpus:
        return self._corpus(held_out=False)

    @cached_property
    def _all_held_out(self) -> Corpus:
        return self._corpus(held_out=True)

    @cached_property
    def _held_out(self) -> Corpus:
        return self._all_held_out.distinct()

    @cached_property
    def _heads(self) -> Corpus:
        return self._training.heads(self.validation)

    @cached_property
    def _tails(self) -> Corpus:
        return self._training.tails(self.validation)

    @property
    def _folder(self) -> Path:
        return expanded(self.cache) if self.cache else kept_below("EVALKIT_CACHE", "~/.cache/evalkit/corpora")

    def _corpus(self, held_out: bool) -> Corpus:
        read = partial(self.read, held_out)
        if self.hub.name is None or self.hub.is_local:
            return corpus.build(read, self.tokenizer_, self._folder)
        return corpus.build_named(read, self.hub.identity(held_out, self.field), self.tokenizer_, self._folder)

    def _check_lengths(self, length: int) -> None:
        """Raises ValueError if a window does not fit into the training part or into the validation part."""
        if self._heads.total <= length:
            raise ValueError(
                f"task.length={length}, but the training texts have {self._heads.total} tokens; "
                f"allowed: below that; take a shorter length or more text"
            )
        if self._tails.total <= length:
            enough = min(0.5, 4 * (length + 1) / self._training.total)  # for a few windows, or half of the texts
            raise ValueError(
                f"task.validation={self.validation:.4g} leaves {self._tails.total} tokens, "
                f"too few for a window of length={length}; "
                f"allowed: more, such as task.validation={enough:.2g}"
            )


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _size(size: int) -> str:
    return f"{size / 1e6:,.1f} MB" if size >= 100_000 else f"{size:,} bytes"
