"""The setting `distributed`: how JAX connects the processes that train one model, and how one of them ends."""

import os
import secrets
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax

from evalkit.core.credentials import masked
from evalkit.core.errors import UserError, first_line, writing
from evalkit.parallel import last_words, peers

Setting = bool | Mapping[str, Any]
"""False; True if JAX finds the other processes by itself; or a coordinator, a count and an index."""
WORDS = {"coordinator": str, "count": int, "index": int}
HEARTBEAT_SECONDS = 20
"""After so many without a sign of life a process is dead, and JAX ends the others."""
UNREACHED = "evalkit: distributed: not all processes were there within 300 s; start each, with the address of process 0"
EVALUATION_SECONDS = 7 * 24 * 3600
"""How long a process that has done its part waits for the others, which may measure for longer."""


def check(setting: object) -> None:
    """Raises ValueError for a setting `distributed` that names no processes."""
    if isinstance(setting, bool):
        return
    if (
        not isinstance(setting, Mapping)
        or set(setting) != set(WORDS)
        or any(type(setting[name]) is not kind for name, kind in WORDS.items())
        or not 0 <= setting["index"] < setting["count"]
        or not _is_address(setting["coordinator"])
    ):
        shown = dict(setting) if isinstance(setting, Mapping) else setting
        raise ValueError(
            f"distributed={shown}; allowed: false, true, or the address of process 0, how many there are, and which "
            "this one is: 'distributed={coordinator: HOST:PORT, count: 2, index: 0}'"
        )


def _is_address(text: str) -> bool:
    """Whether it is a host and a port that there can be; for another JAX would look for five minutes."""
    host, _, port = text.rpartition(":")
    return bool(host) and port.isdecimal() and 0 < int(port) < 2**16


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
    code = 0
    with last_words.shortened():
        try:
            yield
            jax.distributed.shutdown()  # waits for the others, of which one may measure for longer
        except BaseException as error:
            code = _exit_code(error)
    if code:
        os._exit(code)


def refuse_unconnected(setting: Setting) -> None:
    """Raises UserError if this process was to be one of several, and nothing has connected it."""
    if setting is not False and not jax.distributed.is_initialized():
        raise UserError(f"distributed={setting}: only the command line connects processes, for one run; leave it out")


def refuse_unshared(folder: Path) -> None:
    """Raises UserError, in every process, if one of them does not see what the first one writes into `folder`."""
    if not peers.several():
        return
    mark = peers.agreed(f".seen-by-all-{secrets.token_hex(8)}")
    if peers.first():
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / mark).touch()
    peers.wait(mark)
    unseen = peers.largest(int(not (folder / mark).exists()))
    if peers.first():
        (folder / mark).unlink()
    if unseen:
        raise UserError(f"{folder} is not seen by all processes; give hydra.run.dir= on a disk that all of them share")


def _connect(setting: Setting | str) -> None:
    words = setting if isinstance(setting, Mapping) else {}
    jax.config.update("jax_enable_preemption_service", False)  # signals are `Watch`'s
    try:
        jax.distributed.initialize(
            words.get("coordinator"),
            words.get("count"),
            words.get("index"),
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
            shutdown_timeout_seconds=EVALUATION_SECONDS,
        )
    except (ValueError, RuntimeError) as error:
        how = "give 'distributed={coordinator: HOST:PORT, count: 2, index: 0}'"
        raise UserError(f"distributed: the other processes were not found ({first_line(error)}); {how}") from error


def _exit_code(error: BaseException) -> int:
    """Says in one line which process ended and why, and returns its exit code; a fault of ours keeps its traceback."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else 1
    if peers.lost(error):
        print(f"{last_words.LINE} ({first_line(error)[:200]})", file=sys.stderr, flush=True)
        return 1
    if not isinstance(error, UserError | KeyboardInterrupt):
        traceback.print_exception(error)
    reason = "stopped" if isinstance(error, KeyboardInterrupt) else first_line(error)
    print(masked(f"evalkit: process {jax.process_index()}: {reason}"), file=sys.stderr, flush=True)
    return 130 if isinstance(error, KeyboardInterrupt) else error.exit_code if isinstance(error, UserError) else 1
