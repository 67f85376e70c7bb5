"""What a row has said so far: where its text ends, and how much of it can be shown already."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from evalkit.tasks.text.tokenizers import Tokenizer

BROKEN = "\ufffd"
"""What a tokenizer shows of a character whose last bytes are not there yet."""


class Generated(NamedTuple):
    """A text, and the tokens that were decoded for it, those that ended it included."""

    text: str
    tokens: tuple[int, ...]


class Ends(NamedTuple):
    """What ends a text: any of these `tokens`, and any of these `strings`; neither is part of it."""

    tokens: frozenset[int]
    strings: tuple[str, ...]


class Row:
    """The tokens of one row as they come; `said` is None until its text has ended."""

    def __init__(self, tokenizer: Tokenizer, ends: Ends):
        self._tokenizer, self._ends = tokenizer, ends
        self._tokens: list[int] = []
        self._shown = 0
        self.said: Generated | None = None

    def hear(self, tokens: Sequence[int], *, last: bool) -> str:
        """Takes the next tokens, `last` if no more may follow; returns new text that cannot become a stop string."""
        self._tokens += tokens
        self.said = finished(self._tokenizer, self._tokens, self._ends)
        if self.said is None and last:
            self.said = Generated(self._tokenizer.decode(self._tokens), tuple(self._tokens))
        if self.said is None:
            text = self._tokenizer.decode(self._tokens).rstrip(BROKEN)
            begun = (size for mark in self._ends.strings for size in range(1, len(mark)) if text.endswith(mark[:size]))
            text = text[: len(text) - max(begun, default=0)]
        else:
            text = self.said.text
        new, self._shown = text[self._shown :], max(self._shown, len(text))
        return new


def finished(tokenizer: Tokenizer, tokens: Sequence[int], ends: Ends) -> Generated | None:
    """The whole text if `tokens` hold one that ends it or a stop string, else None."""
    place = next((index for index, token in enumerate(tokens) if token in ends.tokens), None)
    said = tokens[:place]
    text = tokenizer.decode(said)
    if not any(mark in text for mark in ends.strings):
        return None if place is None else Generated(text, tuple(tokens[: place + 1]))
    # Token by token, so that it does not matter how many were decoded before somebody looked.
    for count in range(1, len(said) + 1):
        text = tokenizer.decode(said[:count])
        places = [text.index(mark) for mark in ends.strings if mark in text]
        if places:
            return Generated(text[: min(places)], tuple(said[:count]))
    return Generated(text, tuple(said))


def ends_of(tokenizer: Tokenizer, strings: Collection[str], tokens: Collection[int]) -> Ends:
    """The tokenizer's own end, these stop `strings` and these stop `tokens`; raises ValueError for what cannot end."""
    if "" in strings:
        raise ValueError("stop holds an empty string, which is in every text; leave it out")
    for token in tokens:
        if not 0 <= token < tokenizer.vocab_size:
            raise ValueError(f"stop_tokens holds {token}; allowed: 0 to {tokenizer.vocab_size - 1}")
    own = () if tokenizer.eos is None else (tokenizer.eos,)
    return Ends(frozenset((*own, *tokens)), tuple(strings))
