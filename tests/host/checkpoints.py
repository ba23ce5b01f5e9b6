"""Builders of tiny checkpoints, valid in every respect but for their weights, which are zeros.

``hf_folder`` and ``gguf_file`` write a whole checkpoint of a family (``FAMILIES``); ``write_safetensors`` and
``write_gguf`` write single files. Sizes are small enough to add up by hand.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from model_optimizer.host.gguf import GGML_TYPES
from model_optimizer.host.safetensors import DTYPE_BITS
from model_optimizer.records.model import HealthCheck, ModelSpec, Severity

Tensors = dict[str, tuple[str, tuple[int, ...]]]
VOCAB = 32
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


class Family(NamedTuple):
    """config.json and the tensors that go with it."""

    config: dict[str, Any]
    tensors: Tensors


def _layers(count: int, shapes: Mapping[str, tuple[int, ...]], start: int = 0) -> Tensors:
    return {
        f"model.layers.{i}.{name}": ("BF16", shape)
        for i in range(start, start + count)
        for name, shape in shapes.items()
    }


def _attention(hidden: int, heads: int, kv_heads: int, head_dim: int) -> dict[str, tuple[int, ...]]:
    return {
        "self_attn.q_proj.weight": (heads * head_dim, hidden),
        "self_attn.k_proj.weight": (kv_heads * head_dim, hidden),
        "self_attn.v_proj.weight": (kv_heads * head_dim, hidden),
        "self_attn.o_proj.weight": (hidden, heads * head_dim),
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
    }


def _mlp(hidden: int, intermediate: int, prefix: str = "mlp") -> dict[str, tuple[int, ...]]:
    return {
        f"{prefix}.gate_proj.weight": (intermediate, hidden),
        f"{prefix}.up_proj.weight": (intermediate, hidden),
        f"{prefix}.down_proj.weight": (hidden, intermediate),
    }


def _ends(hidden: int, *, head: bool = True) -> Tensors:
    tensors: Tensors = {
        "model.embed_tokens.weight": ("BF16", (VOCAB, hidden)),
        "model.norm.weight": ("BF16", (hidden,)),
    }
    return {**tensors, "lm_head.weight": ("BF16", (VOCAB, hidden))} if head else tensors


def _config(architecture: str, model_type: str, **more: Any) -> dict[str, Any]:
    return {
        "architectures": [architecture], "model_type": model_type, "hidden_size": 8, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 16, "vocab_size": VOCAB,
        "max_position_embeddings": 128, "rope_theta": 10000.0, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
        "bos_token_id": 30, "eos_token_id": 31, **more,
    }  # fmt: skip


def _llama() -> Family:
    tensors = {**_ends(8), **_layers(2, {**_attention(8, 4, 2, 2), **_mlp(8, 16)})}
    return Family(_config("LlamaForCausalLM", "llama", rope_theta=500000.0), tensors)


def _mixtral() -> Family:
    experts = {
        f"block_sparse_moe.experts.{e}.w{w}.weight": (8, 16) if w == 2 else (16, 8) for e in range(4) for w in (1, 2, 3)
    }
    layer = {**_attention(8, 4, 2, 2), **experts, "block_sparse_moe.gate.weight": (4, 8)}
    config = _config("MixtralForCausalLM", "mixtral", num_local_experts=4, num_experts_per_tok=2, sliding_window=None)
    return Family(config, {**_ends(8), **_layers(2, layer)})


def _deepseek() -> Family:
    """Layer 0 dense, layer 1 experts, and one layer of multi-token prediction beyond the model's own."""
    attention = {
        "self_attn.q_a_proj.weight": (6, 8), "self_attn.q_a_layernorm.weight": (6,),
        "self_attn.q_b_proj.weight": (16, 6),
        "self_attn.kv_a_proj_with_mqa.weight": (6, 8), "self_attn.kv_a_layernorm.weight": (4,),
        "self_attn.kv_b_proj.weight": (16, 4), "self_attn.o_proj.weight": (8, 8),
        "input_layernorm.weight": (8,), "post_attention_layernorm.weight": (8,),
    }  # fmt: skip
    experts = {name: shape for e in range(4) for name, shape in _mlp(8, 4, f"mlp.experts.{e}").items()}
    moe = {
        **attention, **experts, **_mlp(8, 4, "mlp.shared_experts"), "mlp.gate.weight": (4, 8),
        "mlp.gate.e_score_correction_bias": (4,),
    }  # fmt: skip
    prediction = {"eh_proj.weight": (8, 16), "enorm.weight": (8,), "self_attn.o_proj.weight": (8, 8)}
    config = _config(
        "DeepseekV3ForCausalLM", "deepseek_v3", num_key_value_heads=4, n_routed_experts=4, num_experts_per_tok=2,
        n_shared_experts=1, moe_intermediate_size=4, first_k_dense_replace=1, kv_lora_rank=4, q_lora_rank=6,
        qk_rope_head_dim=2, qk_nope_head_dim=2, v_head_dim=2, num_nextn_predict_layers=1, max_position_embeddings=512,
        rope_scaling={"type": "yarn", "factor": 4, "original_max_position_embeddings": 128},
    )  # fmt: skip
    dense = _layers(1, {**attention, **_mlp(8, 16)})
    return Family(config, {**_ends(8), **dense, **_layers(1, moe, start=1), **_layers(1, prediction, start=2)})


