"""The package of a user's own that docs/extending.md makes."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "extending.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"^`(\S+)`:\n\n```\w+\n(.*?)```", PAGE, flags=re.DOTALL | re.MULTILINE))


@contextmanager
def made(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Within, the files of the page are in the working directory, and its package can be imported."""
    for name, text in {**FILES, "mine/__init__.py": ""}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    for name in [name for name in sys.modules if name.split(".")[0] == "mine"]:
        del sys.modules[name]
