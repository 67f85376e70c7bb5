"""`python -m evalkit task=downstream checkpoint=…`: lm-eval's benchmarks on a checkpoint, recorded as any run is."""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lm_eval.tasks import TaskManager
from lm_eval.utils import make_table

from evalkit.configuration.experiment import FORMATS
from evalkit.core.errors import UserError
from evalkit.core.rows import Row, row
from evalkit.lm_eval import calibration, table1
from evalkit.lm_eval import command as lm_eval
from evalkit.lm_eval import data_sets as hub
from evalkit.record.files import write_text
from evalkit.record.tracking import WandbSettings
from evalkit.session import on_checkpoint

TASK = "downstream"
MODEL_ARGUMENTS = ("dtype", "max_length", "truncate", "add_bos", "share_prefixes")


@dataclass(frozen=True)
class Data:
    """`path`: a folder of data sets as `hub.localise` reads them; None for the hub, or its cache."""

    path: str | None


@dataclass(frozen=True)
class Downstream:
    """What `conf/downstream.yaml` says, built; raises UserError for a value that cannot be."""

    checkpoint: str
    tasks: list[str]
    num_fewshot: int | None
    limit: int | None
    dtype: str
    max_length: int | None
    truncate: bool
    add_bos: bool | None
    share_prefixes: bool
    calibrate: str | None
    format: str
    data: Data
    wandb: WandbSettings

    def __post_init__(self) -> None:
        if not self.tasks:
            raise UserError("tasks=[] is empty; give some, such as tasks=[griffin_table1]")
        if self.format not in FORMATS:
            raise UserError(f"format={self.format!r}; allowed: {', '.join(FORMATS)}")
        if self.limit is not None and self.limit < 1:
            raise UserError(f"limit={self.limit}; allowed: 1 or more, or null")
        if self.calibrate is not None:
            calibration.known(self.calibrate)
            for name, plain in (("limit", None), ("num_fewshot", None), ("truncate", False), ("add_bos", None)):
                if getattr(self, name) != plain:
                    raise UserError(
                        f"calibrate={self.calibrate} with {name}={getattr(self, name)} compares with another protocol; "
                        f"leave {name} out"
                    )


def main(overrides: Sequence[str]) -> int:
    """Runs the benchmarks and returns the exit code: 1 where a calibration does not hold. Raises UserError."""
    config, folder = on_checkpoint.composed(TASK, overrides, Downstream)
    data, wandb = (on_checkpoint.arguments(config[name]) for name in ("data", "wandb"))
    settings = Downstream(**{**config, "data": Data(**data), "wandb": WandbSettings(**wandb)})
    on_checkpoint.refuse_used(folder)
    with _tasks(settings) as index:
        on_checkpoint.describe(folder, config)
        results = _evaluate(settings, index)
    _record(settings, config, folder, results)
    return _tell(settings, folder, results)


def _model_arguments(settings: Downstream) -> dict[str, Any]:
    return {"pretrained": settings.checkpoint, **{name: getattr(settings, name) for name in MODEL_ARGUMENTS}}


@contextmanager
def _tasks(settings: Downstream) -> Iterator[TaskManager]:
    """lm-eval's tasks, their data sets found: what is wrong with them shows before the weights are read."""
    path = settings.data.path
    metadata = _model_arguments(settings) | ({} if path is None else {"text": path})
    with TemporaryDirectory() as localised:
        index = hub.manager(settings.tasks, metadata)
        tasks = hub.needed(index, settings.tasks)
        if settings.calibrate is not None:
            calibration.refuse_missing(settings.calibrate, lambda name: set(hub.needed(index, [name])) <= set(tasks))
        if path is None:
            hub.refuse_unreachable(tasks)
        else:
            hub.localise(index, tasks, Path(path).expanduser(), Path(localised), shots=settings.num_fewshot)
            index = hub.manager(settings.tasks, metadata, [Path(localised)])
        yield index


def _evaluate(settings: Downstream, index: TaskManager) -> lm_eval.Results:
    return lm_eval.evaluate(
        model="evalkit",
        model_args=_model_arguments(settings),
        tasks=settings.tasks,
        task_manager=index,
        num_fewshot=settings.num_fewshot,
        limit=settings.limit,
        log_samples=False,
    )


def rows_of(results: Mapping[str, Any], run: str, checkpoint: str) -> Iterator[Row]:
    """A row for each metric of each task and group; its count is of documents."""
    make = partial(row, run=run, task=TASK, model=checkpoint, split="benchmark")
    for task, metrics in results["results"].items():
        for key, value in metrics.items():
            metric, comma, chosen = key.partition(",")
            if comma and not metric.endswith("_stderr") and isinstance(value, int | float):
                name = f"{task}/{metric}" if chosen == "none" else f"{task}/{metric}/{chosen}"
                count = calibration.documents(results, task)
                shots = results["n-shot"].get(task)
                yield make(metric=name, total=value * count, count=count, extra={"num_fewshot": shots})


def _record(settings: Downstream, config: Mapping[str, Any], folder: Path, results: Mapping[str, Any]) -> None:
    """The run's folder, and W&B from the same rows."""
    write_text(folder / "results.json", json.dumps(results, indent=2, default=str) + "\n")
    name = Path(settings.checkpoint).name
    with on_checkpoint.recorded(folder, config, settings.wandb, task=TASK, model=name, train_length=None) as record:
        record.write(list(rows_of(results, folder.name, settings.checkpoint)))


def _tell(settings: Downstream, folder: Path, results: lm_eval.Results) -> int:
    checks = calibration.checks(settings.calibrate, results) if settings.calibrate else []
    out = sys.stderr if settings.format == "json" else sys.stdout
    print(make_table(results), table1.beside_the_paper(results["results"]), sep="\n", end="", file=out)
    if settings.calibrate:
        print(calibration.shown(settings.calibrate, checks), end="", file=out)
    print(f"folder: {folder}", file=out)
    if settings.format == "json":
        summary = {name: metrics for name, metrics in results["results"].items()}
        print(json.dumps({"results": summary, "folder": str(folder)}, default=str))
    return int(not all(check.holds for check in checks))
