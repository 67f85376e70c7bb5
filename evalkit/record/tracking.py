"""Sends a run's rows to Weights & Biases: `metrics.jsonl` stays the record, and no failure here stops a run."""

import json
import logging
import os
import secrets
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from evalkit.core.credentials import masked
from evalkit.core.errors import UserError, first_line
from evalkit.core.network import answers
from evalkit.core.rows import Header, Row, encode, encode_header
from evalkit.disk.files import write_whole
from evalkit.record import delivery
from evalkit.record.delivery import Delivery

if TYPE_CHECKING:
    import wandb

logger = logging.getLogger(__name__)

MODES = ("auto", "online", "offline", "disabled")
STEP = "train/step"
AXES = {"train/*": STEP, "validation/*": STEP, "extrapolation/*": "eval/length"}
IDS = "wandb.json"
PROJECT = "evalkit"
ANSWER_SECONDS = 3.0
INIT_SECONDS = 15.0
# An upload that hangs at the end must not hold a machine: the data stays in the run's folder, for `wandb sync`.
FINISH_SECONDS = 20.0


@dataclass(frozen=True)
class WandbSettings:
    """A user's settings of W&B. Where one is null, W&B's own variable counts (WANDB_NAME, …), then what is said below.

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

    >>> WandbSettings(mode="offline", tags=["fig6b"]).tags
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


class WandbLog:
    """One W&B run a seed; W&B's files lie in `folder/wandb` unless it is told, the runs' ids in `folder/wandb.json`.

    Opening the same folder again continues the same runs; `catch_up` then sends what a kill has lost. Validation rows
    at other lengths than `train_length` get names of their own. The first error inside W&B becomes one warning, after
    which nothing more is sent.
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
        self._train_length, self._folder = train_length, folder
        self._runs: dict[int, wandb.Run] = {}
        self._failed: list[wandb.Run] = []
        self._delivered = Delivery()
        self._known: list[str] = []
        if settings.mode == "disabled":
            return
        with self._at_most_one_warning():
            known = _known()
            mode = _resolve(settings.mode, known)
            if mode != "disabled":
                shared = _facts(settings, known, folder, f"{model}-{task}")
                names = _names(settings.name or known.run_name, f"{model}-{task}", seeds)
                own = {seed: {**shared, "name": names[seed], "config": {**config, "seed": seed}} for seed in seeds}
                self._delivered = delivery.resumed(folder, Path(shared["dir"]), _ids(folder).values())
                self._start(mode, own, folder / IDS)

    def catch_up(self, record: bytes, offset: int) -> None:
        """Sends again what a session that was killed has lost of `record`, the rows before this session began.

        Those after `offset` bytes are written anew; the ones that W&B has already are then not sent twice. Online,
        W&B's server says how far it came, and has the rows of before.
        """
        if not self._runs:
            return
        with self._at_most_one_warning():
            has = delivery.taken_back(self._delivered, record, offset)
            delivery.write(self._folder, has)
            self._known = list(has.ahead)
            reached = {seed: run.summary.get(STEP, -1) for seed, run in self._runs.items()}
            for entry in delivery.decoded(record[has.rows : offset]):
                if isinstance(entry, Header):
                    if max(reached.values(), default=0) < 0:
                        self.begin(entry)
                else:
                    self._send(self._unknown(entry), reached)

    def begin(self, header: Header) -> None:
        """Sends the number of parameters to every run."""
        if self._known and self._is_known(encode_header(header)):
            return
        with self._at_most_one_warning():
            for run in self._runs.values():
                run.log({"parameters": header.parameters})

    def write(self, rows: Iterable[Row]) -> None:
        """Sends each row to its seed's run, and rows without a seed to every run.

        Rows by position and rows without a value (`count == 0`) stay in `metrics.jsonl` only.
        """
        self._send(self._unknown(rows))

    def _unknown(self, rows: Iterable[Row]) -> list[Row]:
        return [entry for entry in rows if not (self._known and self._is_known(encode(entry)))]

    def _is_known(self, line: str) -> bool:
        """Whether W&B has this line of the record, which is written anew; after one that differs, none is."""
        if self._known[0] == line:
            del self._known[0]
            return True
        self._known = []
        return False

    def _send(self, rows: Iterable[Row], reached: Mapping[int, int] = MappingProxyType({})) -> None:
        """Sends rows; of a seed that has `reached` a step, those of that step and later."""
        with self._at_most_one_warning():
            for seed, entry in _history(rows, list(self._runs), self._train_length):
                if entry.get(STEP, 0) >= reached.get(seed, -1):
                    self._runs[seed].log(entry)

    def report(self, records: Callable[[], Sequence[Mapping[str, Any]]]) -> None:
        """Sends the folder's figures, and the `records` of each run's own seed as the table `results`."""
        with self._at_most_one_warning():
            found = records() if self._runs else []
            for seed, run in self._runs.items():
                run.log(_media(self._folder, [record for record in found if record.get("seed", seed) in (None, seed)]))

    def finish(self, exit_code: int = 0, written: int = 0) -> list[str]:
        """Closes every run, each with the first `written` bytes of the record; a non-zero `exit_code` marks a failure.

        Returns what to tell the user: where the runs are to be seen, or the command that uploads them.
        """
        lines: list[str] = []
        for run in self._failed:  # what they got before is in files that closing completes
            with suppress(Exception):
                run.finish(exit_code=exit_code)
        with self._at_most_one_warning():
            unsent: list[str] = []
            for run in self._runs.values():
                in_time = _finished(run, exit_code)
                if run.offline:
                    unsent += _unsent(Path(run.settings.sync_dir), run.id)
                elif not in_time:
                    unsent.append(str(run.settings.sync_dir))
                elif run.url:
                    lines.append(f"W&B: {run.url}")
            if self._runs:
                delivery.note(self._folder, written, self._runs.values())
                _speak()
            if unsent:
                lines.append(f"upload to W&B with: wandb sync {shlex.join(unsent)}")
        self._runs = {}
        return lines

    @contextmanager
    def _at_most_one_warning(self) -> Iterator[None]:
        """Turns an error in the block into a warning, and sends nothing more."""
        try:
            yield
        except Exception as error:
            logger.warning("W&B failed and gets nothing more; metrics.jsonl goes on: %s", first_line(error))
            self._failed, self._runs = [*self._failed, *self._runs.values()], {}

    def _start(self, mode: str, facts: Mapping[int, Mapping[str, Any]], file: Path) -> None:
        """Opens a run for each seed; `file` keeps their ids."""
        ids = _ids(file.parent)
        ids |= {str(seed): ids.get(str(seed)) or secrets.token_hex(4) for seed in facts}
        write_whole(file, json.dumps(ids, indent=2) + "\n")  # before the runs open, in case the process is killed then
        for seed, own in facts.items():
            run = self._runs[seed] = _open(mode, ids[str(seed)], own)
            ids[str(seed)] = run.id
            if run.offline:  # where one seed was refused, the others are not tried online
                mode = "offline"
        write_whole(file, json.dumps(ids, indent=2) + "\n")


