"""A search whose trainings are made up: curves that depend on the learning rate, and die where a test wants it."""

import json
import math
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from evalkit.configuration.grammar import parse
from evalkit.configuration.spec import Spec
from evalkit.core.contracts import Feed
from evalkit.core.rows import Record, RowLog
from evalkit.evaluations.extrapolation.measure import Extrapolation
from evalkit.session import search
from evalkit.session.gates import Judge
from evalkit.session.session import Outcome
from support.made_up_runs import run_record, scores

STEPS, EVERY, LENGTH, BEST_RATE = 1000, 250, 256, 1e-3
COUNT = 10_000
WORDS = ["task=mqar", "model=hawk", "train.learning_rate=interval(1e-5,1e-1)", "train.weight_decay=0,0.1"]
RANDOM = {"_target_": "optuna.samplers.RandomSampler", "seed": 0}


class Killed(BaseException):
    """Stands for a process that was killed: the system releases its locks, and nothing else happens."""


def settings(**changed: Any) -> search.Search:
    """A search of 12 trials without fresh seeds."""
    return search.Search(
        **{**search.DEFAULTS, "words": WORDS, "trials": 12, "final_seeds": 0, "sampler": RANDOM, **changed}
    )


@dataclass(frozen=True, eq=False)
class MadeUp(Spec):
    """A run that is not built: its `experiment` is what a search reads of one."""

    read: Any = None

    @property
    def experiment(self) -> Any:  # type: ignore[override]
        return self.read


def spec(words: Sequence[str], folder: Path) -> Spec:
    """The run of these words, without a model."""
    values: dict[str, Any] = {word.key_or_group: word.value() for word in parse(words)}
    seeds = [values.get("seed", 0) + place for place in range(values.get("seeds", 1))]
    evaluation = Extrapolation(lengths=values.get("eval.lengths", [64, LENGTH, 1024]))
    facts: dict[str, Any] = {"task": SimpleNamespace(length=LENGTH), "eval": evaluation, "task_name": values["task"]}
    facts["train"] = SimpleNamespace(learning_rate=values.get("train.learning_rate"))
    experiment = SimpleNamespace(
        **facts, quiet=True, format="text", all_seeds=seeds, outlets={}, feed=Feed(), config={"model": {}}
    )
    return MadeUp(values, folder, {key: str(value) for key, value in values.items()}, read=experiment)


def right(rate: float, step: int) -> int:
    """How many of `COUNT` sequences are right: all at the best rate after the last step, fewer at others and before."""
    off = abs(math.log10(rate / BEST_RATE))
    return round(COUNT * max(0.0, 1 - off / 2.5) * step / STEPS)


class Trainings:
    """In place of `run.start_or_resume`: goes on from the last validation, and counts the steps of all trials.

    `kill` says after which step of which trial the process dies, once; by SIGKILL where `really`.
    """

    def __init__(self, kill: Mapping[str, int] | None = None, really: bool = False):
        self.kill, self.really, self.steps = dict(kill or {}), really, 0
        self.trained: list[tuple[str, int]] = []

    def __call__(self, of: Any, judge: Judge | None = None) -> Outcome:
        folder, rate = of.folder, of.experiment.train.learning_rate
        folder.mkdir(parents=True, exist_ok=True)
        saved = folder / "checkpoint.json"
        done = json.loads(saved.read_text()) if saved.exists() else []
        for step in range(len(done) * EVERY + EVERY, STEPS + EVERY, EVERY):
            self.steps += EVERY
            self.trained.append((folder.name, step))
            with (folder / "trained").open("a") as log:
                log.write(f"{step}\n")
            done.append(right(rate, step))
            rows = _validation(folder, done)[-3:]
            saved.write_text(json.dumps(done))
            if self.kill.get(folder.name) == step:
                del self.kill[folder.name]
                if self.really:
                    os.kill(os.getpid(), signal.SIGKILL)
                raise Killed
            if judge is not None and step < STEPS and judge(rows):
                _write(folder, _validation(folder, done))
                return Outcome(folder, given_up=True)
        lengths = of.experiment.eval.lengths
        _write(folder, [*_validation(folder, done), *_tests(folder, rate, lengths)])
        return Outcome(folder, {"lengths": lengths})


def _validation(folder: Path, done: Sequence[int]) -> list[Any]:
    names = {"run": folder.name, "task": "mqar", "model": "hawk"}
    steps = [EVERY * place for place in range(1, len(done) + 1)]
    return [
        row
        for step, correct in zip(steps, done, strict=True)
        for row in scores(correct, "validation", step, LENGTH, 0, names, COUNT)
    ]


def _tests(folder: Path, rate: float, lengths: Sequence[int]) -> list[Any]:
    """Test rows: the longer the sequences, the lower is the best rate."""
    names = {"run": folder.name, "task": "mqar", "model": "hawk"}
    return [
        row
        for length in lengths
        for row in scores(right(rate * length / LENGTH, STEPS), "test", STEPS, length, 0, names, COUNT)
    ]


def _write(folder: Path, rows: Sequence[Any]) -> None:
    header, _ = run_record("hawk", task="mqar", name=folder.name)
    record = Record(header, list(rows))
    (folder / "metrics.jsonl").unlink(missing_ok=True)
    with RowLog(folder / "metrics.jsonl") as log:
        log.begin(record.header)
        log.write(record.rows)
