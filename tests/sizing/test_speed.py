from __future__ import annotations

import pytest

from model_optimizer.records.model import ModelSpec
from model_optimizer.records.sizing import Parallelism
from model_optimizer.sizing.cost import power_usd_per_month, replicas_for, usd_per_million_tokens
from model_optimizer.sizing.memory import weights_by_class
from model_optimizer.sizing.speed import IDEAL, Device, Load, Mix, Replica, active_parameters, tpot_tail
from tests.sizing import models

L20 = Device(bandwidth_bytes_s=864e9, flops=119.5e12, link_bytes_s=32e9)


def stored(spec: ModelSpec, bits: float = 16) -> dict[str, float]:
    kept = ("embeddings", "head", "norms")
    return {c.name: c.parameters * (2 if c.name in kept else bits / 8) for c in spec.weight_classes}


def replica(spec: ModelSpec, *, kv: float = 0.0, tensor: int = 1) -> Replica:
    weights = {name: value / tensor for name, value in stored(spec).items()}
    return Replica(spec, weights, L20, IDEAL, kv_bytes_per_token=kv, split=Parallelism(tensor=tensor))


def test_active_parameters_count_the_head_and_not_the_table():
    dense = models.LLAMA_31_8B
    table = 128256 * 4096
    assert active_parameters(dense) == dense.num_parameters - table
    tied = models.QWEN3_06B
    assert active_parameters(tied) == tied.num_parameters


def test_a_mixture_computes_only_the_chosen_experts():
    spec = models.QWEN3_30B_A3B
    assert active_parameters(spec) / 1e9 == pytest.approx(3.3 - 0.31, abs=0.1)  # "A3B", less the embedding table


def test_the_decode_floor_is_the_weights_over_the_bandwidth():
    """An 8B in bf16 on an L20 cannot reach 120 tokens/s for one user: about 15 GB a token at 864 GB/s."""
    spec = models.LLAMA_31_8B
    seconds = replica(spec, kv=131072).decode_step_s(1, 0)
    assert seconds == pytest.approx((spec.weight_bytes - 2 * 128256 * 4096) / 864e9)
    assert 1 / seconds < 60
    assert replica(spec, kv=131072).binds(1, 0) == "weights"


def test_the_kv_cache_costs_bandwidth_for_every_sequence():
    spec = models.LLAMA_31_8B

    def step(batch: int) -> float:
        return replica(spec, kv=131072).decode_step_s(batch, 4096)

    assert step(9) - step(1) == pytest.approx(8 * 4096 * 131072 / 864e9)


def test_prefill_is_bound_by_compute_for_long_prompts_and_by_weights_for_short():
    spec = models.LLAMA_31_8B
    short = replica(spec).prefill_s(8)
    assert short == pytest.approx((spec.weight_bytes - 2 * 128256 * 4096) / 864e9)
    long = replica(spec).prefill_s(4096)
    flop = 2 * active_parameters(spec) * 4096 + 2 * 32 * 32 * 128 * 4096**2
    assert long == pytest.approx(flop / 119.5e12)


def test_tensor_parallel_pays_for_its_messages():
    spec = models.LLAMA_31_8B
    alone = replica(spec).decode_step_s(8, 0)
    split = replica(spec, tensor=2).decode_step_s(8, 0)
    messages = 2 * 32 * (2 * 0.5 * 8 * 4096 * 2 / 32e9)
    assert split == pytest.approx(alone / 2 + messages)


def test_more_users_give_more_throughput_and_slower_answers():
    spec = models.QWEN3_8B
    results = [replica(spec, kv=147456).estimate(Load(users, 282, 128)) for users in (1, 8, 32)]
    rates = [r.output_tokens_per_s.value for r in results]
    tpots = [r.tpot_s.value for r in results]
    assert rates == sorted(rates)
    assert tpots == sorted(tpots)
    assert all(r.tpot_s.value >= r.tpot_floor_s for r in results)


def test_the_share_of_requests_that_a_prompt_length_covers():
    mix = Mix(((2048, 64, 0.05), (128, 64, 0.80), (512, 64, 0.15)))
    assert [mix.prompt_at(share) for share in (0.5, 0.8, 0.81, 0.95, 0.96, 1.0)] == [128, 128, 512, 512, 2048, 2048]
    assert mix.prompt_tokens == pytest.approx(0.8 * 128 + 0.15 * 512 + 0.05 * 2048)
    assert mix.live_tokens == pytest.approx(mix.prompt_tokens + 32)


def test_a_mix_of_one_class_is_that_load():
    one = replica(models.QWEN3_8B, kv=147456)
    steady = one.steady(Mix(((282, 128, 1.0),)))
    assert steady.at(8) == one.at(Load(8, 282, 128))


def test_a_single_user_has_no_neighbours_that_disturb_him():
    assert tpot_tail(0.99, 1) == 1.0
    assert tpot_tail(0.5, 64) == 1.0
    assert 1.0 < tpot_tail(0.95, 4) < tpot_tail(0.95, 64) < tpot_tail(0.99, 64)


def test_layers_on_two_gpus_are_read_one_after_the_other():
    """A pipeline of two holds the layers of one GPU: no faster for one user, all bytes counted once."""
    spec = models.LLAMA_31_8B
    alone = replica(spec, kv=131072)
    weights = weights_by_class(spec, None, Parallelism(pipeline=2))
    two = Replica(spec, weights, L20, IDEAL, kv_bytes_per_token=131072 / 2, split=Parallelism(pipeline=2))
    row = 4096 * 2 / 32e9  # one hand-over of a token's hidden state
    assert two.decode_step_s(1, 1000) == pytest.approx(alone.decode_step_s(1, 1000) + row)
    assert two.tpot_floor_s() == pytest.approx(alone.tpot_floor_s())
    assert two.ttft_floor_s(4096) <= alone.ttft_floor_s(4096)
    halves = Replica(
        spec, weights, L20, IDEAL, kv_bytes_per_token=131072 / 2, split=Parallelism(pipeline=2), micro_batches=2
    )
    assert halves.decode_step_s(32, 4096) < two.decode_step_s(32, 4096)


def test_floors_are_below_every_estimate():
    for spec in (models.QWEN3_06B, models.LLAMA_31_8B, models.MIXTRAL, models.GPT_OSS_20B):
        one = replica(spec, kv=spec.kv_bytes_per_token())
        for users in (1, 4, 64):
            found = one.estimate(Load(users, 512, 128))
            assert found.tpot_floor_s <= found.tpot_s.value
            assert found.ttft_floor_s <= found.ttft_s.value


def test_the_explanation_is_the_arithmetic():
    one = replica(models.LLAMA_31_8B, kv=131072)
    lines = {term.name: term.value or 0.0 for term in one.explain(Load(4, 1000, 100))}
    step = (lines["weights read a step"] + lines["KV cache read a step"]) / lines["memory bandwidth"]
    assert lines["decode step"] == pytest.approx(step)
    assert lines["TPOT"] == pytest.approx(lines["decode step"] + 3 * lines["prefill inside decode"] / 100)
    assert lines["TTFT"] == pytest.approx(lines["prefill"] + lines["decode step"] + lines["waiting"])
    assert lines["requests a second"] == pytest.approx(4 / (lines["TTFT"] + 100 * lines["TPOT"]))


def test_cost():
    assert usd_per_million_tokens(3.6, 1000) == pytest.approx(1.0)
    assert replicas_for(10, 4) == 3
    assert replicas_for(10, 4, headroom=0.2) == 4
    assert power_usd_per_month(1000, 0.10, pue=1.5) == pytest.approx(109.5)
