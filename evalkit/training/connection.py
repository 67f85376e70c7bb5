"""The setting `distributed`: how JAX connects the processes that train one model, and how one of them ends."""

import os
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jax

from evalkit.core.credentials import masked
from evalkit.core.errors import UserError, first_line
from evalkit.processes import last_words

Setting = bool | Mapping[str, Any]
"""False, True where JAX finds the others by itself, or a coordinator, a count and an index."""
WORDS = {"coordinator": str, "count": int, "index": int}
HEARTBEAT_SECONDS = 20
"""After so many without a sign of life a process is dead, and JAX ends the others."""
UNREACHED = "evalkit: distributed: process 0 did not answer within 300 s; start it, or give the others its address"
LOST = ("Gloo", "gloo", "NCCL", "coordination service")
"""What is in an error of JAX's where another process has gone."""


def check(setting: Setting | str) -> None:
    """Raises ValueError for a setting `distributed` that names no processes."""
    if isinstance(setting, bool):
        return
    if (
        isinstance(setting, str)
        or set(setting) != set(WORDS)
        or any(type(setting[name]) is not kind for name, kind in WORDS.items())
        or not 0 <= setting["index"] < setting["count"]
        or not setting["coordinator"].rpartition(":")[2].isdecimal()
    ):
        shown = setting if isinstance(setting, str) else dict(setting)
        raise ValueError(
            f"distributed={shown}; allowed: false, true, or the address of process 0, how many there are, and which "
            "this one is: 'distributed={coordinator: HOST:PORT, count: 2, index: 0}'"
        )


@contextmanager
def connected(setting: Setting | str) -> Iterator[None]:
    """Within, this process is one of several; call it before JAX touches a device.

    An error ends this process at once, and so the others within half a minute: nobody waits for what cannot come.
    Raises UserError if there are no others to be found.
    """
    try:
        check(setting)
    except ValueError as error:
        raise UserError(str(error)) from error
    if setting is False:
        yield
        return
    with last_words.shortened(UNREACHED):
        _connect(setting)
    with last_words.shortened():
        try:
            yield
        except BaseException as error:
            _tell(error)
            os._exit(error.exit_code if isinstance(error, UserError) else 1)


def _connect(setting: Setting | str) -> None:
    given = setting if isinstance(setting, Mapping) else {}
    try:
        jax.distributed.initialize(
            given.get("coordinator"),
            given.get("count"),
            given.get("index"),
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
        )
    except (ValueError, RuntimeError) as error:
        how = "give 'distributed={coordinator: HOST:PORT, count: 2, index: 0}'"
        raise UserError(f"distributed: the other processes were not found ({first_line(error)}); {how}") from error


def _tell(error: BaseException) -> None:
    """One line of which process ended and why; a fault of ours keeps its traceback."""
    if isinstance(error, jax.errors.JaxRuntimeError) and any(word in str(error) for word in LOST):
        print(last_words.LINE, file=sys.stderr, flush=True)
        return
    if not isinstance(error, UserError | KeyboardInterrupt):
        traceback.print_exception(error)
    reason = "stopped" if isinstance(error, KeyboardInterrupt) else first_line(error)
    print(masked(f"evalkit: process {jax.process_index()}: {reason}"), file=sys.stderr, flush=True)
