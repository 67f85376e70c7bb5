"""Weights & Biases as one more reader of the rows: `metrics.jsonl` stays the record, and no failure here stops a run."""

import json
import logging
import secrets
import threading
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalkit.errors import UserError

if TYPE_CHECKING:
    import wandb

logger = logging.getLogger(__name__)

MODES = ("auto", "online", "offline", "disabled")
AXES = {"train/*": "train/step", "validation/*": "train/step", "extrapolation/*": "eval/length"}
ANSWER_SECONDS = 3.0
INIT_SECONDS = 15.0
# An upload that hangs at the end must not hold a machine: the data stays in the run's folder, for `wandb sync`.
FINISH_SECONDS = 120.0


@dataclass(frozen=True)
class WandbSettings:
    """What a user may say about W&B; raises UserError for an unknown mode.

    `auto` is online where an API key is configured and the server answers, and offline otherwise; a mode set by
    WANDB_MODE or `wandb offline` wins over `auto`.
    """

    mode: str = "auto"
    project: str = "evalkit"
    entity: str | None = None
    group: str | None = None
    tags: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise UserError(f"wandb.mode={self.mode!r} is not known; choose one of {', '.join(MODES)}")
        if isinstance(self.tags, str):
            raise UserError(f"wandb.tags={self.tags!r} is one word; give a list, such as wandb.tags=[{self.tags}]")


class WandbLog:
    """One W&B run a seed, fed from rows; W&B's files lie in `folder/wandb`, the runs' ids in `folder/wandb.json`.

    Opening the same folder again continues the same runs. Validation rows at other lengths than `train_length` get
    names of their own. Whatever goes wrong inside W&B becomes one warning, after which nothing more is sent.
    """

    def __init__(
        self,
        settings: WandbSettings,
        folder: Path,
        config: Mapping[str, Any],
        *,
        seeds: Sequence[int],
        task: str,
        model: str,
        train_length: int,
    ) -> None:
        self._train_length = train_length
        self._runs: dict[int, wandb.Run] = {}
        if settings.mode == "disabled":
            return
        try:
            mode = _resolve(settings.mode)
            if mode != "disabled":
                ids = _ids(folder / "wandb.json", seeds)
                for seed in seeds:
                    shared = {
                        "project": settings.project,
                        "entity": settings.entity,
                        "group": settings.group or f"{model}-{task}-{folder.name}",
                        "tags": list(settings.tags),
                        "name": f"{model}-{task}-s{seed}",
                        "config": {**config, "seed": seed},
                    }
                    self._runs[seed], mode = _open(mode, folder, ids[seed], shared)
        except Exception as error:
            self._give_up(error)

    def write(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Sends each row to its seed's run, and rows without a seed to every run.

        Rows by position and rows without a value (`count == 0`) stay in `metrics.jsonl` only.
        """
        if not self._runs:
            return
        try:
            for seed, entries in _history(rows, list(self._runs), self._train_length).items():
                for entry in entries:
                    self._runs[seed].log(entry)
        except Exception as error:
            self._give_up(error)

    def finish(self, exit_code: int = 0) -> None:
        """Closes every run; a non-zero `exit_code` marks it as failed."""
        try:
            for run in self._runs.values():
                run.finish(exit_code=exit_code)
        except Exception as error:
            self._give_up(error)
        self._runs = {}

    def _give_up(self, error: Exception) -> None:
        logger.warning("W&B failed and gets nothing more; metrics.jsonl goes on: %s", _first_line(error))
        self._runs = {}
