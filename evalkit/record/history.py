"""How a run came to be: every command that worked on it, from which step on, and towards how many."""

import json
import shlex
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from evalkit.core import rows, studies
from evalkit.core.credentials import masked
from evalkit.core.errors import UserError, first_line, writing
from evalkit.core.rows import Record
from evalkit.disk.files import write_whole

FILE = "history.json"


@dataclass(frozen=True)
class Work:
    """One command's work on a run: `step` is where its training went on, None if it trained nothing.

    `steps` is the number of steps to train to, which is also the length of the `schedule`. With state passing,
    `starts` says what its sequences began from and how often a stream began anew, such as "passed, 0.1".
    """

    command: str
    step: int | None = None
    steps: int | None = None
    schedule: str | None = None
    starts: str | None = None

    def __post_init__(self) -> None:
        numbers, words = (self.step, self.steps), (self.command, self.schedule or "", self.starts or "")
        if not all(number is None or type(number) is int for number in numbers) or not all(
            isinstance(word, str) for word in words
        ):
            raise TypeError(f"{self} is no command's work on a run")


class Extension(NamedTuple):
    """At `step`, a run of `before` steps was given another number of steps, `after`."""

    step: int
    before: int
    after: int
    schedule: str | None
    starts: str | None = None
    """What sequences begin from since then, where that is another than before."""

    def __str__(self) -> str:
        steps = f"set out for {self.before:,} training steps, and from step {self.step:,} on for {self.after:,}"
        if self.starts is not None:
            steps += f", with state passing ({self.starts}) since then alone"
        if self.schedule in (None, "constant"):
            return steps
        return f"{steps}; from there the learning rate follows the {self.schedule} of {self.after:,} steps"


def command_line() -> str:
    """The command of this process as it was typed, without keys and tokens."""
    # Not `sys.argv`, which Hydra rewrites. The first word, a path of this machine, is left out.
    words = sys.orig_argv[1:]
    while words and words[0].startswith("-") and words[0] != "-m":  # an option of Python's own
        del words[: 2 if words[0] in ("-W", "-X") else 1]
    return masked(shlex.join(["python", *words] if words[:1] == ["-m"] else ["evalkit", *words[1:]]))


def pasteable(*words: str) -> str:
    """A command of ours as it can be pasted into a shell, lists in quotes.

    >>> pasteable("evaluate", "runs/a", "eval.lengths=[64,128]")
    "python -m evalkit evaluate runs/a 'eval.lengths=[64,128]'"
    """
    return shlex.join(["python", "-m", "evalkit", *words])


def read(folder: Path) -> list[Work]:
    """The work on a run, the first first; empty for runs from before there was a history. Raises UserError."""
    path = folder / FILE
    try:
        return [Work(**entry) for entry in studies.content(path) or ()]
    except (ValueError, TypeError, RecursionError) as error:
        raise UserError(f"{path} was damaged or edited ({first_line(error)}); delete it to go on without") from error


def add(folder: Path, work: Work, before: Iterable[Work] | None = None) -> None:
    """Adds `work` to the history of a run, or to what was `before` it elsewhere; raises UserError on a full disk."""
    works = [*(read(folder) if before is None else before), work]
    path = folder / FILE
    with writing(path):
        write_whole(path, json.dumps([asdict(one) for one in works], indent=2) + "\n")


def extensions(folder: Path, record: Record) -> list[Extension]:
    """The points at which the training that led to the last row was given another number of steps."""
    reached = max((entry["step"] or 0 for entry in record.rows), default=0)
    trained = [work for work in read(folder) if work.step is not None]
    if trained and trained[0].step:  # it began before there was a history
        trained.insert(0, Work("", 0, record.header.steps))
    kept: list[Work] = []
    for work in trained:
        # Work that goes on from an earlier step discards all work from that step on.
        while kept and _began(kept[-1]) >= _began(work):
            kept.pop()
        kept.append(work)
    came = [work for work in kept if _began(work) < reached]
    return [
        Extension(
            _began(later),
            earlier.steps,
            later.steps,
            later.schedule,
            later.starts if later.starts != earlier.starts else None,
        )
        for earlier, later in pairwise(came)
        if earlier.steps is not None and later.steps is not None and earlier.steps != later.steps
    ]


def record_of(folder: Path) -> Record:
    """The record of a run; a changed number of steps is in `steps` and `notes` of its header. Raises UserError."""
    record = rows.read(folder)
    extended = extensions(folder, record)
    if not extended:
        return record
    notes = (*record.header.notes, *map(str, extended))
    return record._replace(header=replace(record.header, steps=extended[-1].after, notes=notes))


def _began(work: Work) -> int:
    return work.step or 0