def _gemma3() -> Family:
    norms = {"self_attn.q_norm.weight": (4,), "self_attn.k_norm.weight": (4,), "pre_feedforward_layernorm.weight": (8,),
             "post_feedforward_layernorm.weight": (8,)}  # fmt: skip
    tensors = {**_ends(8, head=False), **_layers(12, {**_attention(8, 4, 1, 4), **_mlp(8, 16), **norms})}
    config = _config(
        "Gemma3ForCausalLM", "gemma3_text", num_hidden_layers=12, num_key_value_heads=1, head_dim=4, sliding_window=16,
        sliding_window_pattern=6, rope_theta=1000000.0, rope_local_base_freq=10000.0,
    )  # fmt: skip
    del config["tie_word_embeddings"]  # Gemma's files do not say it
    return Family(config, tensors)


def _qwen3() -> Family:
    norms = {"self_attn.q_norm.weight": (4,), "self_attn.k_norm.weight": (4,)}
    tensors = {**_ends(8, head=False), **_layers(2, {**_attention(8, 4, 2, 4), **_mlp(8, 16), **norms})}
    config = _config(
        "Qwen3ForCausalLM", "qwen3", head_dim=4, tie_word_embeddings=True, use_sliding_window=False,
        sliding_window=None, max_window_layers=2,
    )  # fmt: skip
    return Family(config, tensors)


