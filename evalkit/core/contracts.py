"""What the harness asks of a task, a model, an evaluation and a sink, and nothing more."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jax import Array
from jax.typing import ArrayLike

from evalkit.core.chats import Chat
from evalkit.core.rows import Header, Row
from evalkit.tasks import Example
from evalkit.tasks.text.corpus import Span
from evalkit.tasks.text.tokenizers import Tokenizer

Params = Any  # nested dictionaries of arrays
Cache = Any  # a pytree of the model's own
LONGEST = 2**30
"""More tokens than a bounded cache has room for."""
BatchPart = slice | np.ndarray
"""Which sequences of a batch are meant: a range, or their numbers."""


@runtime_checkable
class Task(Protocol):
    """A synthetic task: what it says of itself, pure sampling of one example, and the rule that says what is right."""

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
        """How many positions of an example are scored at most: logits are computed there alone. None: all may be."""
        ...

    @property
    def chance(self) -> float:
        """Accuracy of the best guess that knows nothing of the context, as far as it is known."""
        ...

    @property
    def version(self) -> int:
        """A number that is increased whenever the same key would give another example.

        Runs of different versions are no repetitions of one another, and a run of an older one does not go on.
        """
        ...

    def describe(self, tokens: np.ndarray) -> str:
        """`tokens` for human eyes."""
        ...

    def sample(self, key: Array, length: int) -> Example:
        """One example with a context of `length`; jittable with `length` static."""
        ...

    def solve(self, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The rule in plain NumPy: `(targets, mask)`."""
        ...


@runtime_checkable
class Recalls(Protocol):
    """Optional: a task with one fact that can be planted at any position and queried at any later one."""

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
class Judged(Protocol):
    """Optional: a task whose training scores more than its evaluation, such as every next token."""

    @property
    def judged(self) -> Task:
        """The task of held-out sequences, with the same vocabulary, lengths and answer length."""
        ...


@runtime_checkable
class Cuts(Protocol):
    """Optional: a task whose example at one length, with its answers, is the beginning of a longer example."""

    def cut(self, example: Example, length: Array) -> Example:
        """The example as it is at a shorter `length`, with padding after it that is not scored; jittable in both."""
        ...


@runtime_checkable
class Ordinary(Protocol):
    """Optional: a task that can draw its ordinary tokens, which are those around its facts."""

    def ordinary(self, key: Array, length: int) -> Array:
        """Draws `length` ordinary tokens `[length]`; jittable with `length` static."""
        ...


AnyTask = Any
"""The task of a run: a `Task`, a `Text`, or one that only checkpoints are evaluated on, such as a phonebook in text."""

NO_ORDINARY = (
    "train.state_passing: this task does not say what an ordinary token is (a method `ordinary`); make it null, or "
    "give task=induction_heads or task=selective_copying"
)
UNTRAINED = "no model is trained on this task; give checkpoint=FOLDER to evaluate one on it"


