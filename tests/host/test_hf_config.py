"""Shapes from config.json, as published for well-known models (only the entries that matter here)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model_optimizer.errors import CheckpointInvalid
from model_optimizer.host.hf_config import Shape, read_shape
from model_optimizer.records.model import MoeSpec
from tests.host.checkpoints import FAMILIES


def config(architecture: str, model_type: str, layers: int, hidden: int, heads: int, **more: Any) -> dict[str, Any]:
    return {
        "architectures": [architecture], "model_type": model_type, "num_hidden_layers": layers, "hidden_size": hidden,
        "num_attention_heads": heads, "vocab_size": 1000, **more,
    }  # fmt: skip


def summary(shape: Shape) -> dict[str, Any]:
    return {
        "kv": shape.num_kv_heads, "head_dim": shape.head_dim, "sliding": shape.layers.num_sliding,
        "linear": shape.layers.num_linear, "window": shape.layers.window, "positions": shape.rope.max_positions,
    }  # fmt: skip


def expect(
    kv: int, head_dim: int, positions: int, sliding: int = 0, linear: int = 0, window: int | None = None
) -> dict[str, Any]:
    return {
        "kv": kv,
        "head_dim": head_dim,
        "sliding": sliding,
        "linear": linear,
        "window": window,
        "positions": positions,
    }


PUBLISHED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "llama-3.1-8b": (
        config("LlamaForCausalLM", "llama", 32, 4096, 32, num_key_value_heads=8, max_position_embeddings=131072,
               rope_scaling={"factor": 8.0, "rope_type": "llama3", "original_max_position_embeddings": 8192}),
        expect(8, 128, 131072),
    ),
    "mistral-7b-v0.1": (
        config("MistralForCausalLM", "mistral", 32, 4096, 32, num_key_value_heads=8, sliding_window=4096,
               max_position_embeddings=32768),
        expect(8, 128, 32768, sliding=32, window=4096),
    ),
    "mistral-nemo": (
        config("MistralForCausalLM", "mistral", 40, 5120, 32, num_key_value_heads=8, head_dim=128, sliding_window=None,
               max_position_embeddings=131072),
        expect(8, 128, 131072),
    ),
    "qwen2.5-7b": (
        config("Qwen2ForCausalLM", "qwen2", 28, 3584, 28, num_key_value_heads=4, sliding_window=131072,
               use_sliding_window=False, max_window_layers=28, max_position_embeddings=131072),
        expect(4, 128, 131072),
    ),
    "qwen2.5 with yarn as its card says": (
        config("Qwen2ForCausalLM", "qwen2", 28, 3584, 28, num_key_value_heads=4, max_position_embeddings=32768,
               rope_scaling={"factor": 4.0, "original_max_position_embeddings": 32768, "type": "yarn"}),
        expect(4, 128, 131072),
    ),
    "qwen with window": (
        config("Qwen2ForCausalLM", "qwen2", 32, 4096, 32, num_key_value_heads=8, use_sliding_window=True,
               sliding_window=1024, max_window_layers=24, max_position_embeddings=32768),
        expect(8, 128, 32768, sliding=8, window=1024),
    ),
    "qwen3-8b": (
        config("Qwen3ForCausalLM", "qwen3", 36, 4096, 32, num_key_value_heads=8, head_dim=128,
               max_position_embeddings=40960, sliding_window=None, use_sliding_window=False),
        expect(8, 128, 40960),
    ),
    "gemma-2-9b": (
        config("Gemma2ForCausalLM", "gemma2", 42, 3584, 16, num_key_value_heads=8, head_dim=256, sliding_window=4096,
               max_position_embeddings=8192),
        expect(8, 256, 8192, sliding=21, window=4096),
    ),
    "gemma-3-4b: text_config leaves out heads and vocabulary": (
        {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "eos_token_id": [1, 106],
         "text_config": {"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text",
                         "num_hidden_layers": 34, "sliding_window": 1024,
                         "rope_scaling": {"factor": 8.0, "rope_type": "linear"}},
         "vision_config": {"hidden_size": 1152, "num_hidden_layers": 27, "num_attention_heads": 16}},
        expect(4, 256, 131072, sliding=29, window=1024),
    ),
    "gpt-oss-20b": (
        config("GptOssForCausalLM", "gpt_oss", 24, 2880, 64, num_key_value_heads=8, head_dim=64, sliding_window=128,
               max_position_embeddings=131072, num_local_experts=32, num_experts_per_tok=4,
               layer_types=["sliding_attention", "full_attention"] * 12,
               rope_scaling={"factor": 32.0, "original_max_position_embeddings": 4096, "rope_type": "yarn"}),
        expect(8, 64, 131072, sliding=12, window=128),
    ),
    "deepseek-v3": (
        config("DeepseekV3ForCausalLM", "deepseek_v3", 61, 7168, 128, num_key_value_heads=128, kv_lora_rank=512,
               qk_rope_head_dim=64, qk_nope_head_dim=128, v_head_dim=128, max_position_embeddings=163840,
               n_routed_experts=256, num_experts_per_tok=8,
               rope_scaling={"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096}),
        expect(128, 192, 163840),
    ),
    "falcon-7b": (
        config("FalconForCausalLM", "falcon", 32, 4544, 71, multi_query=True, new_decoder_architecture=False,
               max_position_embeddings=2048),
        expect(1, 64, 2048),
    ),
    "falcon-40b": (
        config("FalconForCausalLM", "falcon", 60, 8192, 128, num_kv_heads=8, multi_query=True,
               new_decoder_architecture=True, max_position_embeddings=2048),
        expect(8, 64, 2048),
    ),
    "gpt2": (
        {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12,
         "n_positions": 1024, "n_ctx": 1024, "vocab_size": 50257},
        expect(12, 64, 1024),
    ),
    "dbrx": (
        {"architectures": ["DbrxForCausalLM"], "model_type": "dbrx", "d_model": 6144, "n_heads": 48, "n_layers": 40,
         "max_seq_len": 32768, "vocab_size": 100352, "attn_config": {"kv_n_heads": 8},
         "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4}},
        expect(8, 128, 32768),
    ),
    "phi-3-mini-4k": (
        config("Phi3ForCausalLM", "phi3", 32, 3072, 32, num_key_value_heads=32, sliding_window=2047,
               max_position_embeddings=4096),
        expect(32, 96, 4096, sliding=32, window=2047),
    ),
    "phi-3-mini-128k: the window is longer than the context": (
        config("Phi3ForCausalLM", "phi3", 32, 3072, 32, num_key_value_heads=32, sliding_window=262144,
               max_position_embeddings=131072, rope_scaling={"type": "longrope"}),
        expect(32, 96, 131072),
    ),
    "cohere2": (
        config("Cohere2ForCausalLM", "cohere2", 32, 4096, 32, num_key_value_heads=8, sliding_window=4096,
               sliding_window_pattern=4, max_position_embeddings=132096),
        expect(8, 128, 132096, sliding=24, window=4096),
    ),
    "llama-4-scout": (
        {"architectures": ["Llama4ForConditionalGeneration"], "model_type": "llama4",
         "text_config": {"model_type": "llama4_text", "num_hidden_layers": 48, "hidden_size": 5120,
                         "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 202048,
                         "attention_chunk_size": 8192, "no_rope_layers": [], "num_local_experts": 16,
                         "num_experts_per_tok": 1, "max_position_embeddings": 10485760}},
        expect(8, 128, 10485760, sliding=36, window=8192),
    ),
    "exaone-4-32b": (
        config("Exaone4ForCausalLM", "exaone4", 64, 5120, 40, num_key_value_heads=8, head_dim=128, sliding_window=4096,
               sliding_window_pattern="LLLG", max_position_embeddings=131072),
        expect(8, 128, 131072, sliding=48, window=4096),
    ),
    "qwen3-next": (
        config("Qwen3NextForCausalLM", "qwen3_next", 48, 2048, 16, num_key_value_heads=2, head_dim=256, num_experts=512,
               num_experts_per_tok=10, full_attention_interval=4, max_position_embeddings=262144),
        expect(2, 256, 262144, linear=36),
    ),
    "jamba": (
        config("JambaForCausalLM", "jamba", 32, 4096, 32, num_key_value_heads=8, attn_layer_period=8,
               attn_layer_offset=4, num_experts=16, num_experts_per_tok=2, max_position_embeddings=262144),
        expect(8, 128, 262144, linear=28),
    ),
    "nemotron-h": (
        config("NemotronHForCausalLM", "nemotron_h", 52, 4096, 32, num_key_value_heads=8, head_dim=128,
               hybrid_override_pattern="M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
               max_position_embeddings=8192),
        expect(8, 128, 8192, linear=48),
    ),
    "kimi-linear": (
        config("KimiLinearForCausalLM", "kimi_linear", 4, 2304, 32, kv_lora_rank=512, qk_rope_head_dim=64,
               qk_nope_head_dim=128, linear_attn_config={"full_attn_layers": [4], "kda_layers": [1, 2, 3]},
               model_max_length=1048576, max_position_embeddings=1048576),
        expect(32, 192, 1048576, linear=3),
    ),
    "linear scaling multiplies": (
        config("LlamaForCausalLM", "llama", 2, 8, 4, max_position_embeddings=4096,
               rope_scaling={"type": "linear", "factor": 4.0}),
        expect(4, 2, 16384),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configurations(name: str) -> None:
    table, expected = PUBLISHED[name]
    assert summary(read_shape(table)) == expected


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ({"num_local_experts": 8, "num_experts_per_tok": 2}, (8, 2)),
        ({"num_experts": 128, "num_experts_per_tok": 8}, (128, 8)),
        ({"n_routed_experts": 64, "num_experts_per_tok": 6, "n_shared_experts": 2}, (64, 6)),
        ({"moe_num_experts": 64, "moe_k": 6}, (64, 6)),
        ({"num_experts": [64, 64], "moe_topk": [8, 8]}, (64, 8)),
        ({"num_experts": 128, "top_k_experts": 8}, (128, 8)),
        ({"num_experts": 1, "num_experts_per_tok": 1}, None),
        ({"num_experts": 0}, None),
        ({"num_local_experts": None}, None),
    ],
)
def test_experts_under_their_many_names(entries: dict[str, Any], expected: tuple[int, int] | None) -> None:
    shape = read_shape(config("X", "x", 2, 8, 4, max_position_embeddings=64, **entries))
    assert shape.moe == (MoeSpec(num_experts=expected[0], experts_per_token=expected[1]) if expected else None)


def test_rope_parameters_of_transformers_5_by_layer_type() -> None:
    table = config(
        "Gemma3ForCausalLM", "gemma3_text", 12, 8, 4, sliding_window=16, max_position_embeddings=128,
        rope_parameters={"full_attention": {"rope_theta": 1e6, "rope_type": "linear", "factor": 8.0},
                         "sliding_attention": {"rope_theta": 1e4, "rope_type": "default"}},
    )  # fmt: skip
    shape = read_shape(table)
    assert (shape.rope.theta, shape.rope.scaling, shape.rope.max_positions) == (1e6, "linear x8", 128)
    assert [check.id for check in shape.rope.problems] == ["config.rope"]


def test_no_warning_where_both_spellings_agree_or_the_default_is_meant() -> None:
    both = {"rope_theta": 5e5, "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}
    for rope in (both, {"rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}}, {}):
        assert read_shape(config("X", "x", 2, 8, 4, max_position_embeddings=64, **rope)).rope.problems == ()


def test_layer_types_must_be_as_many_as_layers() -> None:
    table = config("X", "x", 4, 8, 4, sliding_window=8, max_position_embeddings=64, layer_types=["sliding_attention"])
    shape = read_shape(table)
    assert [check.id for check in shape.checks if check.severity == "error"] == ["config.layer_types"]


def test_custom_code_is_noted() -> None:
    table = config("X", "x", 2, 8, 4, max_position_embeddings=64, auto_map={"AutoConfig": "c.C"})
    assert "config.custom_code" in {check.id for check in read_shape(table).checks}


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=6,
)
_KEYS = sorted({key for family in FAMILIES.values() for key in family.config} | {
    "layer_types", "text_config", "rope_parameters", "head_dim", "hybrid_override_pattern", "attn_layer_period",
    "attn_layer_offset", "full_attention_interval", "sliding_window_pattern", "no_rope_layers", "linear_attn_config",
    "ffn_config", "attn_config", "block_types", "num_experts", "auto_map", "attn_type_list", "max_window_layers",
})  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(sorted(FAMILIES)), st.dictionaries(st.sampled_from(_KEYS), _JSON, min_size=1, max_size=4))
def test_any_value_anywhere_is_a_shape_or_a_clear_error(family: str, changes: dict[str, Any]) -> None:
    try:
        shape = read_shape({**FAMILIES[family].config, **changes})
    except CheckpointInvalid as error:
        assert error.cause and error.fix
    else:
        assert shape.num_layers > 0 and shape.num_heads > 0 and shape.head_dim > 0 and shape.rope.max_positions > 0
        assert shape.layers.num_sliding + shape.layers.num_linear <= shape.num_layers


_ROPE = st.dictionaries(
    st.sampled_from(
        ["factor", "type", "rope_type", "original_max_position_embeddings", "rope_theta", "full_attention"]
    ),
    st.floats() | st.integers() | st.sampled_from(["yarn", "linear", "llama3", "default"]) | st.none(),
)


@settings(max_examples=200, deadline=None)
@given(_ROPE, _ROPE, st.one_of(st.none(), st.integers(), st.floats()))
def test_any_rope_settings(old: dict[str, Any], new: dict[str, Any], positions: float | None) -> None:
    table = config("X", "llama", 2, 8, 4, rope_scaling=old, rope_parameters=new, max_position_embeddings=positions)
    try:
        assert read_shape(table).rope.max_positions > 0
    except CheckpointInvalid as error:
        assert "max_position_embeddings" in error.cause
