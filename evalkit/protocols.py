"""What the harness asks of a task, a model and an evaluation, and nothing more."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jax import Array

from evalkit.rows import Row
from tasks import Example

Params = Any  # nested dictionaries of arrays
Cache = Any  # a pytree of the model's own


@runtime_checkable
class Task(Protocol):
    """A synthetic task: pure sampling of one example, and the rule that says what is right."""

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        ...

    @property
    def length(self) -> int:
        """The training length: entries of the context."""
        ...

    @property
    def answer_length(self) -> int:
        """Entries of `tokens` after the context: `tokens` has `length + answer_length`."""
        ...

    @property
    def scored(self) -> int | None:
        """How many positions of every example are scored; None if all are, or if it varies."""
        ...

    @property
    def chance(self) -> float:
        """Accuracy of the best guess that knows nothing of the context."""
        ...

    @property
    def version(self) -> int:
        """Raised whenever the same key would give another example."""
        ...

    def sample(self, key: Array, length: int) -> Example:
        """One example with a context of `length`; jittable with `length` static."""
        ...

    def solve(self, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The rule in plain NumPy: `(targets, mask)`."""
        ...

    def describe(self, tokens: np.ndarray) -> str:
        """`tokens` for human eyes."""
        ...


@runtime_checkable
class LanguageModel(Protocol):
    """Pure functions of plain parameters."""

    @property
    def window(self) -> int | None:
        """The smallest bounded window of its mixers, None if there is none."""
        ...

    @property
    def init(self) -> Callable[[Array], Params]:
        """Fresh parameters from a key."""
        ...

    def apply(
        self,
        params: Params,
        tokens: Array,
        positions: Array | None = None,
        cache: Cache | None = None,
        at: Array | None = None,
    ) -> tuple[Array, Cache | None]:
        """Logits `[b, t, v]`, or `[b, n, v]` of the positions `at [b, n]` alone; cache in ⇔ cache out."""
        ...

    def init_cache(self, batch: int, length: int) -> Cache:
        """An empty cache."""
        ...

    def parts(self, params: Params, batch: int, length: int) -> Sequence[Any]:
        """Its pieces, each with `name`, `times`, `function` and `arguments`, for timing them."""
        ...

    def decay_mask(self, params: Params) -> Params:
        """True where weight decay applies."""
        ...


@runtime_checkable
class Progress(Protocol):
    """Where an evaluation says how far it is."""

    def describe(self, length: int, done: int, of: int) -> None:
        """`done` of `of` sequences at `length`."""
        ...


@dataclass(frozen=True)
class Trained:
    """What an evaluation is given: a model with one set of parameters a seed, at some step."""

    task: Task
    model: LanguageModel
    params: Sequence[Params]
    seeds: Sequence[int]
    step: int
    make_row: Callable[..., Row]
    check_interrupt: Callable[[], None]
    """Raises when the user asked to stop; called between batches."""
    progress: Progress


@runtime_checkable
class Evaluation(Protocol):
    """One file in `evalkit/`, one YAML in `conf/eval/`."""

    @property
    def pieces(self) -> int:
        """How many pieces (lengths) `run` reports progress of, for one seed."""
        ...

    def check(self, task: Task) -> None:
        """Raises ValueError if it asks of `task` what that cannot give, before anything is trained."""
        ...

    def probe(self, trained: Trained) -> Iterator[Row]:
        """Rows of a quick look while training (split `validation`)."""
        ...

    def run(self, trained: Trained) -> Iterator[Row]:
        """Rows of the whole evaluation (split `test`)."""
        ...
