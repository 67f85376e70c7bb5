"""One process's work on one run: where its rows go, what its user sees, its signals, and how it ended."""

import json
import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax

from evalkit.core.contracts import SinkEnd, Verdict
from evalkit.core.errors import UserError, first_line, place_of
from evalkit.core.rows import Header, Row, row
from evalkit.core.trust import code_of
from evalkit.parallel import peers
from evalkit.parallel.interrupt import Interrupted, Watch
from evalkit.record import environment
from evalkit.record.files import TIMES, times_of, write_text
from evalkit.record.sinks import Recorder
from evalkit.reports.kinds import records_of
from evalkit.reports.writer import report
from evalkit.session import logs
from evalkit.session.gates import Launch
from evalkit.session.hints import next_commands, resume_hint

logger = logging.getLogger(__name__)

OUT_OF_MEMORY = "RESOURCE_EXHAUSTED"
"""How XLA begins the message."""


class Outcome(NamedTuple):
    """A run's folder, its `results.json` (empty where it was stopped), the signal that stopped it, and the verdict.

    `given_up`: a judge ended its training early.
    """

    folder: Path
    summary: Mapping[str, Any] = {}
    stopped_by: int | None = None
    verdict: Verdict = Verdict()
    given_up: bool = False

    @property
    def exit_code(self) -> int:
        """The exit code of the command: a signal's own, or what the evaluation's verdict says."""
        return self.verdict.exit_code if self.stopped_by is None else 128 + self.stopped_by

    def print_result(self, format: str) -> int:
        """Prints the last line of `format=json`, if there are numbers to print; returns the exit code."""
        if format == "json" and self.summary:
            sys.stdout.write(json.dumps({**self.summary, "folder": str(self.folder)}, allow_nan=False) + "\n")
            sys.stdout.flush()
        return self.exit_code


@contextmanager
def memory_told() -> Iterator[None]:
    """Raises UserError, with what to give, where a program needs more memory than the device has left."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if OUT_OF_MEMORY not in str(error):
            raise
        raise UserError(
            f"the device is out of memory ({first_line(error)}); give a smaller train.microbatch=, which changes no "
            "result, or eval.batch_size=, or a smaller train.batch_size="
        ) from error


class GivenUp(Exception):
    """The judge of a training has ended it."""


class Session:
    """Work on one run: its files in `folder`, its console and its signals; use it as a context manager.

    Rows after the first `offset` bytes of `metrics.jsonl` belong to an interrupted attempt and are deleted. `hint` is
    printed on Ctrl-C, by default how to resume, and `following` at the end: commands that may be typed next.
    """

    def __init__(
        self,
        launch: Launch,
        folder: Path,
        offset: int = 0,
        hint: str | None = None,
        following: Sequence[str] | None = None,
    ):
        self.experiment, self.folder, self.command = launch.experiment, folder, launch.spec.command
        self.hint = resume_hint(launch.folder) if hint is None else hint
        self.following = next_commands(launch.experiment, launch.folder) if following is None else following
        self.console, self.judge = launch.console, launch.judge
        experiment = launch.experiment
        self.watch = Watch()
        self._said_by_sinks: list[str] = []
        self.timing: dict[str, float] = times_of(folder) if offset else {}
        with ExitStack() as opened:
            opened.enter_context(logs.shown(self.console))
            opened.enter_context(logs.kept(folder / "evalkit.log"))
            recorder = Recorder(folder, offset, experiment.outlets, experiment.config)
            self.record = opened.enter_context(recorder)
            self._opened = opened.pop_all()
        self.make_row = partial(row, run=folder.name, task=experiment.task_name, model=experiment.model_name)

    def __enter__(self) -> "Session":
        self.watch.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.watch.__exit__(*error)
        self._opened.close()

    def guard(self, work: Callable[[], Verdict]) -> Outcome:
        """Does the work, and reports; any failure ends the sinks as failed."""
        code = 1
        try:
            self._describe_machine()
            verdict = work()
            summary = self._report(verdict) if peers.first() else {}
            outcome = Outcome(self.folder, summary, verdict=verdict)
            code = outcome.exit_code
        except UserError:
            raise
        except GivenUp:
            outcome = Outcome(self.folder, given_up=True)
            code = outcome.exit_code
        except Interrupted as stop:
            outcome = Outcome(self.folder, stopped_by=stop.number)
            code = outcome.exit_code
            self.say(f"stopped by {stop}; {self.hint}")
        except Exception as error:
            place = place_of(error)
            if not place:  # a fault of ours keeps its traceback
                raise
            logger.exception("what the user's own code raised")
            message = f"{type(error).__name__}: {first_line(error)}{place}"
            raise UserError(f"{message}; mend it, then {self.hint}") from error
        finally:
            self._close(SinkEnd(code))
            self.say(*self._said_by_sinks)
        return outcome

    def begin(self, header: Header) -> None:
        """Writes the first line of the record: what the run is."""
        self.record.begin(header)

    def write(self, rows: Iterable[Row]) -> list[Row]:
        """Writes rows to the record and to the sinks; returns them."""
        kept = list(rows)
        self.record.write(kept)
        return kept

    def say(self, *lines: str) -> None:
        """Prints each line as it is."""
        for line in lines:
            self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    @contextmanager
    def timed(self, name: str) -> Iterator[Callable[[], None]]:
        """Adds the seconds that pass within, however it ends; what it gives adds those so far, when it is called."""
        began = time.perf_counter()

        def add() -> None:
            nonlocal began
            now = time.perf_counter()
            self.timing[name], began = self.timing.get(name, 0.0) + now - began, now

        try:
            yield add
        finally:
            add()

    def keep_times(self) -> None:
        """Writes the seconds of every session on this run, added up; a killed one counts up to its last checkpoint."""
        # A full disk has ended the work with an error already; it is not reported twice.
        with suppress(UserError):
            write_text(self.folder / TIMES, json.dumps(self.timing, indent=2) + "\n")

    def _describe_machine(self) -> None:
        own_code = code_of(self.experiment.config)
        facts = environment.describe(self.experiment.matmul_precision, own_code, self.command)
        write_text(self.folder / "environment.json", json.dumps(facts, indent=2) + "\n")

    def _report(self, verdict: Verdict) -> dict[str, Any]:
        """Makes the report and says what may follow; returns its numbers."""

        def before_results(summary: Mapping[str, Any]) -> None:
            # The sinks end before the results are written: from then on a killed run counts as finished.
            self._close(SinkEnd(verdict.exit_code, partial(records_of, self.folder), summary))

        summary = report(self.folder, self.console, before_results)
        if verdict.text:
            self.say(verdict.text)
        for name, seconds in self.timing.items():
            self.console.print(f"{name.replace('_', ' ')}: {seconds:.0f} s", highlight=False)
        self.say(*self.following)
        return summary

    def _close(self, end: SinkEnd) -> None:
        """Writes the seconds, and ends the sinks that have not ended yet."""
        self.keep_times()
        self._said_by_sinks += self.record.finish(end)
