"""Effective lengths of made-up curves whose answers are known."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalkit.evaluations.extrapolation.effective import KEPT, Tally, effective_length, interval_shown, shown
from evalkit.evaluations.extrapolation.summary import summarise
from support.made_up_runs import falls, perfect, run_record

LENGTHS = (64, 256, 512, 1024, 2048)
TRAINED = 256
COUNT = 10_000


def ladder(*accuracies: float, count: int = COUNT) -> dict[int, Tally]:
    return {length: Tally(accuracy * count, count) for length, accuracy in zip(LENGTHS, accuracies, strict=True)}


@pytest.mark.parametrize(
    ("accuracies", "length"),
    [
        ((1.0, 1.0, 0.9, 0.5, 0.1), 512),  # monotone
        ((1.0, 1.0, 0.5, 1.0, 1.0), 256),  # not monotone: what comes back is not counted
        ((0.1, 1.0, 1.0, 1.0, 0.2), 1024),  # below the training length nothing counts
        ((1.0, 1.0, 1.0, 1.0, 1.0), 2048),  # beyond the ladder
        ((0.5, 0.6, 0.51, 0.5, 0.1), 512),  # 85% of 0.6 is 0.51
        ((0.0, 0.0, 0.0, 0.0, 0.0), None),  # below chance
        ((0.1, 0.11, 0.11, 0.11, 0.11), None),  # 85% of it would be below chance
    ],
)
def test_curves_with_known_answers(accuracies: Sequence[float], length: int | None) -> None:
    effective = effective_length([ladder(*accuracies)], TRAINED, 0.85, chance=0.1)
    assert effective["length"] == length and effective["longest"] == 2048


def test_what_is_beyond_the_ladder_is_shown_as_at_least() -> None:
    beyond = effective_length([ladder(1, 1, 1, 1, 1)], TRAINED, 0.85)
    within = effective_length([ladder(1, 1, 1, 0.1, 0.1)], TRAINED, 0.85)
    assert (shown(beyond), interval_shown(beyond)) == ("≥ 2,048", "≥ 2,048 – ≥ 2,048")
    assert (shown(within), interval_shown(within)) == ("512", "512 – 512")
    assert shown(effective_length([], TRAINED, 0.85)) == "–" == interval_shown(effective_length([], None, 0.85))


def test_without_an_evaluation_at_the_training_length_there_is_none() -> None:
    assert effective_length([ladder(1, 1, 1, 1, 1)], 128, 0.85)["length"] is None


def test_the_training_length_alone_says_nothing_of_others() -> None:
    assert effective_length([{64: Tally(8, 8), TRAINED: Tally(8, 8)}], TRAINED, 0.85)["length"] is None


def test_few_sequences_and_seeds_that_differ_make_the_interval_wider() -> None:
    sure = effective_length([ladder(1, 1, 0.95, 0.2, 0.1)], TRAINED, 0.85)
    few = effective_length([ladder(1, 1, 0.95, 0.2, 0.1, count=8)], TRAINED, 0.85)
    assert (sure["low"], sure["high"]) == (512, 512) and few["low"] == TRAINED
    seeds = [ladder(1, 1, 1, 1, 1), ladder(1, 1, 1, 1, 1), ladder(1, 1, 0.1, 0.1, 0.1)]
    apart = effective_length(seeds, TRAINED, 0.85)
    assert (apart["length"], apart["low"], apart["high"]) == (2048, 256, 2048)


CURVES = st.lists(st.tuples(*[st.integers(0, 64)] * len(LENGTHS)), min_size=1, max_size=4)


@given(curves=CURVES, chance=st.sampled_from([0.0, 0.1, 0.5]))
def test_laws_of_every_curve(curves: list[tuple[int, ...]], chance: float) -> None:
    ladders = [ladder(*(right / 64 for right in curve), count=64) for curve in curves]
    more, less = (effective_length(ladders, TRAINED, kept, chance) for kept in sorted(KEPT))
    for at in (more, less):
        if at["length"] is not None and at["low"] is not None and at["high"] is not None:
            assert TRAINED <= at["low"] <= at["length"] <= at["high"] <= LENGTHS[-1]
            assert at["length"] in LENGTHS
    if more["length"] is not None and less["length"] is not None:
        assert less["length"] <= more["length"]
    assert effective_length(ladders[::-1], TRAINED, 0.85, chance)["length"] == more["length"]
    rising = [{**one, 512: one[256], 1024: one[256], 2048: one[256]} for one in ladders]
    assert effective_length(rising, TRAINED, 0.99, chance)["length"] in (None, 2048)


def test_results_have_it_of_each_seed_and_of_all() -> None:
    summary = summarise(run_record(seeds=(0, 1), test=falls))
    assert [seed["effective_length"]["0.85"]["length"] for seed in summary["seeds"]] == [256, 256]
    assert summary["aggregate"]["effective_length"]["0.99"]["length"] == 256
    assert summarise(run_record(test=perfect))["aggregate"]["effective_length"]["0.85"]["length"] == 1024
