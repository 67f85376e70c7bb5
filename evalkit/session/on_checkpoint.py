"""A run on a checkpoint, nothing trained: its configuration, its folder, and its record in rows and W&B."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_type_hints

import jax
import numpy as np
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from evalkit.checkpoints.pretrained import Pretrained
from evalkit.configuration import catalogue, composition
from evalkit.configuration.experiment import save
from evalkit.configuration.schema import verify
from evalkit.core.errors import UserError, writing
from evalkit.core.rows import FILE, Header, RowLog
from evalkit.record import environment
from evalkit.record.tracking import WandbLog, WandbSettings

PRECISION = "highest"


def composed(name: str, overrides: Sequence[str], settings: type) -> tuple[dict[str, Any], Path]:
    """The plain configuration `conf/<name>.yaml`, held to the dataclass `settings`, and the folder of its run.

    Raises UserError for an unknown key or type, and if no checkpoint is given.
    """
    if "checkpoint" not in [override.key_or_group for override in composition.parse(overrides)]:
        raise UserError("checkpoint is missing; give checkpoint=FOLDER, such as runs/<task>/<model>/<time>")
    base, config = (_compose(name, given) for given in (["checkpoint=null"], composition.forced(overrides)))
    with composition.one_line():
        folder = Path(config.hydra.run.dir)
        plain, known = _plain(config), _plain(base)
    verify(plain, known, get_type_hints(settings))
    return plain, folder


def arguments(node: Mapping[str, Any]) -> dict[str, Any]:
    """Of a part whose constructor is named only so that its keys and types are checked."""
    return {name: value for name, value in node.items() if name != "_target_"}


def refuse_used(folder: Path) -> None:
    """Raises UserError if `folder` holds a run."""
    if (folder / FILE).exists():
        raise UserError(f"{folder} holds a run already; give another hydra.run.dir")


def describe(folder: Path, config: Mapping[str, Any]) -> None:
    """Writes `config.yaml` and `environment.json` into `folder`, which is made."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        save(config, folder / "config.yaml")
        facts = json.dumps(environment.describe(PRECISION), indent=2)
        (folder / "environment.json").write_text(facts + "\n", encoding="utf-8")


def header(held: Pretrained, run: str, task: str, model: str, kind: str) -> Header:
    """What is evaluated."""
    return Header(
        run=run,
        task=task,
        model=model,
        kind=kind,
        parameters=sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(held.params)),
        train_length=held.train_length,
        window=held.model.window,
        source=held.source,
        identity=held.identity,
    )


@contextmanager
def recorded(
    folder: Path,
    config: Mapping[str, Any],
    wandb: WandbSettings,
    *,
    task: str,
    model: str,
    train_length: int | None,
    offset: int | None = None,
) -> Iterator["Record"]:
    """Where rows go: `metrics.jsonl` in `folder`, cut to `offset` bytes first, and W&B."""
    tracked = WandbLog(wandb, folder, config, seeds=[0], task=task, model=model, train_length=train_length or 0)
    failed = 1
    try:
        with RowLog.open(folder / FILE, offset) as log:
            yield Record(log, tracked)
        failed = 0
    finally:
        tracked.finish(failed)


class Record:
    """Writes rows to a run's log and to W&B."""

    def __init__(self, log: RowLog, tracked: WandbLog):
        self._log, self._tracked = log, tracked

    def begin(self, header: Header) -> None:
        """Writes the header."""
        self._log.begin(header)
        self._tracked.begin(header)

    def write(self, rows: Sequence[Any]) -> None:
        """Writes `rows`, which are on disk when this returns."""
        self._log.write(rows)
        self._log.sync()
        self._tracked.write(rows)


def _compose(name: str, overrides: Sequence[str]) -> DictConfig:
    with composition.one_line(), initialize_config_dir(version_base="1.3", config_dir=str(catalogue.directory())):
        return compose(name, overrides=list(overrides), return_hydra_config=True)


def _plain(config: DictConfig) -> dict[str, Any]:
    names = [str(name) for name in config if name != "hydra"]
    plain = OmegaConf.to_container(OmegaConf.masked_copy(config, names), resolve=True)
    assert isinstance(plain, dict)
    return {str(name): value for name, value in plain.items()}