def _gpt_oss() -> Family:
    """Experts in MXFP4: 4-bit weights, two a byte, one scale for every 32."""
    attention = {
        **_attention(32, 4, 2, 8),
        "self_attn.sinks": (4,),
        "mlp.router.weight": (4, 32),
        "mlp.router.bias": (4,),
    }
    tensors = {**_ends(32), **_layers(2, attention)}
    for layer in range(2):
        experts = f"model.layers.{layer}.mlp.experts"
        tensors |= {
            f"{experts}.gate_up_proj_blocks": ("U8", (4, 64, 1, 16)),
            f"{experts}.gate_up_proj_scales": ("U8", (4, 64, 1)),
            f"{experts}.gate_up_proj_bias": ("BF16", (4, 64)), f"{experts}.down_proj_blocks": ("U8", (4, 32, 1, 16)),
            f"{experts}.down_proj_scales": ("U8", (4, 32, 1)), f"{experts}.down_proj_bias": ("BF16", (4, 32)),
        }  # fmt: skip
    config = _config(
        "GptOssForCausalLM", "gpt_oss", hidden_size=32, intermediate_size=32, head_dim=8, num_local_experts=4,
        num_experts_per_tok=2, sliding_window=16, layer_types=["sliding_attention", "full_attention"],
        quantization_config={"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]},
    )  # fmt: skip
    return Family(config, tensors)


FAMILIES: dict[str, Family] = {
    "llama": _llama(),
    "mixtral": _mixtral(),
    "deepseek": _deepseek(),
    "gemma3": _gemma3(),
    "qwen3": _qwen3(),
    "gpt_oss": _gpt_oss(),
}


def safetensors_header(tensors: Tensors) -> tuple[bytes, int]:
    """The header, padded to 8 bytes as the reference writer does, and the bytes of data that follow it."""
    table: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (dtype, shape) in tensors.items():
        size = DTYPE_BITS[dtype]
        for extent in shape:
            size *= extent
        table[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size // 8]}
        at += size // 8
    raw = json.dumps(table, separators=(",", ":")).encode()
    return raw + b" " * (-len(raw) % 8), at


def write_safetensors(path: Path, tensors: Tensors) -> Path:
    """One file; its data is a hole in the file system, so any size is free."""
    header, data_bytes = safetensors_header(tensors)
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + data_bytes)
    return path


def write_weights(folder: Path, tensors: Tensors, *, shards: int = 1) -> None:
    """``model.safetensors``, or numbered shards and their index."""
    if shards == 1:
        write_safetensors(folder / "model.safetensors", tensors)
        return
    names = list(tensors)
    weight_map = {}
    for number in range(shards):
        file = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        own = names[number * len(names) // shards : (number + 1) * len(names) // shards]
        write_safetensors(folder / file, {name: tensors[name] for name in own})
        weight_map.update(dict.fromkeys(own, file))
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def write_tokenizer(folder: Path, *, size: int = VOCAB) -> None:
    """A byte-level BPE tokenizer of ``size`` tokens, the last two of them special, and a chat template."""
    plain = {chr(33 + number): number for number in range(size - 2)}
    special = [
        {"id": size - 2 + number, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": True}
        for number, text in enumerate(("<s>", "</s>"))
    ]  # fmt: skip
    tokenizer: dict[str, Any] = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": special, "normalizer": None,
        "pre_tokenizer": None, "post_processor": None, "decoder": None,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "vocab": plain, "merges": []},
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "chat_template": TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def hf_folder(folder: Path, family: str = "llama", *, shards: int = 1, **changes: Any) -> Path:
    """A whole checkpoint of ``family``; ``changes`` replace entries of config.json, ``None`` writes null."""
    folder.mkdir(parents=True, exist_ok=True)
    config, tensors = FAMILIES[family]
    (folder / "config.json").write_text(json.dumps({**config, **changes}, indent=2))
    write_weights(folder, tensors, shards=shards)
    write_tokenizer(folder)
    return folder


def edit_json(path: Path, *remove: str, **changes: Any) -> None:
    """Change a JSON file in place: remove entries, then set others."""
    table = json.loads(path.read_text()) if path.exists() else {}
    for name in remove:
        table.pop(name, None)
    table.update(changes)
    path.write_text(json.dumps(table))


def findings(spec: ModelSpec, severity: Severity = "error") -> dict[str, HealthCheck]:
    """The health checks of one severity, by id."""
    return {check.id: check for check in spec.health if check.severity == severity}


# GGUF

_KINDS = {name: number for number, (name, _, _) in GGML_TYPES.items()}


def _text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def _value(value: Any) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + _text(value)
    inner = _value(value[0])[:4]
    return struct.pack("<I", 9) + inner + struct.pack("<Q", len(value)) + b"".join(_value(v)[4:] for v in value)


def gguf_header(
    metadata: Mapping[str, Any], tensors: Tensors, *, version: int = 3, alignment: int = 32
) -> tuple[bytes, int]:
    """The bytes before the tensor data, and the bytes of data that follow."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    head += b"".join(_text(key) + _value(value) for key, value in metadata.items())
    at = end = 0
    for name, (dtype, shape) in tensors.items():
        _, block, block_bytes = GGML_TYPES[_KINDS[dtype]]
        elements = 1
        for extent in shape:
            elements *= extent
        head += _text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape[::-1])
        head += struct.pack("<IQ", _KINDS[dtype], at)
        end = at + elements // block * block_bytes
        at = -(-end // alignment) * alignment
    return head + b"\0" * (-len(head) % alignment), end


def write_gguf(path: Path, metadata: Mapping[str, Any], tensors: Tensors, *, version: int = 3) -> Path:
    """One GGUF file; its data is a hole in the file system."""
    header, data_bytes = gguf_header(metadata, tensors, version=version)
    with path.open("wb") as file:
        file.write(header)
        file.truncate(len(header) + data_bytes)
    return path


def gguf_metadata(architecture: str = "llama", **changes: Any) -> dict[str, Any]:
    """Metadata of a two-layer model of width 64; ``changes`` by key, with ``__`` for dots, ``None`` removes."""
    own = {
        "block_count": 2, "context_length": 128, "embedding_length": 64, "feed_forward_length": 128,
        "attention.head_count": 4, "attention.head_count_kv": 2, "rope.freq_base": 500000.0, "rope.dimension_count": 16,
    }  # fmt: skip
    metadata: dict[str, Any] = {"general.architecture": architecture, "general.type": "model", "general.file_type": 7}
    metadata |= {f"{architecture}.{key}": value for key, value in own.items()}
    metadata |= {
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": [f"t{i}" for i in range(VOCAB)],
        "tokenizer.ggml.token_type": [1] * VOCAB, "tokenizer.ggml.bos_token_id": 30, "tokenizer.ggml.eos_token_id": 31,
        "tokenizer.chat_template": TEMPLATE,
    }  # fmt: skip
    for key, value in changes.items():
        metadata[key.replace("__", ".")] = value
    return {key: value for key, value in metadata.items() if value is not None}


def gguf_tensors(*, dtype: str = "Q8_0", layers: int = 2, head: bool = True) -> Tensors:
    """A dense model: width 64, 4 heads of 16, 2 KV heads, 128 intermediate."""
    tensors: Tensors = {"token_embd.weight": (dtype, (VOCAB, 64)), "output_norm.weight": ("F32", (64,))}
    if head:
        tensors["output.weight"] = (dtype, (VOCAB, 64))
    for i in range(layers):
        tensors |= {
            f"blk.{i}.attn_norm.weight": ("F32", (64,)), f"blk.{i}.attn_q.weight": (dtype, (64, 64)),
            f"blk.{i}.attn_k.weight": (dtype, (32, 64)), f"blk.{i}.attn_v.weight": (dtype, (32, 64)),
            f"blk.{i}.attn_output.weight": (dtype, (64, 64)), f"blk.{i}.ffn_norm.weight": ("F32", (64,)),
            f"blk.{i}.ffn_gate.weight": (dtype, (128, 64)), f"blk.{i}.ffn_up.weight": (dtype, (128, 64)),
            f"blk.{i}.ffn_down.weight": (dtype, (64, 128)),
        }  # fmt: skip
    return tensors


def gguf_file(path: Path, **changes: Any) -> Path:
    """A whole Llama-like GGUF file in Q8_0."""
    return write_gguf(path, gguf_metadata(**changes), gguf_tensors())
