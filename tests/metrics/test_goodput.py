"""Which requests are good, which limits are kept, which load is best."""

from __future__ import annotations

import pytest

from model_optimizer.metrics.goodput import best_load, is_good, judge, keeps, request_limits, with_goodput
from model_optimizer.metrics.loads import Window, served, summarize
from model_optimizer.records.measurement import ClientHealth, LoadResult, RequestTrace
from model_optimizer.records.workload import SLO, Load

HEALTHY = ClientHealth(loop_lag_p99_s=0.001, cpu_share=0.1)


def slo(**limits) -> SLO:
    return SLO.model_validate(limits)


def trace(at: float = 0.0, ttft: float = 0.1, gaps: tuple[float, ...] = (0.01, 0.01, 0.01), **changes) -> RequestTrace:
    chunks = [at + ttft]
    for gap in gaps:
        chunks.append(chunks[-1] + gap)
    values = {
        "scheduled_s": at,
        "sent_s": at,
        "chunk_s": tuple(chunks),
        "end_s": chunks[-1],
        "prompt_tokens": 100,
        "output_tokens": len(chunks),
        "target_prompt_tokens": 100,
    }
    return RequestTrace.model_validate(values | changes)


def result(traces, load: object = 1, window_s: float = 10.0, **limits) -> LoadResult:
    return summarize(
        Load.model_validate(load), Window(0.0, window_s), traces, traces, slo=slo(**limits), client=HEALTHY
    )


@pytest.mark.parametrize(
    ("limits", "good"),
    [
        ({}, True),
        ({"ttft_p99": "100 ms"}, True),
        ({"ttft_p99": "99 ms"}, False),
        ({"tpot_p95": "20 ms"}, True),
        ({"tpot_p95": "19 ms"}, False),
        ({"itl_p99": "40 ms"}, True),
        ({"itl_p99": "39 ms"}, False),
        ({"e2e_max": "0.17 s"}, True),
        ({"e2e_max": "0.15 s"}, False),
        ({"ttft_p50": "50 ms", "ttft_p99": "150 ms"}, True),
        ({"output_tokens_per_s": "1000/s", "error_rate": "0 %"}, True),
    ],
)
def test_one_request_against_limits(limits, good) -> None:
    """TTFT 100 ms, gaps 10, 10 and 40 ms: TPOT 20 ms, longest gap 40 ms, E2E 160 ms."""
    assert is_good(trace(gaps=(0.01, 0.01, 0.03999)), slo(**limits)) is good


def test_failed_requests_are_never_good() -> None:
    assert not is_good(trace(error="http_500: x"), slo())


def test_the_loosest_limit_of_a_metric_holds_for_one_request() -> None:
    assert request_limits(slo(ttft_p50="1 s", ttft_p99="3 s", e2e_mean="9 s")) == {"ttft": 3.0, "e2e": 9.0}


def test_goodput_is_the_served_rate_less_the_late_answers() -> None:
    traces = [trace(at=i, ttft=0.1 if i % 4 else 0.3) for i in range(8)] + [trace(at=8, error="timeout: x")]
    found = result(traces, ttft_p99="200 ms")
    assert found.request_rate_per_s == pytest.approx(0.8)
    assert found.good_share == pytest.approx(6 / 9)
    assert found.goodput_per_s == pytest.approx(0.8 * 6 / 8)
    assert (found.num_errors, found.errors) == (1, {"timeout": 1})
    assert found.error_rate == pytest.approx(1 / 9)
    stricter = with_goodput(found, traces, slo(ttft_p99="1 ms"))
    assert (stricter.goodput_per_s, stricter.good_share) == (0.0, 0.0)
    assert stricter.ttft_s == found.ttft_s


def test_margins_and_directions() -> None:
    found = result([trace(at=i) for i in range(10)])
    checks = judge(
        found,
        slo(ttft_p99="200 ms", tpot_p95="5 ms", output_tokens_per_s="2/s", error_rate="1 %", peak_memory="4 GiB"),
        peak_memory_bytes=2**30,
    )
    by_name = {check.name: check for check in checks}
    assert [by_name[name].ok for name in ("ttft_p99", "tpot_p95", "output_tokens_per_s")] == [True, False, True]
    assert by_name["ttft_p99"].margin == pytest.approx(0.5)
    assert by_name["tpot_p95"].margin == pytest.approx(-1.0)
    assert by_name["output_tokens_per_s"].margin == pytest.approx((4 - 2) / 2)
    assert by_name["peak_memory"].margin == pytest.approx(0.75)
    assert by_name["ttft_p99"].found == "100 ms (n=10)"
    assert by_name["ttft_p99"].limit == "≤ 200 ms"
    assert by_name["output_tokens_per_s"].limit == "≥ 2/s"
    assert not keeps(found, slo(tpot_p95="5 ms"))


