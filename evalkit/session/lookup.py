"""`python -m evalkit task=phonebook checkpoint=…`: phonebook lookup in text on a checkpoint (De et al. 2024, fig. 6c).

Its configuration is `conf/lookup.yaml`; its folder has `metrics.jsonl`, `results.json`, `lookup.png` and `config.yaml`.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from rich.console import Console

from evalkit.checkpoints import pretrained
from evalkit.checkpoints.pretrained import Pretrained
from evalkit.configuration import experiment as config_of
from evalkit.configuration.experiment import FORMATS
from evalkit.core.errors import UserError
from evalkit.core.rows import FILE, PHONEBOOK, Record, Row, offset_after, read, row
from evalkit.evaluations.phonebook import Book, Retrieval
from evalkit.record.phonebook_rows import ALL, METRICS
from evalkit.record.progress import EvaluationProgress
from evalkit.record.tracking import WandbSettings
from evalkit.reports.writer import report
from evalkit.session import on_checkpoint

CONFIG, TASK = "lookup", "phonebook_lookup"


@dataclass(frozen=True)
class Lookup:
    """What `conf/lookup.yaml` says, built; raises UserError for a value that cannot be."""

    checkpoint: str
    dtype: str
    book: Book
    lengths: list[int]
    prompts: int
    new_tokens: int
    batch_size: int
    chunk: int
    cache_gib: float
    format: str
    wandb: WandbSettings

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise UserError(f"format={self.format!r}; allowed: {', '.join(FORMATS)}")
        _ = self.retrieval  # which refuses what it cannot do

    @property
    def retrieval(self) -> Retrieval:
        """The evaluation; raises ValueError for a value that cannot be."""
        return Retrieval(
            self.book, self.lengths, self.prompts, self.new_tokens, self.batch_size, self.chunk, self.cache_gib
        )


def main(overrides: Sequence[str]) -> int:
    """Evaluates a checkpoint in a new folder and returns the exit code. Raises UserError."""
    config, folder = on_checkpoint.composed(CONFIG, overrides, Lookup)
    on_checkpoint.refuse_used(folder)
    settings = build(config)
    held = pretrained.load_for_text(settings.checkpoint, settings.dtype)
    on_checkpoint.describe(folder, config)
    return _evaluate(settings, held, config, folder)


def resume(folder: Path, overrides: Sequence[str]) -> int:
    """Goes on with the evaluation in `folder`: lengths that are done stay. Raises UserError for another setting."""
    if overrides:
        raise UserError(f"{overrides[0]!r}: a lookup goes on with its own settings; leave it out")
    config: Any = OmegaConf.to_container(OmegaConf.load(folder / "config.yaml"))
    if "book" not in config:
        raise UserError(f"{folder} is a run of lm-eval's tasks, which begin anew: give task=downstream checkpoint=…")
    settings = build(config)
    held = pretrained.load_for_text(settings.checkpoint, settings.dtype)
    begun = _kept(folder)
    if begun is not None and begun.header.identity != held.identity:
        raise UserError(f"{settings.checkpoint} is another model than {folder} began with; start a new run")
    return _evaluate(settings, held, config, folder)


def build(config: Mapping[str, Any]) -> Lookup:
    """The settings of a plain configuration; raises UserError with the key that is wrong."""
    built = {name: config_of.build(config, name) for name in ("book", "wandb")}
    try:
        return Lookup(**{**config, **built})
    except ValueError as error:
        raise UserError(str(error)) from error


def _evaluate(settings: Lookup, held: Pretrained, config: Mapping[str, Any], folder: Path) -> int:
    console = Console(stderr=settings.format == "json")
    name = Path(settings.checkpoint).name
    make_row = partial(row, run=folder.name, task=TASK, model=name)
    kept = _kept(folder)
    done = set() if kept is None else {entry["length"] for entry in kept.rows if entry["length"] is not None}
    offset = 0 if kept is None else offset_after(folder, len(kept.rows))
    with on_checkpoint.recorded(
        folder, config, settings.wandb, task=TASK, model=name, train_length=held.train_length, offset=offset
    ) as record:
        if kept is None:
            header = on_checkpoint.header(held, folder.name, TASK, name, PHONEBOOK)
            record.begin(replace(header, digest=held.digest))
        with EvaluationProgress(console, len(set(settings.lengths) - done), "phonebook") as progress:
            try:
                for entries in settings.retrieval.run(held, make_row, progress.describe, done=done):
                    record.write(entries)
            except ValueError as error:
                raise UserError(str(error)) from error
    _report(folder, console, settings.format)
    return 0


def _kept(folder: Path) -> Record | None:
    """The record of an earlier start up to the last length that it finished; None where none was begun."""
    if not (folder / FILE).is_file() or not (folder / FILE).stat().st_size:
        return None
    header, rows = read(folder)
    ends = [number for number, entry in enumerate(rows) if _completes(entry)]
    return Record(header, rows[: ends[-1] + 1] if ends else [])


def _completes(entry: Row) -> bool:
    """Whether it is the last row of a length."""
    return entry["metric"] == METRICS[-1] and entry["extra"].get("answer") == ALL


def _report(folder: Path, console: Console, output: str) -> None:
    found = report(folder, console)
    console.print(f"folder: {folder}", markup=False, highlight=False, soft_wrap=True)
    if output == "json":
        print(json.dumps({**found, "folder": str(folder)}, allow_nan=False), file=sys.stdout)
