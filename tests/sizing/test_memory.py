from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_optimizer.records.knowledge import SchemeSpec
from model_optimizer.records.model import ModelSpec
from model_optimizer.records.sizing import Parallelism
from model_optimizer.sizing.memory import (
    EngineMemory,
    explain_memory,
    kv_bytes_per_token_per_gpu,
    plan_memory,
    weights_by_class,
)
from tests.sizing import models

GIB = 2**30
VLLM = EngineMemory(0.92, "total", 0.5 * GIB, 1.0 * GIB, 8192, "test")
FP8 = SchemeSpec(id="fp8", title="FP8", weight_bits=8, activation_bits=8, compute="fp8", checkpoint="hf")


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (models.LLAMA_31_8B, 2 * 32 * 8 * 128 * 2),  # 131,072 B, field standard
        (models.QWEN3_06B, 2 * 28 * 8 * 128 * 2),
        (models.QWEN3_8B, 2 * 36 * 8 * 128 * 2),
        (models.QWEN3_32B, 2 * 64 * 8 * 128 * 2),
        (models.MIXTRAL, 2 * 32 * 8 * 128 * 2),
        (models.QWEN3_30B_A3B, 2 * 48 * 4 * 128 * 2),
        (models.DEEPSEEK_V3, 61 * (512 + 64) * 2),  # 70,272 B
        (models.GEMMA3_27B, 2 * 10 * 16 * 128 * 2),  # only the 10 global layers grow
        (models.GPT_OSS_20B, 2 * 12 * 8 * 64 * 2),
    ],
    ids=lambda value: getattr(value, "source", ""),
)
def test_kv_bytes_per_token(spec: ModelSpec, expected: int):
    assert spec.kv_bytes_per_token() == expected
    assert spec.kv_bytes_per_token(1.0) == expected / 2


def test_sliding_layers_stop_growing_at_their_window():
    gemma = models.GEMMA3_27B
    growing = 2 * 10 * 16 * 128 * 2
    local = 2 * 52 * 16 * 128 * 2
    assert gemma.kv_bytes(500) == 500 * (growing + local)
    assert gemma.kv_bytes(32768) == 32768 * growing + 1024 * local


@pytest.mark.parametrize(
    ("spec", "billions"),
    [
        (models.LLAMA_31_8B, 8.03),
        (models.QWEN3_06B, 0.596),
        (models.QWEN3_8B, 8.19),
        (models.QWEN3_32B, 32.8),
        (models.MIXTRAL, 46.7),
        (models.QWEN3_30B_A3B, 30.5),
    ],
    ids=lambda value: getattr(value, "source", ""),
)
def test_the_models_have_their_published_size(spec: ModelSpec, billions: float):
    assert spec.num_parameters / 1e9 == pytest.approx(billions, rel=0.01)


def test_weights_in_fp8_keep_embeddings_head_and_norms():
    spec = models.LLAMA_31_8B
    total = sum(weights_by_class(spec, FP8, Parallelism()).values())
    kept = 2 * 128256 * 4096 * 2 + 65 * 4096 * 2
    blocks = 32 * (4096 * 128 * 2 * (32 + 8) + 3 * 4096 * 14336)
    assert total == kept + blocks


def test_tensor_parallel_divides_matrices_and_replicates_norms():
    spec = models.MIXTRAL
    one = weights_by_class(spec, None, Parallelism())
    four = weights_by_class(spec, None, Parallelism(tensor=4))
    assert four["experts"] == one["experts"] / 4
    assert four["embeddings"] == one["embeddings"] / 4
    assert four["norms"] == one["norms"]
    assert four["router"] == one["router"]


@pytest.mark.parametrize(("tensor", "share"), [(1, 1), (2, 1 / 2), (8, 1 / 8), (16, 1 / 8)])
def test_kv_heads_are_replicated_when_there_are_more_ranks_than_heads(tensor: int, share: float):
    whole = models.LLAMA_31_8B.kv_bytes_per_token()
    assert kv_bytes_per_token_per_gpu(models.LLAMA_31_8B, Parallelism(tensor=tensor), 2.0) == whole * share


def test_the_latent_of_mla_is_on_every_rank():
    spec = models.DEEPSEEK_V3
    assert kv_bytes_per_token_per_gpu(spec, Parallelism(tensor=8), 2.0) == spec.kv_bytes_per_token()


def test_an_8b_on_24_gib():
    plan = plan_memory(models.LLAMA_31_8B, total_bytes=24 * GIB, engine=VLLM, live_tokens=2048)
    assert plan.weights_fit
    assert plan.weight_bytes == models.LLAMA_31_8B.weight_bytes
    assert plan.usable_bytes == pytest.approx(0.92 * 24 * GIB)
    assert plan.kv_tokens == int(plan.kv_bytes / 131072)
    assert plan.max_sequences == int(plan.kv_bytes / (131072 * 2048))
    rest = plan.activation_bytes + plan.graph_bytes + plan.runtime_bytes
    assert plan.kv_bytes == pytest.approx(plan.usable_bytes - plan.weight_bytes - rest)


