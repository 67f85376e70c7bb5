"""Sends a run's rows to Weights & Biases (W&B).

A killed session loses the end of what W&B was given, offline up to 32 KiB. So its rows are sent again by the next one.
Offline its folder is set aside, so that each row is in exactly one session's folder.
"""

import json
import logging
import os
import secrets
import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalkit.core.contracts import Sink, SinkEnd, SinkStart
from evalkit.core.credentials import masked
from evalkit.core.errors import UserError, first_line
from evalkit.core.network import answers
from evalkit.core.rows import Header, Row
from evalkit.disk.files import write_whole
from evalkit.record.sinks import LENGTH, STEP, points

if TYPE_CHECKING:
    import wandb

logger = logging.getLogger(__name__)

MODES = ("auto", "online", "offline", "disabled")
AXES = {"train/*": STEP, "validation/*": STEP, "extrapolation/*": LENGTH}
OFFLINE, TORN = "offline-run-", "torn-run-"
IDS = "wandb.json"
PROJECT = "evalkit"
ANSWER_SECONDS = 3.0
INIT_SECONDS = 15.0
# An upload that hangs at the end must not hold a machine: the data stays in the run's folder, for `wandb sync`.
FINISH_SECONDS = 20.0


@dataclass
class Wandb(Sink):
    """A W&B run for each seed. Where a setting is null, W&B's own variable counts, such as WANDB_NAME.

    `online` logs online where an API key is configured and the server answers, and offline otherwise. `auto` is
    `online` unless WANDB_MODE or `wandb offline` says something else. Raises UserError for an unknown mode.

    Options:
      mode: `auto`, `online`, `offline` or `disabled`; the first two log offline where no server answers.
      project: the project; null: `evalkit`.
      entity: a user or a team; null: W&B's default.
      name: the run's name; null: `<model>-<task>`; of several seeds each ends with `-s<seed>`.
      notes: a text that W&B shows beside the run.
      tags: words to find the run by.
      group: runs that W&B shows together; null: `<model>-<task>-<folder>`, or one for all runs of a sweep.
      job_type: the kind of run; null: `train`.
      dir: the folder of W&B's own files; null: the run's.

    >>> Wandb(mode="offline", tags=["fig6b"]).tags
    ['fig6b']
    """

    mode: str = "auto"
    project: str | None = None
    entity: str | None = None
    name: str | None = None
    notes: str | None = None
    tags: Sequence[str] = ()
    group: str | None = None
    job_type: str | None = None
    dir: str | None = None

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise UserError(f"wandb.mode={self.mode!r} is not known; choose one of {', '.join(MODES)}")
        if isinstance(self.tags, str):
            raise UserError(f"wandb.tags={self.tags!r} is one word; give a list, such as wandb.tags=[{self.tags}]")
        self._runs: dict[int, wandb.Run] = {}
        self._sessions: list[str] = []

    @property
    def sessions(self) -> Sequence[str]:
        """The folders of its offline runs."""
        return self._sessions

    def begin(self, header: Header, start: SinkStart) -> int | None:
        """Opens a run for each seed, or goes on with it; None where W&B is switched off."""
        known = None if self.mode == "disabled" else _known()
        mode = "disabled" if known is None else _resolve(self.mode, known)
        if known is None or mode == "disabled":
            return None
        seeds, title = header.seeds or [start.config["seed"]], f"{header.model}-{header.task}"
        self._train_length, self._folder = header.train_length, start.folder
        shared = _facts(self, known, start.folder, title)
        file = start.folder / IDS
        ids: dict[str, str] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        _set_aside(Path(shared["dir"]), ids.values(), start.sessions)
        chosen = self.name or known.run_name
        names = [chosen] if chosen is not None and len(seeds) == 1 else [f"{chosen or title}-s{seed}" for seed in seeds]
        own = {
            seed: {**shared, "name": name, "config": {**start.config, "seed": seed}}
            for seed, name in zip(seeds, names, strict=True)
        }
        self._open_all(mode, own, ids, file)
        self._reached = {seed: run.summary.get(STEP, -1) for seed, run in self._runs.items()}
        if not start.received and not start.sessions and max(self._reached.values()) < 0:
            for run in self._runs.values():
                run.log({"parameters": header.parameters})
        return start.received

    def write(self, rows: Sequence[Row]) -> None:
        """Sends each row to its seed's run, and rows without a seed to every run."""
        self._send(rows, {})

    def repeat(self, rows: Sequence[Row]) -> None:
        """Sends what a killed session has lost: online, W&B's server says how far it came, and has the rows before."""
        self._send(rows, self._reached)

    def finish(self, end: SinkEnd) -> list[str]:
        """Closes every run; a non-zero exit code marks a failure.

        A finished run's figures go before, and the records of each run's own seed as the table `results`. Returns where
        the runs are to be seen, or the command that uploads them.
        """
        runs, self._runs = self._runs, {}
        try:
            records = end.records() if runs and end.records is not None else None
            for seed, run in runs.items() if records is not None else ():
                own = [record for record in records or () if record.get("seed", seed) in (None, seed)]
                run.log(_media(self._folder, own))
        except Exception:
            for run in runs.values():  # what they got before is in files that closing completes
                with suppress(Exception):
                    run.finish(exit_code=end.exit_code)
            raise
        lines, unsent = list[str](), list[str]()
        for run in runs.values():
            in_time = _finished(run, end.exit_code)
            if run.offline:
                folder = Path(run.settings.sync_dir)
                self._sessions.append(folder.name)
                # Of all sessions, the oldest first.
                sessions = sorted(folder.parent.glob(f"{OFFLINE}*-{run.id}*"))
                unsent += [str(path) for path in sessions if not (path / f"run-{run.id}.wandb.synced").exists()]
            elif not in_time:
                unsent.append(str(run.settings.sync_dir))
            elif run.url:
                lines.append(f"W&B: {run.url}")
        if runs:
            _speak()
        return [*lines, f"upload to W&B with: wandb sync {shlex.join(unsent)}"] if unsent else lines

    def _send(self, rows: Sequence[Row], reached: Mapping[int, int]) -> None:
        for point in points(rows, list(self._runs), self._train_length):
            entry = point.values if point.at is None else {point.axis: point.at, **point.values}
            if entry.get(STEP, 0) >= reached.get(point.seed, -1):
                self._runs[point.seed].log(entry)

    def _open_all(self, mode: str, facts: Mapping[int, Mapping[str, Any]], ids: dict[str, str], file: Path) -> None:
        """Opens a run for each seed; `file` keeps their ids, which are new where an earlier session left none."""
        ids |= {str(seed): ids.get(str(seed)) or secrets.token_hex(4) for seed in facts}
        write_whole(file, json.dumps(ids, indent=2) + "\n")  # before the runs open, in case the process is killed then
        for seed, own in facts.items():
            run = self._runs[seed] = _open(mode, ids[str(seed)], own)
            ids[str(seed)] = run.id
            if run.offline:  # where one seed was refused, the others are not tried online
                mode = "offline"
        write_whole(file, json.dumps(ids, indent=2) + "\n")


