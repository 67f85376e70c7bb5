"""`python -m evalkit task=books checkpoint=…`: loss by position on text of a checkpoint, with its own tokenizer.

Its configuration is `conf/texts.yaml`; its folder has what a run on text has, but for what training leaves.
"""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console

from evalkit.checkpoints import pretrained
from evalkit.checkpoints.pretrained import Pretrained
from evalkit.configuration import experiment as config_of
from evalkit.configuration.experiment import FORMATS
from evalkit.core import batches as feeds
from evalkit.core.contracts import Texts
from evalkit.core.errors import UserError
from evalkit.core.rows import TEXT, row
from evalkit.evaluations.loss_by_position import LossByPosition, Subject, score
from evalkit.record import text_rows
from evalkit.record.progress import EvaluationProgress
from evalkit.record.tracking import WandbSettings
from evalkit.reports.writer import report
from evalkit.session import on_checkpoint
from evalkit.tasks.text.tokenizers import Tokenizer

CONFIG = "texts"


class Held(NamedTuple):
    """A held-out document in a checkpoint's own tokens."""

    tokens: np.ndarray
    size: int
    source: str
    content: str
    """Its SHA-256."""


@dataclass(frozen=True)
class OnText:
    """What `conf/texts.yaml` says, built; raises UserError for a value that cannot be."""

    checkpoint: str
    dtype: str
    task: Texts
    eval: LossByPosition
    preset: str
    task_name: str
    data: dict[str, Any]
    format: str
    wandb: WandbSettings

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise UserError(f"format={self.format!r}; allowed: {', '.join(FORMATS)}")


def main(overrides: Sequence[str]) -> int:
    """Evaluates a checkpoint in a new folder and returns the exit code. Raises UserError."""
    named = [f"task_name={text.partition('=')[2]}" for text in overrides if text.startswith("task=")]
    config, folder = on_checkpoint.composed(CONFIG, [*overrides, *named], OnText)
    on_checkpoint.refuse_used(folder)
    settings = OnText(**{**config, **{name: config_of.build(config, name) for name in ("task", "eval", "wandb")}})
    feeds.refuse_unreachable(settings.task.streamed)
    held = pretrained.load_for_text(settings.checkpoint, settings.dtype)
    try:
        documents = list(documents_of(settings.task, held.tokenizer))
    except ValueError as error:
        raise UserError(str(error)) from error
    if not documents:
        raise UserError(f"no held-out text in {settings.task.origin}; give data.path=FOLDER with files held-out-*.txt")
    notes = _refuse_trained_on(settings, documents)
    on_checkpoint.describe(folder, config)
    return _evaluate(settings, held, documents, config, folder, notes)


def documents_of(task: Texts, tokenizer: Tokenizer) -> Iterator[Held]:
    """The held-out documents in the tokens of `tokenizer`, in whose file it says what begins a text."""
    for document in task.texts():
        if document.text.strip():
            text = document.text.encode()
            tokens = np.asarray(tokenizer.encode(document.text), np.int32)
            yield Held(tokens, len(text), document.source, sha256(text).hexdigest())


def _refuse_trained_on(settings: OnText, documents: Sequence[Held]) -> list[str]:
    """Raises UserError if the checkpoint is a run of ours on these very texts; says what could not be looked at."""
    path = Path(settings.checkpoint).expanduser() / "config.yaml"
    before = config_of.from_file(path).task if path.is_file() else None
    if before is None or not feeds.is_text(before):
        return []
    unknown = feeds.refuse_trained_on(before, settings.task, [document.content for document in documents])
    return [] if unknown is None else [unknown]


def _evaluate(
    settings: OnText,
    held: Pretrained,
    documents: Sequence[Held],
    config: Mapping[str, Any],
    folder: Path,
    notes: Sequence[str],
) -> int:
    console = Console(stderr=settings.format == "json")
    name, evaluation = Path(settings.checkpoint).name, settings.eval
    make_row = partial(row, run=folder.name, task=settings.task_name, model=name)
    limits = [f"held-out text: {settings.task.origin}", *notes, *evaluation.limits(held.model)]
    for line in limits:
        console.print(line, soft_wrap=True)
    subject = Subject(partial(make_row, seed=0, split="test"), partial(score, held, evaluation.chunk, _nothing))
    with on_checkpoint.recorded(
        folder, config, settings.wandb, task=settings.task_name, model=name, train_length=held.train_length
    ) as record:
        header = on_checkpoint.header(held, folder.name, settings.task_name, name, TEXT)
        record.begin(replace(header, notes=limits[1:], text=_text(documents, settings.task.origin)))
        with EvaluationProgress(console, evaluation.pieces, "evaluation") as progress:
            done = lambda tokens: progress.describe(tokens, 1, 1)  # noqa: E731
            for entry in evaluation.measure(documents, [subject], held.model, held.train_length, done):
                record.write([entry])
    summary = report(folder, console)
    if settings.format == "json":
        print(json.dumps({**summary, "folder": str(folder)}, allow_nan=False), file=sys.stdout)
    return 0


def _nothing() -> None:
    """A signal ends the process: nothing is lost that a new start would not measure again."""


def _text(documents: Sequence[Held], origin: str) -> dict[str, str]:
    """The held-out texts in words, as tokens, and whatever their tokens."""
    size = sum(document.size for document in documents)
    return {
        "used": f"held-out text: {origin} ({len(documents)} documents, {size / 1e6:,.1f} MB)",
        "digest": sha256(b"".join(document.tokens.tobytes() for document in documents)).hexdigest(),
        "held_out": text_rows.digest_of([document.content for document in documents]),
    }
