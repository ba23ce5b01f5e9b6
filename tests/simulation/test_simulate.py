from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model_optimizer.metrics.loads import summarize
from model_optimizer.records.simulation import SchedulerConfig, StepModel
from model_optimizer.records.workload import SLO, Load, TrafficProfile
from model_optimizer.simulation.simulate import CLIENT, Shape, quick_result, run_load, shape_for, simulate

CONFIG = SchedulerConfig(
    max_num_seqs=1024, max_num_batched_tokens=8192, num_kv_tokens=816_640, max_model_len=4096, graph_tokens=512
)
STEPS = StepModel(
    fixed_s=0.005,
    per_prefill_token_s=21e-6,
    per_decode_seq_s=20e-6,
    prompt_floor_s=0.007,
    large_floor_s=0.028,
    overhead_s=0.013,
    request_s=0.001,
    token_s=65e-6,
)
MIX = TrafficProfile.model_validate(
    {"prompt_tokens": {128: 0.8, 512: 0.15, 2048: 0.05}, "output_tokens": 128, "seed": 1}
)
LIMITS = SLO.model_validate({"ttft_p99": "150 ms", "tpot_p99": "15 ms"})


def p99(load: Load, config: SchedulerConfig = CONFIG, seed: int = 0) -> float:
    result = quick_result(
        load, run_load(config, STEPS, MIX, load, shape_for(load, num_requests=400), seed=seed), LIMITS
    )
    assert result.ttft_s is not None
    return result.ttft_s.p99


@settings(max_examples=20, deadline=None)
@given(st.floats(0.5, 60), st.floats(1.3, 3.0), st.sampled_from([2048, 8192]), st.sampled_from([16, 256]))
def test_more_arrivals_are_not_faster(rate: float, factor: float, budget: int, seqs: int):
    """Twice the arrivals never have a P99 of TTFT that is lower beyond noise (the P99 of 400 requests)."""
    config = CONFIG.model_copy(update={"max_num_batched_tokens": budget, "max_num_seqs": seqs})
    light, heavy = (p99(Load(rate_per_s=r), config) for r in (rate, rate * factor))
    assert heavy > 0.75 * light


def test_one_user_gets_exactly_the_steps():
    """A lone 128-token prompt: way in, one step at the floor, then 127 steps of one sequence."""
    alone = TrafficProfile.model_validate({"prompt_tokens": 128, "output_tokens": 128})
    result = simulate(CONFIG, STEPS, alone, Load(concurrency=1), slo=LIMITS, num_requests=20)
    assert result.ttft_s is not None
    assert result.tpot_s is not None
    assert result.ttft_s.p50 == pytest.approx(0.001 + 0.013 + 0.007 + 65e-6, rel=1e-6)
    assert result.tpot_s.p50 == pytest.approx(0.00502, rel=1e-6)
    assert result.num_errors == 0


def test_the_serving_process_bounds_what_comes_out():
    """One thread that needs 65 µs a token hands out 15 400 tokens a second, however fast the steps are."""
    fast = STEPS.model_copy(update={"fixed_s": 0.001, "per_decode_seq_s": 1e-6, "per_prefill_token_s": 1e-7})
    result = simulate(CONFIG, fast, MIX, Load(concurrency=512), slo=LIMITS, num_requests=1000)
    assert result.output_tokens_per_s == pytest.approx(1 / 65e-6, rel=0.1)


def test_fewer_sequences_at_once_make_others_wait():
    narrow = CONFIG.model_copy(update={"max_num_seqs": 8})
    assert p99(Load(concurrency=64), narrow) > 3 * p99(Load(concurrency=64))


def test_the_quick_result_is_the_real_one_without_itl():
    load = Load(rate_per_s=20.0)
    run = run_load(CONFIG, STEPS, MIX, load, shape_for(load, num_requests=300))
    quick = quick_result(load, run, LIMITS)
    full = summarize(load, run.window, run.counted, run.everything, slo=LIMITS, client=CLIENT)
    assert (quick.ttft_s, quick.tpot_s, quick.e2e_s) == (full.ttft_s, full.tpot_s, full.e2e_s)
    assert quick.good_share == pytest.approx(full.good_share)
    assert quick.request_rate_per_s == full.request_rate_per_s
    assert quick.goodput_per_s == pytest.approx(full.goodput_per_s)


def test_an_itl_limit_is_judged_by_all_gaps():
    load = Load(rate_per_s=20.0)
    run = run_load(CONFIG, STEPS, MIX, load, shape_for(load, num_requests=100))
    assert quick_result(load, run, SLO.model_validate({"itl_p99": "50 ms"})).itl_s is not None


def test_the_window_counts_what_leaves_inside_it():
    run = run_load(CONFIG, STEPS, MIX, Load(concurrency=16), Shape(warmup=64, counted=200))
    assert len(run.counted) >= 200
    assert all(run.window.start_s <= trace.scheduled_s < run.window.end_s for trace in run.counted)
    assert run.everything[: len(run.counted)] == run.counted


def test_an_overload_is_over_too():
    """Ten thousand arrivals a second on an engine that serves sixty: the window closes, what was counted is served."""
    result = simulate(CONFIG, STEPS, MIX, Load(rate_per_s=10_000.0), slo=LIMITS, num_requests=200)
    assert result.good_share < 0.1
    assert result.num_requests <= 400


def test_a_load_takes_some_milliseconds():
    """350 requests of 128 tokens: 5-15 ms on one core; 200 settings with six loads each take about ten seconds."""
    load = Load(rate_per_s=20.0)
    taken = []
    for seed in range(5):
        start = time.perf_counter()
        run = run_load(CONFIG, STEPS, MIX, load, shape_for(load, num_requests=250), seed=seed)
        quick_result(load, run, LIMITS)
        taken.append(time.perf_counter() - start)
    assert min(taken) < 0.05
