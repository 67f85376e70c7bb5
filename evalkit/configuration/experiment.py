"""What a run is: one configuration, held to the constructors that it names, and everything that it builds."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, get_type_hints

import jax
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import OmegaConf

from evalkit.checks import one_of
from evalkit.configuration import composition, grammar, nodes
from evalkit.configuration.grammar import Words
from evalkit.configuration.positions import refuse_beyond_positions
from evalkit.configuration.schema import constructor, locate, verify
from evalkit.core import trust
from evalkit.core.batches import feed_of, refuse_no_task
from evalkit.core.contracts import Evaluation, Feed, LanguageModel, Sink, Task
from evalkit.core.credentials import masked
from evalkit.core.errors import UserError, first_line, place_of
from evalkit.evaluations.during import Benchmarked, LookedUp
from evalkit.evaluations.look import Look
from evalkit.numerics import random_key
from evalkit.parallel.layouts import connection
from evalkit.parallel.layouts.mesh import sizes_of
from evalkit.tasks.text import Text
from evalkit.training.passing import check_bounded
from evalkit.training.settings import Training
from evalkit.training.state import EVALUATED

PRECISIONS = ("default", "high", "highest")
FORMATS = ("text", "json")
DTYPES = ("float32", "bfloat16")
AUTO = "auto"


@dataclass(frozen=True)
class Experiment:
    """Everything that a run needs, built; raises ValueError for an invalid value.

    With a `checkpoint` nothing is trained: `model` and `train` are None. `config` is the same as plain resolved data.

    Options:
      seed: the first seed; it decides the first parameters and the training sequences.
      seeds (models): models that are trained together, with `seed`, `seed + 1`, …
      checkpoint: a run, a released model's folder, or its name on the hub: nothing is trained, it is evaluated.
      dtype: the dtype of a checkpoint's activations, `float32` or `bfloat16`; of a trained model it is `model.dtype`.
      parameters: the parameters that are evaluated: the `average` if `train.average` is set, or the `last`.
      matmul_precision: the precision of float32 matrix products on an accelerator: `default`, `high` or `highest`.
      compilation_cache: where the next command finds the programs that this one compiles: `auto`: in the user's cache
        folder; a folder of yours; null: nowhere.
      mesh: devices that train one model, such as `{data: 4, model: 2}`: `data` share a batch and `model` each layer;
        `auto`: every device has all of a layer.
      distributed: one of several processes of a run: `true` where JAX finds the others, or
        `{coordinator: HOST:PORT, count: 2, index: 0}`.
      log: where the rows go besides the record: `[wandb,tensorboard]`, `[]` for nowhere, or sinks of your own.
      sinks: the settings of sinks that `log` names, such as `sinks.NAME.path`; those of W&B are in `wandb`.
      format: `json` ends the output with one line, a JSON object; or `text`.
      quiet: whether the console shows nothing but errors, and the line of `format=json`.
      preset: the size, one of the choices above.
      data.path: a folder with the text of `task=books` or `task=arxiv`, or with the data sets of `task=downstream`.
      paper: the paper's values of settings where a recipe or preset has others; shown with the results.
      runs: the settings of each run of an experiment; `'~runs.NAME'` leaves one out, and `'+runs.NAME=["model=hawk"]'`
        adds one.
      controls: the settings of each run that an experiment's claim needs besides.
      scale: the sizes of the row of table 2 that `scale=…` chose; without one the model's own YAML says its size.
      suite: the tasks, models, rates and seeds of `experiment=suite`.
      selected_by: the trial that an experiment's protocol chose the recipe from.
      allow_targets: packages of your own or of others whose code `_target_` may name, besides those of `--config-dir`.
      task_name: the choice `task=…`, or what a checkpoint is measured on.
      model_name: the choice `model=…`, or the checkpoint's folder.
    """

    task: Any
    model: LanguageModel | None
    train: Training | None
    eval: Evaluation
    wandb: Sink
    log: Sequence[str]
    sinks: dict[str, Any]
    seed: int
    seeds: int
    preset: str
    checkpoint: str | None
    dtype: str
    data: dict[str, Any]
    downstream: Benchmarked
    lookup: LookedUp
    paper: dict[str, Any]
    runs: dict[str, Any]
    controls: dict[str, Any]
    suite: dict[str, Any]
    scale: dict[str, Any]
    selected_by: str | None
    parameters: str
    matmul_precision: str
    compilation_cache: str | None
    mesh: str | dict[str, int]
    distributed: bool | dict[str, str | int]
    format: str
    quiet: bool
    allow_targets: Sequence[str]
    task_name: str
    model_name: str
    config: dict[str, Any]

    def __post_init__(self) -> None:
        self._check_positions()
        if self.seed < 0 or self.seeds < 1 or self.seed + self.seeds > 2**32:
            raise ValueError(
                f"seed={self.seed}, seeds={self.seeds}; allowed: seed from 0, seeds from 1, below 2^32 together"
            )
        one_of(self, "matmul_precision", PRECISIONS)
        one_of(self, "format", FORMATS)
        if self.compilation_cache == "":
            raise ValueError(f"compilation_cache= names no folder; allowed: {AUTO}, a folder, or null")
        for name in self.log:
            if name not in self._every_sink:
                raise ValueError(f"log={list(self.log)}; allowed: {', '.join(self._every_sink)}, each once")
        connection.check(self.distributed)
        if sizes_of(self.mesh) is None and self.train is not None and self.train.gather == "layer":
            raise ValueError("train.gather=layer is of a mesh; give one, such as 'mesh={data: 4, model: 1}'")
        one_of(self, "dtype", DTYPES)
        one_of(self, "parameters", EVALUATED)
        if self.checkpoint is not None and self.parameters != EVALUATED[0]:
            raise ValueError(f"parameters={self.parameters}: a checkpoint has those of its own run; leave it out")
        if self.checkpoint is not None and sizes_of(self.mesh) is not None:
            raise ValueError(f"mesh={self.mesh} divides training, and a checkpoint is trained already; leave it out")
        if self.checkpoint is None and self.dtype != DTYPES[0]:
            raise ValueError(f"dtype={self.dtype} is of a checkpoint's activations; give model.dtype={self.dtype}")
        if self.data["path"] is not None and "path" not in self.config["task"]:
            raise ValueError(f"data.path={self.data['path']}, but {self.task_name} is drawn, not read; leave it out")
        if self.train is not None:
            self.train.check_seeds(self.seeds)
            self._check_stages(self.train)
            self._check_state_passing(self.train)
            self._check_optimizer(self.train)
            if sizes_of(self.mesh) is not None:
                self.train.check_divided()
        self.eval.check(self.task)
        self._check_looks()
        if self.model is not None:
            self.eval.check_model(self.model)

    @cached_property
    def feed(self) -> Feed:
        """How the task gives its sequences."""
        ladder = self.eval.ladder if self.train is None else (*self.eval.ladder, self.task.length)
        return feed_of(self.task, ladder)

    @property
    def looks(self) -> list[Look]:
        """Other evaluations than its own that are made while it trains."""
        return [asked.look for asked in (self.downstream, self.lookup) if asked.look is not None]

    @property
    def outlets(self) -> dict[str, Sink]:
        """The sinks that `log` names."""
        return {name: self._every_sink[name] for name in self.log}

    @property
    def _every_sink(self) -> dict[str, Sink]:
        return {"wandb": self.wandb, **self.sinks}

    @property
    def all_seeds(self) -> list[int]:
        """Seed i of S is `seed + i`."""
        return list(range(self.seed, self.seed + self.seeds))

    @property
    def trained(self) -> tuple[LanguageModel, Training]:
        """The model, and how it is trained; raises UserError for an experiment on a checkpoint."""
        if self.model is None or self.train is None:
            raise UserError(f"checkpoint={self.checkpoint} is trained already; give the folder of a run")
        return self.model, self.train

    def _check_positions(self) -> None:
        for setting, _, length in self.eval.held():
            refuse_beyond_positions(f"eval.{setting}", length)
        if self.train is not None:
            refuse_beyond_positions("task.length", self.task.length)

    def _check_looks(self) -> None:
        for look in self.looks:
            if self.train is None:
                raise ValueError(f"{look.setting} is made while a model trains; leave it out with checkpoint=")
            if look.every > self.train.steps:
                raise ValueError(f"{look.setting}.every={look.every} is never, of train.steps={self.train.steps}")
            if self.model is not None:
                look.evaluation.check_model(self.model)
            for setting, _, length in look.evaluation.held():
                refuse_beyond_positions(f"{look.setting}.{setting}", length)
            try:
                self.feed.check_documents()
            except ValueError as error:
                raise ValueError(f"{look.setting} is asked of models of text; give task=books") from error

    def _check_stages(self, train: Training) -> None:
        stages = train.stages(self.task.length)
        for stage in stages:
            try:
                self.feed.check_length(stage.length, stage.shortest)
            except ValueError as error:
                if stage is stages[-1]:
                    raise
                raise ValueError(
                    f"train.curriculum has a stage that the task cannot have: {error}; or give 'train.curriculum=[]'"
                ) from error
        if stages[-1].length != self.task.length:
            raise ValueError(
                f"train.steps={train.steps} end within the curriculum, at length {stages[-1].length} of "
                f"{self.task.length}; give more steps, or 'train.curriculum=[]'"
            )

    def _check_state_passing(self, train: Training) -> None:
        if train.state_passing is not None:
            model, _ = self.trained
            self.feed.check_ordinary(train.stream_facts)
            check_bounded(model)

    def _check_optimizer(self, train: Training) -> None:
        model, _ = self.trained
        params = jax.eval_shape(model.init, random_key(0))
        train.check_optimizer(params, model.decay_mask(params))


SETTINGS = {name: annotation for name, annotation in get_type_hints(Experiment).items() if name != "config"}
"""The keys of a configuration's first level."""


