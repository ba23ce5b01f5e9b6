"""The search for the heaviest load that keeps the SLO, on servers whose truth is known."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_optimizer.metrics.goodput import with_goodput
from model_optimizer.metrics.loads import Window, summarize
from model_optimizer.records.measurement import ClientHealth, RequestTrace
from model_optimizer.records.tuning import LoadKind, LoadPoint
from model_optimizer.records.workload import SLO, Load
from model_optimizer.tuning.boundary import (
    Leg,
    boundary,
    bracket,
    crossing,
    falling,
    interval,
    load_of,
    next_load,
    point,
    value_of,
)

SLO_ = SLO.model_validate({"ttft_p99": "200 ms", "tpot_p99": "20 ms"})
CLIENT = ClientHealth(loop_lag_p99_s=0.0, cpu_share=0.1)


def traces(
    mean_ttft_s: float, *, n: int = 400, spread: float = 0.2, errors: int = 0, seed: object = 0
) -> tuple[RequestTrace, ...]:
    rng = random.Random(f"traces/{seed}")
    found = []
    for number in range(n):
        ttft_s = mean_ttft_s * rng.lognormvariate(0.0, spread)
        at = number * 0.01
        chunks = tuple(at + ttft_s + 0.01 * step for step in range(10))
        failed = number < errors
        found.append(
            RequestTrace(
                scheduled_s=at, sent_s=at, chunk_s=() if failed else chunks, end_s=chunks[-1],
                prompt_tokens=100, output_tokens=None if failed else 10, target_prompt_tokens=100,
                error="http_500: no" if failed else None,
            )
        )  # fmt: skip
    return tuple(found)


def measured(load: Load, ttft_s: float, **options: object) -> tuple[LoadPoint, tuple[RequestTrace, ...]]:
    requests = traces(ttft_s, seed=str(load), **options)  # type: ignore[arg-type]
    result = summarize(load, Window(0.0, 4.0), requests, requests, slo=SLO_, client=CLIENT)
    return point(with_goodput(result, requests, SLO_), requests, SLO_, 0.99), requests


def search(
    truth: float, *, start: float, kind: LoadKind = "rate", precision: float = 0.08, most: float = math.inf
) -> list[LoadPoint]:
    """A server whose TTFT grows with load and meets the limit's P99 at about ``truth``."""
    points: list[LoadPoint] = []
    while (load := next_load(points, start=start, kind=kind, precision=precision, most=most)) is not None:
        points.append(measured(load, 0.12 * value_of(load) / truth)[0])
        assert len(points) < 20
    return points


@pytest.mark.parametrize("start", [0.3, 9.0, 10.0, 400.0])
def test_the_boundary_is_found_to_the_asked_precision_from_any_start(start: float) -> None:
    found = boundary(search(10.0, start=start))
    assert found.kept is not None and found.broken is not None
    low, high = value_of(found.kept), value_of(found.broken)
    assert low < high <= low * 1.09
    assert found.crossing is not None and low <= found.crossing <= high
    assert 8.5 < found.crossing < 12.5
    assert found.goodput_per_s > 0


def test_a_good_start_needs_few_loads() -> None:
    assert len(search(10.0, start=10.0)) <= 5
    assert len(search(10.0, start=10.0, precision=0.3)) <= 3


def test_users_are_whole_and_the_search_ends_between_neighbours() -> None:
    found = boundary(search(6.0, start=1.0, kind="concurrency", precision=0.01))
    assert found.kept is not None and found.broken is not None
    assert found.broken.concurrency == (found.kept.concurrency or 0) + 1


def test_a_limit_broken_at_one_user_has_no_boundary() -> None:
    points = search(0.1, start=8.0, kind="concurrency")
    found = boundary(points)
    assert found.kept is None and found.goodput_per_s == 0 and found.crossing is None
    assert found.broken == Load(concurrency=1)


def test_the_heaviest_load_allowed_ends_the_search_without_a_broken_one() -> None:
    found = boundary(search(1000.0, start=4.0, most=32.0))
    assert found.kept == Load(rate_per_s=32.0) and found.broken is None and found.crossing is None


def test_a_lucky_load_above_a_broken_one_does_not_count() -> None:
    points = [measured(load_of(v, "rate"), t)[0] for v, t in ((4.0, 0.05), (8.0, 0.3), (10.0, 0.05))]
    kept, broken = bracket(points)
    assert kept is not None and value_of(kept.load) == 4.0
    assert broken is not None and value_of(broken.load) == 8.0


def test_errors_break_a_load_and_no_success_is_the_worst_margin() -> None:
    few, _ = measured(load_of(4, "rate"), 0.05, errors=10)
    assert not few.kept and few.margin < 0  # 2.5 % of the requests failed, 1 % may be late or fail
    none, _ = measured(load_of(4, "rate"), 0.05, errors=400)
    assert not none.kept and none.margin == -1.0


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=12))
def test_the_isotonic_fit_never_rises_and_keeps_the_mean(values: list[float]) -> None:
    fitted = falling(values)
    assert len(fitted) == len(values)
    assert all(a >= b - 1e-9 for a, b in pairwise(fitted))
    assert sum(fitted) == pytest.approx(sum(values), abs=1e-6)


def test_the_crossing_is_on_the_logarithm_of_the_load() -> None:
    assert crossing([1.0, 4.0], [0.5, -0.5]) == pytest.approx(2.0)
    assert crossing([1.0, 4.0], [0.5, 0.1]) is None
    assert crossing([1.0, 2.0, 4.0, 8.0], [0.5, -0.1, 0.1, -0.9]) == pytest.approx(4.0)  # pooled in the middle


def test_the_interval_covers_the_truth_and_narrows_with_more_requests() -> None:
    def leg(n: int, seed: int) -> Leg:
        loads = [(load_of(v, "rate"), traces(0.012 * v, n=n, seed=f"{seed}/{v}")) for v in (8.0, 10.0, 12.0)]
        return Leg(loads, SLO_, 0.99)

    narrow, wide = interval([leg(3000, 1)]), interval([leg(150, 1)])
    assert narrow is not None and wide is not None
    assert narrow[1] - narrow[0] < wide[1] - wide[0]
    # P99 of a lognormal with σ = 0.2 is its median · exp(0.2 · 2.326), which meets the limit at 10.5 requests/s
    truth = 0.2 / (0.012 * math.exp(0.2 * 2.3263))
    hits = 0
    for seed in range(12):
        found = interval([leg(1000, seed)], draws=200)
        hits += found is not None and found[0] <= truth <= found[1]
    assert hits >= 9  # about 95 % are expected; fewer than 9 of 12 would be one chance in 5000


def test_an_interval_needs_a_crossing() -> None:
    loads = [(load_of(v, "rate"), traces(0.01, seed=v)) for v in (1.0, 2.0)]
    assert interval([Leg(loads, SLO_, 0.99)]) is None


def test_failed_requests_are_infinitely_late_in_the_interval() -> None:
    loads = [(load_of(1.0, "rate"), traces(0.01)), (load_of(2.0, "rate"), traces(0.01, errors=40))]
    found = interval([Leg(loads, SLO_, 0.99)])
    assert found is not None and 1.0 <= found[0] <= found[1] <= 2.0
    assert np.isfinite(found).all()
