"""Classes of tensors by name, and parameters in packed ones."""

from __future__ import annotations

import pytest

from model_optimizer.host.safetensors import TensorInfo
from model_optimizer.host.weights import Packing, classify, summarise

NAMES = {
    "embeddings": """
        model.embed_tokens.weight transformer.wte.weight transformer.wpe.weight gpt_neox.embed_in.weight
        transformer.word_embeddings.weight model.language_model.embed_tokens.weight token_embd.weight
        model.embed_tokens_per_layer.weight model.decoder.embed_positions.weight
    """,
    "head": """
        lm_head.weight language_model.lm_head.weight embed_out.weight output.weight lm_head.bias
        transformer.output_layer.weight
    """,
    "attention": """
        model.layers.3.self_attn.q_proj.weight model.layers.3.self_attn.qkv_proj.weight
        transformer.h.0.attn.c_attn.weight gpt_neox.layers.1.attention.query_key_value.weight
        model.layers.0.self_attn.kv_a_proj_with_mqa.weight blk.0.attn_q.weight blk.0.attn_kv_b.weight
        blk.0.attn_output.weight model.layers.0.self_attn.sinks model.layers.0.linear_attn.conv1d.weight
        model.layers.0.linear_attn.in_proj_qkvz.weight model.layers.1.self_attn.indexer.wk.weight
    """,
    "mlp": """
        model.layers.3.mlp.gate_proj.weight model.layers.3.mlp.down_proj.weight transformer.h.0.mlp.c_fc.weight
        model.layers.1.mlp.shared_experts.up_proj.weight model.layers.1.mlp.shared_expert.up_proj.weight
        blk.1.ffn_up_shexp.weight blk.0.ffn_gate.weight model.layers.0.feed_forward.w1.weight
        model.layers.2.shared_mlp.input_linear.weight model.decoder.layers.0.fc1.weight
    """,
    "experts": """
        model.layers.3.block_sparse_moe.experts.7.w1.weight model.layers.3.mlp.experts.0.up_proj.weight
        model.layers.3.mlp.experts.gate_up_proj_blocks blk.0.ffn_gate_exps.weight blk.0.ffn_down_exps.bias
        model.layers.0.feed_forward.experts.gate_up_proj transformer.blocks.0.ffn.experts.mlp.w1
        model.layers.2.block_sparse_moe.input_linear.weight
    """,
    "router": """
        model.layers.3.block_sparse_moe.gate.weight model.layers.3.mlp.gate.weight model.layers.1.mlp.router.weight
        model.layers.3.mlp.gate.e_score_correction_bias blk.0.ffn_gate_inp.weight blk.3.exp_probs_b.bias
        model.layers.0.mlp.shared_expert_gate.weight model.layers.0.feed_forward.router.weight
    """,
    "norms": """
        model.norm.weight model.layers.0.input_layernorm.weight transformer.h.0.ln_1.weight transformer.ln_f.bias
        model.layers.0.self_attn.q_norm.weight blk.0.attn_norm.weight blk.0.ffn_norm.weight output_norm.weight
        blk.0.attn_kv_a_norm.weight model.layers.0.post_feedforward_layernorm.weight
    """,
    "other": """
        vision_tower.vision_model.encoder.layers.0.self_attn.q_proj.weight multi_modal_projector.linear_1.weight
        visual.blocks.3.mlp.fc1.weight model.visual.merger.mlp.0.weight model.layers.0.mamba.in_proj.weight
        mtp.layers.0.self_attn.q_proj.weight model.layers.0.self_attn.rotary_emb.inv_freq v.blk.0.attn_q.weight
        rope_freqs.weight blk.0.ssm_in.weight something.else
    """,
}


@pytest.mark.parametrize("label", NAMES)
def test_names(label: str) -> None:
    names = NAMES[label].split()
    assert {name: classify(name) for name in names} == dict.fromkeys(names, label)


def tensor(name: str, dtype: str, *shape: int) -> TensorInfo:
    elements = 1
    for extent in shape:
        elements *= extent
    width = {"I32": 4, "BF16": 2, "F16": 2, "U8": 1, "F8_E4M3": 1, "F32": 4, "I8": 1, "U32": 4}[dtype]
    return TensorInfo(name, dtype, shape, elements, elements * width)


