"""Text to tokens and back: the protocol of tokenizers, those that need no file, and those that are read from one."""

import hashlib
import unicodedata
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from evalkit.disk.places import expanded

RARE = " \n\t\x01Aa  é€ꙮ世🦄Ａﬁ\U000ffffd "
"""If none of these characters is lost, none can be: tokens then stand for bytes of the text as it is."""


class Encoded(NamedTuple):
    """The tokens of a text, and the number of its bytes that no token stands for, which make bits a byte too low."""

    tokens: list[int]
    dropped: int


@runtime_checkable
class Tokenizer(Protocol):
    """Turns text into tokens and back; tokens for the beginning or the end of a text are not added."""

    @property
    def name(self) -> str:
        """Identifies the tokenizer: two of the same name give every text the same tokens."""
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

    def read(self, text: str) -> Encoded:
        """The tokens of `text`, and the number of its bytes that are not in them."""
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of `tokens`; tokens that stand for no text are left out."""
        ...


class Lossless(ABC):
    """A tokenizer that drops nothing of a text."""

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """The tokens of `text`."""

    def read(self, text: str) -> Encoded:
        """The tokens of `text`, which are all of it."""
        return Encoded(self.encode(text), 0)


class Bytes(Lossless):
    """One token for each byte of UTF-8, with the ids 0 to 255; the next two ids begin a text and end it."""

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
    """Another tokenizer without its token that begins a text, because text tasks train without one."""

    bos = None

    def __init__(self, tokenizer: Tokenizer):
        self.name, self.vocab_size, self.eos = tokenizer.name, tokenizer.vocab_size, tokenizer.eos
        self.encode, self.read, self.decode = tokenizer.encode, tokenizer.read, tokenizer.decode


class Numbers(Lossless):
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
        ids = self._fast.get_vocab(with_added_tokens=True).values()
        if not ids:
            raise ValueError(f"{self._file} has no tokens; give a tokenizer that was trained")
        self.bos: int | None = begun[0] if begun and begun[0] != eos and self._begins() else None
        self.eos = eos
        self.vocab_size: int = max([*ids, *begun]) + 1  # ids may leave some out
        self._unknown = self._fast.token_to_id(getattr(self._fast.model, "unk_token", None) or "")
        try:
            self._is_lossless = not self._dropped(RARE, self._encoded(RARE))
        except ValueError:  # it refuses what it does not know
            self._is_lossless = False

    def encode(self, text: str) -> list[int]:
        """The tokens of `text`."""
        return self._encoded(text).ids

    def read(self, text: str) -> Encoded:
        """The tokens of `text`, and the bytes of characters that are in no token or in the unknown token."""
        encoded = self._encoded(text)
        return Encoded(encoded.ids, 0 if self._is_lossless else self._dropped(text, encoded))

    def _begins(self) -> bool:
        """Whether the post-processor adds a special token before a text, not only after it."""
        try:
            with _readable(self._file):
                mask = self._fast.encode(RARE, add_special_tokens=True).special_tokens_mask
        except ValueError:  # it refuses what it does not know
            return True
        return all(mask) or mask[0] == 1

    def _encoded(self, text: str) -> Any:
        with _readable(self._file, "give a tokenizer that has tokens for any text"):
            return self._fast.encode(text, add_special_tokens=False)

    def _dropped(self, text: str, encoded: Any) -> int:
        """The bytes of characters that decoding does not give back; without a decoder, of those in no token."""
        if self._fast.decoder is not None:
            known = [token for token in encoded.ids if token != self._unknown]
            with _readable(self._file):
                return _bytes_of(_missing(text, self._fast.decode(known, skip_special_tokens=False)))
        normal = text if self._fast.normalizer is None else self._fast.normalizer.normalize_str(text)
        return _bytes_of(self._outside(text, encoded) | _missing(text, normal))

    def _outside(self, text: str, encoded: Any) -> Counter[str]:
        """The characters outside the offsets of all tokens, or in those of the unknown token."""
        kept = {char for char in {*text} if char.isspace() and self._keeps(char)}
        lost = bytearray(char not in kept for char in text)
        for token, (start, end) in zip(encoded.ids, encoded.offsets, strict=True):
            lost[start:end] = bytes([token == self._unknown]) * (end - start)
        return Counter(char for char, is_lost in zip(text, lost, strict=True) if is_lost)

    def _keeps(self, space: str) -> bool:
        """Whether tokens keep this white space, even outside all offsets: then more of it gives other tokens."""
        try:
            return self.encode(f"a{space}b") != self.encode(f"a{space}{space}b")
        except ValueError:  # it refuses what it does not know
            return False

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
        self._is_lossless = not self._dropped(RARE, self.encode(RARE))

    def encode(self, text: str) -> list[int]:
        """The tokens of `text`."""
        return list(self._pieces.encode(text))

    def read(self, text: str) -> Encoded:
        """The tokens of `text`, and the bytes of characters that decoding does not give back."""
        tokens = self.encode(text)
        return Encoded(tokens, 0 if self._is_lossless else self._dropped(text, tokens))

    def _dropped(self, text: str, tokens: Sequence[int]) -> int:
        known = [token for token in tokens if token != self._pieces.unk_id()]
        return _bytes_of(_missing(text, self.decode(known)))

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
    kind = file.suffix.lower()
    if kind not in (".json", ".model"):
        raise ValueError(
            f"tokenizer={path}; allowed: the path of a tokenizer.json or tokenizer.model, or null for bytes"
        )
    if not file.is_file():
        raise ValueError(f"tokenizer={path} is no file; give one that is there, or null for bytes")
    return TokenizerJson(file) if kind == ".json" else SentencePiece(file)


@contextmanager
def _readable(file: str, remedy: str = "download it again") -> Iterator[None]:
    """Turns errors of `tokenizers`, a bare Exception or a Rust panic, into a ValueError that names the file."""
    try:
        yield
    except BaseException as error:
        # A panic is no Exception and has no name to import; Ctrl-C and its like go on.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise ValueError(f"{file} cannot be read ({error}); {remedy}") from error


def _missing(text: str, said: str) -> Counter[str]:
    """The characters that occur less often in `said` than in `text`, both in composed form (NFC)."""
    before, after = (Counter(unicodedata.normalize("NFC", each)) for each in (text, said))
    return before - after


def _bytes_of(characters: Counter[str]) -> int:
    return sum(len(char.encode()) * number for char, number in characters.items())


def _name_of(kind: str, path: Path) -> str:
    return f"{kind}-{hashlib.sha256(path.read_bytes()).hexdigest()}"
