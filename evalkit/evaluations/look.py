"""A whole evaluation that runs every so many steps of training."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self, get_type_hints

from evalkit.checks import describe, fits
from evalkit.core.batches import feed_of
from evalkit.core.contracts import AnyTask, Evaluation, Trained
from evalkit.core.during import DURING
from evalkit.core.errors import UserError
from evalkit.core.rows import Row
from evalkit.tasks.text.tokenizers import Tokenizer

EVERY = "every"
OWN = ("kind", "spaced_by", "during")
"""Attributes of an evaluation that the settings of a look cannot change."""
Given = dict[str, object]
"""What a user says of a look: `every`, and settings of the evaluation in place of its own."""


@dataclass(frozen=True)
class Look:
    """Runs `evaluation` on the model at every step that is a multiple of `every`.

    `setting` is the user's setting that asks for it, such as `eval.during`. `task` is the task to evaluate; None: the
    one that the model trains on. Raises ValueError for an invalid value.
    """

    setting: str
    evaluation: Evaluation
    every: int
    task: AnyTask | None = None

    def __post_init__(self) -> None:
        if not fits(self.every, int) or self.every < 1:
            raise ValueError(f"{self.setting}.{EVERY}={self.every!r}; allowed: a number of steps from 1")

    @classmethod
    def of(cls, setting: str, given: Given, evaluation: Evaluation, task: AnyTask | None = None) -> Self:
        """A look with its `every` from the settings that the user gave; raises ValueError where there is none."""
        if EVERY not in given:
            raise ValueError(
                f"{setting} has no {EVERY}; give a number of steps, such as '{setting}={{{EVERY}: 400, …}}'"
            )
        return cls(setting, evaluation, given[EVERY], task)  # type: ignore[arg-type]  # `__post_init__` checks it

    def check_looks(self, eval_every: int) -> None:
        """Raises ValueError if it is due at steps without a validation; one comes every `eval_every` steps."""
        if self.every % eval_every:
            raise ValueError(
                f"{self.setting}.{EVERY}={self.every}, but models are validated every train.eval_every={eval_every} "
                f"steps; give a multiple of {eval_every}"
            )

    def check(self, tokenizer: Tokenizer) -> None:
        """Raises ValueError for a task that does not suit this tokenizer, and UserError for absent data sets."""
        if self.task is not None:
            try:
                self.evaluation.check(self.task)
            except UserError as error:  # its message names the setting of a whole run
                raise UserError(str(error).replace("data.path=", f"{self.setting}.path=")) from error
            self.evaluation.check_tokens(self.task, tokenizer)

    def is_due(self, step: int) -> bool:
        """Whether the model is looked at after so many steps."""
        return step % self.every == 0

    def probe(self, trained: Trained) -> Iterator[Row]:
        """The rows of the evaluation of every seed, if it is due; what it writes beside its rows is not kept."""
        if not self.is_due(trained.step or 0):
            return
        asked = [trained] if self.task is None else _each_asked(trained, self.task)
        with TemporaryDirectory() as folder:
            for subject in asked:
                for entry in self.evaluation.run(replace(subject, folder=Path(folder))):
                    yield {**entry, "split": DURING}


def _each_asked(trained: Trained, task: AnyTask) -> Iterator[Trained]:
    """Yields each seed's model alone, on another task: the evaluation of a checkpoint has no seeds."""
    feed = feed_of(task).in_tokens_of(trained.tokenizer)
    for seed, params in zip(trained.seeds, trained.params, strict=True):
        make_row = partial(trained.make_row, seed=seed, step=trained.step)
        yield replace(trained, task=task, feed=feed, seeds=[seed], params=[params], make_row=make_row)


def settings_in(
    setting: str, given: Given, *parts: type, called: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """The settings of a look for each constructor of `parts`; raises ValueError for an unknown name or a wrong type.

    `called` maps a constructor's name of a setting to the name that the user gives it here, where they differ.
    """
    names = called or {}
    taken = [
        {names.get(name, name): hint for name, hint in get_type_hints(part).items() if name not in OWN}
        for part in parts
    ]
    own = {name: value for name, value in given.items() if name != EVERY}
    for name, value in own.items():
        hint = next((hints[name] for hints in taken if name in hints), None)
        if hint is None:
            raise ValueError(f"{setting}.{name} is no setting; allowed: {', '.join([EVERY, *chain(*taken)])}")
        if not fits(value, hint):
            raise ValueError(f"{setting}.{name}={value!r}; allowed: {describe(hint)}")
    meant = {word: name for name, word in names.items()}
    return [{meant.get(name, name): value for name, value in own.items() if name in hints} for hints in taken]
