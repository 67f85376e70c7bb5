"""What a run is to be: all that words, a dictionary or a saved run say of it, read once."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override
from omegaconf import OmegaConf

from evalkit.configuration import capacity, catalogue, composition, grammar, nodes, saved
from evalkit.configuration.composition import Composed
from evalkit.configuration.experiment import SETTINGS, Experiment, admitted, assembled, explained, written
from evalkit.configuration.grammar import ALLOW, RUN_FOLDER, Words
from evalkit.configuration.overrides import overrides_of
from evalkit.configuration.schema import unknown, verify
from evalkit.core import trust
from evalkit.core.errors import UserError
from evalkit.record.history import command_line
from evalkit.training.optimizer import COSINE, SCHEDULES

Check = Callable[[Experiment], None]


@dataclass(frozen=True, eq=False)
class Spec:
    """A run before it is built: `Spec.of` a new one, `Spec.saved` one that goes on or is evaluated again.

    `plain` is its whole configuration: resolved, with code of named packages alone, its keys and types checked against
    the constructors. `typed` has the words that the user typed, by their keys; `command` is what the history notes as
    its command. `checks` judge the experiment once it is built, such as whether this machine can hold it.
    """

    plain: dict[str, Any]
    folder: Path
    typed: Mapping[str, str] = field(default_factory=dict)
    command: str = field(default_factory=command_line)
    checks: tuple[Check, ...] = ()

    @classmethod
    def of(
        cls, settings: Words | Mapping[str, Any], *, folder: Path | None = None, command: str | None = None
    ) -> "Spec":
        """A new run of these words, or of a dictionary; raises UserError with one line.

        `folder` is where it writes, whatever the settings say of `hydra.run.dir`.
        """
        words = grammar.parse(overrides_of(settings) if isinstance(settings, Mapping) else settings)
        if folder is not None:
            words += grammar.parse(overrides_of({RUN_FOLDER: folder}))
        return cls.composed(composition.compose(words), words, command=command)

    @classmethod
    def composed(cls, composed: Composed, words: Sequence[Override], *, command: str | None = None) -> "Spec":
        """The run that is `composed` of these words; raises UserError for what no run can have."""
        for name in composed.config:
            if name not in SETTINGS:
                raise UserError(unknown(str(name), [*SETTINGS, *nodes.paths(composed.base)]))
        _refuse_missing(composed)
        spec = cls.of_plain(nodes.plain(composed.config), words, composed.folder, command)
        verify(spec.plain, composed.base, SETTINGS)
        _refuse_lists(spec.plain)
        _refuse_without_effect(spec.plain, composed)
        trust.remember(trust.strangers(spec.plain).values())  # resuming and evaluating need not be told again
        trust.remember_folders(written(spec.plain))
        return spec

    @classmethod
    def of_plain(
        cls, plain: dict[str, Any], words: Sequence[Override], folder: Path, command: str | None = None
    ) -> "Spec":
        """The run of a plain configuration that was composed of these words.

        Raises UserError for code of packages that are not named, and for a value with `${`, as saved runs have none.
        """
        for key, value in nodes.leaves(plain):
            if isinstance(value, str) and "${" in value:
                raise UserError(f"{key}={value}: a run cannot say ${{ as text, since it is read again; leave out the $")
        plain[ALLOW] = admitted(plain, grammar.trusted(words))
        return cls(plain, folder, _typed(words), command_line() if command is None else command, NEW)

    @classmethod
    def saved(
        cls,
        run: Path,
        changes: Words = (),
        *,
        allowed: Sequence[str] = (),
        packages: Iterable[str] = (),
        command: str | None = None,
    ) -> "Spec":
        """The run in a folder, with `changes` of keys that begin with one of `allowed`; raises UserError.

        It may be a stranger's: code of packages that are neither evalkit, nor among `packages` or those that the
        changes name, is refused before it is imported.
        """
        words = grammar.parse(changes)
        plain = saved.plain_of(run / saved.CONFIG_FILE, [*packages, *grammar.trusted(words)])
        return cls(plain, run, command=command_line() if command is None else command).changed(words, allowed)

    def changed(self, changes: Words, allowed: Sequence[str]) -> "Spec":
        """The same run with `changes` of keys that begin with one of `allowed`, as it goes on or is evaluated again.

        An option that the run has already (`model=` its own model) may always be given. Raises UserError.
        """
        words = grammar.parse(changes)
        plain, is_changed = saved.changed(self.plain, words, allowed)
        # A run of a larger machine may be read on any; an evaluation with other settings must fit into this one.
        checks: tuple[Check, ...] = (refuse_large_caches,) if is_changed else ()
        if plain["task"] != self.plain["task"]:
            checks = (*checks, partial(saved.refuse_other_vocabulary, self.plain["task"]))
        return Spec(plain, self.folder, _typed(words), self.command, checks)

    def at(self, folder: Path) -> "Spec":
        """The same run in another folder; what is built already stays."""
        moved = replace(self, folder=folder)
        moved.__dict__.update({name: built for name, built in self.__dict__.items() if name == "experiment"})
        return moved

    def words(self, *without: str) -> list[str]:
        """The words that were typed, each once, but those of keys that begin with one of `without`."""
        return list(dict.fromkeys(word for key, word in self.typed.items() if not key.startswith(without)))

    @property
    def packages(self) -> list[str]:
        """The packages whose code it runs, and those that the user named."""
        return self.plain[ALLOW]

    @cached_property
    def experiment(self) -> Experiment:
        """Everything that it describes, built once; raises UserError for what cannot be, or not on this machine."""
        experiment = assembled(self.plain)
        for check in self.checks:
            check(experiment)
        return experiment


def refuse_large_training(experiment: Experiment) -> None:
    """Raises UserError for a training that needs more memory than there is."""
    capacity.refuse_too_large(capacity.of_training(experiment))


def refuse_large_caches(experiment: Experiment) -> None:
    """Raises UserError for an evaluation that needs more memory, and for a mixer's `init_cache` that fails."""
    with explained(experiment.config["model"] or {}, "model"):
        capacity.refuse_too_large(capacity.of_evaluation(experiment))


