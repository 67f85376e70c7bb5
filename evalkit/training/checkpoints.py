"""Checkpoints by Orbax: the training state of all seeds, and beside it what the loop must know to go on."""

import logging
import sys
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import jax
import orbax.checkpoint as ocp

from evalkit.core.errors import UserError, first_line
from evalkit.training.state import TrainState

FOLDER = "checkpoints"
KEPT = 2
log = logging.getLogger(__name__)


class Restored(NamedTuple):
    """A checkpoint: its step, the state, and what was saved beside it."""

    step: int
    state: TrainState
    meta: dict[str, Any]


class Checkpoints:
    """The checkpoints of one run's folder; saving waits until the files are on disk.

    The last two are kept, and those at multiples of `keep_every` steps.
    """

    def __init__(self, run: Path, keep_every: int | None = None):
        self.path = run.absolute() / FOLDER
        self._unreadable: list[int] = []
        options = ocp.CheckpointManagerOptions(
            max_to_keep=KEPT, keep_period=keep_every, enable_async_checkpointing=False
        )
        try:
            self._manager = ocp.CheckpointManager(self.path, options=options)
        except OSError as error:
            raise UserError(f"cannot write {self.path}: {error}; free space or choose another folder") from error

    @property
    def latest(self) -> int | None:
        """The newest step, None if there is none."""
        return self._manager.latest_step()

    def save(self, state: TrainState, step: int, meta: dict[str, Any]) -> None:
        """Writes one checkpoint, in place of any that `restore` could not read; raises UserError if it cannot."""
        items = ocp.args.Composite(state=ocp.args.StandardSave(_parts(state)), meta=ocp.args.JsonSave(meta))  # type: ignore[call-arg]
        try:
            # Orbax silently saves nothing at or before a step that is there, readable or not.
            while self._unreadable:
                self._manager.delete(self._unreadable.pop())
            hook, sys.unraisablehook = sys.unraisablehook, _forget_late_writes
            self._manager.save(step, args=items)
            sys.unraisablehook = hook
        except Exception as error:  # TensorStore reports a full disk as whatever its driver raises
            # Of the writes that the first failure keeps from starting, Python would speak when the process ends.
            warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
            reason = first_line(error)[:200]
            raise UserError(
                f"cannot write checkpoint {step} in {self.path}: {reason}; free space, then go on with resume="
            ) from error

    def restore(self, abstract: TrainState) -> Restored | None:
        """The newest checkpoint that can be read, None if none was ever written; raises UserError if all are broken."""
        steps = sorted(self._manager.all_steps(), reverse=True)
        for step in steps:
            try:
                return Restored(step, *self._read(step, abstract))
            except Exception as error:  # Orbax raises a different type for each way a checkpoint can be broken
                reason = first_line(error)[:200]
                self._unreadable.append(step)
                log.warning("checkpoint %d in %s cannot be read (%s); trying an older one", step, self.path, reason)
        if steps:
            raise UserError(f"no checkpoint in {self.path} can be read; start the run anew")
        return None

    def at(self, step: int, abstract: TrainState) -> TrainState:
        """The checkpoint of one step; raises UserError that names those there are, or if it is broken."""
        steps = sorted(self._manager.all_steps())
        if step not in steps:
            raise UserError(f"step={step} was not kept in {self.path}; kept: {', '.join(map(str, steps))}")
        try:
            return self._read(step, abstract)[0]
        except Exception as error:  # as in restore
            raise UserError(f"checkpoint {step} in {self.path} cannot be read; give another step") from error

    def close(self) -> None:
        """Ends Orbax's threads."""
        self._manager.close()

    def _read(self, step: int, abstract: TrainState) -> tuple[TrainState, dict[str, Any]]:
        device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        target = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=device), _parts(abstract)
        )
        items = ocp.args.Composite(state=ocp.args.StandardRestore(target), meta=ocp.args.JsonRestore())  # type: ignore[call-arg]
        restored = self._manager.restore(step, args=items)
        return TrainState(**restored["state"]), restored["meta"]


def _parts(state: TrainState) -> dict[str, Any]:
    """What a state has; a part that it lacks has no place on disk, as in checkpoints from before there was one."""
    return {name: part for name, part in state._asdict().items() if part is not None}


def _forget_late_writes(failure: "sys.UnraisableHookArgs") -> None:
    """After one write has failed, TensorStore's others report to an event loop that Orbax has closed already."""
    if str(failure.exc_value) != "Event loop is closed":
        sys.__unraisablehook__(failure)
