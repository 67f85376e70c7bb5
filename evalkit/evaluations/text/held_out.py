"""Held-out documents that a text evaluation takes part of, and the rows that are made of their losses."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from evalkit.core.contracts import Pretrained
from evalkit.core.rows import Row
from evalkit.inference.scoring import LOGITS_AT_A_TIME, Request, Scorer
from evalkit.parallel.layouts.sequences import read_split
from evalkit.tasks import Example
from evalkit.tasks.text.corpus import Span

Losses = list[np.ndarray]
Score = Callable[[Sequence[np.ndarray], int], Losses]
"""The losses (nats) of the last so many tokens of each sequence."""


class Document(NamedTuple):
    """A held-out document with a unique name; its number seeds the random places in it."""

    tokens: np.ndarray
    size: int
    name: str
    number: int

    def about(self) -> dict[str, object]:
        """The fields of `extra` that every row of this document has."""
        return {"document": self.name, "bytes_per_token": self.size / len(self.tokens)}

    def too_short(self, needed: int) -> dict[str, object]:
        """The fields of `extra` in a row that says that this document has fewer tokens than are `needed`."""
        reason = f"{len(self.tokens):,} tokens, fewer than the {needed:,} of a window"
        return {"document": self.name, "not_run": reason}


class Subject(NamedTuple):
    """One set of parameters: a function that makes its rows, and one that computes its losses."""

    row: Callable[..., Row]
    losses: Score


def longest_of(documents: Sequence[Span], count: int) -> list[Document]:
    """The longest `count` of them, in their own order, under names without the folders that all share."""
    names = short_names([document.source for document in documents])
    longest = sorted(range(len(documents)), key=lambda number: (-documents[number].size, number))[:count]
    taken = [(number, documents[number]) for number in sorted(longest)]
    return [Document(document.tokens, document.size, names[number], number) for number, document in taken]


def longest_among(documents: Sequence[Document]) -> Document:
    """The document with the most tokens."""
    return max(documents, key=lambda document: len(document.tokens))


def short_names(sources: Sequence[str]) -> list[str]:
    """Each source without the folders that all of them share."""
    parts = [Path(source).parts for source in sources]
    shared = 0
    while all(len(each) > shared + 1 for each in parts) and len({each[shared] for each in parts}) == 1:
        shared += 1
    return ["/".join(each[shared:]) for each in parts]


def drawn(purpose: int, document: int) -> np.random.Generator:
    """Random places in a document: the same for every model and seed."""
    return np.random.Generator(np.random.Philox(key=[purpose, document]))


def rows_of(
    row: Callable[..., Row],
    metric: str,
    position: int,
    documents: Sequence[Document],
    losses: Sequence[np.ndarray],
    extra: dict[str, object],
) -> Iterator[Row]:
    """A row a document of its passages' losses `[passages, tokens]`."""
    for document, own in zip(documents, losses, strict=True):
        total, about = float(own.mean(axis=1).sum()), document.about() | extra
        yield row(metric=metric, position=position, total=total, count=len(own), extra=about)


def losses_of(
    pretrained: Pretrained,
    chunk: int,
    check_interrupt: Callable[[], None],
    sequences: Sequence[np.ndarray],
    scored: int,
) -> Losses:
    """The loss (nats) of each of the last `scored` tokens of every sequence.

    A sequence is read from its first token on, after the tokenizer's beginning-of-text token if there is one.
    `check_interrupt` is called between batches.
    """
    tokenizer = pretrained.tokenizer
    first = () if tokenizer.bos is None else (tokenizer.bos,)
    tokens = (first + tuple(sequence.tolist()) for sequence in sequences)
    requests = [Request(row[:-scored], row[-scored:]) for row in tokens]
    scorer = Scorer(pretrained.model, pretrained.params, tokenizer.vocab_size, share_prefixes=False, chunk=chunk)
    losses: dict[int, np.ndarray] = {}
    for index, score in scorer.stream(requests):
        check_interrupt()
        losses[index] = -score.logprobs
    return [losses[index] for index in range(len(requests))]


def split_losses_of(
    pretrained: Pretrained,
    chunk: int,
    check_interrupt: Callable[[], None],
    sequences: Sequence[np.ndarray],
    scored: int,
) -> Losses:
    """As `losses_of`, each sequence split over the devices, `chunk` tokens each at a time."""
    bos = pretrained.tokenizer.bos
    rows = [np.asarray([*([] if bos is None else [bos]), *sequence], np.int32) for sequence in sequences]
    together = max(1, LOGITS_AT_A_TIME // (chunk * pretrained.tokenizer.vocab_size))
    losses: Losses = []
    for start in range(0, len(rows), together):
        members = rows[start : start + together]
        with jax.default_matmul_precision("highest"):
            read = read_split(pretrained.model, pretrained.params, _next_tokens(members), chunk, check_interrupt)
            loss = np.concatenate([part.loss for part in read], axis=1)
        losses += [loss[at, len(row) - 1 - scored : len(row) - 1] for at, row in enumerate(members)]
    return losses


def _next_tokens(rows: Sequence[np.ndarray]) -> Example:
    """Next-token prediction over `rows`: each token's target is the one after it; shorter rows end in padding."""
    length = max(map(len, rows)) - 1
    padded = np.stack([np.pad(row, (0, length + 1 - len(row))) for row in rows])
    places = np.arange(length)[None]
    positions = np.where(places < np.asarray([[len(row) - 1] for row in rows]), places, -1)
    return Example(padded[:, :-1], padded[:, 1:], positions >= 0, positions)  # type: ignore[arg-type]  # of the host
