"""Documents as one memory-mapped array of tokens, and windows of it that depend only on a seed and a step."""

import hashlib
import json
import logging
import os
import shutil
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from tempfile import mkdtemp
from typing import NamedTuple

import numpy as np
from filelock import FileLock, Timeout
from jaxtyping import Bool, Int, Integer

from evalkit.disk import sums
from evalkit.tasks.text.documents import Document
from evalkit.tasks.text.tokenizers import Tokenizer

VERSION = 2
TOKENS, ENDS, SIZES, FACTS = "tokens.bin", "ends.npy", "bytes.npy", "facts.json"
UNFINISHED, LOCKS = "unfinished-", ".locks"
ABANDONED_AFTER = 86_400.0  # seconds in which nothing was written
GOLDEN_RATIO = (5**0.5 - 1) / 2
SHORT = 128  # tokens: a smaller part cannot test prediction from a longer context
MANY = 16  # documents that would be taken as a whole: with fewer, chance decides too much
BYTE_ORDER_MARK = "\ufeff"
SUMMED = "summed"  # in the facts of tokens written with checksums: if these are missing, the tokens are damaged
log = logging.getLogger(__name__)

Documents = Callable[[], Iterable[Document]]
"""A way to read the documents from the first to the last, as often as it is called."""


class Window(NamedTuple):
    """The fields of an `Example`, on the host."""

    tokens: Int[np.ndarray, "b t"]
    targets: Int[np.ndarray, "b t"]
    mask: Bool[np.ndarray, "b t"]
    positions: Int[np.ndarray, "b t"]


class Span(NamedTuple):
    """One document's tokens, its size in bytes and where it comes from."""

    tokens: Integer[np.ndarray, " n"]
    size: int
    source: str


