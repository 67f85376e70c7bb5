"""Documents in files: plain text, JSON lines and Parquet, one at a time, what cannot be read named."""

import glob
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from evalkit.disk.places import expanded

WHOLE = (".txt", ".tex", ".md")
SUFFIXES = (*WHOLE, ".jsonl", ".parquet")


class Document(NamedTuple):
    """One text and where it comes from: a file, or a file and the number of its row."""

    source: str
    text: str


def files_of(place: str) -> list[Path]:
    """The files of text that `place`, a file, a folder or a glob pattern, stands for, in the order of their names.

    Raises ValueError if there are none, if a file is of another kind, or if the folder may not be read.
    """
    path = expanded(place)
    try:
        files = _files(path)
    except OSError as error:
        raise ValueError(f"{place} cannot be read ({error.strerror}); let it be read, or leave it out") from error
    if not files:
        state = "holds no" if path.is_dir() else "is no file, no folder and no pattern of"
        raise ValueError(f"{place} {state} {', '.join(SUFFIXES)}; give texts, such as books/*.txt")
    for file in files:
        if file.suffix.lower() not in SUFFIXES:
            raise ValueError(f"{file} is no text; allowed: {', '.join(SUFFIXES)}")
    return sorted(files)


def read(place: str, field: str = "text") -> Iterator[Document]:
    """The documents below `place`: a `.txt`, `.tex` or `.md` is one, of the others each row, its text in `field`.

    Raises ValueError for what `files_of` refuses, a file that cannot be read or is no UTF-8, a row without `field`.
    """
    for file in files_of(place):
        yield from READERS[file.suffix.lower()](file, field)


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if path.is_dir():
        walked = os.walk(path, onerror=_raise, followlinks=True)
        files = [Path(folder, name) for folder, _, names in walked for name in names]
        return [file for file in files if file.suffix.lower() in SUFFIXES and file.is_file()]
    files = [Path(name) for name in glob.glob(str(path), recursive=True)]
    return [file for file in files if file.is_file()]


def _raise(error: OSError) -> None:
    raise error


def _whole(file: Path, field: str) -> Iterator[Document]:
    try:
        text = file.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not UTF-8 at byte {error.start}; convert it, or leave it out") from error
    except OSError as error:
        raise ValueError(f"{file} cannot be read ({error.strerror}); let it be read, or leave it out") from error
    yield Document(str(file), text)


def _json_lines(file: Path, field: str) -> Iterator[Document]:
    for number, line in enumerate(_lines(file)):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{file}, line {number + 1}, is not JSON ({error}); mend it or leave it out") from error
        yield from _document(file, number, row, field)


def _lines(file: Path) -> Iterator[str]:
    """One at a time; only a line feed ends one, whatever else Unicode calls a line."""
    try:
        with file.open("rb") as lines:
            for number, line in enumerate(lines):
                yield line.decode("utf-8-sig" if number == 0 else "utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not UTF-8 in line {number + 1}; convert it, or leave it out") from error
    except OSError as error:
        raise ValueError(f"{file} cannot be read ({error.strerror}); let it be read, or leave it out") from error


def _parquet(file: Path, field: str) -> Iterator[Document]:
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(file) as table:
            names = table.schema_arrow.names
            texts = table.iter_batches(batch_size=64, columns=[field]) if field in names else None
            number = 0
            for batch in texts or ():
                for text in batch.column(0).to_pylist():
                    yield from _document(file, number, {field: text}, field)
                    number += 1
    except (OSError, ValueError) as error:
        if isinstance(error, Named):
            raise
        raise ValueError(f"{file} cannot be read ({first_line(error)}); give another copy of it") from error
    if texts is None:
        raise ValueError(f"{file} has no column {field!r}; allowed: {', '.join(names)}")


READERS: Mapping[str, Callable[[Path, str], Iterator[Document]]] = {
    **dict.fromkeys(WHOLE, _whole),
    ".jsonl": _json_lines,
    ".parquet": _parquet,
}


class Named(ValueError):
    """What is wrong with one row, said already."""


def _document(file: Path, number: int, row: object, field: str) -> Iterator[Document]:
    """The document of a row, none where its text is null; raises Named for a row that has no such field."""
    if not isinstance(row, Mapping) or field not in row:
        known: Sequence[str] = sorted(map(str, row)) if isinstance(row, Mapping) else []
        raise Named(f"{file}, row {number}, has no text in {field!r}; it has {', '.join(known) or 'no fields'}")
    text = row[field]
    if text is not None:
        if not isinstance(text, str):
            raise Named(f"{file}, row {number}, has a {type(text).__name__} in {field!r}; allowed: text")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise Named(f"{file}, row {number}, has half a character in {field!r} ({error.reason}); mend it") from error
        yield Document(f"{file}#{number}", text)


def first_line(error: BaseException) -> str:
    """What an error says, in one line."""
    return (str(error).splitlines() or [type(error).__name__])[0]
