"""Sends a run's rows to Weights & Biases (W&B).

A killed session loses the last data that W&B was given, offline up to 32 KiB. So the next session sends its rows again.
Offline, the killed session's folder is renamed, so that each row is in exactly one session's folder.
"""

import json
import logging
import os
import re
import secrets
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalkit.core.contracts import Sink, SinkEnd, SinkStart
from evalkit.core.credentials import masked
from evalkit.core.errors import UserError, first_line, typed_path
from evalkit.core.network import answers
from evalkit.core.rows import Header, Row
from evalkit.disk.files import write_whole
from evalkit.record import wandb_names
from evalkit.record.sinks import LENGTH, STEP, points

if TYPE_CHECKING:
    import wandb

logger = logging.getLogger(__name__)

MODES = ("auto", "online", "offline", "disabled")
AXES = {"train/*": STEP, "validation/*": STEP, "during/*": STEP, "extrapolation/*": LENGTH}
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
    `online` unless WANDB_MODE, WANDB_DISABLED or `wandb offline` says something else. WANDB_RUN_ID is the first seed's,
    which is the run that belongs to a sweep of W&B's own. Raises UserError for an unknown mode.

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

    @property
    def is_off(self) -> bool:
        """Whether nothing is logged, by the setting or, where that is `auto`, by a variable."""
        return self.mode == "disabled" or (self.mode == "auto" and wandb_names.is_off())

    def check(self) -> None:
        """Raises UserError for names and variables that W&B would refuse."""
        if self.is_off:
            return
        wandb_names.refuse_no_home()
        wandb_names.refuse(vars(self), wandb_names.known())
        if self.dir is not None:
            wandb_names.make(typed_path(self.dir))

    def begin(self, header: Header, start: SinkStart) -> int | None:
        """Opens a run for each seed, or goes on with it; None where W&B is switched off."""
        known = None if self.is_off else wandb_names.known()
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
        ending = {seed: "" if chosen is not None and len(seeds) == 1 else f"-s{seed}" for seed in seeds}
        own = {
            seed: {
                **shared,
                "name": wandb_names.cut(chosen or title, ending[seed]),
                "config": {**start.config, "seed": seed},
            }
            for seed in seeds
        }
        in_sweep = known.sweep_id is not None or known.launch
        if known.run_id and not ids:
            for place, facts in enumerate(own.values()):
                facts["resume"] = _resumed(known.resume, is_first=place == 0, in_sweep=in_sweep)
        self._open_all(mode, own, _chosen_ids(seeds, ids, known), file, in_sweep)
        self._reached = {seed: run.summary.get(STEP, -1) for seed, run in self._runs.items()}
        if not start.received and not start.sessions and max(self._reached.values()) < 0:
            for run in self._runs.values():
                run.log({"parameters": header.parameters})
        return start.received

    def write(self, rows: Sequence[Row]) -> None:
        """Sends each row to its seed's run, and rows without a seed to every run."""
        self._send(rows, {})

    def repeat(self, rows: Sequence[Row]) -> None:
        """Sends the rows that a killed session may have lost; online, from the last step that W&B's server has."""
        self._send(rows, self._reached)

    def finish(self, end: SinkEnd) -> list[str]:
        """Closes every run; a non-zero exit code marks a failure.

        Before that it sends, for a finished run, the figures, the records of each seed as the table `results`, and the
        seed's numbers for the summary. Returns the addresses of the runs, or the command that uploads them.
        """
        runs, self._runs = self._runs, {}
        try:
            records = end.records() if runs and end.records is not None else None
            for seed, run in runs.items() if records is not None else ():
                own = [record for record in records or () if record.get("seed", seed) in (None, seed)]
                run.log(_media(self._folder, own))
                run.summary.update(_headlines(end.summary, seed))
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
                unsent += [
                    str(path)
                    for path in _sessions(folder.parent, run.id)
                    if not (path / f"run-{run.id}.wandb.synced").exists()
                ]
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

    def _open_all(
        self, mode: str, facts: Mapping[int, Mapping[str, Any]], ids: dict[str, str], file: Path, in_sweep: bool
    ) -> None:
        """Opens a run for each seed, of which the first alone may be in a sweep of W&B's; `file` keeps their ids."""
        write_whole(file, json.dumps(ids, indent=2) + "\n")  # before the runs open, in case the process is killed then
        for place, (seed, own) in enumerate(facts.items()):
            with _outside_of_sweeps() if in_sweep and place else nullcontext():
                run = self._runs[seed] = _open(mode, ids[str(seed)], own)
            ids[str(seed)] = run.id
            if run.offline:  # where one seed was refused, the others are not tried online
                mode = "offline"
        write_whole(file, json.dumps(ids, indent=2) + "\n")


def check_before_several(sinks: Iterable[Sink]) -> None:
    """Raises UserError before the runs of one command for names that W&B refuses, or one id for all of them."""
    ours = [sink for sink in sinks if isinstance(sink, Wandb) and not sink.is_off]
    named = os.environ.get(wandb_names.RUN_ID)
    if named and len(ours) > 1:
        raise UserError(
            f"{wandb_names.RUN_ID}={named} names one W&B run, and this command has {len(ours)}; unset it, or give "
            "wandb.mode=disabled"
        )
    for sink in ours:
        sink.check()


def _resumed(stated: str | None, *, is_first: bool, in_sweep: bool) -> str:
    """The mode (`resume`) in which a new run opens the W&B run that a variable names.

    If that W&B run exists, it belongs to another run, except in a sweep. Two runs share a W&B run only if WANDB_RESUME
    says so; else W&B refuses the second, and it is logged offline.
    """
    if stated == "must":
        return "must" if is_first else "allow"
    return stated if stated == "never" else "allow" if stated or (in_sweep and is_first) else "never"


