"""`python -m evalkit task=books checkpoint=…`: loss by position on text of a checkpoint, with its own tokenizer.

Its configuration is `conf/texts.yaml`; its folder has what a run on text has, but for what training leaves.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from evalkit.checkpoints import pretrained
from evalkit.configuration import experiment as config_of
from evalkit.configuration.experiment import FORMATS
from evalkit.core.batches import Reread, feed_of, refuse_unreachable
from evalkit.core.contracts import Pretrained, Texts, Trained
from evalkit.core.errors import UserError
from evalkit.core.rows import row
from evalkit.evaluations.loss_by_position import LossByPosition
from evalkit.record.progress import EvaluationProgress
from evalkit.record.tracking import WandbSettings
from evalkit.reports.accuracy.report import report
from evalkit.session import on_checkpoint

CONFIG = "texts"


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
    refuse_unreachable(settings.task.streamed)
    held = pretrained.load_for_text(settings.checkpoint, settings.dtype)
    feed = Reread(settings.task, held.tokenizer)
    feed.prepare()
    notes = _refuse_trained_on(settings, feed)
    on_checkpoint.describe(folder, config)
    return _evaluate(settings, held, feed, config, folder, notes)


def _refuse_trained_on(settings: OnText, feed: Reread) -> list[str]:
    """Raises UserError if the checkpoint is a run of ours on these very texts; says what could not be looked at."""
    path = Path(settings.checkpoint).expanduser() / "config.yaml"
    unknown = feed.refuse_trained_on(feed_of(config_of.from_file(path).task)) if path.is_file() else None
    return [] if unknown is None else [unknown]


def _evaluate(
    settings: OnText,
    held: Pretrained,
    feed: Reread,
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
    with on_checkpoint.recorded(
        folder, config, settings.wandb, task=settings.task_name, model=name, train_length=held.train_length
    ) as record:
        more = {"notes": limits[1:], "text": feed.facts()}
        record.write([on_checkpoint.facts(held, make_row, more)])
        with EvaluationProgress(console, evaluation.pieces, "evaluation") as progress:
            trained = Trained(
                task=settings.task,
                model=held.model,
                params=[held.params],
                seeds=[0],
                step=None,
                make_row=make_row,
                check_interrupt=_nothing,
                progress=progress,
                feed=feed,
                tokenizer=held.tokenizer,
                train_length=held.train_length,
            )
            for entry in evaluation.run(trained):
                record.write([entry])
    summary = report(folder, console)
    if settings.format == "json":
        print(json.dumps({**summary, "folder": str(folder)}, allow_nan=False), file=sys.stdout)
    return 0


def _nothing() -> None:
    """A signal ends the process: nothing is lost that a new start would not measure again."""
