"""Arrival processes have the statistics they claim."""

from __future__ import annotations

import itertools
import statistics

import pytest

from model_optimizer.loadgen.arrivals import poisson, staggered


def gaps(rate_per_s: float, seed: int, n: int = 4000) -> list[float]:
    times = [0.0, *itertools.islice(poisson(rate_per_s, seed), n)]
    return [later - earlier for earlier, later in itertools.pairwise(times)]


@pytest.mark.parametrize("rate_per_s", [0.5, 4.0, 100.0])
def test_poisson_gaps_are_exponential(rate_per_s) -> None:
    found = gaps(rate_per_s, 1)
    assert statistics.fmean(found) == pytest.approx(1 / rate_per_s, rel=0.05)
    assert statistics.stdev(found) == pytest.approx(1 / rate_per_s, rel=0.06)
    assert statistics.median(found) == pytest.approx(0.6931 / rate_per_s, rel=0.08)


def test_counts_in_equal_intervals_have_variance_equal_to_mean() -> None:
    times = itertools.takewhile(lambda at: at < 2000, poisson(5.0, 3))
    counts = [0] * 2000
    for at in times:
        counts[int(at)] += 1
    assert statistics.variance(counts) / statistics.fmean(counts) == pytest.approx(1.0, abs=0.12)


def test_arrivals_depend_on_the_seed_alone() -> None:
    assert gaps(4.0, 7, 50) == gaps(4.0, 7, 50)
    assert gaps(4.0, 7, 50) != gaps(4.0, 8, 50)


def test_users_start_spread_over_the_time_given() -> None:
    starts = staggered(10, 5.0, 0)
    assert list(starts) == sorted(starts)
    assert all(user * 0.5 <= at <= (user + 1) * 0.5 for user, at in enumerate(starts))
    assert staggered(10, 5.0, 0) == starts != staggered(10, 5.0, 1)
