"""What is told of a run: a bar on a terminal, plain lines in a file, and a warning once, which each run's log has."""

import io
import logging
import re
from pathlib import Path

import pytest
from rich.console import Console

from evalkit.record.progress import EvaluationProgress, Progress
from evalkit.session import logs


class Clock:
    """Time that passes only when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def console(terminal: bool) -> tuple[Console, io.StringIO, Clock]:
    text = io.StringIO()
    # TERM is given so that the test does not depend on the terminal it runs in.
    environ = {"TERM": "xterm-256color", "COLUMNS": "160"}
    return Console(file=text, force_terminal=terminal, _environ=environ, width=160), text, Clock()


def train(clock: Clock, progress: Progress, seconds: list[float], steps: int = 100) -> None:
    for index, second in enumerate(seconds, start=1):
        clock.now = second
        progress.update(step=index * steps, loss=1 / index, accuracy=index / 10, tokens=index * steps * 64)


def test_a_file_gets_plain_lines_without_escapes() -> None:
    out, text, clock = console(terminal=False)
    with Progress(out, 1000, "training [hawk]", clock=clock) as progress:
        train(clock, progress, [float(second) for second in range(30, 40)])
    assert "\x1b" not in text.getvalue()
    assert text.getvalue().splitlines() == [
        "training [hawk]: step 100/1,000  loss 1  accuracy 10.0%",
        "training [hawk]: step 1,000/1,000  loss 0.1  accuracy 100.0%  100 steps/s  6.4k tokens/s  ETA 0:00:00",
    ]


def test_the_interval_rules_the_plain_lines() -> None:
    out, text, clock = console(terminal=False)
    with Progress(out, 1000, "training", interval=2.0, clock=clock) as progress:
        train(clock, progress, [float(second) for second in range(10)])
    steps = re.findall(r"step ([\d,]+)/", text.getvalue())
    assert steps == ["100", "300", "500", "700", "900", "1,000"]


def test_the_first_chunk_is_counted_out_of_the_rates() -> None:
    out, text, clock = console(terminal=False)
    with Progress(out, 400, "training", interval=0.0, clock=clock) as progress:
        train(clock, progress, [500.0, 501.0, 502.0])
    first, _, third = text.getvalue().splitlines()
    assert "steps/s" not in first
    assert "100 steps/s  6.4k tokens/s  ETA 0:00:01" in third


def test_a_resumed_run_has_the_rates_of_its_own_steps() -> None:
    out, text, clock = console(terminal=False)
    with Progress(out, 2000, "training", interval=0.0, clock=clock) as progress:
        progress.update(step=1000, loss=0.5, accuracy=0.5, tokens=10_000)
        clock.now = 4.0
        progress.update(step=1040, loss=0.5, accuracy=0.5, tokens=10_400)
    assert "10 steps/s  100 tokens/s  ETA 0:01:36" in text.getvalue()


def test_an_interrupted_run_still_gets_its_last_line() -> None:
    out, text, clock = console(terminal=False)
    with pytest.raises(KeyboardInterrupt), Progress(out, 1000, "training", clock=clock) as progress:
        train(clock, progress, [1.0, 2.0, 3.0])
        raise KeyboardInterrupt
    assert "step 300/1,000" in text.getvalue().splitlines()[-1]


def test_a_terminal_gets_a_bar() -> None:
    out, text, clock = console(terminal=True)
    with Progress(out, 200, "training", clock=clock) as progress:
        train(clock, progress, [1.0, 2.0])
        progress.message("checkpoint [200] written")
    assert "\x1b[" in text.getvalue()
    assert "━" in text.getvalue()
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text.getvalue())
    assert "step 200/200  loss 0.5  accuracy 20.0%  100 steps/s  6.4k tokens/s  ETA 0:00:00" in plain
    assert "checkpoint [200] written\n" in plain


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_bar_is_one_line_with_the_remaining_time_in_sight(width: int) -> None:
    out, text, clock = console(terminal=True)
    out.width = width
    with Progress(out, 1_000_000, "training", clock=clock) as progress:
        train(clock, progress, [1.0, 2.0], steps=99_999)
    lines = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "\n", text.getvalue()).replace("\r", "\n").splitlines()
    assert max(map(len, lines)) <= width and not any("…" in line for line in lines)
    last = next(line for line in reversed(lines) if "step" in line)
    assert "step 199,998/1,000,000" in last and "ETA 0:00:08" in last
    assert ("loss" in last) == (width > 60) and ("tokens/s" in last) == (width > 80)


def test_messages_stand_between_the_plain_lines() -> None:
    out, text, clock = console(terminal=False)
    with Progress(out, 100, "training", clock=clock) as progress:
        progress.message("compiling [bold]")
        progress.update(step=100, loss=0.0, accuracy=1.0, tokens=1)
    assert text.getvalue().splitlines() == ["compiling [bold]", "training: step 100/100  loss 0  accuracy 100.0%"]


def test_an_evaluation_counts_its_lengths() -> None:
    out, text, clock = console(terminal=False)
    with EvaluationProgress(out, 2, "test", interval=0.0, clock=clock) as progress:
        for length in (512, 1024):
            for done in (1, 2):
                progress.describe(length, done, of=2)
    assert text.getvalue().splitlines() == [
        "test: length 512  1/2  (1 of 2 lengths)",
        "test: length 512  2/2  (1 of 2 lengths)",
        "test: length 1,024  1/2  (2 of 2 lengths)",
        "test: length 1,024  2/2  (2 of 2 lengths)",
    ]


def test_nothing_is_printed_where_nothing_was_done() -> None:
    out, text, clock = console(terminal=False)
    with Progress(out, 10, "training", clock=clock):
        pass
    assert text.getvalue() == ""


def test_a_warning_is_shown_once_and_kept_by_every_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logger, console = logging.getLogger("evalkit.record.wandb"), Console(file=io.StringIO(), width=100)
    root = logging.StreamHandler()  # as a library adds one
    logging.getLogger().addHandler(root)
    try:
        with logs.shown(console):
            for name in "ab":
                with logs.shown(console), logs.kept(tmp_path / name):
                    logger.warning("W&B logs offline: no API key")
    finally:
        logging.getLogger().removeHandler(root)
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().count("W&B logs offline") == 1
    assert all((tmp_path / name).read_text().count("W&B logs offline") == 1 for name in "ab")
    assert capsys.readouterr().err == ""
    assert logging.getLogger("evalkit").propagate
