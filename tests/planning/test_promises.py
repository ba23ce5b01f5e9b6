"""SLOs against predictions, each number worked out beside the test."""

from __future__ import annotations

import math

import pytest

from model_optimizer.errors import SpecInvalid
from model_optimizer.planning.promises import (
    below_the_floor,
    capacity,
    check_slo,
    checks,
    heaviest,
    lightest,
    mix_of,
    predicted,
)
from model_optimizer.records.workload import SLO, Load, TrafficProfile
from model_optimizer.sizing.speed import IDEAL, Device, Mix, Replica
from tests.planning.asking import traffic
from tests.sizing import models
from tests.sizing.test_speed import stored

GPU = Device(bandwidth_bytes_s=1e12, flops=100e12, link_bytes_s=32e9, peak_flops=100e12)
MIX = Mix(((128, 100, 0.8), (512, 100, 0.15), (2048, 100, 0.05)))


def slo(**limits: str | int) -> SLO:
    return SLO.model_validate(limits)


def replica(device: Device = GPU, *, queue_share: float = 0.0) -> Replica:
    spec = models.LLAMA_31_8B
    how = IDEAL._replace(queue_share=queue_share)
    return Replica(spec, stored(spec), device, how, kv_bytes_per_token=131072)


def test_the_mix_of_a_profile():
    mix = mix_of(traffic("chat"))
    assert sum(share for _, _, share in mix.classes) == pytest.approx(1)
    assert mix.prompt_tokens == pytest.approx(0.35 * 128 + 0.35 * 512 + 0.2 * 1024 + 0.1 * 4096)
    assert mix.output_tokens == pytest.approx(0.7 * 256 + 0.3 * 384)  # each class has its own answers


def test_light_and_heavy_loads():
    profile = traffic("founding-mix", 8, 2, "3/s", "0.5/s")
    assert str(lightest(profile)) == "c=2"
    assert str(heaviest(profile)) == "3/s"
    assert str(lightest(traffic("founding-mix", "3/s", "0.5/s"))) == "0.5/s"


@pytest.mark.parametrize(
    ("limits", "first", "second", "why"),
    [
        ({"ttft_p99": "100 ms", "ttft_p50": "200 ms"}, "ttft_p99", "ttft_p50", "never below the p50"),
        ({"tpot_max": "10 ms", "tpot_p95": "20 ms"}, "tpot_max", "tpot_p95", "never below the p95"),
        ({"e2e_p99": "1 s", "ttft_p99": "2 s"}, "e2e_p99", "ttft_p99", "the time to the first token"),
        ({"e2e_p95": "20 ms", "tpot_p95": "30 ms"}, "e2e_p95", "tpot_p95", "the time between tokens"),
    ],
)
def test_contradictions_name_both_limits(limits: dict[str, str], first: str, second: str, why: str):
    with pytest.raises(SpecInvalid) as caught:
        check_slo(slo(**limits))
    assert caught.value.what == f"{first} and {second} contradict each other"
    assert why in caught.value.cause
    assert first in caught.value.fix


@pytest.mark.parametrize(
    "limits",
    [
        {"ttft_p99": "200 ms", "ttft_p50": "100 ms"},
        {"ttft_p99": "200 ms", "ttft_mean": "300 ms"},  # a mean may lie above a percentile
        {"e2e_p50": "1 s", "ttft_p99": "2 s"},  # different requests
        {"e2e_p99": "3 s", "ttft_p99": "2 s", "tpot_p99": "40 ms", "error_rate": "0.1%"},
    ],
)
def test_limits_that_can_all_be_kept_pass(limits: dict[str, str]):
    check_slo(slo(**limits))


def test_a_tail_of_ttft_is_that_of_the_long_prompts():
    """0.8 + 0.15 = 95 % of the prompts have at most 512 tokens; the p99 is one of 2048."""
    steady = replica().steady(MIX)
    speed = steady.at(1)

    def of(name: str) -> float:
        value = predicted(slo(**{name: "1 s"}).limits[0], steady, speed, 1)
        assert value is not None
        return value

    assert of("ttft_p50") == pytest.approx(replica().prefill_s(128) + speed.step_s)
    assert of("ttft_p95") == pytest.approx(replica().prefill_s(512) + speed.step_s)
    assert of("ttft_p99") == pytest.approx(replica().prefill_s(2048) + speed.step_s)
    mean = sum(share * replica().prefill_s(prompt) for prompt, _, share in MIX.classes)
    assert of("ttft_mean") == pytest.approx(mean + speed.step_s)
    assert of("e2e_p99") == pytest.approx(of("ttft_p99") + 100 * speed.tpot_s)