def test_what_was_not_measured_is_not_kept() -> None:
    found = result([trace()])
    (memory,) = judge(found, slo(peak_memory="1 GiB"))
    assert (memory.ok, memory.found) == (None, "not measured")
    assert not keeps(found, slo(peak_memory="1 GiB"))
    (empty,) = judge(result([]), slo(ttft_p99="1 s"))
    assert empty.ok is None
    assert not keeps(result([]), slo())


def test_a_load_where_everything_failed_keeps_nothing() -> None:
    found = result([trace(error="http_500: boom")] * 3)
    (check,) = judge(found, slo(ttft_p99="9 s"))
    assert (check.ok, check.found) == (False, "no request succeeded")
    assert not keeps(found, slo())
    assert "http_500: boom" in found.notes


def test_error_rate_limit_of_zero_has_no_margin() -> None:
    (check,) = judge(result([trace()]), slo(error_rate="0 %"))
    assert (check.ok, check.margin) == (True, None)


def test_best_load_is_the_heaviest_that_was_kept() -> None:
    fast = [trace(at=i) for i in range(5)]
    slow = [trace(at=i, ttft=0.5) for i in range(5)]
    limits = slo(ttft_p99="200 ms")
    results = [result(fast, 1), result(fast, 4), result(slow, 8), result(slow, 16)]
    best = best_load(results, limits)
    assert best is not None and str(best.load) == "c=4"
    assert best_load([result(slow, 1)], limits) is None
    assert best_load([], limits) is None


def test_a_failing_level_between_two_good_ones_does_not_hide_the_heavier() -> None:
    fast, slow = [trace(at=i) for i in range(5)], [trace(at=i, ttft=0.5) for i in range(5)]
    best = best_load([result(fast, 1), result(slow, 2), result(fast, 4)], slo(ttft_p99="200 ms"))
    assert best is not None and str(best.load) == "c=4"


def test_rates_and_users_are_compared_by_what_was_served() -> None:
    few, many = [trace(at=i) for i in range(3)], [trace(at=i) for i in range(9)]
    best = best_load([result(few, 64), result(many, "2/s")], slo(ttft_p99="200 ms"))
    assert best is not None and str(best.load) == "2/s"


def test_a_throughput_limit_may_rule_out_the_light_loads() -> None:
    limits = slo(output_tokens_per_s="3/s")
    results = [result([trace()], 1), result([trace(at=i) for i in range(9)], 2)]
    assert [keeps(found, limits) for found in results] == [False, True]


def test_tokens_count_when_they_arrive() -> None:
    """Half of the tokens of the request across the edge are inside, and its end is outside."""
    across = trace(at=9.0, ttft=0.5, gaps=(0.5, 1.0, 1.0))
    found = served([across, trace(at=1.0)], Window(0.0, 10.0))
    assert tuple(found) == pytest.approx((1, 4 + 2, 200))
    assert tuple(served([across], Window(10.0, 20.0))) == pytest.approx((1, 2, 0))
    assert tuple(served([trace(error="timeout: x")], Window(0.0, 10.0))) == (0, 0.0, 0)


def test_notes_say_what_to_distrust() -> None:
    bundled = [trace(at=i, gaps=(0.1,), output_tokens=8, prompt_tokens=150) for i in range(4)]
    text = " | ".join(result(bundled).notes)
    assert "4 requests: P99 is close to the slowest one" in text
    assert "a chunk holds 4.0 tokens on average" in text
    assert "prompts have 150 tokens on average, 100 were aimed at" in text
    blind = " | ".join(result([trace(output_tokens=None, prompt_tokens=None)]).notes)
    assert "reports no usage" in blind
    assert not result([trace(output_tokens=None)]).usage_reported
    whole = " | ".join(result([trace(gaps=(), output_tokens=9)]).notes)
    assert "came in one piece" in whole


def test_cached_share_from_usage_wins_over_the_metrics_page() -> None:
    traces = [trace(cached_tokens=0), trace(cached_tokens=50)]
    found = summarize(
        Load(concurrency=1), Window(0, 1), traces, traces, slo=slo(), client=HEALTHY, cached_prompt_share=0.9
    )
    assert found.cached_prompt_share == pytest.approx(0.25)
    assert any("prefix cache" in note for note in found.notes)


def test_a_slow_client_and_an_unsettled_server_are_told() -> None:
    tired = ClientHealth(loop_lag_p99_s=0.02, cpu_share=0.9, verdict="its event loop ran 20 ms late (P99)")
    window = Window(0.0, 1.0, warmup_requests=7, warmup_stable=False)
    found = summarize(Load(concurrency=1), window, [trace()], [trace()], slo=slo(), client=tired)
    text = " | ".join(found.notes)
    assert "latencies may be too high: its event loop ran 20 ms late" in text
    assert "had not settled after 7 warm-up requests" in text
    assert (found.warmup_requests, found.warmup_stable) == (7, False)