def assembled(plain: dict[str, Any]) -> Experiment:
    """Builds everything; raises UserError with the constructor's own message and the key's path."""
    missing = [name for name in SETTINGS if name not in plain]
    if missing:
        raise UserError(f"{missing[0]} is missing from the configuration; leave ~{missing[0]} out")
    built = {name: build(plain, name) for name in ("task", "train", "eval", "downstream", "lookup", "wandb")}
    try:
        if plain["train"] is not None:
            refuse_no_task(built["task"])
        built["model"] = _model(plain, built["task"])
        built["sinks"] = {name: build(plain["sinks"], name, "sinks.") for name in plain["sinks"]}
        return Experiment(**{**plain, **built}, config=plain)
    except (ValueError, OverflowError) as error:
        raise UserError(str(error)) from error
    except UserError:
        raise
    except Exception as error:
        if not place_of(error):
            raise
        raise UserError(f"{type(error).__name__}: {first_line(error)}{place_of(error)}") from error


def build_task(name: str, words: Words = ()) -> Task | Text:
    """The task `conf/task/<name>.yaml`, or of the folder that `hydra.searchpath=` names, with its own settings."""
    parsed = grammar.parse(words)
    values = [one for one in parsed if not grammar.chooses(one) and one.key_or_group != grammar.ALLOW]
    base = composition.compose([f"task={name}", *filter(grammar.chooses, parsed)]).config.task
    settings = OmegaConf.create(nodes.plain(base))
    composition.apply(settings, values)
    plain = {"task": nodes.plain(settings)}
    trust.refuse_unnamed(plain, grammar.trusted(parsed))
    verify(plain, {"task": nodes.plain(base)}, {"task": Task | Text})
    return build(plain, "task")