def refuse_looks_without_validation(experiment: Experiment) -> None:
    """Raises UserError for looks while training at steps where no model is validated; a finished run may have them."""
    try:
        if experiment.train is not None:
            for looks in (experiment.eval, *experiment.looks):
                looks.check_looks(experiment.train.eval_every)
    except ValueError as error:
        raise UserError(str(error)) from error


NEW: tuple[Check, ...] = (refuse_large_training, refuse_large_caches, refuse_looks_without_validation)
"""What is checked of a new run once it is built."""


def _typed(words: Sequence[Override]) -> dict[str, str]:
    """Each word as it was typed, by its key, and by each key below that it sets as a mapping."""
    return {key: grammar.text_of(word) for word in words for key in grammar.keys_of(word)}


def _refuse_missing(composed: Composed) -> None:
    """Raises UserError for a run without a task or a model."""
    config, choices = composed.config, composed.choices
    own = next((Path(str(place)[7:]) for place in composed.hydra["searchpath"]), None)
    for group in ("task", "model") if not OmegaConf.select(config, "checkpoint") else ():
        if choices.get(group) is None:
            allowed = " or ".join(f"{group}={name}" for name in catalogue.options(group, own))
            raise UserError(f"{group} is missing; give {allowed}")


def _refuse_lists(plain: Mapping[str, Any]) -> None:
    """Raises UserError for a part of a file of the user's own that is a list."""
    for name in ("task", "model", "eval", "train"):
        if isinstance(plain.get(name), list):
            chosen = plain.get(f"{name}_name", name)
            raise UserError(f"{name}={chosen} is a list; write its settings in the file, as key: value")


def _refuse_without_effect(plain: Mapping[str, Any], composed: Composed) -> None:
    """Raises UserError for a setting of training that the user gave and that has no effect beside the others.

    The settings of a recipe give way instead, since they serve shorter trainings and other tasks too.
    """
    task, train = plain.get("task") or {}, plain.get("train") or {}
    warmup, steps = train.get("warmup_steps", 0), train.get("steps", 0)
    if "train.warmup_steps" in composed.typed and warmup > steps:
        raise UserError(f"train.warmup_steps={warmup}, but training ends at train.steps={steps}; give fewer, or 0")
    for name in ("b1", "b2") if not isinstance(train.get("optimizer", ""), str) else ():
        if f"train.{name}" in composed.typed:
            raise UserError(f"train.{name} is AdamW's; give train.optimizer.{name}, or what it is called there")
    kind, before = train.get("schedule"), (composed.base.get("train") or {}).get("final_fraction")
    if train.get("final_fraction") != before and kind in SCHEDULES and kind != COSINE:
        raise UserError(
            f"train.final_fraction is where a cosine ends, but train.schedule={kind}; give train.schedule={COSINE}"
        )
    lengths, longest = train.get("lengths"), task.get("length")
    if "train.lengths" in composed.typed and lengths and len(lengths) == 2 and lengths[1] != longest:
        raise UserError(
            f"train.lengths={lengths}, but the longest is task.length={longest}; allowed: "
            f"'train.lengths=[SHORTEST,{longest}]', or another task.length"
        )
    if "train.curriculum" in composed.typed:
        for stage in train["curriculum"]:
            if stage.get("length", 0) >= task.get("length", float("inf")):
                raise UserError(
                    f"train.curriculum has a stage of length={stage['length']}, but task.length={task['length']}; "
                    "stages come before it, so give shorter ones"
                )
