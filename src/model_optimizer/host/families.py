"""What the configuration classes of model families assume where config.json is silent.

Multimodal checkpoints' ``text_config`` often leaves out most of it. Values: defaults of the configuration classes of
transformers 5.17.
"""

from __future__ import annotations

_LLAMA = {
    "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "intermediate_size": 11008,
    "vocab_size": 32000, "max_position_embeddings": 2048,
}  # fmt: skip
_MISTRAL = {**_LLAMA, "num_key_value_heads": 8, "intermediate_size": 14336, "max_position_embeddings": 131072}
_QWEN2 = {**_LLAMA, "intermediate_size": 22016, "vocab_size": 151936, "max_position_embeddings": 32768}
_GEMMA = {
    "num_hidden_layers": 28, "hidden_size": 3072, "num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 256,
    "intermediate_size": 24576, "vocab_size": 256000, "max_position_embeddings": 8192,
}  # fmt: skip
_GEMMA2 = {
    **_GEMMA, "num_hidden_layers": 26, "hidden_size": 2304, "num_attention_heads": 8, "num_key_value_heads": 4,
    "intermediate_size": 9216,
}  # fmt: skip

_DEFAULTS: dict[str, dict[str, int]] = {
    "llama": _LLAMA,
    "mistral": _MISTRAL,
    "mixtral": _MISTRAL,
    "qwen2": _QWEN2,
    "qwen3": {**_QWEN2, "head_dim": 128},
    "gemma": _GEMMA,
    "gemma2": _GEMMA2,
    "gemma3_text": {**_GEMMA2, "vocab_size": 262208, "max_position_embeddings": 131072},
    "gpt_oss": {"head_dim": 64, "num_key_value_heads": 8},
    "cohere2": {"max_position_embeddings": 8192},
}
_HEAD_DIM = {
    "gemma3n_text": 256, "gemma4_text": 256, "qwen3_next": 256, "qwen3_5_text": 256, "qwen3_5_moe_text": 256,
    "seed_oss": 128, "glm": 128, "glm4": 128, "llama4_text": 128, "nemotron_h": 128, "minimax_m2": 128, "ernie4_5": 128,
    "mimo_v2_flash": 192, "ministral3": 128, "qwen3_vl_text": 128, "vaultgemma": 256, "helium": 128,
}  # fmt: skip

# The output head is the embedding, unless config.json says otherwise.
TIED = frozenset(
    ["gemma", "gemma2", "gemma3", "gemma3_text", "gemma3n", "gemma3n_text", "gemma4", "gemma4_text", "paligemma",
     "cohere", "cohere2", "starcoder2", "gpt2", "gpt_bigcode", "gpt_neo", "bloom", "opt", "falcon", "mpt", "smollm3",
     "ernie4_5", "ernie4_5_moe", "lfm2", "lfm2_moe", "minicpm3", "xglm"]
)  # fmt: skip

# Every n-th layer sees everything, the others a window.
PATTERN = {
    "gemma2": 2, "gemma3_text": 6, "gemma3": 6, "gemma3n_text": 5, "gemma4_text": 6, "cohere2": 4, "gpt_oss": 2,
    "exaone4": 4,
}  # fmt: skip
# The window, where config.json does not mention one at all.
WINDOW = {"gemma2": 4096, "gemma3_text": 4096, "cohere2": 4096, "gpt_oss": 128, "mistral": 4096}
# A window holds for every layer.
EVERY_LAYER = frozenset({"mistral", "mixtral", "phi3", "phimoe", "starcoder2"})
# A window holds only where use_sliding_window says so, from layer max_window_layers on.
QWEN_STYLE = frozenset(
    ["qwen2", "qwen3", "qwen2_moe", "qwen3_moe", "qwen2_vl", "qwen2_5_vl", "qwen2_vl_text", "qwen2_5_vl_text"]
)
# Every n-th layer has full attention, the others linear attention.
INTERVAL = {"qwen3_next": 4, "qwen3_5_text": 4, "qwen3_5_moe_text": 4}


def default(model_type: str, field: str) -> int | None:
    """What this family assumes for a field that config.json leaves out; ``None`` where it assumes nothing we know."""
    value = _DEFAULTS.get(model_type, {}).get(field)
    return _HEAD_DIM.get(model_type) if value is None and field == "head_dim" else value