def build(plain: Mapping[str, Any], name: str, within: str = "") -> Any:
    """Builds the part `name` of a plain configuration; raises UserError with the constructor's own message."""
    if plain[name] is None:
        return None
    constructor(plain[name], within + name)  # without _target_, Hydra would return the mapping itself
    _locate_all(plain[name], within + name)
    with explained(plain[name], within + name):
        return instantiate(plain[name], _convert_="all")


def _locate_all(node: Mapping[str, Any], path: str) -> None:
    """Raises UserError for a wrong `_target_` that Hydra would call and `schema` does not check, such as in a list."""
    for key, inner in trust.nodes(node, path):
        constructor(inner, key)


def admitted(plain: Mapping[str, Any], packages: Iterable[str], where: str = "") -> list[str]:
    """The packages whose code a plain configuration runs, and those that the user named: its `allow_targets`.

    Raises UserError for code of a package that the user did not name, and for a key or token. What a saved
    configuration says of `allow_targets` itself counts for nothing.
    """
    named = frozenset(packages)
    trust.refuse_unnamed(plain, named, where)
    for key, value in nodes.leaves(plain):
        if isinstance(value, str) and masked(value) != value:
            raise UserError(
                f"{where}{key} has a key or token in it, and a configuration is written into the run's folder and its "
                "report; leave it out, and give the key by wandb login, hf auth login or its variable"
            )
    return sorted(named.union(map(trust.package_of, trust.strangers(plain).values())))


