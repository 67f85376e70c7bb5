"""Optuna's part of a search: which settings are tried next, and which trial is given up.

Every process of a search has a `Study` of the same folder. They share an SQLite file and one lock for each trial. The
system releases a lock when its process dies, so a trial that is not finished and not locked belongs to nobody.
"""

import inspect
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from filelock import FileLock, Timeout
from hydra.utils import instantiate

from evalkit.configuration.space import Interval, Space, Value
from evalkit.core.errors import UserError, first_line
from evalkit.core.trust import imported, nodes, package_of, refuse_borrowed

NAME = "search"
FILE, LOCK, TRIALS = "study.db", ".search.lock", "trials"
OPTUNA, PARTS = "optuna", ("optuna.samplers", "optuna.pruners")
PICKLES = "CmaEsSampler"
"""The sampler of Optuna that keeps its state as a pickle."""
WAIT_SECONDS = 120
"""How long a process waits for the others to let go of the SQLite file."""


class Tried(NamedTuple):
    """A trial as the study knows it: its `state` is one of Optuna's, and a finished one (COMPLETE) has a value."""

    number: int
    values: Mapping[str, Value]
    state: str
    judged: float | None


@dataclass
class Claimed:
    """A trial that this process works on; nobody else does before `release`."""

    number: int
    values: Mapping[str, Value]
    lock: FileLock

    def release(self) -> None:
        """Lets go of it: a trial that is not finished is free for others then."""
        self.lock.release()


class Study:
    """The trials of a search in `folder`; `made` makes the pruner, and a sampler for each trial by its number."""

    def __init__(self, folder: Path, space: Space, trials: int, direction: str, made: "OptunaFactory"):
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.folder, self.trials, self._space, self._made = folder, trials, _distributions(space), made
        (folder / TRIALS).mkdir(parents=True, exist_ok=True)
        self._lock = FileLock(folder / LOCK)
        with self._lock, _readable(folder / FILE):
            self._storage = optuna.storages.RDBStorage(
                f"sqlite:///{folder.absolute() / FILE}", engine_kwargs={"connect_args": {"timeout": WAIT_SECONDS}}
            )
            self._study = optuna.create_study(
                storage=self._storage,
                study_name=NAME,
                direction=optuna.study.StudyDirection[direction.upper()],
                load_if_exists=True,
            )
        self._study.pruner = made.pruner()

    def claim(self) -> Claimed | None:
        """Takes a trial that a dead process left, else a new one; None if none is left for this process."""
        with self._lock:
            for left in (trial for trial in self.tried() if trial.state == "RUNNING"):
                lock = self._free(left.number)
                if lock is not None and self.tried()[left.number].state == "RUNNING":
                    return Claimed(left.number, left.values, lock)
                if lock is not None:
                    lock.release()
            number = len(self.tried())
            lock = self._free(number) if number < self.trials else None
            if lock is None:
                return None
            self._study.sampler = self._made.sampler(number)
            trial = self._study.ask(dict(self._space))
            return Claimed(trial.number, trial.params, lock)

    def gives_up(self, claimed: Claimed, step: int, judged: float) -> bool:
        """Stores a validation's value, unless a resumed trial did so before; asks the pruner whether to give up."""
        trial = self._id(claimed.number)
        if step not in self._storage.get_trial(trial).intermediate_values:
            self._storage.set_trial_intermediate_value(trial, step, judged)
        return bool(self._study.pruner.prune(self._study, self._storage.get_trial(trial)))

    def end(self, claimed: Claimed, state: str, judged: float | None = None) -> None:
        """Notes how a trial ended: COMPLETE with a value, PRUNED or FAIL."""
        from optuna.trial import TrialState

        self._study.tell(claimed.number, judged, state=TrialState[state])

    def tried(self) -> list[Tried]:
        """All trials so far, by number."""
        return [self._of(trial) for trial in self._study.get_trials(deepcopy=False)]

    def best(self) -> Tried | None:
        """The best of the finished trials, the first of equal ones; None where none is finished."""
        sign = -1 if self._study.direction.name == "MAXIMIZE" else 1
        finished = [trial for trial in self.tried() if trial.state == "COMPLETE" and trial.judged is not None]
        return min(finished, key=lambda trial: (sign * (trial.judged or 0.0), trial.number), default=None)

    @property
    def is_over(self) -> bool:
        """Whether as many trials as there are to be have ended."""
        tried = self.tried()
        return len(tried) >= self.trials and all(trial.state != "RUNNING" for trial in tried)

    def folder_of(self, number: int) -> Path:
        """The folder of a trial's run."""
        return self.folder / TRIALS / f"{number:03d}"

    def _of(self, trial: Any) -> Tried:
        judged = trial.values[0] if trial.state.name == "COMPLETE" else None
        return Tried(trial.number, trial.params, trial.state.name, judged)

    def _free(self, number: int) -> FileLock | None:
        """The lock of a trial, held; None if another process holds it."""
        lock = FileLock(self.folder_of(number).with_suffix(".lock"), timeout=0)
        with suppress(Timeout):
            lock.acquire()
            return lock
        return None

    def _id(self, number: int) -> int:
        study = self._storage.get_study_id_from_name(NAME)
        return self._storage.get_trial_id_from_study_id_trial_number(study, number)