@dataclass(frozen=True, eq=False)
class Corpus:
    """Documents in order, or a view of a part of each: document i is `tokens[starts[i]:ends[i]]`, `sizes[i]` bytes.

    `tokens` stays on the disk. `hashes` are those of the documents' whole texts, `forms` those of the texts as
    `Content` normalises them. `tokenizer` is the tokenizer's name. `dropped` is the number of bytes in no token.
    """

    tokens: Integer[np.ndarray, " n"]
    starts: Int[np.ndarray, " m"]
    ends: Int[np.ndarray, " m"]
    sizes: Int[np.ndarray, " m"]
    sources: Sequence[str]
    hashes: Sequence[str]
    forms: Sequence[str]
    tokenizer: str
    dropped: int = 0

    def __len__(self) -> int:
        """Number of documents."""
        return len(self.ends)

    @property
    def total(self) -> int:
        """Number of tokens."""
        return int(self._before[-1])

    @property
    def bytes(self) -> int:
        """Size of the text."""
        return int(self.sizes.sum())

    @property
    def bytes_per_token(self) -> float:
        """Bytes a token, to convert nats a token to bits a byte; a view takes a document's tokens as equally long."""
        return self.bytes / self.total

    @cached_property
    def digest(self) -> str:
        """A hash of the texts and the tokenizer, the same wherever they were read and whatever part of each this is."""
        return _digest([VERSION, self.tokenizer, list(self.hashes)])

    def document(self, index: int) -> Span:
        """Document `index`."""
        tokens = self.tokens[self.starts[index] : self.ends[index]]
        return Span(tokens, int(self.sizes[index]), self.sources[index])

    def distinct(self) -> "Corpus":
        """Without the documents that are copies of earlier ones, by their `forms`."""
        kept = firsts(self.forms)
        if len(kept) == len(self):
            return self
        starts, ends, sizes = self.starts[kept], self.ends[kept], self.sizes[kept]
        sources, hashes, forms = ([of[index] for index in kept] for of in (self.sources, self.hashes, self.forms))
        return replace(self, starts=starts, ends=ends, sizes=sizes, sources=sources, hashes=hashes, forms=forms)

    def heads(self, fraction: float) -> "Corpus":
        """Every document without its last `fraction`; of documents too short for that, those not in `tails`."""
        return self._view(self.starts, self._cuts(fraction))

    def tails(self, fraction: float) -> "Corpus":
        """The last `fraction` of every document: what `heads` leaves out.

        Of documents so short that this is under 128 tokens, about the same `fraction` is taken as a whole instead, if
        there are enough of them. Their content alone decides which.
        """
        return self._view(self._cuts(fraction), self.ends)

    def windows(self, seed: int, step: int, batch: int, length: int, rows: slice | np.ndarray = slice(None)) -> Window:
        """Returns windows `rows` of a batch of `batch` random windows of `length` tokens, packed across documents.

        `positions` begin at 0 with every window and every document; no token is predicted from the document before it.
        The same (`seed`, `step`) always gives the same windows. Raises ValueError if the corpus is too short for one.
        """
        room = self._room(length)
        places = np.random.Generator(np.random.Philox(key=[seed, step])).integers(0, room, batch)
        return self._cut(places[rows], length)

    def spread(self, first: int, batch: int, length: int) -> Window:
        """Windows `first`, `first + 1`, … of an endless list, any beginning of which covers the corpus evenly.

        Their places are multiples of the golden ratio (Weyl 1916). Raises ValueError as `windows` does.
        """
        room = self._room(length)
        places = (np.arange(first, first + batch) * GOLDEN_RATIO) % 1 * room
        return self._cut(places.astype(np.int64), length)

    @cached_property
    def _before(self) -> Int[np.ndarray, " places"]:
        """How many tokens lie before each document, and before the end."""
        return np.concatenate([[0], np.cumsum(self.ends - self.starts)])

    def _cuts(self, fraction: float) -> Int[np.ndarray, " m"]:
        lengths = self.ends - self.starts
        parts = (lengths * fraction).astype(np.int64)
        short = parts < SHORT
        if short.sum() * fraction >= MANY:
            # By what copies share, so that no copy of a document that is kept is trained on.
            drawn = np.array([int(form[:8], 16) / 2**32 for form in self.forms or self.hashes])
            parts = np.where(short, np.where(drawn < fraction, lengths, 0), parts)
        return self.ends - parts

    def _view(self, starts: Int[np.ndarray, " m"], ends: Int[np.ndarray, " m"]) -> "Corpus":
        sizes = np.round(self.sizes * ((ends - starts) / np.maximum(self.ends - self.starts, 1))).astype(np.int64)
        return replace(self, starts=starts, ends=ends, sizes=sizes)

    def _room(self, length: int) -> int:
        """Returns the number of places where a window and the target of its last token fit."""
        if not 0 < length < self.total:
            raise ValueError(f"length={length}; allowed: 1 to {self.total - 1}, one less than the texts have tokens")
        return self.total - length

    def _cut(self, places: Int[np.ndarray, " b"], length: int) -> Window:
        """The windows that begin after that many tokens of the corpus."""
        at = places[:, None] + np.arange(length + 1)
        document = np.searchsorted(self._before, at, side="right") - 1
        within = at - self._before[document]
        whole = self.tokens[self.starts[document] + within].astype(np.int32)
        positions = np.minimum(within[:, :-1], np.arange(length)).astype(np.int32)
        return Window(whole[:, :-1], whole[:, 1:], within[:, 1:] > 0, positions)


def build(documents: Documents, tokenizer: Tokenizer, folder: Path) -> Corpus:
    """Returns the tokens of `documents`, from the cache `folder` if the same texts were tokenised in this way before.

    Memory holds one document at a time; without a cache entry the documents are read twice. An entry that is
    incomplete or damaged is never used. Of several processes, one writes the tokens and the others wait. Raises
    ValueError if there is no text in the documents, or if `folder` cannot be written.
    """
    sources, hashes = [], []
    for document in documents():
        if document.text.strip():
            sources.append(document.source)
            hashes.append(_sha256(_utf8(document)))
    place = _place(folder, tokenizer, hashes)
    corpus = load(place) or _make(documents, tokenizer, place)
    if list(corpus.hashes) != hashes:
        shutil.rmtree(place, ignore_errors=True)
        raise ValueError("the texts changed while they were read; start again")
    # Tokens that an older version wrote have no forms.
    forms = corpus.forms or [content_of(document).form for document in documents() if document.text.strip()]
    return replace(corpus, sources=sources, forms=forms)


