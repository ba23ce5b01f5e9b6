"""A checkpoint of Llama-3.1-8B's shapes whose weights are holes in the file system: 15 GiB that cost nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.host.checkpoints import Tensors, write_tokenizer, write_weights

HIDDEN, MLP, LAYERS, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 4096, 14336, 32, 32, 8, 128, 128256


def llama_8b(folder: Path, **changes: Any) -> Path:
    """Headers only; ``changes`` replace entries of config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    ends = ("model.embed_tokens.weight", "lm_head.weight")
    tensors: Tensors = dict.fromkeys(ends, ("BF16", (VOCAB, HIDDEN)))
    tensors["model.norm.weight"] = ("BF16", (HIDDEN,))
    shapes = {
        "self_attn.q_proj": (HEADS * HEAD_DIM, HIDDEN), "self_attn.k_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
        "self_attn.v_proj": (KV_HEADS * HEAD_DIM, HIDDEN), "self_attn.o_proj": (HIDDEN, HEADS * HEAD_DIM),
        "mlp.gate_proj": (MLP, HIDDEN), "mlp.up_proj": (MLP, HIDDEN), "mlp.down_proj": (HIDDEN, MLP),
    }  # fmt: skip
    for layer in range(LAYERS):
        for name, shape in shapes.items():
            tensors[f"model.layers.{layer}.{name}.weight"] = ("BF16", shape)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"model.layers.{layer}.{name}.weight"] = ("BF16", (HIDDEN,))
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM, "intermediate_size": MLP,
        "vocab_size": VOCAB, "max_position_embeddings": 131072, "rope_theta": 500000.0, "tie_word_embeddings": False,
        "torch_dtype": "bfloat16", "bos_token_id": 30, "eos_token_id": 31, **changes,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    write_weights(folder, tensors, shards=2)
    write_tokenizer(folder)
    return folder
