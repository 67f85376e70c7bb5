"""What the harness asks of a task, a model and an evaluation, and nothing more."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jax import Array

from evalkit.core.rows import Row
from evalkit.tasks import Example
from evalkit.tasks.text.tokenizers import Tokenizer

Params = Any  # nested dictionaries of arrays
Cache = Any  # a pytree of the model's own


@runtime_checkable
class TaskFacts(Protocol):
    """What a task of either kind says of itself."""

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        ...

    @property
    def length(self) -> int:
        """The training length: entries of the context, or tokens of a window of text."""
        ...

    @property
    def answer_length(self) -> int:
        """Entries of `tokens` after the context: `tokens` has `length + answer_length`; of text 0."""
        ...

    @property
    def scored(self) -> int | None:
        """How many positions of every example are scored; None if all are, or if it varies."""
        ...

    @property
    def chance(self) -> float:
        """Accuracy of the best guess that knows nothing of the context, as far as it is known: of text 0."""
        ...

    @property
    def version(self) -> int:
        """Raised whenever the same key, or of text the same numbers, would give another example."""
        ...

    def describe(self, tokens: np.ndarray) -> str:
        """`tokens` for human eyes."""
        ...


@runtime_checkable
class Task(TaskFacts, Protocol):
    """A synthetic task: pure sampling of one example, and the rule that says what is right."""

    def sample(self, key: Array, length: int) -> Example:
        """One example with a context of `length`; jittable with `length` static."""
        ...

    def solve(self, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The rule in plain NumPy: `(targets, mask)`."""
        ...


@runtime_checkable
class Recalls(Protocol):
    """What sets a task apart whose one fact may stand anywhere and be asked for anywhere after it."""

    @property
    def answers(self) -> int:
        """How many facts there are; their answers are the tokens 0 to `answers` − 1."""
        ...

    @property
    def query(self) -> int:
        """The token that asks."""
        ...

    def plant(self, key: Array, length: int, place: Array, answer: Array) -> Array:
        """A context `[length]` without a question, the fact with this answer at `place`; jittable."""
        ...


@runtime_checkable
class Window(Protocol):
    """Windows of text `[b, t]` on the host: the fields of an `Example`, positions included."""

    @property
    def tokens(self) -> np.ndarray:
        """What is read."""
        ...

    @property
    def targets(self) -> np.ndarray:
        """The next token of each."""
        ...

    @property
    def mask(self) -> np.ndarray:
        """Which are asked for."""
        ...

    @property
    def positions(self) -> np.ndarray:
        """In the window, or in the document that begins in it."""
        ...


@runtime_checkable
class Document(Protocol):
    """One held-out document."""

    @property
    def tokens(self) -> np.ndarray:
        """All of them."""
        ...

    @property
    def size(self) -> int:
        """Bytes of UTF-8."""
        ...

    @property
    def source(self) -> str:
        """Where it comes from."""
        ...


@runtime_checkable
class Text(Protocol):
    """One document as it was read."""

    @property
    def source(self) -> str:
        """Where it comes from."""
        ...

    @property
    def text(self) -> str:
        """All of it."""
        ...


@runtime_checkable
class Readable(Protocol):
    """What sets a text apart from a synthetic task: it is read, not drawn. The numbers decide what is read."""

    def windows(self, seed: int, step: int, batch: int, length: int) -> Window:
        """The training windows of one seed at one step."""
        ...

    def validation_windows(self, first: int, batch: int, length: int) -> Window:
        """Windows `first`, `first + 1`, … of what is kept for validation, the same for every seed and batch size."""
        ...

    def documents(self) -> Sequence[Document]:
        """The held-out documents."""
        ...

    def texts(self) -> Iterator[Text]:
        """The held-out documents as text; raises ValueError, in one line, for what cannot be read."""
        ...


@runtime_checkable
class Texts(TaskFacts, Readable, Protocol):
    """A text task: documents to train on and others to be evaluated on, as tokens."""

    @property
    def tokenizer_(self) -> Tokenizer:
        """What makes its tokens."""
        ...

    @property
    def remote(self) -> str | None:
        """The data set on the hub that has to be fetched first, None if there is none."""
        ...

    @property
    def streamed(self) -> str | None:
        """The data set on the hub that `texts` reads each time, None if it reads files."""
        ...

    @property
    def origin(self) -> str:
        """Where the held-out documents come from."""
        ...

    @property
    def allow_shared(self) -> bool:
        """Whether a held-out document may have been trained on."""
        ...

    def contents(self, held_out: bool) -> Sequence[str]:
        """The SHA-256 of each held-out document's text, or of each training document's; ValueError as `prepare`."""
        ...

    def prepare(self) -> None:
        """Reads and tokenises everything, once for all runs; raises ValueError, in one line, for what cannot be."""
        ...

    def used(self) -> str:
        """What text is read, in one line."""
        ...

    def digest(self) -> str:
        """Names everything that is read: two with the same one give the same windows and documents."""
        ...

    def bytes_per_token(self) -> float:
        """Of what is kept for validation."""
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

    def decays(self, params: Params, tokens: Array) -> Mapping[int, tuple[Array, Array]]:
        """Of each block that has a decaying state, by its number: δ = −log a and the state, both `[b, t, r]`.

        That state is `h`, `[b, r]`, of the block's entry in the cache, which is a sequence of one NamedTuple a block.
        """
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

    task: Task | Texts
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

    def check(self, task: Task | Texts) -> None:
        """Raises ValueError if it asks of `task` what that cannot give, before anything is trained."""
        ...

    def limits(self, model: LanguageModel) -> Sequence[str]:
        """What it will not do of what was asked for, and why: known before it starts, a line each."""
        ...

    def probe(self, trained: Trained) -> Iterator[Row]:
        """Rows of a quick look while training (split `validation`)."""
        ...

    def run(self, trained: Trained) -> Iterator[Row]:
        """Rows of the whole evaluation (split `test`)."""
        ...
