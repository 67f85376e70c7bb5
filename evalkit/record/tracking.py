"""Weights & Biases as another reader of the rows: `metrics.jsonl` stays the record, and no failure here stops a run."""

import json
import logging
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from evalkit.core.errors import UserError
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
    """What a user may say about W&B; raises UserError for an unknown mode.

    Online means: where an API key is configured and the server answers, and offline otherwise. `auto` is online unless
    WANDB_MODE or `wandb offline` says something else.
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
                self._start(mode, settings, folder, config, seeds, f"{model}-{task}")
        except Exception as error:
            self._give_up(error)

    def begin(self, header: Header) -> None:
        """Sends the number of parameters to every run."""
        try:
            for run in self._runs.values():
                run.log({"parameters": header.parameters})
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

    def _start(
        self,
        mode: str,
        settings: WandbSettings,
        folder: Path,
        config: Mapping[str, Any],
        seeds: Sequence[int],
        name: str,
    ) -> None:
        ids = _known_ids(folder)
        ids |= {str(seed): ids.get(str(seed)) or secrets.token_hex(4) for seed in seeds}
        _remember(folder, ids)
        for seed in seeds:
            shared = {
                "project": settings.project,
                "entity": settings.entity,
                "group": settings.group or f"{name}-{folder.name}",
                "tags": list(settings.tags),
                "name": f"{name}-s{seed}",
                "config": {**config, "seed": seed},
            }
            self._runs[seed], mode = _open(mode, folder, ids[str(seed)], shared)
            ids[str(seed)] = self._runs[seed].id
        _remember(folder, ids)

    def _give_up(self, error: Exception) -> None:
        logger.warning("W&B failed and gets nothing more; metrics.jsonl goes on: %s", _first_line(error))
        self._runs = {}


def _resolve(mode: str) -> str:
    """The mode to open runs in; where that is offline against expectation, says why. Asks nothing of the user."""
    import wandb

    # Silent from the start: otherwise looking for the key prints, and waits for the server.
    chosen = wandb.Settings(silent=True) if mode == "auto" else wandb.Settings(silent=True, mode=_typed(mode))
    settings = wandb.setup(chosen).settings
    if settings.mode in ("offline", "disabled"):
        return settings.mode
    if not wandb.login(prompt=False, verify=False):
        _warn_offline("no API key is configured (wandb login)")
        return "offline"
    if not answers(settings.base_url, ANSWER_SECONDS):
        _warn_offline(f"{settings.base_url} does not answer")
        return "offline"
    return "online"


def _typed(mode: str) -> Literal["online", "offline", "disabled"]:
    return cast(Literal["online", "offline", "disabled"], mode)


def _warn_offline(reason: str) -> None:
    logger.warning("W&B logs offline: %s; upload the run later with wandb sync", reason)


def _open(mode: str, folder: Path, run_id: str, shared: Mapping[str, Any]) -> tuple["wandb.Run", str]:
    """Opens one run, offline where online is refused; returns it with the mode that worked."""
    import wandb

    settings = wandb.Settings(silent=True, console="off", init_timeout=INIT_SECONDS, finish_timeout=FINISH_SECONDS)
    try:
        run = wandb.init(
            **shared,
            id=run_id,
            mode=_typed(mode),
            dir=str(folder),
            job_type="train",
            resume="allow",
            reinit="create_new",
            settings=settings,
        )
    except Exception as error:
        if mode != "online":
            raise
        _warn_offline(_first_line(error))
        # W&B keeps the refused id for itself until the process ends.
        return _open("offline", folder, secrets.token_hex(4), shared)
    run.define_metric("train/step", hidden=True)
    run.define_metric("eval/length", hidden=True)
    for names, axis in AXES.items():
        run.define_metric(names, step_metric=axis)
    return run, mode


def _known_ids(folder: Path) -> dict[str, str]:
    """The W&B id of each seed's run in this folder, by seed; empty before the first start."""
    path = folder / IDS
    return json.loads(path.read_text()) if path.exists() else {}


def _remember(folder: Path, ids: Mapping[str, str]) -> None:
    (folder / IDS).write_text(json.dumps(ids, indent=2) + "\n")


def _history(
    rows: Iterable[Mapping[str, Any]], seeds: Sequence[int], train_length: int
) -> dict[int, list[dict[str, Any]]]:
    """The entries to log for each seed: rows that share a point on the x axis make one entry, in the rows' order."""
    points: dict[tuple[int, str, int | None], dict[str, Any]] = {}
    for row in rows:
        if not row["count"] or row["total"] is None or row["position"] is not None:
            continue
        name, axis, where = _point(row, train_length)
        for seed in seeds if row["seed"] is None else [row["seed"]]:
            point = points.setdefault((seed, axis, where), {} if where is None else {axis: where})
            point[name] = row["total"] / row["count"]
    entries: dict[int, list[dict[str, Any]]] = {}
    for (seed, _, _), point in points.items():
        entries.setdefault(seed, []).append(point)
    return entries


def _point(row: Mapping[str, Any], train_length: int) -> tuple[str, str, int | None]:
    """The W&B name of a row's metric, the name of its x axis, and where on it the row lies."""
    split, metric, length = row["split"], row["metric"], row["length"]
    if split == "test":
        return f"extrapolation/{metric}", "eval/length", length
    if split == "validation" and length != train_length:
        return f"validation/{metric}@{length}", "train/step", row["step"]
    if split in ("train", "validation"):
        return f"{split}/{metric}", "train/step", row["step"]
    return metric, "", None


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
