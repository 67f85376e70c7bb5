"""Text to tokens and back: what a tokenizer must do here, and the one that needs no file."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable


@runtime_checkable
class Tokenizer(Protocol):
    """The tokens of a text, without any that stand for its beginning or end."""

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        ...

    @property
    def bos(self) -> int | None:
        """The token that the checkpoint was trained to see first; None if there is none."""
        ...

    @property
    def eos(self) -> int | None:
        """The token that ends a text; None if there is none."""
        ...

    def encode(self, text: str) -> list[int]:
        """The tokens of `text`."""
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of `tokens`; what stands for no text is left out."""
        ...


class Bytes:
    """A token a byte of UTF-8, and after them one that begins and one that ends a text."""

    bos, eos = 256, 257
    vocab_size = 258

    def encode(self, text: str) -> list[int]:
        """The bytes of `text`."""
        return list(text.encode())

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of the bytes among `tokens`; a broken character shows as U+FFFD."""
        return bytes(token for token in tokens if token < 256).decode(errors="replace")


class Numbers:
    """The tokens of a synthetic task, which stand for no text: written as numbers with spaces between."""

    bos = eos = None

    def __init__(self, vocab_size: int):
        self.vocab_size = vocab_size

    def encode(self, text: str) -> list[int]:
        """The numbers in `text`. Raises ValueError for anything else, and for a number that is no token."""
        words = text.split()
        for word in words:
            if not word.isdecimal() or int(word) >= self.vocab_size:
                raise ValueError(
                    f"{word!r} is no token of this model; allowed: numbers from 0 to {self.vocab_size - 1}"
                )
        return [int(word) for word in words]

    def decode(self, tokens: Sequence[int]) -> str:
        """The numbers, with spaces between."""
        return " ".join(map(str, tokens))
