"""Rows as tidy records, a flat dictionary each: what a data frame, a CSV file or a table of W&B takes."""

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from evalkit.core.errors import UserError
from evalkit.core.rows import Row, read, value

COLUMNS = (
    "folder",
    "run",
    "task",
    "model",
    "seed",
    "step",
    "split",
    "length",
    "position",
    "metric",
    "value",
    "sequences",
)
"""Columns of every record. None is named like a method of a data frame: a dot could not reach such a column."""
EXTRA = "extra_"
TOTAL, NON_FINITE = "value", ("nan", "inf", "-inf")  # in a row's `extra`, what its total was


def records(folders: Iterable[Path], split: str | None = None, metric: str | None = None) -> list[dict[str, Any]]:
    """The measurements of the runs in `folders`, in the order written; of one `split` or `metric`, where it is given.

    Each record has all of `COLUMNS`, and what else its row says as `extra_<name>`. `value` is the mean over
    `sequences`. Raises `UserError` naming the folder that has no record, and for a split or metric that is in none.
    """
    rows = [(entry, folder) for folder in folders for entry in read(folder).rows]
    for name, wanted in (("split", split), ("metric", metric)):
        known = sorted({str(entry[name]) for entry, _ in rows})
        if wanted is not None and wanted not in known:
            raise UserError(f"{name}={wanted!r} is in none of these runs; there is {', '.join(known) or 'nothing'}")
    return [
        _record(entry, folder)
        for entry, folder in rows
        if split in (None, entry["split"]) and metric in (None, entry["metric"])
    ]


def as_csv(table: Sequence[Mapping[str, Any]]) -> str:
    """One table of records; a column that only some of them have is empty in the others.

    >>> print(as_csv([{"seed": 0, "value": 0.5}, {"seed": 1, "value": None, "extra_right": [1, 2]}]), end="")
    seed,value,extra_right
    0,0.5,
    1,,"[1, 2]"
    """
    columns = list(dict.fromkeys(name for record in table for name in record))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _cell(cell) for name, cell in record.items()} for record in table)
    return text.getvalue()


def _record(entry: Row, folder: Path) -> dict[str, Any]:
    extra = dict(entry["extra"])
    lost = entry["total"] is None and extra.get(TOTAL) in NON_FINITE
    mean = float(extra.pop(TOTAL)) if lost else value(entry)
    known = {**entry, "folder": str(folder), "value": mean, "sequences": entry["count"]}
    more = {f"{EXTRA}{name}": content for name, content in extra.items()}
    return {name: known[name] for name in COLUMNS} | more


def _cell(cell: Any) -> Any:
    if isinstance(cell, float) and math.isnan(cell):
        return None
    return json.dumps(cell) if isinstance(cell, list | dict) else cell
