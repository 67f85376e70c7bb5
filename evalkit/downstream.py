"""`python -m evalkit task=downstream checkpoint=…`: lm-eval's benchmarks on a checkpoint, recorded as any run is."""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_type_hints

from hydra import compose, initialize_config_dir
from lm_eval.utils import make_table
from omegaconf import DictConfig, OmegaConf

from evalkit import calibration, catalogue, composition, environment, hub, lm_eval, table1
from evalkit.config import FORMATS, save
from evalkit.errors import UserError, writing
from evalkit.rows import FILE, Row, RowLog, row
from evalkit.schema import verify
from evalkit.tracking import WandbLog, WandbSettings

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


def main(overrides: Sequence[str]) -> int:
    """Runs the benchmarks and returns the exit code: 1 where a calibration does not hold. Raises UserError."""
    config, folder = _composed(overrides)
    data, wandb = (_arguments(config[name]) for name in ("data", "wandb"))
    settings = Downstream(**{**config, "data": Data(**data), "wandb": WandbSettings(**wandb)})
    if (folder / FILE).exists():
        raise UserError(f"{folder} holds a run already; give another hydra.run.dir")
    results = _evaluate(settings)
    _record(settings, config, folder, results)
    return _tell(settings, folder, results)


def _composed(overrides: Sequence[str]) -> tuple[dict[str, Any], Path]:
    """The plain configuration, its keys and types checked, and the folder of the run."""
    if "checkpoint" not in [override.key_or_group for override in composition.parse(overrides)]:
        raise UserError("checkpoint is missing; give checkpoint=FOLDER, such as runs/<task>/<model>/<time>")
    base, config = (_compose(given) for given in (["checkpoint=null"], composition.forced(overrides)))
    with composition.one_line():
        folder = Path(config.hydra.run.dir)
        plain, known = _plain(config), _plain(base)
    verify(plain, known, get_type_hints(Downstream))
    return plain, folder


def _compose(overrides: Sequence[str]) -> DictConfig:
    with composition.one_line(), initialize_config_dir(version_base="1.3", config_dir=str(catalogue.directory())):
        return compose(TASK, overrides=list(overrides), return_hydra_config=True)


def _arguments(node: Mapping[str, Any]) -> dict[str, Any]:
    """Of a part whose constructor is named only so that its keys and types are checked."""
    return {name: value for name, value in node.items() if name != "_target_"}


def _plain(config: DictConfig) -> dict[str, Any]:
    names = [str(name) for name in config if name != "hydra"]
    plain = OmegaConf.to_container(OmegaConf.masked_copy(config, names), resolve=True)
    assert isinstance(plain, dict)
    return {str(name): value for name, value in plain.items()}


def _evaluate(settings: Downstream) -> lm_eval.Results:
    """lm-eval's results, the data sets found before the weights are read."""
    arguments = {"pretrained": settings.checkpoint, **{name: getattr(settings, name) for name in MODEL_ARGUMENTS}}
    path = settings.data.path
    metadata = arguments if path is None else {**arguments, "text": path}
    with TemporaryDirectory() as localised:
        index = hub.manager(settings.tasks, metadata)
        tasks = hub.needed(index, settings.tasks)
        if path is None:
            hub.refuse_unreachable(tasks)
        else:
            hub.localise(index, tasks, Path(path).expanduser(), Path(localised), shots=settings.num_fewshot)
            index = hub.manager(settings.tasks, metadata, [Path(localised)])
        return lm_eval.evaluate(
            model="evalkit",
            model_args=arguments,
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
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        save(config, folder / "config.yaml")
        facts = environment.describe("highest")
        (folder / "environment.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
        (folder / "results.json").write_text(json.dumps(results, indent=2, default=str) + "\n", encoding="utf-8")
    name = Path(settings.checkpoint).name
    found = list(rows_of(results, folder.name, settings.checkpoint))
    with RowLog.open(folder / FILE) as log:
        log.write(found)
    tracked = WandbLog(settings.wandb, folder, config, seeds=[0], task=TASK, model=name, train_length=0)
    tracked.write(found)
    tracked.finish()


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
