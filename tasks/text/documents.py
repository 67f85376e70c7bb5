"""The one reader of a user's texts: plain text, JSON lines and Parquet, line by line; an error names its place.

A line ends with LF, CRLF or CR, and not at Unicode's other line separators. A byte order mark is no text.
"""

import glob
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from evalkit.disk import files as disk_files
from evalkit.disk.places import expanded

WHOLE = (".txt", ".tex", ".md")
SUFFIXES = (*WHOLE, ".jsonl", ".parquet")
HIDDEN = "."


class Document(NamedTuple):
    """One text and where it comes from: a file, or a file and the number of its row."""

    source: str
    text: str


class Entry(NamedTuple):
    """A row or a line: its number from 0, its place for an error message, and its value."""

    number: int
    where: str
    value: object


class _Tree(NamedTuple):
    """The files of text below a folder, and the hidden files and folders that are left out."""

    files: list[Path]
    hidden: list[Path]


def files_of(place: str) -> list[Path]:
    """Returns the text files at `place`, which is a file, a folder or a glob pattern, in the order of their names.

    Hidden files and folders below a folder are left out (`hidden_in`): editors keep copies there. Raises ValueError if
    there are no files, if a file is of another kind or its name no text, or if the folder may not be read.
    """
    if not place.strip():
        raise ValueError("no text is named; give a file, a folder or a pattern, such as books/*.txt")
    path = expanded(place)
    try:
        files = _files(path)
    except OSError as error:
        raise ValueError(f"{place} cannot be read ({error.strerror}); let it be read, or leave it out") from error
    if not files:
        state = "holds no" if path.is_dir() else "is no file, no folder and no pattern of"
        raise ValueError(f"{place} {state} {', '.join(SUFFIXES)}; give texts, such as books/*.txt")
    for file in files:
        _refuse_other(file, SUFFIXES)
        refuse_halves(str(file), f"the name {file}")  # reports name it
    return sorted(files)


def hidden_in(place: str) -> list[Path]:
    """The hidden files of text and hidden folders below the folder `place`, none of which is read."""
    path = expanded(place)
    return sorted(_below(path).hidden) if path.is_dir() else []


def read(place: str, field: str = "text") -> Iterator[Document]:
    """Yields the documents at `place`: each `.txt`, `.tex` or `.md` file, and of others each row, its text in `field`.

    A row whose text is null is skipped. Raises ValueError for what `files_of` refuses, a file that cannot be read or is
    no UTF-8, and a row without `field`.
    """
    for file in files_of(place):
        if file.suffix.lower() in WHOLE:
            yield Document(str(file), _whole(file))
            continue
        for entry in entries(file, field):
            text = text_of(entry, field)
            if text is not None:
                yield Document(f"{file}#{entry.number}", text)


def entries(file: Path, field: str | None = None) -> Iterator[Entry]:
    """Yields the rows of a `.jsonl` or `.parquet`, or the lines of a plain text or a pipe; blank lines are skipped.

    Of Parquet only the column `field` is read; None: all columns. Raises ValueError as `read` does.
    """
    _refuse_other(file, (*SUFFIXES, ""))
    return ENTRIES.get(file.suffix.lower(), _lines)(file, field)


def text_of(entry: Entry, field: str) -> str | None:
    """The text of a row, None where it is null; raises ValueError for a row that has none in `field`."""
    _, where, row = entry
    if not isinstance(row, Mapping) or field not in row:
        known: Sequence[str] = sorted(map(str, row)) if isinstance(row, Mapping) else []
        raise ValueError(f"{where}, has no text in {field!r}; it has {', '.join(known) or 'no fields'}")
    text = row[field]
    if text is None:
        return None
    if not isinstance(text, str):
        raise ValueError(f"{where}, has a {type(text).__name__} in {field!r}; allowed: text")
    refuse_halves(text, f"{where}, {field!r}")
    return text


def refuse_halves(text: str, where: str) -> None:
    """Raises ValueError for text with half a character in it, as JSON and words of another encoding may have."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{where} has half a character, number {error.start} ({error.reason}); mend it") from error


def first_line(error: BaseException) -> str:
    """What an error says, in one line."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if path.is_dir():
        return _below(path).files
    files = [Path(name) for name in glob.glob(str(path), recursive=True)]
    return [file for file in files if file.is_file()]


def _refuse_other(file: Path, suffixes: Sequence[str]) -> None:
    """Raises ValueError for a file whose suffix is not one of `suffixes`."""
    if file.suffix.lower() not in suffixes:
        raise ValueError(f"{file} is no text; allowed: {', '.join(SUFFIXES)}")


def _below(root: Path) -> _Tree:
    """Returns the tree below a folder, links followed, each folder once; raises ValueError for a broken link."""
    tree, entered = _Tree([], []), set[Path]()
    for folder, inner, names in os.walk(root, onerror=_raise, followlinks=True):
        here = Path(folder).resolve()
        if here in entered:
            inner.clear()
            continue
        entered.add(here)
        tree.hidden.extend(Path(folder, name) for name in inner if name.startswith(HIDDEN))
        inner[:] = sorted(name for name in inner if not name.startswith(HIDDEN))
        for file in (Path(folder, name) for name in names):
            is_hidden = file.name.startswith(HIDDEN)
            if not is_hidden and not file.exists():
                raise ValueError(f"{file} is a link to nothing; mend it, or take it away")
            if file.suffix.lower() in SUFFIXES and file.is_file():
                (tree.hidden if is_hidden else tree.files).append(file)
    return tree


def _raise(error: OSError) -> None:
    raise error


def _unreadable(file: Path, error: OSError) -> ValueError:
    return ValueError(f"{file} cannot be read ({error.strerror}); let it be read, or leave it out")


def _whole(file: Path) -> str:
    try:
        return disk_files.text_of(file)
    except OSError as error:
        raise _unreadable(file, error) from error


def _lines(file: Path, field: str | None = None) -> Iterator[Entry]:
    """One at a time, without its end."""
    number = -1
    try:
        with file.open("rb") as opened:
            for until_line_feed in opened:
                if number < 0:
                    disk_files.refuse_other(until_line_feed, file)
                for line in until_line_feed.splitlines():  # bytes, unlike str, are split at LF, CRLF and CR only
                    number += 1
                    try:
                        text = line.decode("utf-8-sig")
                    except UnicodeDecodeError as error:
                        raise disk_files.not_utf8(file, number, error) from error
                    if text.strip():
                        yield Entry(number, f"{file}, line {number + 1}", text)
    except OSError as error:
        raise _unreadable(file, error) from error


def _json_lines(file: Path, field: str | None) -> Iterator[Entry]:
    for number, where, line in _lines(file):
        try:
            yield Entry(number, where, json.loads(str(line)))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{where}, is not JSON ({error}); mend it or leave it out") from error


def _parquet(file: Path, field: str | None) -> Iterator[Entry]:
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(file) as table:
            names = table.schema_arrow.names
            known = field is None or field in names
            columns = None if field is None else [field]
            number = 0
            for batch in table.iter_batches(batch_size=64, columns=columns) if known else ():
                for row in batch.to_pylist():
                    yield Entry(number, f"{file}, row {number}", row)
                    number += 1
    except (OSError, ValueError) as error:
        raise ValueError(f"{file} cannot be read ({first_line(error)}); give another copy of it") from error
    if not known:
        raise ValueError(f"{file} has no column {field!r}; allowed: {', '.join(names)}")


ENTRIES: Mapping[str, Callable[[Path, str | None], Iterator[Entry]]] = {".jsonl": _json_lines, ".parquet": _parquet}
