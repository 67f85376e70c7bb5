"""Adds finished runs to a study: their records and what their other files say, without parameters and figures."""

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock

from evalkit.core import rows, studies
from evalkit.core.errors import UserError, writing
from evalkit.disk.files import write_whole
from evalkit.record.files import RESULTS

FILES = ("config.yaml", "environment.json", "history.json", "timing.json")
"""What is kept of a run beside its rows; its results and figures follow from these."""
LOCK = ".lock"


def finished(run: Path) -> bool:
    """Whether a run has its results; what was packed had them."""
    return (run / RESULTS).is_file() or studies.packed(run) is not None


def add(study: Path, runs: Mapping[str, Path]) -> list[str]:
    """Packs `runs` into `study` and returns the new names; raises UserError for unfinished or other runs of a name.

    Another process that packs into the same study is waited for.
    """
    for run in runs.values():
        if not finished(run):
            raise UserError(f"{run} is not finished; go on with it by resume={run} first")
    with writing(study):
        study.mkdir(parents=True, exist_ok=True)
        lock = FileLock(study / LOCK)
        lock.acquire()
    try:
        return _added(study, runs)
    finally:
        lock.release()


def _added(study: Path, runs: Mapping[str, Path]) -> list[str]:
    """As `add`, while no other process packs into the study."""
    held = studies.runs_of(study)
    entries: dict[str, Any] = {
        name: {studies.ROWS: [packed.at, packed.size], **packed.files} for name, packed in held.items()
    }
    end = max((packed.at + packed.size for packed in held.values()), default=0)
    members, added = [], []
    for name, run in runs.items():
        record, files = rows.record_bytes(run), _files(run)
        if name in held:
            if (rows.record_bytes(study / name), held[name].files) != (record, files):
                raise UserError(f"{study} has another run of the name {name}; give it another folder, --into=FOLDER")
            continue
        members.append(gzip.compress(record, mtime=0))
        entries[name] = {studies.ROWS: [end, len(members[-1])], **files}
        end += len(members[-1])
        added.append(name)
    if added:
        _write(study, members, entries)
    return added


def _write(study: Path, members: list[bytes], entries: Mapping[str, Any]) -> None:
    """Writes the rows first: after a kill, the next call cuts off the rows that `runs.json` does not name."""
    path = study / studies.ROWS
    new = sum(map(len, members))
    total = max(at + size for at, size in (entry[studies.ROWS] for entry in entries.values()))
    lines = ",\n".join(
        f"{json.dumps(name)}: {json.dumps(entry, ensure_ascii=False)}" for name, entry in entries.items()
    )
    with writing(study):
        before = path.read_bytes()[: total - new] if path.is_file() else b""
        write_whole(path, before + b"".join(members))
        write_whole(study / studies.RUNS, f"{{\n{lines}\n}}\n")


def _files(run: Path) -> dict[str, Any]:
    """The contents of a run's files; raises UserError for a file whose content JSON cannot hold."""
    contents = {}
    for name in FILES:
        try:
            content = studies.content(run / name)
            if content != json.loads(json.dumps(content, allow_nan=False)):
                raise ValueError("JSON cannot hold it")
        except (ValueError, TypeError, RecursionError) as error:
            raise UserError(f"{run / name} cannot be packed: {error}") from error
        if content is not None:
            contents[name] = content
    return contents