def _set_aside(root: Path, ids: Iterable[str], ended: Sequence[str]) -> None:
    """Renames the folders below `root` of killed offline sessions, not `ended` or uploaded; `wandb sync` skips them."""
    for path in [path for run_id in ids for path in (root / "wandb").glob(f"{OFFLINE}*-{run_id}*")]:
        if path.name not in ended and not any(path.glob("*.synced")):
            path.rename(path.with_name(path.name.replace(OFFLINE, TORN, 1)))


def _known() -> "wandb.Settings":
    """What W&B's variables say now, and its files."""
    import wandb

    if "WANDB_DIR" in os.environ:  # of a folder that is not there, W&B would complain on the console
        Path(os.environ["WANDB_DIR"]).mkdir(parents=True, exist_ok=True)
    known = wandb.setup().settings.model_copy()
    known.update_from_env_vars(dict(os.environ))
    return known


def _facts(settings: Wandb, known: "wandb.Settings", folder: Path, title: str) -> dict[str, Any]:
    """What the runs of all seeds have in common: as it was set, else as W&B's variables say, else a default."""
    root = settings.dir or os.environ.get("WANDB_DIR")
    if root is not None:
        Path(root).mkdir(parents=True, exist_ok=True)
    return {
        "project": settings.project or known.project or PROJECT,
        "entity": settings.entity or known.entity,
        "notes": settings.notes or known.run_notes,
        "tags": list(settings.tags or known.run_tags or ()),
        "group": settings.group or known.run_group or f"{title}-{folder.name}",
        "job_type": settings.job_type or known.run_job_type or "train",
        "dir": root or str(folder),
    }


def _media(folder: Path, records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    import wandb

    media: dict[str, Any] = {f"report/{path.stem}": wandb.Image(str(path)) for path in sorted(folder.glob("*.png"))}
    if records:
        columns: list[Any] = list(dict.fromkeys(name for record in records for name in record))
        data: list[Any] = [[record.get(name) for name in columns] for record in records]
        media["results"] = wandb.Table(columns=columns, data=data, allow_mixed_types=True)
    return media


def _finished(run: "wandb.Run", exit_code: int) -> bool:
    """Closes a run; returns whether its server took all of it in time."""
    try:
        run.finish(exit_code=exit_code)
    except TimeoutError:
        logger.warning("W&B's server did not take everything in %d s; the end of the run says how", FINISH_SECONDS)
        return False
    return True


def _speak() -> None:
    """Lets W&B print again, which a silent run has kept it from."""
    import wandb

    wandb.termsetup(wandb.setup().settings, None)


def _resolve(chosen: Any, known: "wandb.Settings") -> str:
    """Returns the mode to open runs in; warns where that is offline against the user's wish. Never prompts."""
    import wandb

    mode = known.mode if chosen == "auto" else chosen
    if mode in ("offline", "disabled"):
        return mode
    whole = wandb.setup().settings
    before, whole.mode = whole.mode, "online"
    wandb.termsetup(wandb.Settings(silent=True), None)  # looking for the key prints
    try:
        has_key = wandb.login(prompt=False, verify=False)
    finally:
        whole.mode = before
        _speak()
    if not has_key:
        _warn_offline("no API key is configured (wandb login)")
    elif not answers(f"{known.base_url}/graphql", ANSWER_SECONDS):  # what opening a run asks, and may wait for
        _warn_offline(f"{known.base_url} does not answer")
    else:
        return "online"
    return "offline"


def _warn_offline(reason: str) -> None:
    logger.warning("W&B logs offline: %s; the end of the run says how to upload it", masked(reason))


def _open(mode: Any, run_id: str, facts: Mapping[str, Any]) -> "wandb.Run":
    import wandb

    limits = {"init_timeout": INIT_SECONDS, "finish_timeout": FINISH_SECONDS, "finish_timeout_raises": True}
    settings = wandb.Settings(silent=True, console="off", **limits)
    fixed: dict[str, Any] = {"resume": "allow", "reinit": "create_new", "settings": settings}
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