def build_named(documents: Documents, identity: Sequence[str | None], tokenizer: Tokenizer, folder: Path) -> Corpus:
    """As `build`, but `identity` is the cache key in place of the texts: on a hit, `documents` is not called."""
    place = _place(folder, tokenizer, identity)
    corpus = load(place) or _make(documents, tokenizer, place)
    return replace(corpus, forms=corpus.forms or corpus.hashes)


def is_built(identity: Sequence[str | None], tokenizer: Tokenizer, folder: Path) -> bool:
    """Whether `build_named` would find it."""
    return load(_place(folder, tokenizer, identity)) is not None


def load(place: Path) -> Corpus | None:
    """Returns the corpus built at `place`, its tokens left on the disk; None if there is none, or only a part.

    A damaged file gives None and a warning. Tokens of an older version, without checksums, are not checked.
    """
    try:
        summed = sums.check(place)
        facts = json.loads((place / FACTS).read_text(encoding="utf-8"))
        ends, sizes = np.load(place / ENDS), np.load(place / SIZES)
        if SUMMED in facts and not summed:
            raise sums.Damaged(f"{sums.FILE} is missing")
        tokens = np.asarray(np.memmap(place / TOKENS, dtype=facts["dtype"], mode="r"))
        hashes = facts["hashes"]
        corpus = Corpus(
            *(tokens, np.append(0, ends[:-1]), ends, sizes, facts["sources"]),
            *(hashes, facts.get("forms", ()), facts["tokenizer"], facts.get("dropped", 0)),
        )
    except sums.Damaged as error:
        log.warning("the tokens in %s are damaged (%s); they are made again", place, error)
        return None
    except (OSError, EOFError, ValueError, KeyError):
        return None
    lengths = {len(hashes), len(corpus.forms or hashes), len(sizes), len(ends)}
    return corpus if corpus.total == len(tokens) and len(lengths) == 1 else None


def refuse_shared(training: Corpus, held_out: Corpus) -> None:
    """Raises ValueError if the training corpus has a held-out document, or a copy of equal form (`Content`)."""
    names = [*training.hashes, *training.forms]
    known = dict(zip(names, [*training.sources, *training.sources], strict=True))
    for *either, source in zip(held_out.hashes, held_out.forms, held_out.sources, strict=True):
        for name in either:
            if name in known:
                raise ValueError(f"{source} is held out and in the training texts too, as {known[name]}; take one away")


class Content(NamedTuple):
    """A text's size in bytes, its SHA-256, and the SHA-256 of its normalised `form`, which copies of it share.

    The form ignores what may differ between copies: line ends, byte order marks, white space at the ends of the text
    and of its lines, and the Unicode composition of characters.
    """

    size: int
    hash: str
    form: str


def content_of(document: Document) -> Content:
    """Returns the `Content` of a document; raises ValueError for half a character (a lone surrogate)."""
    text = _utf8(document)
    composed = unicodedata.normalize("NFC", document.text.replace(BYTE_ORDER_MARK, ""))
    alike = "\n".join(map(str.rstrip, composed.splitlines())).strip()
    return Content(len(text), _sha256(text), _sha256(alike.encode()))


def firsts(forms: Sequence[str]) -> list[int]:
    """The indices at which each of `forms` stands first."""
    indices: dict[str, int] = {}
    for index, form in enumerate(forms):
        indices.setdefault(form, index)
    return list(indices.values())


def _place(folder: Path, tokenizer: Tokenizer, identity: Sequence[str | None]) -> Path:
    return folder / _digest([VERSION, tokenizer.name, tokenizer.vocab_size, list(identity)])[:32]