@pytest.mark.parametrize(
    ("packing", "tensors", "parameters"),
    [
        # GPTQ, 4 bit: eight input rows in each number; a linear layer 64 -> 32.
        (Packing("gptq", 4), [("q.qweight", "I32", 8, 32), ("q.qzeros", "I32", 1, 4), ("q.scales", "F16", 1, 32),
                              ("q.g_idx", "I32", 64)], 64 * 32),
        (Packing("gptq", 8), [("q.qweight", "I32", 16, 32)], 64 * 32),
        # AWQ packs along the output.
        (Packing("awq", 4), [("q.qweight", "I32", 64, 4), ("q.qzeros", "I32", 1, 4),
                             ("q.scales", "F16", 1, 32)], 64 * 32),
        (Packing("compressed-tensors", 4),
         [("q.weight_packed", "I32", 32, 8), ("q.weight_scale", "BF16", 32, 1), ("q.weight_shape", "I32", 2)], 64 * 32),
        (Packing("compressed-tensors", 8), [("q.weight", "I8", 32, 64), ("q.weight_scale", "BF16", 32, 1)], 64 * 32),
        (Packing("fp8", 8), [("q.weight", "F8_E4M3", 32, 64), ("q.weight_scale_inv", "F32", 1, 1)], 64 * 32),
        # NVFP4: two weights in a byte, a scale for 16, a scale for all.
        (Packing("modelopt", 4), [("q.weight", "U8", 32, 32), ("q.weight_scale", "F8_E4M3", 32, 4),
                                  ("q.weight_scale_2", "F32"), ("q.input_scale", "F32")], 64 * 32),
        (Packing("bitsandbytes", 4), [("q.weight", "U8", 1024, 1), ("q.weight.absmax", "U8", 32),
                                      ("q.weight.quant_map", "F32", 16),
                                      ("q.weight.quant_state.bitsandbytes__nf4", "U8", 80)], 64 * 32),
        (Packing("mlx", 4), [("q.weight", "U32", 32, 8), ("q.scales", "F16", 32, 1),
                             ("q.biases", "F16", 32, 1)], 64 * 32),
        (Packing("mlx", 3), [("q.weight", "U32", 32, 6)], 64 * 32),
        (None, [("q.weight", "BF16", 32, 64), ("q.bias", "BF16", 32)], 64 * 32 + 32),
        (None, [("h.0.attn.bias", "F32", 1, 1, 8, 8), ("rotary_emb.inv_freq", "F32", 8)], 0),
    ],
)  # fmt: skip
def test_parameters_of_packed_weights(packing: Packing | None, tensors: list[tuple[str, str]], parameters: int) -> None:
    assert summarise([tensor(*t) for t in tensors], packing=packing).num_parameters == parameters


def test_layers_beyond_the_models_own_are_other() -> None:
    tensors = [tensor(f"model.layers.{i}.self_attn.o_proj.weight", "BF16", 2, 2) for i in range(3)]
    weights = summarise(tensors, num_layers=2)
    assert {c.name: c.parameters for c in weights.classes} == {"attention": 8, "other": 4}
    assert weights.layers == {0, 1, 2} and weights.dtype == "BF16" and not weights.has("head")


def test_layers_are_told_from_experts() -> None:
    names = ["model.layers.17.mlp.experts.3.w1.weight", "transformer.h.4.attn.c_attn.bias", "blk.0.attn_q.weight"]
    others = ["model.norm.weight", "lm_head.weight", "vision_tower.encoder.layers.9.mlp.fc1.weight"]
    assert summarise([tensor(name, "BF16", 2) for name in names + others]).layers == {17, 4, 0}


def test_dtypes_by_bytes() -> None:
    weights = summarise([tensor("lm_head.weight", "BF16", 4, 4), tensor("model.norm.weight", "F32", 4)])
    assert weights.dtype == "BF16" and weights.num_bytes == 48 and weights.has("head")


def test_nothing() -> None:
    assert summarise([]).num_parameters == 0 and summarise([]).dtype == "unknown"
