"""Checkpoints by Orbax: the training state of all seeds, and beside it what the loop must know to go on.

Orbax restores a flipped bit in silence, so every file has a checksum (`evalkit/disk/sums.py`), which is checked first.
"""

import logging
import shutil
import sys
import threading
import warnings
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp

from evalkit.core.errors import UserError, first_line, writing
from evalkit.disk import sums
from evalkit.parallel import peers
from evalkit.parallel.layouts.vectors import Layout, as_parameters, as_vectors, has_vectors
from evalkit.training.state import TrainState

FOLDER = "checkpoints"
KEPT = 2
UNFINISHED = "unfinished-"
SUMMED = "summed"
"""A metadata key: a checkpoint with it must have checksums, else it is damaged; one without it is from before them."""
MOMENTS = "moments"
"""A metadata key that is there only if the moments have the shapes of the parameters, as those of a mesh do."""
STREAMS = "streams"
"""A key in the metadata: whether the state has streams. Further training may be the first that passes states."""
log = logging.getLogger(__name__)
_SAVING = threading.Lock()
"""Orbax numbers the saves of a whole process, and two at once would wait for each other's folders."""


class Restored(NamedTuple):
    """A checkpoint: its step, the state, and what was saved beside it."""

    step: int
    state: TrainState
    meta: dict[str, Any]


class Checkpoints:
    """The checkpoints of one run's folder: the last two stay, and those at multiples of `keep_every` steps."""

    def __init__(self, run: Path, keep_every: int | None = None):
        self.path = run.absolute() / FOLDER
        self._keep_every = keep_every
        with writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        self._orbax = ocp.Checkpointer(ocp.CompositeCheckpointHandler())

    @property
    def steps(self) -> list[int]:
        """Those that are there, whole or damaged, the newest first."""
        names = [path.name for path in self.path.iterdir() if path.is_dir()]
        return sorted((int(name) for name in names if name.isdecimal()), reverse=True)

    @property
    def latest(self) -> int | None:
        """The newest step, None if there is none."""
        return next(iter(self.steps), None)

    def save(self, state: TrainState, step: int, meta: dict[str, Any]) -> None:
        """Writes a checkpoint and reads it again, then removes older ones; raises UserError if it cannot."""
        new = self.path / f"{UNFINISHED}{step}"
        facts = {**meta, SUMMED: True, STREAMS: state.streams is not None}
        facts = facts if has_vectors(state) else {**facts, MOMENTS: "parameters"}
        items = ocp.args.Composite(
            state=ocp.args.StandardSave(jax.tree.map(_stand_in, _parts(jax.tree.map(_on_host, state)))),
            meta=ocp.args.JsonSave(facts),
        )  # type: ignore[call-arg]
        # After one write has failed, others never start; Python would warn of these, now or when the process ends.
        warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
        try:
            self.tidy()
            with _SAVING:
                hook = sys.unraisablehook
                sys.unraisablehook = partial(_forget_late_writes, hook)
                self._orbax.save(new, args=items)
                sys.unraisablehook = hook  # after a failed write it stays: late writes report later
            if peers.first():
                self._keep(new, step)
        except Exception as error:  # TensorStore reports a full disk as whatever its driver raises
            if peers.lost(error):
                raise
            reason = first_line(error)[:200]
            with suppress(OSError):  # a folder that cannot be read either
                self.tidy()
            raise UserError(
                f"cannot write checkpoint {step} in {self.path}: {reason}; free space, then go on with resume="
            ) from error
        peers.wait(f"checkpoint {step}")

    def _keep(self, new: Path, step: int) -> None:
        """Checks a checkpoint that was written, gives it its name, and then removes older ones."""
        sums.write(new)
        sums.check(new)
        self._remove(step)
        new.rename(self.path / str(step))
        # Later checkpoints are of an attempt that was undone: a damaged one had made it begin again from an older.
        for other in self.steps:
            if other > step:
                self._remove(other)
        self.retire(step)

    def retire(self, step: int) -> None:
        """Removes what is older than the last checkpoints up to `step`, which was found to be good."""
        if not peers.first():
            return
        for old in [each for each in self.steps if each <= step][KEPT:]:
            if self._keep_every is None or old % self._keep_every:
                self._remove(old)

    def restore(self, abstract: TrainState, layout: Layout) -> Restored | None:
        """The newest intact checkpoint, None if none was ever written; raises UserError if all are broken.

        The state has the form and the placement of `abstract`, whatever mesh it was written on. `layout` is that of one
        seed's parameters.
        """
        # All look in the same order, and all hear what is wrong with the files.
        steps = [int(text) for text in peers.agreed(" ".join(map(str, self.steps))).split()]
        other: UserError | None = None
        for step in steps:
            try:
                return Restored(step, *self._read(step, abstract, layout))
            except UserError as error:  # of another model, as it seems; a write may have been lost, too
                if peers.several():
                    raise
                other, reason = other or error, first_line(error)[:200]
            except Exception as error:  # Orbax raises a different type for each way a checkpoint can be broken
                # The others may be waiting within Orbax for this process, which then cannot go on to an older one.
                if peers.lost(error) or (peers.several() and not isinstance(error, sums.Damaged)):
                    raise
                reason = first_line(error)[:200]
            log.warning("checkpoint %d in %s cannot be read (%s); trying an older one", step, self.path, reason)
        if steps:
            raise other or UserError(f"no checkpoint in {self.path} can be read; start the run anew")
        return None

    def at(self, step: int, abstract: TrainState, layout: Layout) -> TrainState:
        """The state of one step, as `restore`; raises UserError if it is broken or not kept, naming those that are."""
        steps = self.steps[::-1]
        if step not in steps:
            raise UserError(f"step={step} was not kept in {self.path}; kept: {', '.join(map(str, steps))}")
        try:
            return self._read(step, abstract, layout)[0]
        except UserError:
            raise
        except Exception as error:  # as in restore
            reason = first_line(error)[:200]
            raise UserError(f"checkpoint {step} in {self.path} cannot be read ({reason}); give another step") from error

    def close(self) -> None:
        """Ends Orbax's threads."""
        self._orbax.close()

    def _read(self, step: int, abstract: TrainState, layout: Layout) -> tuple[TrainState, dict[str, Any]]:
        folder = self.path / str(step)
        summed = _summed(folder)
        meta = self._orbax.restore(folder, args=ocp.args.Composite(meta=ocp.args.JsonRestore()))["meta"]  # type: ignore[call-arg]
        if not summed and meta.get(SUMMED):
            raise sums.Damaged(f"{sums.FILE} is missing")
        if meta.get(STREAMS) is False:
            abstract = abstract._replace(streams=None)
        try:
            with suppress(ValueError) if STREAMS not in meta and abstract.streams is not None else nullcontext():
                return _in_form(partial(self._state, folder), abstract, layout, meta), meta
            # A checkpoint from before the key STREAMS was written: it has no streams.
            return _in_form(partial(self._state, folder), abstract._replace(streams=None), layout, meta), meta
        except ValueError as error:
            if not summed:
                raise
            raise UserError(
                f"{folder} is whole, but its parameters are not those of the model now ({first_line(error)[:99]}); "
                "its code was changed since: put that back, or start a new run in another folder"
            ) from error

    def _state(self, folder: Path, abstract: TrainState) -> TrainState:
        device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        target = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(_stand_in(leaf).shape, leaf.dtype, sharding=leaf.sharding or device),
            parts := _parts(abstract),
        )
        items = ocp.args.Composite(state=ocp.args.StandardRestore(target))  # type: ignore[call-arg]
        read = self._orbax.restore(folder, args=items)["state"]
        return TrainState(
            **jax.tree.map(lambda one, leaf: one if leaf.size else one[:0].reshape(leaf.shape), read, parts)
        )

    def _remove(self, step: int) -> None:
        """Deletes a checkpoint. It is renamed first, so that a kill leaves no half of one under its name."""
        folder, renamed = self.path / str(step), self.path / f"{UNFINISHED}{step}-removed"
        if folder.exists():
            folder.rename(renamed)
            shutil.rmtree(renamed, ignore_errors=True)

    def tidy(self) -> None:
        """Removes what a kill left of a checkpoint that was being written or removed; only a writer may call it."""
        if not peers.first():
            return
        for left in self.path.glob(f"{UNFINISHED}*"):
            shutil.rmtree(left, ignore_errors=True)


