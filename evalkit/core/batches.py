"""Where batches come from: drawn inside the compiled step, or read on the host and handed to it by dispatches."""

import os
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from typing_extensions import TypeIs

from evalkit.core import streams
from evalkit.core.contracts import Readable, Task, Texts, Window
from evalkit.core.errors import UserError
from evalkit.core.network import answers
from evalkit.tasks import Example

HUB = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
ANSWER_SECONDS = 1.0


def is_text(task: Task | Texts) -> TypeIs[Texts]:
    """Whether `task` is read, not drawn."""
    return isinstance(task, Readable)


@runtime_checkable
class Feed(Protocol):
    """The training batches of one task: a pure function of seed and step, so that resuming needs only the step."""

    def load(self, seeds: Sequence[int], first: Array | int, steps: int, batch: int, length: int) -> Any:
        """What the program needs for steps `first`, … of each seed `[s, steps, b, …]`: arrays, or nothing."""
        ...

    def shapes(self, seeds: int, steps: int, batch: int, length: int) -> Any:
        """The shapes and dtypes of what `load` returns."""
        ...

    def batch(self, loaded: Any, index: Array, seed: ArrayLike, step: Array, batch: int, length: int) -> Example:
        """Inside the program: the batch `[b, t]` of `step`, the one at `index` of what was `loaded` for a seed."""
        ...


class Drawn:
    """A synthetic task: every batch is drawn in the step itself."""

    def __init__(self, task: Task):
        self.task = task

    def load(self, seeds: Sequence[int], first: Array | int, steps: int, batch: int, length: int) -> tuple[()]:
        """Nothing."""
        return ()

    def shapes(self, seeds: int, steps: int, batch: int, length: int) -> tuple[()]:
        """Nothing."""
        return ()

    def batch(self, loaded: Any, index: Array, seed: ArrayLike, step: Array, batch: int, length: int) -> Example:
        """Drawn from the key of `seed` and `step`."""
        return streams.train_batch(self.task, seed, step, batch, length)


class Read:
    """A text: windows are read on the host."""

    def __init__(self, task: Texts):
        self.task = task

    def load(self, seeds: Sequence[int], first: Array | int, steps: int, batch: int, length: int) -> Example:
        """The windows of every seed and step; without positions where no document begins within any of them, since a
        model that is told none has less to look at (a sixth of MQA's step)."""
        numbers = range(int(first), int(first) + steps)
        found = _stacked(
            [
                _stacked([example_of(self.task.windows(int(seed), number, batch, length)) for number in numbers])
                for seed in seeds
            ]
        )
        return found if (np.asarray(found.positions)[..., 1:] == 0).any() else found._replace(positions=None)

    def shapes(self, seeds: int, steps: int, batch: int, length: int) -> Example:
        """As windows are in which no document begins."""
        shape = (seeds, steps, batch, length)
        whole, flags = (jax.ShapeDtypeStruct(shape, dtype) for dtype in (jnp.int32, jnp.bool_))
        return Example(whole, whole, flags)  # type: ignore[arg-type]

    def batch(self, loaded: Any, index: Array, seed: ArrayLike, step: Array, batch: int, length: int) -> Example:
        """The one that was loaded."""
        return jax.tree.map(lambda leaf: leaf[index], loaded)


def feed_of(task: Task | Texts) -> Feed:
    """How `task` gives its batches."""
    return Read(task) if is_text(task) else Drawn(task)


def check_length(task: Task | Texts, length: int) -> None:
    """Raises ValueError for a length that `task` cannot have; draws and reads nothing."""
    if not is_text(task):
        streams.check_length(task, length)


def prepare(task: Task | Texts) -> None:
    """Reads what a text is made of, before anything is written; raises UserError, in one line, for what cannot be."""
    if not is_text(task):
        return
    refuse_unreachable(task.remote)
    try:
        task.prepare()
    except ValueError as error:
        raise UserError(str(error)) from error


def refuse_unreachable(data_set: str | None) -> None:
    """Raises UserError if a data set has to be fetched from a hub that does not answer."""
    if data_set is not None and not answers(HUB, ANSWER_SECONDS):
        raise UserError(
            f"{data_set} is not in the cache and the hub ({HUB}) does not answer; give data.path=FOLDER with texts, "
            "bring the tokens of a machine that has them (EVALKIT_CACHE), or set HF_ENDPOINT to a mirror"
        )


def refuse_trained_on(before: Texts, task: Texts, contents: Sequence[str]) -> str | None:
    """Raises UserError if a text of these `contents`, held out by `task`, was trained on in a run on `before`.

    Returns what could not be looked at, in one line: the training texts may be gone.
    """
    if task.allow_shared:
        return None
    try:
        known = set(before.contents(held_out=False))
    except ValueError as error:
        return f"not known whether held-out texts were trained on: {error}"
    shared = sum(content in known for content in contents)
    if shared:
        raise UserError(
            f"{shared} of {len(contents)} held-out texts were trained on in this run; "
            "give others, or task.allow_shared=true"
        )
    return None


def held_out_batch(task: Task | Texts, stream: int, first: int, batch: int, length: int) -> Example:
    """Sequences `first`, `first + 1`, … of a held-out stream: the same for every seed, model and batch size."""
    if is_text(task):
        return example_of(task.validation_windows(first, batch, length))
    return streams.held_out_batch(task, stream, first, batch, length)


def example_of(window: Window) -> Example:
    """A window as an example, on the host."""
    return Example(window.tokens, window.targets, window.mask, window.positions)  # type: ignore[arg-type]


def _stacked(examples: Sequence[Example]) -> Example:
    return jax.tree.map(lambda *leaves: np.stack(leaves), *examples)
