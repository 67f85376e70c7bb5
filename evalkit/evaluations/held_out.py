"""Held-out documents that a text evaluation takes part of, and the rows that are made of their losses."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from evalkit.core.contracts import Pretrained
from evalkit.core.rows import Row
from evalkit.inference.scoring import Request, Scorer
from evalkit.tasks.text.corpus import Span

Losses = list[np.ndarray]
Score = Callable[[Sequence[np.ndarray], int], Losses]
"""The losses (nats) of the last so many tokens of each sequence."""


class Document(NamedTuple):
    """A held-out document under a name that tells it from the others; its number draws its places."""

    tokens: np.ndarray
    size: int
    name: str
    number: int

    def about(self) -> dict[str, object]:
        """What every row says of it."""
        return {"document": self.name, "bytes_per_token": self.size / len(self.tokens)}

    def too_short(self, needed: int) -> dict[str, object]:
        """What a row says of it that has fewer tokens than are `needed`."""
        reason = f"{len(self.tokens):,} tokens, fewer than the {needed:,} of a window"
        return {"document": self.name, "not_run": reason}


class Subject(NamedTuple):
    """One set of parameters: how its rows are made, and what it loses where."""

    row: Callable[..., Row]
    losses: Score


def longest_of(documents: Sequence[Span], count: int) -> list[Document]:
    """The longest `count` of them, in their own order, under names without the folders that all share."""
    names = short_names([document.source for document in documents])
    longest = sorted(range(len(documents)), key=lambda number: (-documents[number].size, number))[:count]
    taken = [(number, documents[number]) for number in sorted(longest)]
    return [Document(document.tokens, document.size, names[number], number) for number, document in taken]


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
    for document, found in zip(documents, losses, strict=True):
        yield row(
            metric=metric,
            position=position,
            total=float(found.mean(axis=1).sum()),
            count=len(found),
            extra=document.about() | extra,
        )


def losses_of(
    pretrained: Pretrained,
    chunk: int,
    check_interrupt: Callable[[], None],
    sequences: Sequence[np.ndarray],
    scored: int,
) -> Losses:
    """The loss (nats) of each of the last `scored` tokens of every sequence.

    It is read from its first token on, or from the one that stands for a beginning if the tokenizer has such a token.
    `check_interrupt` is called between batches.
    """
    tokenizer = pretrained.tokenizer
    first = [] if tokenizer.bos is None else [tokenizer.bos]
    cut = [(first + sequence[:-scored].tolist(), sequence[-scored:].tolist()) for sequence in sequences]
    requests = [Request(tuple(context), tuple(continuation)) for context, continuation in cut]
    scorer = Scorer(pretrained.model, pretrained.params, tokenizer.vocab_size, share_prefixes=False, chunk=chunk)
    losses: dict[int, np.ndarray] = {}
    for index, found in scorer.stream(requests):
        check_interrupt()
        losses[index] = -found.logprobs
    return [losses[index] for index in range(len(requests))]
