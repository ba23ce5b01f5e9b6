"""Percentiles against hand-computed values; comparisons that must and must not see a difference."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_optimizer.metrics.samples import compare, distribution, percentile

FLOATS = st.lists(st.floats(min_value=0, max_value=1e6), min_size=1, max_size=200)


@pytest.mark.parametrize(
    ("share", "value"), [(0.0, 1.0), (0.5, 3.0), (0.25, 2.0), (0.9, 4.6), (0.99, 4.96), (1.0, 5.0)]
)
def test_percentile_interpolates(share, value) -> None:
    assert percentile([1.0, 2.0, 3.0, 4.0, 5.0], share) == pytest.approx(value)


def test_percentile_of_one_sample_is_that_sample() -> None:
    assert percentile([7.0], 0.99) == 7.0


def test_percentile_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="no samples"):
        percentile([], 0.5)


@given(FLOATS)
def test_percentiles_are_ordered_and_inside(samples) -> None:
    found = distribution(samples)
    assert found is not None
    assert min(samples) <= found.p50 <= found.p90 <= found.p95 <= found.p99 <= found.max == max(samples)
    assert found.n == len(samples)


def test_distribution_by_hand() -> None:
    found = distribution([4.0, 1.0, 3.0, 2.0])
    assert found is not None
    assert (found.n, found.mean, found.p50, found.max) == (4, 2.5, 2.5, 4.0)
    assert found.stdev == pytest.approx((5 / 3) ** 0.5)


def test_distribution_of_nothing_is_unknown() -> None:
    assert distribution([]) is None


def noisy(center: float, n: int, seed: int) -> list[float]:
    rng = random.Random(seed)
    return [rng.gauss(center, 10.0) for _ in range(n)]


@pytest.mark.parametrize("statistic", ["mean", "p50", "p90"])
def test_a_clear_difference_is_seen(statistic) -> None:
    found = compare(noisy(100, 300, 1), noisy(80, 300, 2), statistic)
    assert found.verdict == "lower"
    assert found.difference_ci95[0] < -20 < found.difference_ci95[1] < 0
    assert found.ratio == pytest.approx(found.b / found.a)
    assert found.ratio_ci95 is not None and found.ratio_ci95[1] < 1
    assert compare(noisy(80, 300, 2), noisy(100, 300, 1), statistic).verdict == "higher"


def test_equal_sets_show_no_difference_in_about_95_of_100_cases() -> None:
    """The interval has to be right, not only wide: both too many and too few alarms fail."""
    alarms = sum(
        compare(noisy(100, 60, 2 * seed), noisy(100, 60, 2 * seed + 1), resamples=400).verdict != "no difference"
        for seed in range(200)
    )
    assert 2 <= alarms <= 22


def test_the_short_cut_for_percentiles_draws_like_plain_resampling() -> None:
    samples = noisy(100, 80, 5)
    rng = random.Random(6)
    plain = sorted(percentile(sorted(rng.choices(samples, k=80)), 0.5) for _ in range(4000))
    found = compare([0.0] * 80, samples, resamples=4000)
    assert found.difference_ci95[0] == pytest.approx(percentile(plain, 0.025), abs=0.8)
    assert found.difference_ci95[1] == pytest.approx(percentile(plain, 0.975), abs=0.8)
    assert found.ratio is None


def test_comparison_is_deterministic() -> None:
    assert compare(noisy(1, 50, 1), noisy(2, 50, 2), "mean") == compare(noisy(1, 50, 1), noisy(2, 50, 2), "mean")


def test_comparison_needs_samples() -> None:
    with pytest.raises(ValueError, match="both sets"):
        compare([], [1.0])