def test_waiting_has_an_exponential_tail():
    """With a queue share of 0.1 the mean wait of 11 users is one mean prefill; its p99 is ln(100) times that."""
    steady = replica(queue_share=0.1).steady(MIX)
    speed = steady.at(11)
    assert speed.queue_s == pytest.approx(steady.prefill_s)
    value = predicted(slo(ttft_p99="1 s").limits[0], steady, speed, 11)
    assert value == pytest.approx(replica().prefill_s(2048) + speed.step_s + math.log(100) * steady.prefill_s)


def test_itl_shows_the_steps_that_carry_a_prefill():
    steady = replica().steady(MIX)
    limit = slo(itl_p95="1 s").limits[0]
    few, many = steady.at(2), steady.at(21)  # 1 of 100 steps carries another's prefill; 20 of 100
    assert predicted(limit, steady, few, 2) == pytest.approx(few.tpot_s, rel=0.02)
    assert predicted(limit, steady, many, 21) == pytest.approx(many.step_s + steady.extra_s)


def test_capacity_is_the_last_user_that_keeps_every_limit():
    steady = replica().steady(MIX)
    limits = slo(tpot_p95="40 ms", ttft_p99="1 s")
    users, binding = capacity(steady, limits, 1000)
    assert binding == "tpot_p95"
    one = limits.limits[0]
    inside, outside = (predicted(one, steady, steady.at(n), n) for n in (users, users + 1))
    assert inside is not None and outside is not None
    assert inside <= 0.040 < outside
    assert capacity(steady, limits, 3) == (3, "")  # less room than the limits would allow
    assert capacity(steady, slo(tpot_p95="1 ms"), 1000) == (0, "tpot_p95")
    assert capacity(steady, SLO(), 64) == (64, "")


def test_rates_are_those_of_all_replicas_and_errors_are_only_measured():
    steady = replica().steady(MIX)
    rate = steady.at(4).request_rate_per_s
    found = {
        c.name: c for c in checks(steady, slo(request_rate="1/s", output_tokens_per_s="9000/s", error_rate="1%"), 4, 3)
    }
    assert found["request_rate"].ok is (3 * rate >= 1)
    assert found["request_rate"].margin == pytest.approx(3 * rate - 1)
    assert found["output_tokens_per_s"].ok is (3 * rate * 100 >= 9000)
    assert found["error_rate"].ok is None and found["error_rate"].found == "measured only"


def test_the_floor_of_a_decode_step():
    """15.01 GB at 1 TB/s is 15.0 ms; with tensor parallelism each GPU reads its part."""
    floor = below_the_floor(replica(), MIX, slo(tpot_p50="14 ms"))
    assert floor is not None
    assert floor.seconds == pytest.approx(0.01501, rel=1e-3)
    assert below_the_floor(replica(), MIX, slo(tpot_p50="16 ms")) is None


def test_the_floor_of_a_prefill_is_flop_over_peak():
    """2 · 7.5 G · 2048 + attention = 31.9 TFLOP, at 100 TFLOP/s 0.32 s; unknown peaks set no such floor."""
    floor = below_the_floor(replica(), MIX, slo(ttft_p99="300 ms"))
    assert floor is not None
    assert floor.seconds == pytest.approx(0.319, rel=0.01)
    assert "2048 prompt tokens at 100 TFLOP/s" in floor.sentence
    assert below_the_floor(replica(GPU._replace(peak_flops=None)), MIX, slo(ttft_p99="300 ms")) is None
    assert below_the_floor(replica(), MIX, slo(ttft_p95="300 ms")) is None  # 95 % are short


def test_the_floor_of_a_whole_answer():
    floor = below_the_floor(replica(), MIX, slo(e2e_p50="1.4 s"))  # 100 tokens at 15 ms
    assert floor is not None
    assert floor.seconds == pytest.approx(100 * 0.01501, rel=0.01)


def test_which_fact_a_floor_stands_on():
    slow_memory = GPU._replace(bandwidth_bytes_s=1e10)  # 1.5 s for the weights
    limits = slo(ttft_p99="300 ms")
    by_peak = below_the_floor(replica(slow_memory), MIX, limits)
    by_memory = below_the_floor(replica(slow_memory._replace(peak_flops=None)), MIX, limits)
    assert by_peak is not None and not by_peak.by_memory  # 0.32 s of arithmetic alone are too much
    assert by_memory is not None and by_memory.by_memory
    tpot = below_the_floor(replica(), MIX, slo(tpot_p50="14 ms"))
    assert tpot is not None and tpot.by_memory


def test_what_a_cache_may_keep_is_not_counted():
    kept = GPU._replace(cache_bytes=5e9)
    floor = below_the_floor(replica(kept), MIX, slo(tpot_p50="9 ms"))
    assert floor is not None
    assert floor.seconds == pytest.approx(0.01001, rel=1e-3)


def test_loads_come_from_the_request():
    profile = TrafficProfile.model_validate({"prompt_tokens": {128: 1.0}, "loads": [4, "2/s"]})
    assert heaviest(profile) == Load(rate_per_s=2.0)
