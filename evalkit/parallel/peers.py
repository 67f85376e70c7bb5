"""The processes that train one model together, as each of them sees the others: the first one speaks for all.

Each takes the very same steps and looks at the same validations. What only one may do, such as writing a record, the
first one does, and the others do it in a folder that nobody sees.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import jax
import numpy as np
from jax.experimental import multihost_utils

LOST = ("Gloo", "gloo", "NCCL", "coordination service")
"""Text in an error of JAX's if another process has ended or was never reached."""


def first() -> bool:
    """Whether this process speaks for all; a single process does."""
    return jax.process_index() == 0


def several() -> bool:
    """Whether others take part."""
    return jax.process_count() > 1


def largest(number: int) -> int:
    """Returns the largest number that any process passes; all processes must call this."""
    return int(multihost_utils.process_allgather(np.asarray([number], np.int32)).max()) if several() else number


def agreed(text: str) -> str:
    """Returns the text that the first process passes; all processes must call this."""
    if not several():
        return text
    own = np.frombuffer(text.encode(), np.uint8)
    size = int(multihost_utils.broadcast_one_to_all(np.asarray(own.size, np.int32)))
    letters = own if first() else np.zeros(size, np.uint8)
    return bytes(multihost_utils.broadcast_one_to_all(letters)).decode() if size else ""


def first_says(flag: bool) -> bool:
    """Returns the flag that the first process passes; all processes must call this."""
    return bool(agreed("yes" if flag else ""))


def lost(error: BaseException) -> bool:
    """Whether JAX says by this error that it did not reach another process."""
    return isinstance(error, jax.errors.JaxRuntimeError) and any(word in str(error) for word in LOST)


def wait(name: str) -> None:
    """Waits until all processes are at this place."""
    if several():
        multihost_utils.sync_global_devices(name)


@contextmanager
def room(folder: Path) -> Iterator[Path]:
    """Yields where this process writes the record of a run: `folder`, or one of its own that is removed after it."""
    if first():
        yield folder
        return
    with TemporaryDirectory() as unseen:
        yield Path(unseen)