def test_the_explanation_adds_up():
    plan = plan_memory(models.LLAMA_31_8B, total_bytes=24 * GIB, engine=VLLM, scheme=FP8)
    lines = {term.name: term.value or 0.0 for term in explain_memory(models.LLAMA_31_8B, plan, VLLM, FP8)}
    taken = sum(value for name, value in lines.items() if name.startswith("weights: "))
    taken += lines["activations"] + lines["CUDA graphs"] + lines["runtime"]
    assert lines["KV cache"] == pytest.approx(lines["usable"] - taken)


def test_a_32b_in_bf16_does_not_fit_24_gib_and_says_by_how_much():
    plan = plan_memory(models.QWEN3_32B, total_bytes=24 * GIB, engine=VLLM)
    assert not plan.weights_fit
    assert plan.max_sequences == 0
    assert plan.longest_context == 0
    assert plan.kv_bytes < -35 * GIB


def test_a_share_of_what_is_free_is_not_a_share_of_the_total():
    free = VLLM._replace(share=0.9, share_of="free_after_weights")
    total = plan_memory(models.LLAMA_31_8B, total_bytes=80 * GIB, engine=VLLM._replace(share=0.9))
    after = plan_memory(models.LLAMA_31_8B, total_bytes=80 * GIB, engine=free)
    taken = total.weight_bytes + total.activation_bytes + total.graph_bytes + total.runtime_bytes
    assert total.kv_bytes == pytest.approx(0.9 * 80 * GIB - taken)
    assert after.kv_bytes == pytest.approx(0.9 * (80 * GIB - taken))


def test_a_static_share_holds_weights_and_kv_while_activations_stay_beside_it():
    """SGLang: 0.88 of 80 GiB − weights − runtime; activations and graphs come out of the other 12 %."""
    static = VLLM._replace(share=0.88, share_of="weights_and_kv")
    plan = plan_memory(models.LLAMA_31_8B, total_bytes=80 * GIB, engine=static)
    assert plan.kv_bytes == pytest.approx(0.88 * 80 * GIB - plan.weight_bytes - plan.runtime_bytes)
    crowded = static._replace(graph_bytes=12 * GIB)  # more than 12 % of 80 GiB: the static part has to shrink
    tight = plan_memory(models.LLAMA_31_8B, total_bytes=80 * GIB, engine=crowded)
    assert tight.usable_bytes == pytest.approx(80 * GIB - tight.activation_bytes - 12 * GIB)


def test_what_is_left_to_others_comes_off_first():
    whole = plan_memory(models.LLAMA_31_8B, total_bytes=16 * GIB, engine=VLLM._replace(share=1.0))
    shared = plan_memory(models.LLAMA_31_8B, total_bytes=16 * GIB, engine=VLLM._replace(share=1.0, reserve_bytes=GIB))
    assert shared.kv_bytes == pytest.approx(whole.kv_bytes - GIB)


def test_a_pipeline_stage_holds_its_layers_and_the_larger_end():
    spec = models.QWEN3_32B
    whole, half = (sum(weights_by_class(spec, None, Parallelism(pipeline=n)).values()) for n in (1, 2))
    end = 151936 * 5120 * 2
    assert half == pytest.approx((whole - 2 * end) / 2 + end)


def test_the_longest_context_below_and_above_a_window():
    """Gemma-3-27B: 10 global layers of 8,192 B a token, 52 local ones of 8,192 B up to 1,024 tokens."""
    spec = models.GEMMA3_27B
    one = 2 * 16 * 128 * 2
    for room, expected in ((500 * 62 * one, 500), (1024 * 62 * one, 1024), (1024 * 52 * one + 5000 * 10 * one, 5000)):
        engine = VLLM._replace(share=1.0, graph_bytes=0, runtime_bytes=0, max_batched_tokens=0)
        logits = 256 * spec.vocab_size * 4
        plan = plan_memory(spec, total_bytes=spec.weight_bytes + logits + room, engine=engine)
        assert plan.longest_context == pytest.approx(expected, abs=1)


def test_four_bits_for_the_kv_cache_cost_their_scales():
    kv = kv_bytes_per_token_per_gpu(models.LLAMA_31_8B, Parallelism(), 4.5 / 8)
    assert kv == pytest.approx(131072 * 4.5 / 16)


@given(memory_gib=st.floats(8, 640), tensor=st.sampled_from([1, 2, 4, 8]), live=st.integers(16, 32768))
def test_more_memory_never_fits_less(memory_gib: float, tensor: int, live: int):
    split = Parallelism(tensor=tensor)
    small = plan_memory(models.GEMMA3_27B, total_bytes=memory_gib * GIB, engine=VLLM, split=split, live_tokens=live)
    large = plan_memory(
        models.GEMMA3_27B, total_bytes=(memory_gib + 8) * GIB, engine=VLLM, split=split, live_tokens=live
    )
    assert large.kv_tokens >= small.kv_tokens
    assert large.longest_context >= small.longest_context
    assert large.max_sequences >= small.max_sequences
    assert small.longest_context <= models.GEMMA3_27B.max_position_embeddings
