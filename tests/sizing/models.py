"""Models from their public config.json values, as the intake would describe them."""

from __future__ import annotations

from model_optimizer.records.model import AttentionKind, ModelSpec, MoeSpec, WeightClass


def model(
    name: str,
    *,
    layers: int,
    hidden: int,
    mlp: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    vocab: int,
    context: int = 131072,
    attention: AttentionKind = "gqa",
    tied: bool = False,
    experts: tuple[int, int] | None = None,
    sliding: tuple[int, int] | None = None,
    latent: tuple[int, int] | None = None,
) -> ModelSpec:
    """A bf16 model. ``experts`` = (number, per token); ``sliding`` = (layers, window); ``latent`` = MLA's two ranks."""
    parameters = {
        "embeddings": vocab * hidden,
        "attention": layers * hidden * head_dim * 2 * (heads + kv_heads),
        "mlp": 0 if experts else layers * 3 * hidden * mlp,
        "norms": (2 * layers + 1) * hidden,
    }
    if experts:
        parameters |= {"experts": layers * experts[0] * 3 * hidden * mlp, "router": layers * experts[0] * hidden}
    if not tied:
        parameters["head"] = vocab * hidden
    classes = tuple(
        WeightClass(name=key, parameters=value, weight_bytes=2 * value, dtypes=("BF16",))
        for key, value in parameters.items()
        if value
    )
    total = sum(parameters.values())
    return ModelSpec(
        source=name,
        format="hf",
        architecture=name,
        num_layers=layers,
        hidden_size=hidden,
        intermediate_size=mlp,
        num_attention_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=vocab,
        max_position_embeddings=context,
        attention=attention,
        sliding_window=sliding[1] if sliding else None,
        num_sliding_layers=sliding[0] if sliding else 0,
        kv_lora_rank=latent[0] if latent else None,
        qk_rope_head_dim=latent[1] if latent else None,
        moe=MoeSpec(num_experts=experts[0], experts_per_token=experts[1]) if experts else None,
        tie_word_embeddings=tied,
        weight_dtype="BF16",
        weight_bytes=2 * total,
        num_parameters=total,
        weight_classes=classes,
    )


LLAMA_31_8B = model("Llama-3.1-8B", layers=32, hidden=4096, mlp=14336, heads=32, kv_heads=8, head_dim=128, vocab=128256)
QWEN3_06B = model(
    "Qwen3-0.6B", layers=28, hidden=1024, mlp=3072, heads=16, kv_heads=8, head_dim=128, vocab=151936, tied=True,
    context=40960,
)  # fmt: skip
QWEN3_8B = model(
    "Qwen3-8B", layers=36, hidden=4096, mlp=12288, heads=32, kv_heads=8, head_dim=128, vocab=151936, context=40960
)
QWEN3_32B = model(
    "Qwen3-32B", layers=64, hidden=5120, mlp=25600, heads=64, kv_heads=8, head_dim=128, vocab=151936, context=40960
)
MIXTRAL = model(
    "Mixtral-8x7B", layers=32, hidden=4096, mlp=14336, heads=32, kv_heads=8, head_dim=128, vocab=32000,
    context=32768, experts=(8, 2),
)  # fmt: skip
QWEN3_30B_A3B = model(
    "Qwen3-30B-A3B", layers=48, hidden=2048, mlp=768, heads=32, kv_heads=4, head_dim=128, vocab=151936,
    context=40960, experts=(128, 8),
)  # fmt: skip
DEEPSEEK_V3 = model(
    "DeepSeek-V3", layers=61, hidden=7168, mlp=2048, heads=128, kv_heads=128, head_dim=128, vocab=129280,
    context=163840, attention="mla", experts=(256, 8), latent=(512, 64),
)  # fmt: skip
GEMMA3_27B = model(
    "Gemma-3-27B", layers=62, hidden=5376, mlp=21504, heads=32, kv_heads=16, head_dim=128, vocab=262208,
    attention="sliding", tied=True, sliding=(52, 1024),
)  # fmt: skip
GPT_OSS_20B = model(
    "gpt-oss-20b", layers=24, hidden=2880, mlp=2880, heads=64, kv_heads=8, head_dim=64, vocab=201088,
    attention="sliding", experts=(32, 4), sliding=(12, 128),
)  # fmt: skip
