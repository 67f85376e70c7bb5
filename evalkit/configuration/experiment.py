"""Configuration: from the command line or a run's folder to built objects; no `DictConfig` leaves this module."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

from hydra.core.override_parser.types import Override
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf, open_dict

from evalkit.configuration import catalogue, composition
from evalkit.configuration.composition import NAMES
from evalkit.configuration.composition import plain as _plain
from evalkit.configuration.composition import set_values as _apply
from evalkit.configuration.schema import locate, verify
from evalkit.core.batches import check_length, is_text, prepare
from evalkit.core.contracts import Evaluation, LanguageModel, Task, Texts
from evalkit.core.errors import UserError
from evalkit.record.tracking import WandbSettings
from evalkit.training.trainer import Training

PRECISIONS = ("default", "high", "highest")
FORMATS = ("text", "json")


@dataclass(frozen=True)
class Experiment:
    """Everything that a run needs, built; raises ValueError for a value that cannot be.

    `data`: where a task's text is. `paper`: what the paper's own setting is, where this one differs. `runs`,
    `controls`: the overrides of each run that belongs to an `experiment=`; `selected_by`: the trial that chose the
    recipe of one of its runs. `config`: the same, as plain resolved data.
    """

    task: Task | Texts
    model: LanguageModel
    train: Training
    eval: Evaluation
    wandb: WandbSettings
    seed: int
    seeds: int
    preset: str
    data: dict[str, Any]
    paper: dict[str, Any]
    runs: dict[str, Any]
    controls: dict[str, Any]
    selected_by: str | None
    matmul_precision: str
    format: str
    task_name: str
    model_name: str
    config: dict[str, Any]

    def __post_init__(self) -> None:
        if self.seed < 0 or self.seeds < 1 or self.seed + self.seeds > 2**32:
            raise ValueError(
                f"seed={self.seed}, seeds={self.seeds}; allowed: seed from 0, seeds from 1, below 2^32 together"
            )
        if self.matmul_precision not in PRECISIONS:
            raise ValueError(f"matmul_precision={self.matmul_precision!r}; allowed: {', '.join(PRECISIONS)}")
        if self.format not in FORMATS:
            raise ValueError(f"format={self.format!r}; allowed: {', '.join(FORMATS)}")
        if self.data["path"] is not None and not is_text(self.task):
            raise ValueError(f"data.path={self.data['path']}, but {self.task_name} is drawn, not read; leave it out")
        stages = self.train.stages(self.task.length)
        for stage in stages:
            check_length(self.task, stage.length)
        if stages[-1].length != self.task.length:
            raise ValueError(
                f"train.steps={self.train.steps} end within the curriculum, at length {stages[-1].length} of "
                f"{self.task.length}; give more steps, or train.curriculum=[]"
            )
        self.eval.check(self.task)


SETTINGS = {name: annotation for name, annotation in get_type_hints(Experiment).items() if name != "config"}
"""The keys of a configuration's first level."""


def compose(overrides: Sequence[str]) -> DictConfig:
    """The configuration of one run, its keys and types checked; raises UserError with one line."""
    return _composed(overrides)[0]


def check(overrides: Sequence[str], *, sweep: bool = False) -> None:
    """Composes and builds what `overrides` ask for, each combination of a sweep; raises UserError, writes nothing."""
    for combination in composition.combinations(overrides) if sweep else [overrides]:
        config, folder = _composed(combination)
        if not sweep:
            refuse_used(folder)
        prepare(experiment(config).task)


def refuse_used(folder: Path) -> None:
    """Raises UserError if `folder` is a run's already."""
    if (folder / "metrics.jsonl").exists():
        raise UserError(
            f"{folder} holds a run already; go on with it by resume={folder}, or give another hydra.run.dir"
        )


