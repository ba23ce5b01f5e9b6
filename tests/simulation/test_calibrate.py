"""Designed loads on an engine whose step times are known (the simulated one) give those step times back."""

from __future__ import annotations

import pytest

from model_optimizer.records.measurement import RequestTrace
from model_optimizer.records.simulation import SchedulerConfig, StepModel
from model_optimizer.records.workload import SLO, Load, TrafficProfile
from model_optimizer.simulation.calibrate import calibration_plan, refine, samples_from
from model_optimizer.simulation.simulate import Shape, quick_result, run_load, shape_for
from model_optimizer.simulation.steps import fit

CONFIG = SchedulerConfig(
    max_num_seqs=1024, max_num_batched_tokens=8192, num_kv_tokens=816_640, max_model_len=8192, graph_tokens=512
)
TRUTH = StepModel(
    fixed_s=0.005,
    per_prefill_token_s=21e-6,
    per_decode_seq_s=20e-6,
    prompt_floor_s=0.007,
    large_floor_s=0.028,
    overhead_s=0.013,
    request_s=0.001,
    token_s=65e-6,
)


def measured(
    plan: tuple[TrafficProfile, ...], config: SchedulerConfig, truth: StepModel
) -> list[tuple[Load, tuple[RequestTrace, ...]]]:
    """The plan against the simulated engine, each load for as long as the plan says."""
    runs = []
    for traffic in plan:
        for load in traffic.loads:
            shape = Shape(warmup=2 * (load.concurrency or 1), counted=traffic.min_requests_per_load, seconds=3.0)
            runs.append((load, run_load(config, truth, traffic, load, shape, seed=1).counted))
    return runs


def test_the_plan_gives_the_step_times_back():
    samples = samples_from(measured(calibration_plan(max_concurrency=1024, max_model_len=8192), CONFIG, TRUTH))
    found = fit(samples, CONFIG)
    for name in ("fixed_s", "per_prefill_token_s", "prompt_floor_s", "large_floor_s"):
        assert getattr(found, name) == pytest.approx(getattr(TRUTH, name), rel=0.15), name
    assert found.token_s == pytest.approx(TRUTH.token_s, rel=0.15)
    assert found.overhead_s + found.request_s == pytest.approx(0.014, rel=0.15)


def test_the_plan_is_over_soon():
    """On an H200 each request of the plan takes under a second: warm-up, window and drain of each load about 5 s."""
    plan = calibration_plan(max_concurrency=1024, max_model_len=4096)
    assert sum(len(traffic.loads) * traffic.seconds_per_load for traffic in plan) <= 30
    assert all(traffic.longest_sequence <= 4096 for traffic in plan)


@pytest.mark.parametrize(("slots", "room"), [(1, 256), (2, 512), (4, 64)])
def test_small_engines_have_plans_too(slots: int, room: int):
    plan = calibration_plan(max_concurrency=slots, max_model_len=room)
    assert all(traffic.longest_sequence <= room for traffic in plan)
    assert max(traffic.max_concurrency for traffic in plan) <= slots


def test_failed_requests_say_nothing():
    failed = RequestTrace(scheduled_s=0, sent_s=0, end_s=1, target_prompt_tokens=5, error="http_500: no")
    assert samples_from([(Load(concurrency=4), (failed,))]) == ()


def test_the_way_in_is_divided_by_what_a_burst_shows():
    """Users who fall into step send bursts; how late they all are tells the serving process's own time."""
    traffic = TrafficProfile.model_validate({"prompt_tokens": 64, "output_tokens": 32, "seed": 3})
    load = Load(concurrency=128)
    run = run_load(CONFIG, TRUTH, traffic, load, shape_for(load, num_requests=400), seed=3)
    unknown = TRUTH.model_copy(update={"request_s": 0.0, "overhead_s": 0.014})
    found = refine(unknown, CONFIG, traffic, [quick_result(load, run, SLO())])
    assert found.request_s == pytest.approx(0.001, rel=0.5)