@dataclass(frozen=True)
class OptunaFactory:
    """Samplers and pruners as their `_target_` says, of Optuna or of `packages` that the user named.

    Raises UserError for what cannot be made.
    """

    sampler_node: Mapping[str, Any]
    pruner_node: Mapping[str, Any]
    packages: Sequence[str] = ()

    def __post_init__(self) -> None:
        self.sampler(0)
        self.pruner()

    def sampler(self, number: int) -> Any:
        """The sampler that draws the trial of this number; its seed is the configured one plus the number."""
        seed = self.sampler_node.get("seed")
        if not isinstance(seed, int | None):
            raise UserError(f"sampler.seed={seed}; give a whole number, or null")
        return self._made("sampler", {**self.sampler_node, **({} if seed is None else {"seed": seed + number})})

    def pruner(self) -> Any:
        """What gives up trials."""
        return self._made("pruner", self.pruner_node)

    def _made(self, name: str, node: Mapping[str, Any]) -> Any:
        from optuna.exceptions import ExperimentalWarning
        from optuna.pruners import BasePruner
        from optuna.samplers import BaseSampler

        kind = BaseSampler if name == "sampler" else BasePruner
        for path, named in nodes(node, name):
            target = str(named["_target_"])
            if package_of(target) not in (OPTUNA, *self.packages):
                raise UserError(
                    f"{path}._target_={target} would run code of the package {package_of(target)}, which you have not "
                    f"named; if you trust it, give allow_targets=[{package_of(target)}]"
                )
            with _explained(path, target):
                found = imported(target)
            refuse_borrowed(target, path, found, ())
            # Asked before anything is called: a stranger's `search.json` may name whatever Optuna has.
            is_part = inspect.isclass(found) and (package_of(target) != OPTUNA or found.__module__.startswith(PARTS))
            if not is_part or (path == name and not issubclass(found, kind)):
                raise UserError(
                    f"{path}._target_={target} is no {name} of Optuna; give '{name}={{_target_: optuna.{name}s.…}}'"
                )
            if found.__name__ == PICKLES:
                raise UserError(
                    f"{path}._target_={target} keeps its state as a pickle, which runs code when it is read; "
                    "choose another, such as optuna.samplers.GPSampler"
                )
        with _explained(name, str(node.get("_target_"))), warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)  # the user named it
            return instantiate(node, _convert_="all")


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turns what SQLite raises of a file into one line."""
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except SQLAlchemyError as error:
        raise UserError(f"{path} cannot be used ({first_line(error)}); mend it, or start a new search") from error


@contextmanager
def _explained(path: str, target: str) -> Iterator[None]:
    """Turns what Optuna or Hydra raise of a `_target_` into one line."""
    try:
        yield
    except Exception as error:
        raise UserError(f"{path}._target_={target}: {first_line(error)}") from error


def refuse_missing() -> None:
    """Raises UserError where Optuna is not installed."""
    if find_spec(OPTUNA) is None:
        raise UserError("evalkit search needs optuna: pip install 'griffin-evalkit[search]'")


def _distributions(space: Space) -> dict[str, Any]:
    """The search space in Optuna's types; these cannot be annotated here, because Optuna is an optional extra."""
    from optuna import distributions

    def of(values: Interval | list[str]) -> Any:
        if isinstance(values, list):
            return distributions.CategoricalDistribution(values)
        if values.whole:
            return distributions.IntDistribution(int(values.low), int(values.high), log=values.log)
        return distributions.FloatDistribution(values.low, values.high, log=values.log)

    return {key: of(values) for key, values in space.items()}
