"""What W&B has of a run's record. A killed session loses the end of what it was given, offline up to 32 KiB.

So a session that did not end by itself counts for nothing: its rows are given again to the next one, and the files that
it left offline are set aside, where `wandb sync` does not find them. Each row is then in exactly one session's files.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from evalkit.core.rows import Header, Row, decode
from evalkit.disk.files import write_whole

if TYPE_CHECKING:
    import wandb

FILE = "wandb_sent.json"
OFFLINE, TORN = "offline-run-", "torn-run-"


@dataclass(frozen=True)
class Delivery:
    """What sessions have which ended by themselves: so many bytes of the record, and offline these folders.

    `ahead` are lines that they have and that were taken back from the record, to be written anew.
    """

    rows: int = 0
    sessions: Sequence[str] = ()
    ahead: Sequence[str] = ()


def resumed(folder: Path, root: Path, ids: Iterable[str]) -> Delivery:
    """What W&B has of the run in `folder`; the folders of other offline sessions, below `root`, are set aside.

    Of a run of before this was noted, W&B has all. Raises OSError, and ValueError for a file that was edited.
    """
    offline = [path for run_id in ids for path in (root / "wandb").glob(f"{OFFLINE}*-{run_id}*")]
    file, record = folder / FILE, folder / "metrics.jsonl"
    if file.is_file():
        found = Delivery(**json.loads(file.read_text(encoding="utf-8")))
    elif offline and record.is_file():
        found = Delivery(record.stat().st_size, [path.name for path in offline])
    else:
        found = Delivery()
    for path in offline:
        if path.name not in found.sessions and not any(path.glob("*.synced")):
            path.rename(path.with_name(path.name.replace(OFFLINE, TORN, 1)))
    write(folder, found)
    return found


def note(folder: Path, rows: int, runs: Iterable["wandb.Run"]) -> None:
    """Notes that sessions have ended by themselves, and have the first `rows` bytes of the record."""
    before = Delivery(**json.loads((folder / FILE).read_text(encoding="utf-8")))
    ended = [Path(run.settings.sync_dir).name for run in runs if run.offline]
    write(folder, Delivery(rows, [*before.sessions, *ended]))


def decoded(record: bytes) -> Iterator[Header | list[Row]]:
    """What was written together: the header, the rows of a dispatch, of a validation, each measurement at the end."""
    told = [decode(line) for line in record.splitlines()]
    yield from (entry for entry in told if isinstance(entry, Header))
    rows = [entry for entry in told if not isinstance(entry, Header)]
    for (split, _), found in groupby(rows, lambda entry: (entry["split"], entry["step"])):
        together = list(found)
        yield from ([entry] for entry in together) if split == "test" else [together]


def taken_back(delivery: Delivery, record: bytes, offset: int) -> Delivery:
    """The same of a record that is cut after `offset` bytes: what W&B has of the rest lies ahead."""
    lines = record[offset : delivery.rows].decode().split("\n")[:-1]
    return replace(delivery, rows=min(delivery.rows, offset), ahead=[*lines, *delivery.ahead])


def write(folder: Path, delivery: Delivery) -> None:
    """Notes what W&B has; raises OSError."""
    write_whole(folder / FILE, json.dumps(asdict(delivery), indent=2) + "\n")