def _in_form(
    read: Callable[[TrainState], TrainState], abstract: TrainState, layout: Layout, meta: Mapping[str, Any]
) -> TrainState:
    """The state in the form of `abstract`, moments as vectors or not, whichever was written."""
    if has_vectors(abstract) == (MOMENTS not in meta):
        return read(abstract)
    other, form = (as_parameters, as_vectors) if has_vectors(abstract) else (as_vectors, as_parameters)
    whole = layout.whole
    state = form(read(jax.eval_shape(lambda state: other(state, whole), abstract)), whole)
    where = jax.tree.map(lambda leaf: leaf.sharding or jax.local_devices()[0], abstract)
    return jax.device_put(jax.tree.map(np.asarray, state), where)


def _summed(folder: Path) -> bool:
    """As `sums.check`, by the first process for all; a folder that one of them does not see is damaged."""
    problem = summed = ""
    if peers.largest(int(not folder.is_dir())):
        raise sums.Damaged("not every process sees it")
    if peers.first():
        try:
            summed = SUMMED if sums.check(folder) else ""
        except (sums.Damaged, OSError) as error:
            problem = first_line(error)
    if problem := peers.agreed(problem):
        raise sums.Damaged(problem)
    return peers.first_says(bool(summed))


def _forget_late_writes(hook: "Callable[[sys.UnraisableHookArgs], Any]", failure: "sys.UnraisableHookArgs") -> None:
    """After one write has failed, TensorStore's others report to an event loop that Orbax has closed already.

    Every other failure goes to the process's own `hook`.
    """
    if str(failure.exc_value) != "Event loop is closed":
        hook(failure)


def _stand_in(leaf: Any) -> Any:
    """The array as it is written: Orbax takes no empty array, such as the state of a mixer without one."""
    return leaf if leaf.size else np.zeros(1, leaf.dtype)


def _on_host(leaf: jax.Array) -> jax.Array | np.ndarray:
    """An array that every device holds whole, as NumPy's: otherwise Orbax would slice each device's copy."""
    return np.asarray(leaf) if leaf.is_fully_replicated and leaf.is_fully_addressable else leaf


def _parts(state: TrainState) -> dict[str, Any]:
    """The parts that a state has; others are not on disk, just as in checkpoints from before such a part existed."""
    return {name: part for name, part in state._asdict().items() if part is not None}
