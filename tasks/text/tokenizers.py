"""Text to tokens and back: what a tokenizer must do here, the one that needs no file, and those that are one."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from evalkit.disk.places import expanded


@runtime_checkable
class Tokenizer(Protocol):
    """The tokens of a text, without any that stand for its beginning or end."""

    @property
    def name(self) -> str:
        """Says which it is: two of one name give every text the same tokens."""
        ...

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

    name = "bytes-1"
    bos, eos = 256, 257
    vocab_size = 258

    def encode(self, text: str) -> list[int]:
        """The bytes of `text`."""
        return list(text.encode())

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of the bytes among `tokens`; a broken character shows as U+FFFD."""
        return bytes(token for token in tokens if token < 256).decode(errors="replace")


class WithoutBos:
    """Another tokenizer's tokens, none of which begins a text: text tasks train on what follows in a document."""

    bos = None

    def __init__(self, tokenizer: Tokenizer):
        self.name, self.vocab_size, self.eos = tokenizer.name, tokenizer.vocab_size, tokenizer.eos
        self.encode, self.decode = tokenizer.encode, tokenizer.decode


class Numbers:
    """The tokens of a synthetic task, which stand for no text: written as numbers with spaces between."""

    bos = eos = None

    def __init__(self, vocab_size: int):
        self.vocab_size = vocab_size
        self.name = f"numbers-{vocab_size}"

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


class Symbols(Numbers):
    """The tokens of a synthetic task by their names, as `describe` of the task shows them, or by their numbers.

    A name that several tokens have stands for the first of them; a number that is a name is read as the name.
    """

    def __init__(self, vocab_size: int, describe: Callable[[np.ndarray], str]):
        super().__init__(vocab_size)
        self._describe = describe
        names = [describe(np.array([token])) for token in range(vocab_size)]
        self._tokens = {name: token for token, name in reversed(list(enumerate(names)))}

    def encode(self, text: str) -> list[int]:
        """The tokens of names and numbers with spaces between; raises ValueError for a word that is neither."""
        tokens = []
        for word in text.split():
            if word not in self._tokens and not (word.isdecimal() and int(word) < self.vocab_size):
                some = ", ".join(list(dict.fromkeys(reversed(self._tokens)))[:8])
                raise ValueError(
                    f"{word!r} is no token of this task; give its symbols ({some}, …), with spaces between, "
                    f"or numbers from 0 to {self.vocab_size - 1}"
                )
            tokens.append(self._tokens[word] if word in self._tokens else int(word))
        return tokens

    def decode(self, tokens: Sequence[int]) -> str:
        """The names, with spaces between."""
        return self._describe(np.asarray(tokens, np.int32)) if len(tokens) else ""


class TokenizerJson:
    """Hugging Face's `tokenizer.json`; it begins a text as the file's own post-processor does."""

    def __init__(self, path: Path, eos: int | None = None):
        try:
            from tokenizers import Tokenizer as Fast
        except ImportError as error:
            raise ValueError(f"{path.name} needs the package tokenizers; pip install tokenizers") from error
        self._file = path.name
        with _readable(self._file):
            self._fast = Fast.from_file(str(path))
            self.name = _name_of("tokenizers", path)
            self._fast.no_truncation()
            self._fast.no_padding()
            begun = self._fast.encode("", add_special_tokens=True).ids
        self.bos: int | None = begun[0] if begun and begun[0] != eos else None
        self.eos = eos
        self.vocab_size: int = self._fast.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str) -> list[int]:
        """The tokens of `text`."""
        with _readable(self._file):
            return self._fast.encode(text, add_special_tokens=False).ids

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of `tokens`, special ones left out."""
        with _readable(self._file):
            return self._fast.decode(list(tokens), skip_special_tokens=True)


class SentencePiece:
    """SentencePiece's `tokenizer.model`; a text begins with its beginning-of-sentence token if it has one."""

    def __init__(self, path: Path):
        try:
            import sentencepiece
        except ImportError as error:
            raise ValueError(f"{path.name} needs the package sentencepiece; pip install sentencepiece") from error
        try:
            self._pieces: Any = sentencepiece.SentencePieceProcessor(model_file=str(path))
            self.name = _name_of("sentencepiece", path)
        except (OSError, RuntimeError) as error:
            raise ValueError(f"{path.name} cannot be read; download it again") from error
        bos, eos = self._pieces.bos_id(), self._pieces.eos_id()
        self.bos: int | None = bos if bos >= 0 else None
        self.eos: int | None = eos if eos >= 0 else None
        self.vocab_size: int = self._pieces.vocab_size()

    def encode(self, text: str) -> list[int]:
        """The tokens of `text`."""
        return list(self._pieces.encode(text))

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of `tokens`, special ones left out."""
        return str(self._pieces.decode(list(tokens)))


def from_file(path: str | None) -> Tokenizer:
    """The tokenizer in a `.json` of Hugging Face or a `.model` of SentencePiece; bytes for None.

    Raises ValueError if there is no such file, if it is of another kind, or if it cannot be read.
    """
    if path is None:
        return Bytes()
    file = expanded(path)
    if file.suffix not in (".json", ".model"):
        raise ValueError(
            f"tokenizer={path}; allowed: the path of a tokenizer.json or tokenizer.model, or null for bytes"
        )
    if not file.is_file():
        raise ValueError(f"tokenizer={path} is no file; give one that is there, or null for bytes")
    return TokenizerJson(file) if file.suffix == ".json" else SentencePiece(file)


@contextmanager
def _readable(file: str) -> Iterator[None]:
    """Makes what tokenizers raises a ValueError that names the file: a bare Exception, or a panic of its Rust."""
    try:
        yield
    except BaseException as error:
        # A panic is no Exception and has no name to import; Ctrl-C and its like go on.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise ValueError(f"{file} cannot be read ({error}); download it again") from error


def _name_of(kind: str, path: Path) -> str:
    return f"{kind}-{hashlib.sha256(path.read_bytes()).hexdigest()}"