def _digest(facts: Sequence[object]) -> str:
    return _sha256(json.dumps(facts).encode())


def _make(documents: Documents, tokenizer: Tokenizer, place: Path) -> Corpus:
    """Writes the tokens if they are missing; waits for a process that writes them already, and loads its result."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with _alone(place):
            corpus = load(place)
            if corpus is None:
                _remove_abandoned(place.parent)
                _write_beside(documents, tokenizer, place)
                corpus = load(place)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ValueError(f"{place.parent} cannot be written ({reason}); give another folder for tokens") from error
    if corpus is None:
        raise ValueError(f"{place} was written but cannot be read; remove it and start again")
    return corpus


@contextmanager
def _alone(place: Path) -> Iterator[None]:
    """Holds the lock for writing the tokens at `place`; the system releases the lock of a process that dies."""
    locks = place.parent / LOCKS
    locks.mkdir(exist_ok=True)
    lock = FileLock(locks / place.name, mode=0o666)  # others may share the folder
    try:
        lock.acquire(timeout=0)
    except Timeout:
        log.warning("another process makes the tokens in %s; waiting for it", place)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _write_beside(documents: Documents, tokenizer: Tokenizer, place: Path) -> None:
    """Writes beside `place` and moves it there once it is whole."""
    new = Path(mkdtemp(prefix=UNFINISHED, dir=place.parent))
    try:
        _write(documents(), tokenizer, new)
        sums.write(new)
        new.chmod(0o755)
        _move(new, place)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _move(new: Path, place: Path) -> None:
    """Moves what is at `new` to `place`; what another process has put there before stays."""
    for _ in range(2):
        try:
            os.replace(new, place)
            return
        except OSError:  # there is a folder already: a whole one stays, a part of one goes
            if load(place) is not None:
                return
            shutil.rmtree(place, ignore_errors=True)
    os.replace(new, place)


def _write(documents: Iterable[Document], tokenizer: Tokenizer, folder: Path) -> None:
    kinds = (np.uint8, np.uint16, np.uint32)
    dtype = next(kind for kind in kinds if tokenizer.vocab_size <= np.iinfo(kind).max + 1)
    dropped = 0
    lengths, sizes, sources, hashes, forms = [], [], [], [], []
    with (folder / TOKENS).open("wb") as file:
        for document in documents:
            if not document.text.strip():
                continue
            content = content_of(document)
            encoded = tokenizer.read(document.text)
            np.asarray(encoded.tokens, dtype).tofile(file)
            lengths.append(len(encoded.tokens))
            dropped += encoded.dropped
            sizes.append(content.size)
            sources.append(document.source)
            hashes.append(content.hash)
            forms.append(content.form)
    if not lengths:
        raise ValueError("there is no text in these documents; give others")
    if not sum(lengths):
        raise ValueError("the tokenizer has no token for any of these documents; give one that was made for such text")
    np.save(folder / ENDS, np.cumsum(lengths, dtype=np.int64))
    np.save(folder / SIZES, np.asarray(sizes, np.int64))
    facts = {
        "dtype": np.dtype(dtype).name,
        "tokenizer": tokenizer.name,
        "sources": sources,
        "hashes": hashes,
        "forms": forms,
        "dropped": dropped,
        SUMMED: True,
    }
    (folder / FACTS).write_text(json.dumps(facts), encoding="utf-8")


def _utf8(document: Document) -> bytes:
    try:
        return document.text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{document.source} is no Unicode at character {error.start}; leave it out") from error


def _sha256(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


def _remove_abandoned(folder: Path) -> None:
    """Removes what processes that were killed long ago left behind."""
    for left in folder.glob(f"{UNFINISHED}*"):
        with suppress(OSError):
            written = max(path.stat().st_mtime for path in (left, *left.iterdir()))
            if time.time() - written > ABANDONED_AFTER:
                shutil.rmtree(left, ignore_errors=True)