def experiment(config: DictConfig) -> Experiment:
    """Builds everything; raises UserError with the constructor's own message and the key's path."""
    plain = _plain(config)
    missing = [name for name in SETTINGS if name not in plain]
    if missing:
        raise UserError(f"{missing[0]} is missing from the configuration; leave ~{missing[0]} out")
    built = {name: build(plain, name) for name in ("task", "train", "eval", "wandb")}
    with _explained(plain["model"], "model"):
        model = instantiate(plain["model"], _convert_="all")(vocab_size=built["task"].vocab_size)
    values = {name: plain[name] for name in plain if name not in built and name != "model"}
    try:
        return Experiment(**built, **values, model=model, config=plain)
    except ValueError as error:
        raise UserError(str(error)) from error


def build_task(name: str, overrides: Sequence[str] = ()) -> Task | Texts:
    """The task `conf/task/<name>.yaml`, with its own settings as `key=value`; raises UserError."""
    base = composition.compose([f"task={name}"]).task
    settings = OmegaConf.create(_plain(base))
    _apply(settings, composition.parse(overrides))
    plain = {"task": _plain(settings)}
    verify(plain, {"task": _plain(base)}, {"task": Task | Texts})
    return build(plain, "task")


def _composed(overrides: Sequence[str]) -> tuple[DictConfig, Path]:
    """The configuration, and the folder that its run would write to."""
    parsed = composition.parse(overrides)
    for override in parsed:
        _refuse_unfit(override)
    typed = zip(overrides, parsed, strict=True)
    base = composition.compose([text for text, override in typed if composition.chooses(override)])
    for group in ("task", "model"):
        if base.hydra.runtime.choices.get(group) is None:
            allowed = " or ".join(f"{group}={name}" for name in catalogue.options(group))
            raise UserError(f"{group} is missing; give {allowed}")
    composition.refuse_unknown_hydra_keys(parsed, base)
    config = composition.compose(composition.forced(overrides))
    _refuse_without_recipe(config)
    with composition.one_line():
        folder = Path(config.hydra.run.dir)
    for composed in (config, base):
        with open_dict(composed):
            del composed["hydra"]
    _verify(config, _plain(base))
    return config, folder


def _refuse_without_recipe(config: DictConfig) -> None:
    """Raises UserError for a run of a figure whose protocol has not chosen its recipe."""
    if config.selected_by == "":
        choices = config.hydra.runtime.choices
        raise UserError(
            f"{choices['experiment']} has no recipe conf/experiment/{choices['experiment@_global_']}.yaml, "
            f"which its protocol chooses; give a preset or a model that has one, or your own settings and selected_by=…"
        )


def _refuse_unfit(override: Override) -> None:
    key = override.key_or_group
    if key in NAMES:
        raise UserError(f"{key} follows from the choice; give {key.removesuffix('_name')}=…")
    if override.is_sweep_override():
        raise UserError(f"{override.input_line!r} gives several values; add -m to run each, or write a list as [a,b]")


def _verify(config: DictConfig, base: Mapping[str, Any]) -> None:
    verify(_plain(config), base, SETTINGS)


def build(plain: Mapping[str, Any], name: str) -> Any:
    """What the part `name` of a plain configuration describes; raises UserError with the constructor's own message."""
    with _explained(plain[name], name):
        return instantiate(plain[name], _convert_="all")


@contextmanager
def _explained(node: Mapping[str, Any], path: str) -> Iterator[None]:
    """A constructor's own message with the path of the key that it speaks of; other errors are ours and stay."""
    try:
        yield
    except (InstantiationException, TypeError, ValueError) as error:
        cause: BaseException = error
        while isinstance(cause, InstantiationException) and cause.__cause__ is not None:
            cause = cause.__cause__
        if isinstance(cause, UserError):
            raise UserError(str(cause)) from error
        if not isinstance(cause, InstantiationException | TypeError | ValueError):
            raise
        raise UserError(locate(node, path, " ".join(str(cause).split()))) from error