class Feed:
    """What a task gives to training and to evaluations: the one place that knows a text from a synthetic task.

    `feed_of(task)` makes one. This base class is the feed of a task that no model is trained on. One program draws
    held-out sequences of all lengths of `ladder`, where there are any.
    """

    ladder: Sequence[int] = ()

    def load(
        self,
        seeds: Sequence[int],
        first: Array | int,
        steps: int,
        batch: int,
        length: int,
        rows: BatchPart = slice(None),
    ) -> Any:
        """What the program needs for steps `first`, … of each seed `[s, steps, b, …]`: arrays, or nothing.

        It is a pure function of the seeds and the steps, so that a resumed run needs only its step. Of each batch, only
        the sequences `rows` are read.
        """
        raise ValueError(UNTRAINED)

    def shapes(self, seeds: int, steps: int, batch: int, length: int) -> Any:
        """The shapes and dtypes of what `load` returns."""
        raise ValueError(UNTRAINED)

    def batch(
        self,
        loaded: Any,
        index: Array,
        seed: ArrayLike,
        step: Array,
        batch: int,
        length: int,
        shortest: int | None = None,
        shards: int = 1,
    ) -> Example:
        """Inside the program: the batch `[b, t]` of `step`, which is at `index` in the data `loaded` for a seed.

        With `shortest`, sequences have random lengths from there to `length`, and padding that is not scored. Where
        `shards` devices share a `batch`, `loaded` has this device's sequences, and only these are made.
        """
        raise ValueError(UNTRAINED)

    def held_out(self, stream: int, first: int, batch: int, length: int) -> Example:
        """Sequences `first`, `first + 1`, … of a held-out stream: the same for every seed, model and batch size."""
        raise ValueError(UNTRAINED)

    @property
    def scored(self) -> int | None:
        """How many positions of a held-out sequence are scored at most, None if all may be."""
        return None

    def ordinary(self, seed: ArrayLike, step: Array, count: int, length: int, facts: float) -> Array:
        """Inside the program: the tokens `[b, t]` that `count` streams of ordinary tokens read at `step`.

        With the probability `facts`, the tokens of a stream hold a fact.
        """
        raise ValueError(NO_ORDINARY)

    def check_ordinary(self, facts: float) -> None:
        """Raises ValueError if the task does not say what an ordinary token is, or with `facts`, what a fact is."""
        raise ValueError(NO_ORDINARY)

    def check_length(self, length: int, shortest: int | None = None) -> None:
        """Raises ValueError for a training length, or a `shortest` one, that cannot be; draws and reads nothing."""
        raise ValueError(UNTRAINED)

    def check_answers(self, length: int) -> None:
        """Raises ValueError if sequences of `length` have no answer that is right or wrong; draws and reads nothing."""
        raise ValueError(UNTRAINED)

    def check_documents(self) -> None:
        """Raises ValueError if there are no held-out documents; reads nothing."""
        raise ValueError("loss by position needs a text; give task=books, or eval=extrapolation")

    def prepare(self) -> None:
        """Reads the texts, if any, before anything is written; raises UserError, in one line, where it cannot."""

    def documents(self) -> Sequence[Span]:
        """The held-out documents; raises ValueError as `check_documents`."""
        self.check_documents()
        return []

    def provenance(self) -> dict[str, str] | None:
        """What text is read: in words (`used`), digests of all (`digest`) and of the `held_out` documents; or None."""
        return None

    def reported(self, totals: dict[str, float]) -> dict[str, float]:
        """The sums over sequences that a report shows, by metric, of those that were measured."""
        return totals

    def refuse_trained_on(self, before: "Feed") -> str | None:
        """Raises UserError if a model trained on the feed `before` saw the held-out documents of this one.

        Returns one line if the training texts can no longer be read, else None.
        """
        return None

    def refuse_unreachable(self) -> None:
        """Raises UserError for held-out texts on a hub that does not answer; asked before weights are read."""

    def in_tokens_of(self, tokenizer: Tokenizer) -> "Feed":
        """The same held-out texts in the tokens of a checkpoint; raises UserError if there are none."""
        return self

    def illustrate(self, seed: int, length: int | None) -> "Illustration":
        """One example for human eyes, at a length that a line can show where none is given."""
        raise ValueError(UNTRAINED)

    @property
    def tokenizer(self) -> Tokenizer:
        """What turns text into the tokens of a model trained on this task."""
        raise ValueError(UNTRAINED)


class Illustration(NamedTuple):
    """An example for human eyes: what it shows, its symbols with the answers due below them, and its source."""

    sentence: str
    length: int
    symbols: Sequence[str]
    answers: Sequence[str]
    source: str = ""


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

    def states(self, cache: Cache) -> Mapping[int, Array]:
        """The state `[b, …]` of each block whose state has a fixed size, by block number, as it is in `cache`."""
        ...

    def cache_bytes(self, batch: int, length: int) -> int:
        """The bytes kept between tokens for `batch` rows of at most `length` tokens."""
        ...

    def flops(self, length: int) -> int:
        """The floating-point operations of a forward pass over one row of `length` tokens."""
        ...

    def parts(self, params: Params, batch: int, length: int) -> Sequence[Any]:
        """Its pieces, each with `name`, `times`, `function` and `arguments`, for timing them."""
        ...

    def decay_mask(self, params: Params) -> Params:
        """True where weight decay applies."""
        ...

    def decays(self, params: Params, tokens: Array) -> Mapping[int, tuple[Array, Array]]:
        """For each block with a decaying state, by block number: δ = −log a and the state, both `[b, t, r]`.

        The state is the field `h`, `[b, r]`, of the block's entry in the cache: a sequence of one NamedTuple per block.
        """
        ...


@runtime_checkable
class Split(Protocol):
    """Optional: a language model whose time may be split over devices (`kernels.sharded`)."""

    @property
    def check_split(self) -> Callable[[int], None]:
        """Raises ValueError if the time cannot be split with this number of tokens on each device."""
        ...


