"""Sends a run's rows to Weights & Biases: `metrics.jsonl` stays the record, and no failure here stops a run."""

import json
import logging
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalkit.core.errors import UserError, first_line
from evalkit.core.network import answers
from evalkit.core.rows import Header

if TYPE_CHECKING:
    import wandb

logger = logging.getLogger(__name__)

MODES = ("auto", "online", "offline", "disabled")
AXES = {"train/*": "train/step", "validation/*": "train/step", "extrapolation/*": "eval/length"}
IDS = "wandb.json"
ANSWER_SECONDS = 3.0
INIT_SECONDS = 15.0
# An upload that hangs at the end must not hold a machine: the data stays in the run's folder, for `wandb sync`.
FINISH_SECONDS = 120.0


@dataclass(frozen=True)
class WandbSettings:
    """A user's settings of W&B; raises UserError for an unknown mode.

    `online` logs online where an API key is configured and the server answers, and offline otherwise. `auto` is
    `online` unless WANDB_MODE or `wandb offline` says something else.

    >>> WandbSettings(mode="offline", tags=["fig6b"]).project
    'evalkit'
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
    """One W&B run a seed; W&B's files lie in `folder/wandb`, the runs' ids in `folder/wandb.json`.

    Opening the same folder again continues the same runs. Validation rows at other lengths than `train_length` get
    names of their own. The first error inside W&B becomes one warning, after which nothing more is sent.
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
        name = f"{model}-{task}"
        shared = {
            "project": settings.project,
            "entity": settings.entity,
            "group": settings.group or f"{name}-{folder.name}",
            "tags": list(settings.tags),
            "dir": str(folder),
        }
        facts = {seed: {**shared, "name": f"{name}-s{seed}", "config": {**config, "seed": seed}} for seed in seeds}
        with self._at_most_one_warning():
            mode = _resolve(settings.mode)
            if mode != "disabled":
                self._start(mode, facts, folder / IDS)

    def begin(self, header: Header) -> None:
        """Sends the number of parameters to every run."""
        with self._at_most_one_warning():
            for run in self._runs.values():
                run.log({"parameters": header.parameters})

    def write(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Sends each row to its seed's run, and rows without a seed to every run.

        Rows by position and rows without a value (`count == 0`) stay in `metrics.jsonl` only.
        """
        with self._at_most_one_warning():
            for seed, entry in _history(rows, list(self._runs), self._train_length):
                self._runs[seed].log(entry)

    def finish(self, exit_code: int = 0) -> None:
        """Closes every run; a non-zero `exit_code` marks it as failed."""
        with self._at_most_one_warning():
            for run in self._runs.values():
                run.finish(exit_code=exit_code)
        self._runs = {}

    @contextmanager
    def _at_most_one_warning(self) -> Iterator[None]:
        """Turns an error in the block into a warning, and sends nothing more."""
        try:
            yield
        except Exception as error:
            logger.warning("W&B failed and gets nothing more; metrics.jsonl goes on: %s", first_line(error))
            self._runs = {}

    def _start(self, mode: str, facts: Mapping[int, Mapping[str, Any]], file: Path) -> None:
        """Opens a run for each seed; `file` keeps their ids."""
        ids: dict[str, str] = json.loads(file.read_text()) if file.exists() else {}
        ids |= {str(seed): ids.get(str(seed)) or secrets.token_hex(4) for seed in facts}
        file.write_text(json.dumps(ids, indent=2) + "\n")  # before the runs open, in case the process is killed then
        for seed, own in facts.items():
            run = self._runs[seed] = _open(mode, ids[str(seed)], own)
            ids[str(seed)] = run.id
            if run.offline:  # where one seed was refused, the others are not tried online
                mode = "offline"
        file.write_text(json.dumps(ids, indent=2) + "\n")


def _resolve(mode: Any) -> str:
    """Returns the mode to open runs in; warns where that is offline against the user's wish. Never prompts."""
    import wandb

    # Silent from the start: otherwise looking for the key prints, and waits for the server.
    chosen = wandb.Settings(silent=True) if mode == "auto" else wandb.Settings(silent=True, mode=mode)
    settings = wandb.setup(chosen).settings
    if settings.mode in ("offline", "disabled"):
        return settings.mode
    if not wandb.login(prompt=False, verify=False):
        _warn_offline("no API key is configured (wandb login)")
    elif not answers(settings.base_url, ANSWER_SECONDS):
        _warn_offline(f"{settings.base_url} does not answer")
    else:
        return "online"
    return "offline"


def _warn_offline(reason: str) -> None:
    logger.warning("W&B logs offline: %s; upload the run later with wandb sync", reason)


def _open(mode: Any, run_id: str, facts: Mapping[str, Any]) -> "wandb.Run":
    """Opens one run, offline where online is refused."""
    import wandb

    settings = wandb.Settings(silent=True, console="off", init_timeout=INIT_SECONDS, finish_timeout=FINISH_SECONDS)
    fixed: dict[str, Any] = {"job_type": "train", "resume": "allow", "reinit": "create_new", "settings": settings}
    try:
        run = wandb.init(**facts, **fixed, id=run_id, mode=mode)
    except Exception as error:
        if mode != "online":
            raise
        _warn_offline(first_line(error))
        # A new id, because W&B keeps the refused one for itself until the process ends.
        return _open("offline", secrets.token_hex(4), facts)
    for axis in set(AXES.values()):
        run.define_metric(axis, hidden=True)
    for names, axis in AXES.items():
        run.define_metric(names, step_metric=axis)
    return run


def _history(
    rows: Iterable[Mapping[str, Any]], seeds: Sequence[int], train_length: int
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields the entries to log, each with its seed: rows that share a point on the x axis make one entry."""
    points: dict[tuple[int, str, int | None], dict[str, Any]] = {}
    for row in rows:
        if not row["count"] or row["total"] is None or row["position"] is not None:
            continue
        name, axis, where = _point(row, train_length)
        for seed in seeds:
            if row["seed"] in (None, seed):
                point = points.setdefault((seed, axis, where), {} if where is None else {axis: where})
                point[name] = row["total"] / row["count"]
    yield from ((seed, point) for (seed, _, _), point in points.items())


def _point(row: Mapping[str, Any], train_length: int) -> tuple[str, str, int | None]:
    """Returns the W&B name of a row's metric, the name of its x axis, and where on it the row lies."""
    split, metric, length = row["split"], row["metric"], row["length"]
    if split == "test":
        return f"extrapolation/{metric}", "eval/length", length
    if split == "validation" and length != train_length:
        return f"validation/{metric}@{length}", "train/step", row["step"]
    if split in ("train", "validation"):
        return f"{split}/{metric}", "train/step", row["step"]
    return metric, "", None