def written(config: Mapping[str, Any]) -> dict[str, str]:
    """The folders, besides the run's own, that a run of a plain configuration writes into, by their dotted keys."""
    settings = (("wandb", "dir"), ("task", "cache"))
    parts = {part: config.get(part) for part, _ in settings}
    folders = {f"{part}.{name}": node.get(name) for part, name in settings if isinstance(node := parts[part], Mapping)}
    return {key: folder for key, folder in folders.items() if folder is not None}


def _model(plain: Mapping[str, Any], task: Any) -> LanguageModel | None:
    return None if plain["model"] is None else model_of(plain["model"], vocabulary(plain, task))


def vocabulary(plain: Mapping[str, Any], task: Any) -> int:
    """How many tokens the task of a plain configuration has; a text reads its tokenizer to know."""
    with explained(plain["task"], "task"):
        return task.vocab_size


def model_of(node: Mapping[str, Any], vocab_size: int) -> LanguageModel:
    """The model that `Experiment.config["model"]` describes; raises UserError with its constructor's own message."""
    if not isinstance(node, Mapping):
        raise UserError(f"model is {node!r}; its YAML has settings, such as _target_: evalkit.models.build")
    _locate_all(node, "model")
    mixers = node.get("mixers") if node.get("_target_") == trust.BUILD else None  # another model's are its own affair
    for name, mixer in (mixers or {}).items():
        constructor(mixer if isinstance(mixer, Mapping) else {}, f"model.mixers.{name}")
    with explained(node, "model"):
        return instantiate(node, _convert_="all")(vocab_size=vocab_size)


@contextmanager
def explained(node: Mapping[str, Any], path: str) -> Iterator[None]:
    """Turns a constructor's error into a UserError with the key's path; other errors are ours and stay as they are."""
    try:
        yield
    except Exception as error:
        cause: BaseException = error
        while isinstance(cause, InstantiationException) and cause.__cause__ is not None:
            cause = cause.__cause__
        if isinstance(cause, UserError):
            raise UserError(str(cause)) from error
        message, place = " ".join(str(cause).split()), place_of(cause)
        if isinstance(cause, InstantiationException | TypeError | ValueError | OverflowError):
            where = place if isinstance(cause, TypeError) else ""
            raise UserError(f"{locate(node, path, message)}{where}") from error
        if not place:
            raise
        raise UserError(f"{path} cannot be built: {type(cause).__name__}: {message}{place}") from error
