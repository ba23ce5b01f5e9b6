"""The memory model: weights, KV cache, activations, CUDA graphs and runtime of the fullest GPU of a replica.

Weights and KV cache are exact (shapes from the checkpoint's headers). Activations, graphs and runtime are estimates;
their constants carry their origin and are corrected by what an engine reports when it has been started once.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from model_optimizer.records.knowledge import SchemeSpec
from model_optimizer.records.model import ModelSpec
from model_optimizer.records.sizing import MemoryPlan, Parallelism, Term

ONE_GPU = Parallelism()

# Classes that quantizers leave in 16 bits by default: small, and the most sensitive (recipes of llm-compressor and
# ModelOpt ignore lm_head, routers and norms; embeddings are looked up, not multiplied).
KEPT_IN_16_BITS = frozenset({"embeddings", "head", "norms", "router", "other"})
REPLICATED = frozenset({"norms", "router", "other"})


class EngineMemory(NamedTuple):
    """How an engine takes memory. ``share`` is of the total (vLLM), of what is static (SGLang) or of what is free."""

    share: float
    share_of: str
    runtime_bytes: float
    graph_bytes: float
    max_batched_tokens: int
    origin: str


def weights_by_class(model: ModelSpec, scheme: SchemeSpec | None, split: Parallelism) -> dict[str, float]:
    """Bytes of each class of weights on the fullest GPU; ``scheme`` ``None`` keeps the checkpoint as it is.

    Tensor parallelism divides matrices and embeddings, replicates norms and routers; experts are divided by tensor ×
    expert ranks; pipeline stages hold ⌈layers / stages⌉ layers, and the first or last of them the embeddings or head.
    """
    stage = math.ceil(model.num_layers / split.pipeline) / model.num_layers
    found = {}
    for item in model.weight_classes:
        if scheme is None:
            total = float(item.weight_bytes)
        else:
            kept = item.name in KEPT_IN_16_BITS and scheme.checkpoint != "gguf"
            total = item.parameters * (16.0 if kept else scheme.weight_bits) / 8
        share = 1.0 if item.name in ("embeddings", "head") else stage
        found[item.name] = total * share / _ranks(item.name, split)
    return found


def _ranks(name: str, split: Parallelism) -> int:
    if name in REPLICATED:
        return 1
    return split.tensor * (split.expert if name == "experts" else 1)


def kv_bytes_per_token_per_gpu(model: ModelSpec, split: Parallelism, bytes_per_element: float) -> float:
    """KV bytes one more token costs on the fullest GPU.

    Heads are divided by tensor parallelism but never below one a rank (then they are replicated); MLA's latent vector
    is replicated on every rank; pipeline stages hold their own layers only.
    """
    return model.kv_bytes_per_token(bytes_per_element) * _kv_share(model, split) / split.pipeline


def plan_memory(
    model: ModelSpec,
    *,
    total_bytes: float,
    engine: EngineMemory,
    scheme: SchemeSpec | None = None,
    split: Parallelism = ONE_GPU,
    kv_bytes_per_element: float = 2.0,
    live_tokens: float = 1024.0,
    max_num_seqs: int = 256,
) -> MemoryPlan:
    """What fits into ``total_bytes`` of one GPU.

    Activation peak: the largest mixed step holds ``max_batched_tokens`` rows of about 4 · hidden + 2 · intermediate
    elements of 2 bytes (residual, normed input, attention output and the gated MLP's two halves), plus 4-byte logits of
    ``max_num_seqs`` rows over the vocabulary.
    """
    weights = weights_by_class(model, scheme, split)
    weight_bytes = sum(weights.values())
    width = 4 * model.hidden_size + 2 * (model.intermediate_size or 4 * model.hidden_size) / split.tensor
    activations = engine.max_batched_tokens * width * 2 + min(max_num_seqs, 1024) * model.vocab_size * 4
    taken = weight_bytes + activations + engine.graph_bytes + engine.runtime_bytes
    usable = _usable(total_bytes, taken, engine)
    kv_bytes = usable - taken if engine.share_of != "free_after_weights" else usable
    per_token = kv_bytes_per_token_per_gpu(model, split, kv_bytes_per_element)
    fixed = _fixed_kv_bytes(model, split, kv_bytes_per_element)
    kv_tokens = max(0, int(kv_bytes / per_token)) if per_token else 0
    longest = max(0, int((kv_bytes - fixed) / per_token)) if per_token else model.max_position_embeddings
    window = model.sliding_window or 1
    one_sequence = per_token * live_tokens + fixed * min(1.0, live_tokens / window)
    sequences = int(kv_bytes / one_sequence) if kv_bytes > 0 and one_sequence else 0
    return MemoryPlan(
        usable_bytes=usable,
        weight_bytes=weight_bytes,
        activation_bytes=activations,
        graph_bytes=engine.graph_bytes,
        runtime_bytes=engine.runtime_bytes,
        kv_bytes=kv_bytes,
        kv_bytes_per_token=per_token,
        kv_tokens=kv_tokens,
        longest_context=min(model.max_position_embeddings, longest),
        max_sequences=max(0, sequences),
        weights=weights,
    )


def explain_memory(
    model: ModelSpec, plan: MemoryPlan, engine: EngineMemory, scheme: SchemeSpec | None
) -> tuple[Term, ...]:
    """The arithmetic of a plan, line by line."""
    stored = "as stored" if scheme is None else f"{scheme.weight_bits:g} bits where {scheme.id} quantizes, else 16"
    rows = (
        *((f"weights: {name}", value, stored, "headers") for name, value in plan.weights.items()),
        ("activations", plan.activation_bytes, f"{engine.max_batched_tokens} tokens a step, and logits", engine.origin),
        ("CUDA graphs", plan.graph_bytes, "estimate", engine.origin),
        ("runtime", plan.runtime_bytes, "context, allocator, communication", engine.origin),
        ("usable", plan.usable_bytes, f"{engine.share:.2f} of {engine.share_of.replace('_', ' ')}", engine.origin),
        ("KV cache", plan.kv_bytes, "usable − weights − activations − graphs − runtime", "arithmetic"),
        ("KV per token", plan.kv_bytes_per_token, model.attention, "config.json"),
    )
    return tuple(Term(name=n, value=v, unit="B", formula=f, origin=o) for n, v, f, o in rows)


def _usable(total_bytes: float, taken: float, engine: EngineMemory) -> float:
    """``total``: vLLM's gpu_memory_utilization. ``weights_and_kv``: SGLang's mem_fraction_static, activations outside.
    ``free_after_weights``: TensorRT-LLM's free_gpu_memory_fraction. ``all``: no cap of its own (llama.cpp).
    """
    if engine.share_of == "free_after_weights":
        return (total_bytes - taken) * engine.share
    return total_bytes * engine.share


def _fixed_kv_bytes(model: ModelSpec, split: Parallelism, bytes_per_element: float) -> float:
    """KV bytes of a sequence's sliding layers at their full window."""
    if not model.num_sliding_layers or not model.sliding_window:
        return 0.0
    whole = model.kv_bytes(model.sliding_window, bytes_per_element)
    growing = model.kv_bytes_per_token(bytes_per_element) * model.sliding_window
    return (whole - growing) * _kv_share(model, split) / split.pipeline


def _kv_share(model: ModelSpec, split: Parallelism) -> float:
    if model.attention == "mla":
        return 1.0
    return max(1, -(-model.num_kv_heads // split.tensor)) / model.num_kv_heads
