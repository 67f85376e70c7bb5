"""Reads a study: the finished runs of a folder, packed into two files beside its pages.

`rows.jsonl.gz` has their records, one gzip member a run, byte for byte; `zcat` shows them all. `runs.json` has a line a
run: its name, where in `rows.jsonl.gz` its record lies, and what its other files say. Code that reads a run also
reads a packed one, by the folder that it would have in the study, such as `studies/synthetic/fig6b/hawk`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from io import StringIO
from pathlib import Path, PurePosixPath
from typing import Any, cast

import yaml
from yaml import AliasEvent

from evalkit.core.errors import UserError, first_line, reading
from evalkit.disk.files import text_of

ROWS, RUNS = "rows.jsonl.gz", "runs.json"


@dataclass(frozen=True)
class Packed:
    """A run in a study: its record is `size` bytes of `rows.jsonl.gz` from `at` on; `files` has its other files."""

    study: Path
    at: int
    size: int
    files: Mapping[str, Any]

    def record(self) -> bytes:
        """Its record, as gzip. Raises UserError where the file of records cannot be read."""
        path = self.study / ROWS
        with reading(path), path.open("rb") as file:
            file.seek(self.at)
            return file.read(self.size)


def study_of(folder: Path) -> Path | None:
    """The study that `folder` is, or lies in; None where there is none."""
    return next((place for place in (folder, *folder.parents) if (place / RUNS).is_file()), None)


def packed(run: Path) -> Packed | None:
    """The packed run of this folder, None where there is none. Raises UserError for a study that is damaged."""
    study = study_of(run)
    return None if study is None else runs_of(study).get(run.relative_to(study).as_posix())


def runs_of(study: Path) -> dict[str, Packed]:
    """The runs of a study by name, in the order in which they were added; none where `study` is no study yet."""
    path = study / RUNS
    if not path.is_file():
        return {}
    state = path.stat()
    return _index(path, state.st_mtime_ns, state.st_size)


def packed_below(folder: Path) -> list[Path]:
    """The folders of the packed runs in `folder`, which is a study, lies in one, or holds some."""
    study = study_of(folder)
    if study is None:
        return [path.parent / name for path in sorted(folder.rglob(RUNS)) for name in runs_of(path.parent)]
    part = PurePosixPath(folder.relative_to(study))
    return [study / name for name in runs_of(study) if PurePosixPath(name).is_relative_to(part)]


def content(path: Path) -> Any:
    """The plain data of a run's YAML or JSON file, None where there is none; raises ValueError for other text.

    All readers of a packed run share one copy of its data.
    """
    if not path.is_file():
        run = packed(path.parent)
        return None if run is None else run.files.get(path.name)
    text = text_of(path)
    return json.loads(text) if path.suffix == ".json" else _yaml(text)


def _yaml(text: str) -> Any:
    """The plain data of YAML without aliases: a few lines of nested aliases would fill all memory."""
    from omegaconf import OmegaConf  # a machine that only times programs has none
    from omegaconf.errors import OmegaConfBaseException

    try:
        if "*" in text and any(isinstance(event, AliasEvent) for event in yaml.parse(text, Loader=yaml.SafeLoader)):
            raise ValueError("it has an alias (*name), which no saved configuration has; write what it stands for")
        return OmegaConf.to_container(OmegaConf.load(StringIO(text)))
    except (OmegaConfBaseException, yaml.YAMLError) as error:
        raise ValueError(first_line(error)) from error


@lru_cache(maxsize=16)
def _index(path: Path, *_: int) -> dict[str, Packed]:
    """The runs that the file names; the time and size of the file are there for the cache."""
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
        return {name: _packed(path.parent, entry) for name, entry in entries.items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UserError(f"{path} is no study's list of runs ({first_line(error)}): it was damaged or edited") from error


def _packed(study: Path, entry: Mapping[str, Any]) -> Packed:
    at, size = entry[ROWS]
    if type(at) is not int or type(size) is not int or min(at, size) < 0:
        raise ValueError(f"{ROWS} {[at, size]}")
    return Packed(study, at, size, cast(Mapping[str, Any], {name: x for name, x in entry.items() if name != ROWS}))
