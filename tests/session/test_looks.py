"""What looks while training cost, and the curves that their rows make."""

from collections.abc import Iterator
from typing import Any

import pytest

from evalkit.core.during import DURING, curves, name_of
from evalkit.core.rows import Row, row
from evalkit.session.loop import MOST, LookCosts


def test_a_curve_is_a_mean_over_documents_whatever_they_weigh() -> None:
    def entry(document: str, total: float, count: int, **more: Any) -> Row:
        return row(metric="loss", seed=0, step=5, split=DURING, position=8, total=total, count=count, **more)

    assert curves([entry("a", 2.0, 2), entry("b", 12.0, 4)]) == {"loss@8": {0: {5: 2.0}}}
    assert name_of(row(metric="exact_match", length=64, extra={"answer": "inside"})) == "exact_match@64/inside"
    assert curves([row(metric="loss", split="test", step=5, total=1.0, count=1)]) == {}


@pytest.mark.parametrize(("of_look", "of_training"), [(1.0, 4.0), (3.0, 2.9), (5.0, 0.5), (30.0, 10.0)])
def test_a_look_that_takes_too_much_is_told_with_what_would_do(of_look: float, of_training: float) -> None:
    said, now = list[str](), [0.0]
    costs = LookCosts(said.append, eval_every=50, clock=lambda: now[0])

    def look(seconds: float) -> Iterator[Row]:
        now[0] += seconds
        yield row(metric="loss")

    def trained_for(every: int, seconds_a_step: float) -> float:
        """The share of looks of such an interval."""
        return of_look / (of_look + every * seconds_a_step)

    costs.timed("eval.during.every", look(100 * of_look), 100)  # which compiles
    assert not said
    for step in range(200, 2000, 100):
        now[0] += of_training
        costs.timed("eval.during.every", look(of_look), step)
    a_step = of_training / 100
    if trained_for(100, a_step) <= MOST:
        assert not said
    else:
        (line,) = said
        every = int(line.split("eval.during.every=")[1].split()[0])
        assert every % 50 == 0 and trained_for(every, a_step) <= MOST < trained_for(every - 50, a_step)
    assert costs.seconds == pytest.approx(118 * of_look)


def test_a_look_that_was_not_due_costs_nothing() -> None:
    costs = LookCosts(print, eval_every=1)
    assert costs.timed("eval.during.every", iter(()), 3) == [] and costs.seconds == 0
