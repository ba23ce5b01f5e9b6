"""Headers of the largest public models, with their real shapes, in files that are holes: terabytes in megabytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.host.checkpoints import TEMPLATE, Tensors, gguf_metadata, write_gguf, write_safetensors


def _dense(hidden: int, kv: int, intermediate: int, layers: int, vocab: int) -> Tensors:
    tensors: Tensors = {"model.embed_tokens.weight": ("BF16", (vocab, hidden))}
    for i in range(layers):
        p = f"model.layers.{i}"
        tensors |= {
            f"{p}.input_layernorm.weight": ("BF16", (hidden,)),
            f"{p}.self_attn.q_proj.weight": ("BF16", (hidden, hidden)),
            f"{p}.self_attn.k_proj.weight": ("BF16", (kv, hidden)),
            f"{p}.self_attn.v_proj.weight": ("BF16", (kv, hidden)),
            f"{p}.self_attn.o_proj.weight": ("BF16", (hidden, hidden)),
            f"{p}.post_attention_layernorm.weight": ("BF16", (hidden,)),
            f"{p}.mlp.gate_proj.weight": ("BF16", (intermediate, hidden)),
            f"{p}.mlp.up_proj.weight": ("BF16", (intermediate, hidden)),
            f"{p}.mlp.down_proj.weight": ("BF16", (hidden, intermediate)),
        }
    return tensors | {"model.norm.weight": ("BF16", (hidden,)), "lm_head.weight": ("BF16", (vocab, hidden))}


def _fp8(name: str, rows: int, columns: int) -> Tensors:
    """A weight in FP8 with one scale for each block of 128 x 128."""
    scales = (-(-rows // 128), -(-columns // 128))
    return {f"{name}.weight": ("F8_E4M3", (rows, columns)), f"{name}.weight_scale_inv": ("F32", scales)}


def _deepseek_v3() -> Tensors:
    hidden = 7168
    tensors: Tensors = {"model.embed_tokens.weight": ("BF16", (129280, hidden))}
    for i in range(61):
        p = f"model.layers.{i}"
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{p}.{name}.weight"] = ("BF16", (hidden,))
        tensors[f"{p}.self_attn.q_a_layernorm.weight"] = ("BF16", (1536,))
        tensors[f"{p}.self_attn.kv_a_layernorm.weight"] = ("BF16", (512,))
        for name, rows, columns in (
            ("q_a_proj", 1536, hidden), ("q_b_proj", 128 * 192, 1536), ("kv_a_proj_with_mqa", 576, hidden),
            ("kv_b_proj", 128 * 256, 512), ("o_proj", hidden, 128 * 128),
        ):  # fmt: skip
            tensors |= _fp8(f"{p}.self_attn.{name}", rows, columns)
        experts = [(f"mlp.experts.{e}", 2048) for e in range(256)] + [("mlp.shared_experts", 2048)]
        groups = [("mlp", 18432)] if i < 3 else experts
        for group, width in groups:
            tensors |= _fp8(f"{p}.{group}.gate_proj", width, hidden)
            tensors |= _fp8(f"{p}.{group}.up_proj", width, hidden)
            tensors |= _fp8(f"{p}.{group}.down_proj", hidden, width)
        if i >= 3:
            tensors[f"{p}.mlp.gate.weight"] = ("BF16", (256, hidden))
            tensors[f"{p}.mlp.gate.e_score_correction_bias"] = ("F32", (256,))
    return tensors | {"model.norm.weight": ("BF16", (hidden,)), "lm_head.weight": ("BF16", (129280, hidden))}


def _write(folder: Path, tensors: Tensors, shards: int, config: dict[str, Any]) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    names, weight_map = list(tensors), {}
    for number in range(shards):
        file = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        own = names[number * len(names) // shards : (number + 1) * len(names) // shards]
        write_safetensors(folder / file, {name: tensors[name] for name in own})
        weight_map.update(dict.fromkeys(own, file))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    vocab = int(config["vocab_size"])
    plain = {f"<token {number}>": number for number in range(vocab - 2)}
    merges = [[f"<token {number}>", f"<token {number + 1}>"] for number in range(vocab - 3)]
    special = [{"id": vocab - 2, "content": "<s>"}, {"id": vocab - 1, "content": "</s>"}]
    model = {"type": "BPE", "vocab": plain, "merges": merges}
    (folder / "tokenizer.json").write_text(json.dumps({"added_tokens": special, "model": model}))
    settings = {"eos_token": "</s>", "chat_template": TEMPLATE, "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def llama_405b(folder: Path) -> Path:
    """Llama 3.1 405B: 191 files, 812 GB, 1138 tensors, a vocabulary of 128 k."""
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 16384, "num_hidden_layers": 126,
        "num_attention_heads": 128, "num_key_value_heads": 8, "intermediate_size": 53248, "vocab_size": 128256,
        "max_position_embeddings": 131072, "rope_theta": 500000.0, "tie_word_embeddings": False,
        "torch_dtype": "bfloat16", "bos_token_id": 128254, "eos_token_id": 128255,
        "rope_scaling": {"factor": 8.0, "rope_type": "llama3", "original_max_position_embeddings": 8192},
    }  # fmt: skip
    return _write(folder, _dense(16384, 1024, 53248, 126, 128256), 191, config)


def deepseek_v3(folder: Path) -> Path:
    """DeepSeek-V3 in FP8, without its prediction layer: 163 files, 90 k tensors."""
    config = {
        "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "hidden_size": 7168,
        "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128, "intermediate_size": 18432,
        "moe_intermediate_size": 2048, "n_routed_experts": 256, "num_experts_per_tok": 8, "kv_lora_rank": 512,
        "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 129280,
        "max_position_embeddings": 163840, "rope_theta": 10000, "tie_word_embeddings": False,
        "torch_dtype": "bfloat16", "bos_token_id": 129278, "eos_token_id": 129279,
        "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]},
    }  # fmt: skip
    return _write(folder, _deepseek_v3(), 163, config)


def gguf_405b(path: Path) -> Path:
    """Llama 3.1 405B as one Q8_0 GGUF file, with its 128 k tokens and 280 k merges."""
    names = {
        "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
        "model.layers.": "blk.", "model.embed_tokens": "token_embd", "lm_head": "output", "model.norm": "output_norm",
    }  # fmt: skip
    tensors: Tensors = {}
    for name, (_, shape) in _dense(16384, 1024, 53248, 126, 128256).items():
        for old, new in names.items():
            name = name.replace(old, new)
        tensors[name] = ("F32" if len(shape) == 1 else "Q8_0", shape)
    metadata = gguf_metadata(
        llama__block_count=126, llama__context_length=131072, llama__embedding_length=16384,
        llama__feed_forward_length=53248, llama__attention__head_count=128, llama__attention__head_count_kv=8,
        tokenizer__ggml__tokens=[f"<token {i}>" for i in range(128256)], tokenizer__ggml__token_type=[1] * 128256,
        tokenizer__ggml__merges=[f"<tok {i} en>" for i in range(280147)],
    )  # fmt: skip
    return write_gguf(path, metadata, tensors)
