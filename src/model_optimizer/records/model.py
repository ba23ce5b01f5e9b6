"""What a checkpoint is, read from its headers: shapes, sizes, attention, health."""

from __future__ import annotations

from typing import Literal

from model_optimizer.records.base import Record

Format = Literal["hf", "gguf"]
AttentionKind = Literal["mha", "gqa", "mqa", "mla", "sliding", "hybrid"]
Severity = Literal["ok", "note", "warning", "error"]

BYTES_PER_ELEMENT = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "I8": 1, "U8": 1}


class WeightClass(Record):
    """Parameters and bytes of one class of tensors: embeddings, head, attention, mlp, experts, router, norms, other."""

    name: str
    parameters: int
    weight_bytes: int
    dtypes: tuple[str, ...] = ()


class MoeSpec(Record):
    """Mixture of experts: how many, and how many a token uses."""

    num_experts: int
    experts_per_token: int


class HealthCheck(Record):
    """One thing checked about the checkpoint, with what was seen."""

    id: str
    severity: Severity
    message: str
    fix: str | None = None


class ModelSpec(Record):
    """A checkpoint as its headers describe it. No tensor was read.

    ``fingerprint`` is the SHA-256 over all files that matter; ``None`` until somebody needs it (it reads every byte).
    """

    source: str
    format: Format
    revision: str | None = None
    fingerprint: str | None = None
    architecture: str
    model_type: str | None = None
    num_layers: int
    hidden_size: int
    intermediate_size: int | None = None
    num_attention_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    attention: AttentionKind
    sliding_window: int | None = None
    num_sliding_layers: int = 0
    num_linear_layers: int = 0
    kv_lora_rank: int | None = None
    qk_rope_head_dim: int | None = None
    moe: MoeSpec | None = None
    tie_word_embeddings: bool = False
    weight_dtype: str
    weight_bytes: int
    num_parameters: int
    weight_classes: tuple[WeightClass, ...] = ()
    quantized_as: str | None = None
    chat_template_digest: str | None = None
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    rope_theta: float | None = None
    rope_scaling: str | None = None
    health: tuple[HealthCheck, ...] = ()

    def anonymous(self) -> ModelSpec:
        """Without what does not change the weights: where the files lie and what was found about their health."""
        return self.model_copy(update={"source": "", "health": ()})

    def kv_bytes_per_token(self, bytes_per_element: float = 2.0) -> float:
        """KV cache bytes one more token needs, over all layers that keep it for the whole context.

        MHA/GQA/MQA: 2 · layers · kv_heads · head_dim · bytes. MLA keeps one latent vector a layer:
        layers · (kv_lora_rank + qk_rope_head_dim) · bytes. Sliding layers stop growing at their window, linear layers
        (linear attention, state space, convolution) keep a state of constant size: left out.
        """
        if self.attention == "mla" and self.kv_lora_rank is not None:
            latent = self.kv_lora_rank + (self.qk_rope_head_dim or 0)
            return (self.num_layers - self.num_linear_layers) * latent * bytes_per_element
        layers = self.num_layers - self.num_sliding_layers - self.num_linear_layers
        return 2.0 * layers * self.num_kv_heads * self.head_dim * bytes_per_element

    def kv_bytes(self, num_tokens: int, bytes_per_element: float = 2.0) -> float:
        """KV cache bytes of one sequence of ``num_tokens`` tokens, sliding layers capped at their window."""
        total = self.kv_bytes_per_token(bytes_per_element) * num_tokens
        if self.num_sliding_layers and self.sliding_window:
            kept = min(num_tokens, self.sliding_window)
            total += 2.0 * self.num_sliding_layers * self.num_kv_heads * self.head_dim * bytes_per_element * kept
        return total