@runtime_checkable
class Divisible(Protocol):
    """Optional: a model of which each device of a mesh axis computes a share of the heads, channels and blocks."""

    def division(self, devices: int) -> Params:
        """Returns how `devices` devices share each parameter: the number of the axis that they divide, or a word.

        `whole`: each device has all of it, and the whole gradient. `term`: each has all of it, and its gradient is one
        term of a sum over them. `once`: as `term`, for a bias that such a sum must have once, so each device adds
        1/`devices` of it. Raises ValueError, in words, for a model that they cannot share.
        """
        ...

    def over(self, axis: str) -> LanguageModel:
        """The model of one device's share of the parameters, inside `jax.shard_map`."""
        ...


@runtime_checkable
class Progress(Protocol):
    """Where an evaluation says how far it is."""

    def describe(self, length: int, done: int, of: int) -> None:
        """`done` of `of` sequences at `length`."""
        ...


class NoProgress:
    """Progress that is not shown: a look while training is short."""

    def describe(self, length: int, done: int, of: int) -> None:
        """Says nothing."""


def never_interrupt() -> None:
    """Used in place of a check for signals, where work is too short to interrupt."""


@dataclass(frozen=True)
class Pretrained:
    """One set of parameters with all that is needed to run it on text.

    `source` is the folder or hub name; `digest` names the parameters; `train_length` is None where unknown.
    `settings` is the text of everything else that decides an answer: the model's configuration and the tokenizer.
    `chat` has the chat templates of a model that was released with some. `ends` are tokens that end a text beside the
    tokenizer's own, such as the end of a turn.
    """

    model: LanguageModel
    params: Params
    tokenizer: Tokenizer
    source: str
    digest: str
    train_length: int | None
    settings: str = ""
    chat: Chat | None = None
    ends: tuple[int, ...] = ()

    @property
    def identity(self) -> str:
        """SHA-256 of the parameters and settings, in hexadecimal: two with the same one answer alike."""
        return hashlib.sha256(f"{self.digest} {self.settings}".encode()).hexdigest()


class Unread(NamedTuple):
    """A checkpoint whose weights are not read yet; `task` is what a run of ours was trained on, else None."""

    model: LanguageModel
    tokenizer: Tokenizer
    task: AnyTask
    read: Callable[[], Pretrained]
    """Reads the weights, which may take minutes; raises UserError for those that cannot be read."""
    source: str = ""
    chat: Chat | None = None


@dataclass(frozen=True)
class Trained:
    """The input of an evaluation: a model with one set of parameters per seed, and the task that it is evaluated on.

    `step` is None for the parameters of a checkpoint, which belong to no step of our runs. `check_interrupt` raises
    when the user asked to stop, and is called between batches. `folder` is where the rows go, for a file beside them.
    `kept` are rows of an earlier, interrupted evaluation. `chat` and `ends` are those of `Pretrained`.
    """

    task: AnyTask
    model: LanguageModel
    params: Sequence[Params]
    seeds: Sequence[int]
    step: int | None
    make_row: Callable[..., Row]
    check_interrupt: Callable[[], None]
    progress: Progress
    feed: Feed
    tokenizer: Tokenizer
    train_length: int | None
    folder: Path
    source: str = ""
    digest: str = ""
    settings: str = ""
    kept: Sequence[Row] = ()
    chat: Chat | None = None
    ends: tuple[int, ...] = ()

    def each(self, **fields: Any) -> Iterator[tuple[Params, Callable[..., Row]]]:
        """For each seed its parameters, and the function that makes its rows with `fields` (`split`, `length`, …)."""
        for seed, params in zip(self.seeds, self.params, strict=True):
            yield params, partial(self.make_row, seed=seed, step=self.step, **fields)

    def pretrained(self, index: int = 0) -> Pretrained:
        """The parameters of one seed with their tokenizer, as generation and scoring take them."""
        return Pretrained(
            model=self.model,
            params=self.params[index],
            tokenizer=self.tokenizer,
            source=self.source,
            digest=self.digest,
            train_length=self.train_length,
            settings=self.settings,
            chat=self.chat,
            ends=self.ends,
        )


class Verdict(NamedTuple):
    """What an evaluation says after its report, and the exit code of the command."""

    text: str = ""
    exit_code: int = 0


