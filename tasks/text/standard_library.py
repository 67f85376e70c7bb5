"""Text that is always there: the source of Python's own standard library."""

import hashlib
import os
import platform
import sysconfig
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from evalkit.tasks.text.documents import Document

SMALLEST = 20_000  # bytes
HELD_OUT = 5  # one file in so many
# Other people's packages, files that an installation writes itself, and tables of characters, which are alike.
LEFT_OUT = ("site-packages", "dist-packages", "encodings")
WRITTEN = "_sysconfigdata"


def name() -> str:
    """What this text is called."""
    version = ".".join(platform.python_version_tuple()[:2])
    return f"the source of Python {version}'s standard library"


def documents(held_out: bool) -> Iterator[Document]:
    """Yields the larger files in the order of their names; a file's name alone decides whether it is held out.

    Tests are left out, and files that are not UTF-8. Raises ValueError if Python was installed without its source.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    any_text = False
    for file in sorted(_files(root)):
        source = file.relative_to(root).as_posix()
        if is_held_out(source) != held_out:
            continue
        with suppress(UnicodeDecodeError):
            text = file.read_bytes().decode()
            any_text = True
            yield Document(source, text)
    if not any_text:
        raise ValueError(f"there is no source of Python's standard library in {root}; give data.path=FOLDER with texts")


def is_held_out(source: str) -> bool:
    """Whether the file of this name is held out: about one in five."""
    return hashlib.sha256(source.encode()).digest()[-1] % HELD_OUT == 0


def _files(root: Path) -> Iterator[Path]:
    for folder, inner, names in os.walk(root):
        inner[:] = [each for each in inner if each not in LEFT_OUT and "test" not in each]
        files = [Path(folder, each) for each in names if each.endswith(".py") and not each.startswith(WRITTEN)]
        yield from (file for file in files if file.is_file() and file.stat().st_size >= SMALLEST)
