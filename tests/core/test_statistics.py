"""Intervals and spreads against known values and their own laws."""

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta, mannwhitneyu, rankdata

from evalkit.core.statistics import censored_spread, exact_interval, holm, mann_whitney, spread, wilson

COUNTS = st.integers(1, 10_000)


def test_wilson_against_published_values() -> None:
    # Newcombe 1998, Statistics in Medicine 17:857, table I.
    assert wilson(81, 263, 1.959964) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson(15, 148, 1.959964) == pytest.approx((0.0624, 0.1605), abs=5e-5)
    assert wilson(0, 20, 1.959964) == pytest.approx((0.0, 0.1611), abs=5e-5)
    assert wilson(1, 29, 1.959964) == pytest.approx((0.0061, 0.1718), abs=5e-5)


def test_381_sequences_without_an_error_show_99_percent() -> None:
    assert wilson(381, 381)[0] >= 0.99
    assert wilson(380, 380)[0] < 0.99
    assert wilson(256, 256) == (pytest.approx(0.98522, abs=1e-5), 1.0)


def test_nothing_counted_gives_no_interval() -> None:
    assert all(math.isnan(end) for end in wilson(0, 0))


@given(count=COUNTS, share=st.floats(0, 1))
def test_the_interval_holds_the_mean_within_0_and_1(count: int, share: float) -> None:
    total = min(share * count, count)
    low, high = wilson(total, count)
    assert 0 <= low <= total / count <= high <= 1
    assert low < high


@given(count=COUNTS, share=st.floats(0, 1))
def test_the_interval_is_symmetric_and_shrinks_with_more_sequences(count: int, share: float) -> None:
    total = min(share * count, count)
    low, high = wilson(total, count)
    mirrored = wilson(count - total, count)
    assert (1 - high, 1 - low) == pytest.approx(mirrored, abs=1e-9)
    more_low, more_high = wilson(4 * total, 4 * count)
    assert more_high - more_low < high - low


@pytest.mark.parametrize("total", [-1, 11, math.nan])
def test_a_total_that_is_no_sum_of_shares_is_refused(total: float) -> None:
    with pytest.raises(ValueError, match="lies outside"):
        wilson(total, 10)


def test_a_spread_leaves_out_what_is_no_number() -> None:
    assert spread([1.0, math.nan, 0.5]) == {"mean": 0.75, "median": 0.75, "min": 0.5, "max": 1.0, "seeds": 2}
    assert spread([]) == {"mean": None, "median": None, "min": None, "max": None, "seeds": 0}


def test_one_seed_that_never_got_there_takes_the_mean_away() -> None:
    assert censored_spread([100, 300]) == {"mean": 200, "median": 200, "min": 100, "max": 300, "seeds": 2}
    assert censored_spread([100, None]) == {"mean": None, "median": None, "min": 100, "max": None, "seeds": 1}
    assert censored_spread([None, 300, 100])["median"] == 300
    assert censored_spread([None, 100, 300, None])["median"] is None, "half-way to a number that is not known"


@given(st.lists(st.integers(-1000, 1000), min_size=2, max_size=14, unique=True), st.data())
def test_the_exact_test_is_scipys_where_no_numbers_are_equal(numbers: list[int], data: st.DataObject) -> None:
    cut = data.draw(st.integers(1, len(numbers) - 1))
    first, second = numbers[:cut], numbers[cut:]
    expected = mannwhitneyu(first, second, alternative="greater", method="exact").pvalue
    assert mann_whitney(first, second) == pytest.approx(expected, abs=1e-12)


@given(st.lists(st.integers(0, 3), min_size=2, max_size=9), st.data())
def test_equal_numbers_share_a_rank(numbers: list[int], data: st.DataObject) -> None:
    """Against every way to choose the first group, one by one."""
    cut = data.draw(st.integers(1, len(numbers) - 1))
    ranks = rankdata(numbers)
    sums = [sum(chosen) for chosen in combinations(ranks, cut)]
    expected = np.mean([total >= sum(ranks[:cut]) - 1e-9 for total in sums])
    assert mann_whitney(numbers[:cut], numbers[cut:]) == pytest.approx(expected, abs=1e-12)


def test_a_test_says_what_it_cannot_tell() -> None:
    assert mann_whitney([1.0] * 5, [1.0] * 5) == 1
    assert mann_whitney([math.inf, 2.0], [1.0, 0.0]) == pytest.approx(1 / 6)
    with pytest.raises(ValueError, match="groups of 0 and 1 numbers"):
        mann_whitney([], [1.0])
    for place in range(3):  # where it stands among the seeds would change p
        with pytest.raises(ValueError, match="NaN, which has no rank"):
            mann_whitney([math.nan if seed == place else 1.0 for seed in range(3)], [1.0])


@given(trials=st.integers(1, 30), share=st.floats(0, 1))
def test_the_exact_interval_is_that_of_the_beta_distribution(trials: int, share: float) -> None:
    seen = round(share * trials)
    low = beta.ppf(0.025, seen, trials - seen + 1) if seen else 0.0
    high = beta.ppf(0.975, seen + 1, trials - seen) if seen < trials else 1.0
    assert exact_interval(seen, trials) == pytest.approx((low, high), abs=1e-9)


@pytest.mark.parametrize("seen, trials", [(-1, 5), (6, 5), (0, 0)])
def test_a_count_that_is_none_is_refused(seen: int, trials: int) -> None:
    with pytest.raises(ValueError, match="give a count"):
        exact_interval(seen, trials)


@given(st.lists(st.floats(0, 1), max_size=12))
def test_holm_keeps_the_order_and_multiplies_the_least_by_their_number(p_values: list[float]) -> None:
    adjusted = holm(p_values)
    assert all(p <= after <= 1 for p, after in zip(p_values, adjusted, strict=True))
    by_p = [after for _, after in sorted(zip(p_values, adjusted, strict=True))]
    assert by_p == sorted(by_p)
    assert not p_values or min(adjusted) == min(1.0, len(p_values) * min(p_values))


def test_holm_against_a_published_example() -> None:
    assert holm([0.01, 0.02, 0.03, 0.04]) == pytest.approx([0.04, 0.06, 0.06, 0.06])
