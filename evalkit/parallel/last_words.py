"""What a process says when JAX ends it because another one has died: one line in place of a stack of C++.

JAX's runtime ends the process from C++, and writes to the file descriptor of stderr. So a small program stands between:
this file, which passes on whatever comes, but for those words.
"""

import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

FATAL = re.compile(
    rb"^F\d{4} .*JAX distributed service detected fatal errors|^terminate called after throwing an instance of 'gloo"
)
WARNING = re.compile(rb"^E\d{4} .*coordination_service")
HELD_SECONDS = 1.0
LINE = "evalkit: another process of this run has ended, so this one ends too; read its last line, then resume=RUN"


@contextmanager
def shortened(line: str = LINE) -> Iterator[None]:
    """Within, what is written to stderr goes through this program, which says `line` in place of JAX's last words."""
    before = os.dup(2)
    # In a session of its own, so that Ctrl-C leaves it the last words of the others.
    words = [sys.executable, "-S", "-E", __file__, line]
    program = subprocess.Popen(words, stdin=subprocess.PIPE, start_new_session=True)
    assert program.stdin is not None
    os.dup2(program.stdin.fileno(), 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        # JAX may end the process while the program passes on the last lines; its stack of C++ then goes nowhere.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 2)
        os.close(nowhere)
        program.stdin.close()
        with suppress(subprocess.TimeoutExpired):  # W&B's service, which goes on for a while, has stderr too
            program.wait(timeout=2)
        os.dup2(before, 2)
        os.close(before)


def pass_on(last: str) -> None:
    """Copies stdin to stderr line by line, until JAX's last words come, for which it says `last`."""
    held, since = b"", 0.0
    for line in _lines():
        if FATAL.match(line):
            os.write(2, last.encode() + b"\n")
            for _ in _lines():
                pass
            return
        # A warning may be the first of the last words, which come at once: it is held for so long.
        if held and (not line or time.monotonic() - since > HELD_SECONDS):
            os.write(2, held)
            held = b""
        if held or WARNING.match(line):
            held, since = held + line, since if held else time.monotonic()
        else:
            os.write(2, line)
    os.write(2, held)


def _lines() -> Iterator[bytes]:
    """The lines of stdin; after `HELD_SECONDS` of silence the begun line, which may be empty."""
    rest = b""
    while True:
        if not select.select([0], [], [], HELD_SECONDS)[0]:
            yield rest
            rest = b""
            continue
        chunk = os.read(0, 2**16)
        if not chunk:
            yield rest
            return
        *whole, rest = (rest + chunk).split(b"\n")
        yield from (line + b"\n" for line in whole)


if __name__ == "__main__":
    pass_on(sys.argv[1])
