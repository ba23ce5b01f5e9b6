"""What engines demand of shapes: heads, groups, fused layers, head sizes."""

import pytest

from model_optimizer.kb.shapes import shape_refusals
from model_optimizer.records.model import ModelSpec

LLAMA_8B = ModelSpec(
    source="x", format="hf", architecture="LlamaForCausalLM", num_layers=32, hidden_size=4096, intermediate_size=14336,
    num_attention_heads=32, num_kv_heads=8, head_dim=128, vocab_size=128256, max_position_embeddings=131072,
    attention="gqa", weight_dtype="BF16", weight_bytes=16_060_522_496, num_parameters=8_030_261_248,
)  # fmt: skip


def _codes(model=LLAMA_8B, scheme="bf16", engine="vllm", **more):
    return [found.code for found in shape_refusals(model, scheme, engine, **more)]


@pytest.mark.parametrize(
    ("tp", "codes"),
    [(1, []), (2, []), (8, []), (3, ["HEADS_NOT_DIVISIBLE_BY_TP"]), (5, ["HEADS_NOT_DIVISIBLE_BY_TP"])],
)
def test_heads(tp, codes):
    assert _codes(tensor_parallel_size=tp) == codes


def test_the_sentence_has_numbers_and_a_source():
    (found,) = shape_refusals(LLAMA_8B, "bf16", "vllm", 3)
    assert "32 attention heads" in found.sentence and "3 GPUs" in found.sentence
    assert found.status == "vendor" and found.sources and found.date


def test_groups_that_do_not_divide():
    # Qwen2.5-7B: intermediate 18944 = 148 · 128; over 8 GPUs 2368 = 18.5 · 128 inputs each
    qwen = LLAMA_8B.model_copy(
        update={"num_attention_heads": 28, "num_kv_heads": 4, "hidden_size": 3584, "intermediate_size": 18944}
    )
    assert _codes(qwen, "w4a16-gptq", tensor_parallel_size=4) == []  # 4736 = 37 · 128
    wide = qwen.model_copy(update={"num_attention_heads": 32})
    assert _codes(wide, "w4a16-gptq", tensor_parallel_size=8) == ["GROUP_SIZE_TP"]
    assert _codes(wide, "fp8", tensor_parallel_size=8) == []  # no groups
    assert _codes(wide, "w4a16-gptq") == []  # one GPU


def test_fused_layers_need_equal_bits():
    mixed = {"q_proj": 4, "k_proj": 8, "v_proj": 8, "o_proj": 4}
    assert _codes(bits_by_module=mixed) == ["FUSED_LAYER_MIXED_BITS"]
    assert _codes(bits_by_module={"q_proj": 4, "k_proj": 4, "v_proj": 4, "gate_proj": 8, "up_proj": 8}) == []
    assert _codes(bits_by_module={"gate_proj": 4, "up_proj": 8}) == ["FUSED_LAYER_MIXED_BITS"]


def test_head_size_64_has_no_nvfp4_cache():
    small = LLAMA_8B.model_copy(update={"head_dim": 64})
    assert _codes(small, "kv-nvfp4") == ["HEAD_DIM_UNSUPPORTED"]
    assert _codes(LLAMA_8B, "kv-nvfp4") == []


def test_an_engine_without_known_demands_refuses_nothing():
    assert _codes(engine="llama.cpp", tensor_parallel_size=3) == []
