"""Shows progress: a bar on a terminal, plain lines elsewhere (a file, a pipe, a batch job)."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Self

from rich import progress
from rich.console import Console

BAR, NARROW_BAR, WIDE = 20, 10, 100
GAP = "  "


class _Display:
    """A bar in one line of a terminal; elsewhere a plain line every `interval` seconds, and always the last one."""

    def __init__(
        self,
        console: Console,
        total: int,
        description: str,
        *,
        interval: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.total = total
        self._console = console
        self._description = description
        self._interval = interval
        self._clock = clock
        self._printed_at = -math.inf
        self._pending: str | None = None
        self._bar: progress.Progress | None = None
        if console.is_terminal and not console.is_dumb_terminal:
            self._bar = progress.Progress(
                progress.TextColumn("{task.description}", markup=False),
                progress.BarColumn(bar_width=_bar_width(console)),
                progress.TextColumn("{task.fields[text]}", markup=False),
                console=console,
                refresh_per_second=4,
            )
            self._bar.add_task(description, total=total, text="")

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif self._pending is not None:
            self._print(self._pending)

    def message(self, text: str) -> None:
        """Prints one line above the bar, or between the plain lines."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _show(self, completed: float, parts: Mapping[str, str], spare: Sequence[str]) -> None:
        """Shows the `parts`; a narrow terminal leaves out those named in `spare`, in turn, until the rest fits."""
        if self._bar is not None:
            text = _fitted(parts, spare, self._console.width - len(self._description) - _bar_width(self._console) - 2)
            self._bar.update(self._bar.task_ids[0], completed=completed, text=text)
            return
        self._pending = f"{self._description}: {GAP.join(parts.values())}"
        if self._clock() - self._printed_at >= self._interval:
            self._print(self._pending)

    def _print(self, line: str) -> None:
        self.message(line)
        self._printed_at = self._clock()
        self._pending = None


class Progress(_Display):
    """The progress of a training run of `total` steps; rates leave out compilation. Use it as a context manager."""

    _first: tuple[float, int, int] | None = None

    def update(self, step: int, loss: float, accuracy: float, tokens: int) -> None:
        """Shows the state after `step` steps and `tokens` tokens, as Python numbers: it never waits for a device."""
        now = self._clock()
        if self._first is None:
            self._first = (now, step, tokens)
        start, first_step, first_tokens = self._first
        seconds = now - start
        parts = {
            "step": f"step {step:,}/{self.total:,}",
            "loss": f"loss {loss:.4g}",
            "accuracy": f"accuracy {accuracy:.1%}",
        }
        if seconds > 0 and step > first_step:
            rate = (step - first_step) / seconds
            parts["steps"] = f"{_short(rate)} steps/s"
            parts["tokens"] = f"{_short((tokens - first_tokens) / seconds)} tokens/s"
            parts["ETA"] = f"ETA {timedelta(seconds=round((self.total - step) / rate))}"
        self._show(step, parts, ("tokens", "steps", "accuracy", "loss"))


class EvaluationProgress(_Display):
    """Shows the progress of an evaluation at `total` lengths in turn; use it as a context manager."""

    _finished = 0

    def describe(self, length: int, done: int, of: int) -> None:
        """Shows that `done` of the `of` pieces at this length have been evaluated; `done == of` ends the length."""
        parts = {
            "length": f"length {length:,}",
            "done": f"{done:,}/{of:,}",
            "lengths": f"({self._finished + 1} of {self.total} lengths)",
        }
        self._show(self._finished + done / of, parts, ("done",))
        if done == of:
            self._finished += 1


def _bar_width(console: Console) -> int:
    return BAR if console.width >= WIDE else NARROW_BAR


def _fitted(parts: Mapping[str, str], spare: Sequence[str], room: int) -> str:
    """The parts in a line of at most `room`, without as many of the `spare` ones as that takes."""
    for count in range(len(spare) + 1):
        line = GAP.join(text for name, text in parts.items() if name not in spare[:count])
        if len(line) <= room:
            break
    return line


def _short(value: float) -> str:
    """Returns three digits and a unit: 950, 1.23k, 45.6M."""
    # From 999.5 on, three digits would round to 1e+03.
    for unit in ("", "k", "M", "G"):
        if value < 999.5 or unit == "G":
            break
        value /= 1000
    return f"{value:.3g}{unit}" if value < 999.5 else f"{value:.0f}{unit}"