def _chosen_ids(seeds: Sequence[int], before: Mapping[str, str], known: "wandb.Settings") -> dict[str, str]:
    """The id of each seed's run: an earlier session's, else as W&B's variable says, else a new one."""
    first, *others = seeds
    named = known.run_id
    new = {str(first): named or secrets.token_hex(4)}
    new |= {str(seed): wandb_names.cut(named, f"-s{seed}") if named else secrets.token_hex(4) for seed in others}
    return {**new, **before}


@contextmanager
def _outside_of_sweeps() -> Iterator[None]:
    """Hides a sweep in the block, so that a run gets its own id: in a sweep W&B takes the variable's for every run."""
    import wandb

    whole = wandb.setup().settings
    before = whole.sweep_id, whole.launch
    whole.sweep_id, whole.launch = None, False
    try:
        yield
    finally:
        whole.sweep_id, whole.launch = before


def _sessions(root: Path, run_id: str) -> list[Path]:
    """The folders below `root` of one run's offline sessions, the oldest first."""
    name = re.compile(rf"{OFFLINE}[0-9_]+-{re.escape(run_id)}(-[0-9]+)?")
    return sorted(path for path in root.glob(f"{OFFLINE}*") if name.fullmatch(path.name))


def _set_aside(root: Path, ids: Iterable[str], ended: Sequence[str]) -> None:
    """Renames the folders below `root` of killed offline sessions, not `ended` or uploaded; `wandb sync` skips them."""
    for path in [path for run_id in ids for path in _sessions(root / "wandb", run_id)]:
        if path.name not in ended and not any(path.glob("*.synced")):
            path.rename(path.with_name(path.name.replace(OFFLINE, TORN, 1)))


def _facts(settings: Wandb, known: "wandb.Settings", folder: Path, title: str) -> dict[str, Any]:
    """The settings that all seeds' runs share: each from the user, else from W&B's variables, else a default."""
    named = settings.dir or os.environ.get("WANDB_DIR")
    root = typed_path(named) if named else folder
    root.mkdir(parents=True, exist_ok=True)
    own = (None, None) if known.sweep_id else (settings.project, settings.entity)  # a sweep is in a project already
    return {
        "project": own[0] or known.project or PROJECT,
        "entity": own[1] or known.entity,
        "notes": settings.notes or known.run_notes,
        "tags": list(settings.tags or known.run_tags or ()),
        "group": settings.group or known.run_group or wandb_names.cut(f"{title}-{folder.name}"),
        "job_type": settings.job_type or known.run_job_type or "train",
        "dir": str(root),
    }


def _media(folder: Path, records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    import wandb

    media: dict[str, Any] = {f"report/{path.stem}": wandb.Image(str(path)) for path in sorted(folder.glob("*.png"))}
    if records:
        columns: list[Any] = list(dict.fromkeys(name for record in records for name in record))
        data: list[Any] = [[record.get(name) for name in columns] for record in records]
        media["results"] = wandb.Table(columns=columns, data=data, allow_mixed_types=True)
    return media


def _headlines(summary: Mapping[str, Any], seed: int) -> dict[str, float]:
    """The numbers that `results.json` has of one seed's model, such as `report/effective_length/0.85/length`."""
    own = [one for one in summary.get("seeds", ()) if isinstance(one, Mapping) and one.get("seed") == seed]
    return dict(_numbers("report", own[0])) if own else {}


def _numbers(name: str, value: Any) -> Iterator[tuple[str, float]]:
    if isinstance(value, Mapping):
        for key, below in value.items():
            yield from _numbers(f"{name}/{key}", below)
    elif isinstance(value, int | float):
        yield name, value


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

    mode = wandb_names.MEANING.get(known.mode, known.mode) if chosen == "auto" else chosen
    if mode in ("offline", "disabled"):
        return mode
    whole = wandb.setup().settings
    before, whole.mode = whole.mode, "online"
    wandb.termsetup(wandb.Settings(silent=True), None)  # looking for the key prints
    refusal = "no API key is configured (wandb login)"
    try:
        has_key = wandb.login(prompt=False, verify=False)
    except Exception as error:  # a key that cannot be one
        has_key, refusal = False, first_line(error)
    finally:
        whole.mode = before
        _speak()
    if not has_key:
        _warn_offline(refusal)
    elif not answers(f"{known.base_url}/graphql", ANSWER_SECONDS):  # what opening a run asks, and may wait for
        _warn_offline(f"{known.base_url} does not answer")
    else:
        return mode
    return "offline"


def _warn_offline(reason: str) -> None:
    logger.warning("W&B logs offline: %s; the end of the run says how to upload it", masked(reason))


def _open(mode: Any, run_id: str, facts: Mapping[str, Any]) -> "wandb.Run":
    import wandb

    limits = {"init_timeout": INIT_SECONDS, "finish_timeout": FINISH_SECONDS, "finish_timeout_raises": True}
    settings = wandb.Settings(silent=True, console="off", **limits)
    fixed: dict[str, Any] = {"reinit": "create_new", "settings": settings}
    try:
        run = wandb.init(**{"resume": "allow", **facts}, **fixed, id=run_id, mode=mode)
    except Exception as error:
        if mode == "offline":
            raise
        _warn_offline(first_line(error))
        # A new id, because W&B keeps the refused one for itself until the process ends.
        with _outside_of_sweeps():
            return _open("offline", secrets.token_hex(4), {**facts, "resume": "allow"})
    for axis in set(AXES.values()):
        run.define_metric(axis, hidden=True)
    for names, axis in AXES.items():
        run.define_metric(names, step_metric=axis)
    return run
