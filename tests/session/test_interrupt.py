"""A signal waits until the state is saved; then it stops the work, or goes to the handler that was there before."""

import os
import signal
from collections.abc import Iterator
from types import FrameType

import pytest

from evalkit.parallel.interrupt import SIGNALS, Interrupted, Watch


class Requeued(Exception):
    """Stands in for the end of a process whose job is requeued."""


@pytest.fixture
def handled() -> Iterator[list[int]]:
    """The signals that the handlers of a scheduler's library got, as submitit has them: SIGUSR2 ends the process."""
    got: list[int] = []

    def bypass(number: int, _frame: FrameType | None) -> None:
        got.append(number)

    def requeue(number: int, _frame: FrameType | None) -> None:
        got.append(number)
        raise Requeued

    before = {signal.SIGTERM: signal.signal(signal.SIGTERM, bypass)}
    before[signal.SIGUSR2] = signal.signal(signal.SIGUSR2, requeue)
    yield got
    for number, handler in before.items():
        signal.signal(number, handler)


def send(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_stops_the_work_where_no_library_waits_for_it(number: int) -> None:
    with Watch() as watch:
        watch.check()
        send(number)
        assert watch.received == [number]
        with pytest.raises(Interrupted) as stopped:
            watch.check()
    assert stopped.value.number == number


def test_a_library_that_waits_for_a_signal_gets_it_once_the_state_is_saved(handled: list[int]) -> None:
    with Watch() as watch:
        for _ in range(2):  # where its handler returns, the next signal waits as the first
            send(signal.SIGTERM)
            assert handled == [] and watch.received
            watch.check()
            assert handled == [signal.SIGTERM] and not watch.received
            handled.clear()


def test_no_signal_is_lost_to_one_that_follows(handled: list[int]) -> None:
    with Watch() as watch, pytest.raises(Requeued):
        send(signal.SIGTERM)
        send(signal.SIGUSR2)
        watch.check()
    assert handled == [signal.SIGTERM, signal.SIGUSR2]


def test_a_second_signal_acts_at_once(handled: list[int]) -> None:
    with Watch(), pytest.raises(Requeued):
        send(signal.SIGUSR2)
        assert not handled
        send(signal.SIGUSR2)