class Evaluation(ABC):
    """What is measured of a trained model: a subclass gives `kind` and `run`, and a YAML in `conf/eval/` names it.

    `kind` is the dotted name of the report that draws its rows, such as `evalkit.evaluations.extrapolation.report`.
    """

    kind: ClassVar[str]
    spaced_by: ClassVar[str] = "during.every"
    """The name of its setting for the steps between two evaluations of a model that trains."""

    @property
    def pieces(self) -> int:
        """How many pieces (lengths) `run` reports progress of, for one seed."""
        return 1

    def check(self, task: AnyTask) -> None:
        """Raises ValueError if `task` lacks something that it needs; called before anything is trained."""
        return None

    def check_model(self, model: LanguageModel) -> None:
        """Raises ValueError if `model` cannot do something that it needs; called before anything is written."""
        return None

    def check_looks(self, eval_every: int) -> None:
        """Raises ValueError if it evaluates at steps without a validation, which comes every `eval_every` steps."""
        return None

    def check_tokens(self, task: AnyTask, tokenizer: Tokenizer) -> None:
        """Raises ValueError if it needs what a checkpoint's tokens cannot give; called before anything is written."""
        return None

    @property
    def ladder(self) -> Sequence[int]:
        """The lengths of the held-out sequences that it draws."""
        return ()

    def held(self) -> Sequence[tuple[str, int, int]]:
        """Batches that are certainly in memory: the name of a setting, how many sequences, and how many tokens each."""
        return []

    def limits(self, model: LanguageModel) -> Sequence[str]:
        """What it leaves out although the settings ask for it, and why: known before it starts, a line each."""
        return []

    def probe(self, trained: Trained) -> Iterator[Row]:
        """Rows of a quick look while training (split `validation`)."""
        return iter(())

    def kept(self, rows: Sequence[Row]) -> int:
        """How many of the first `rows` of an interrupted evaluation stay: those of pieces that were finished."""
        return 0

    @abstractmethod
    def run(self, trained: Trained) -> Iterator[Row]:
        """Rows of the whole evaluation (split `test`)."""

    def verdict(self, trained: Trained) -> Verdict:
        """What it prints once all rows are there; an exit code other than 0 means that a required result is missed."""
        return Verdict()


class SinkStart(NamedTuple):
    """What a sink gets when a session begins: the run's folder and configuration, and what it has received already.

    `received` counts the first rows of the record that the sink got in sessions that ended by themselves, and
    `sessions` are the names that those sessions left. `config` is the run's configuration as plain data.
    """

    folder: Path
    config: Mapping[str, Any]
    received: int = 0
    sessions: Sequence[str] = ()


class SinkEnd(NamedTuple):
    """What a sink gets when a session ends: the exit code, 0 for a run that finished successfully.

    `records` makes the results as flat dictionaries, for a finished run whose figures lie in the folder; else it is
    None. `summary` is then what `results.json` will hold.
    """

    exit_code: int = 0
    records: Callable[[], Sequence[Mapping[str, Any]]] | None = None
    summary: Mapping[str, Any] = {}


class Sink(ABC):
    """Where rows go besides the record, `metrics.jsonl`: a subclass gives `write`, and a YAML in `conf/log/` names it.

    A session calls `begin` once, `write` with rows in the order of the record, and `finish` once. A session that is
    killed does not call `finish`; the next session passes its rows again. Where a sink raises, the user reads one
    warning, the run goes on, and the sink gets nothing more in this session but `finish`.
    """

    @property
    def sessions(self) -> Sequence[str]:
        """Names of what this session leaves; the later ones find them in `SinkStart.sessions` once it has ended."""
        return ()

    def check(self) -> None:
        """Raises UserError, before anything is written, if this machine lacks what it needs."""
        return None

    def begin(self, header: Header, start: SinkStart) -> int | None:
        """Returns how many of the record's first rows it has and keeps; it gets the rows after them now.

        0, the default: it gets all rows again and must replace what earlier sessions wrote. `start.received`: it keeps
        all rows that it received, for a target that cannot be replaced. None: it takes no rows in this session.
        """
        return 0

    @abstractmethod
    def write(self, rows: Sequence[Row]) -> None:
        """Takes the rows of one dispatch, of one validation, or one row of an evaluation; it changes none."""

    def repeat(self, rows: Sequence[Row]) -> None:
        """Takes rows of earlier sessions, after those that it keeps."""
        self.write(rows)

    def finish(self, end: SinkEnd) -> Sequence[str]:
        """Closes what it opened, in a session that failed as well; returns lines for the user."""
        return ()
