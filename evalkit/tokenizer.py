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