def _ids(folder: Path) -> dict[str, str]:
    """The id of each seed's run, empty before the first session."""
    file = folder / IDS
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def _known() -> "wandb.Settings":
    """What W&B's variables say now, and its files."""
    import wandb

    if "WANDB_DIR" in os.environ:  # of a folder that is not there, W&B would complain on the console
        Path(os.environ["WANDB_DIR"]).mkdir(parents=True, exist_ok=True)
    known = wandb.setup().settings.model_copy()
    known.update_from_env_vars(dict(os.environ))
    return known


def _facts(settings: WandbSettings, known: "wandb.Settings", folder: Path, title: str) -> dict[str, Any]:
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


def _names(chosen: str | None, title: str, seeds: Sequence[int]) -> dict[int, str]:
    """What each seed's run is called."""
    if chosen is not None and len(seeds) == 1:
        return {seeds[0]: chosen}
    return {seed: f"{chosen or title}-s{seed}" for seed in seeds}


def _media(folder: Path, records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The figures in `folder`, and a table with a column for every name that a record has."""
    import wandb

    found: dict[str, Any] = {f"report/{path.stem}": wandb.Image(str(path)) for path in sorted(folder.glob("*.png"))}
    if records:
        columns: list[Any] = list(dict.fromkeys(name for record in records for name in record))
        data: list[Any] = [[record.get(name) for name in columns] for record in records]
        found["results"] = wandb.Table(columns=columns, data=data, allow_mixed_types=True)
    return found


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


def _unsent(last: Path, run_id: str) -> list[str]:
    """The folders of an offline run that were not uploaded, one a session, the oldest first."""
    sessions = sorted(last.parent.glob(f"offline-run-*-{run_id}*"))
    return [str(path) for path in sessions if not (path / f"run-{run_id}.wandb.synced").exists()]


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
    """Opens one run, offline where online is refused."""
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
