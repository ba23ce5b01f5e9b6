"""The memory model: weights, KV cache, activations, CUDA graphs and runtime of the fullest GPU of a replica.

Weights and KV cache are exact (shapes from the checkpoint's headers). Activations, graphs and runtime are estimates;
their constants carry their origin and are corrected by what an engine reports when it has been started once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
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
    """How an engine takes memory. ``share`` is a share of what ``share_of`` names:

    ``total``: everything it uses stays inside (vLLM's gpu_memory_utilization; also engines without such a setting).
    ``weights_and_kv``: weights and KV cache; activations and graphs come out of the rest (SGLang's
    mem_fraction_static). ``free_after_weights``: the KV cache's part of what is free once the rest is loaded
    (TensorRT-LLM's free_gpu_memory_fraction). ``reserve_bytes`` are left alone before any share is taken.
    """

    share: float
    share_of: str
    runtime_bytes: float
    graph_bytes: float
    max_batched_tokens: int
    origin: str
    reserve_bytes: float = 0.0


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
    ends = sorted((name for name in ("embeddings", "head") if name in found), key=lambda name: found[name])
    if split.pipeline > 1 and len(ends) == 2:
        del found[ends[0]]  # they are on different GPUs; the fullest has the larger
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
    weights: Mapping[str, float] | None = None,
) -> MemoryPlan:
    """What fits into ``total_bytes`` of one GPU. ``weights``: as ``weights_by_class`` gave them, where known already.

    Activation peak: the largest mixed step holds ``max_batched_tokens`` rows of about 4 · hidden + 2 · intermediate
    elements of 2 bytes (residual, normed input, attention output and the gated MLP's two halves), plus 4-byte logits of
    ``max_num_seqs`` rows over the vocabulary.
    """
    weights = weights_by_class(model, scheme, split) if weights is None else weights
    weight_bytes = sum(weights.values())
    width = 4 * model.hidden_size + 2 * (model.intermediate_size or 4 * model.hidden_size) / split.tensor
    activations = engine.max_batched_tokens * width * 2 + min(max_num_seqs, 1024) * model.vocab_size * 4
    usable, kv_bytes = _room(total_bytes - engine.reserve_bytes, weight_bytes, activations, engine)
    per_token = kv_bytes_per_token_per_gpu(model, split, kv_bytes_per_element)
    fixed = _fixed_kv_bytes(model, split, kv_bytes_per_element)
    kv_tokens = max(0, int(kv_bytes / per_token)) if per_token else 0
    longest = _longest(model, kv_bytes, per_token, fixed)
    one_sequence = per_token * live_tokens + fixed * min(1.0, live_tokens / (model.sliding_window or 1))
    sequences = int(kv_bytes / one_sequence) if kv_bytes > 0 and one_sequence else 0
    return MemoryPlan.model_construct(  # thousands a plan, all of them our own numbers: not validated again
        usable_bytes=usable,
        weight_bytes=weight_bytes,
        activation_bytes=activations,
        graph_bytes=engine.graph_bytes,
        runtime_bytes=engine.runtime_bytes,
        kv_bytes=kv_bytes,
        kv_bytes_per_token=per_token,
        kv_tokens=kv_tokens,
        longest_context=longest,
        max_sequences=max(0, sequences),
        weights=dict(weights),
    )


def _longest(model: ModelSpec, kv_bytes: float, per_token: float, fixed: float) -> int:
    """The longest sequence that fits alone: sliding layers cost ``fixed`` at their full window, a share before."""
    window = model.sliding_window
    if kv_bytes <= 0:
        return 0
    if fixed and window:
        within = kv_bytes / (per_token + fixed / window)
        tokens = within if within < window else (kv_bytes - fixed) / per_token if per_token else math.inf
    else:
        tokens = kv_bytes / per_token if per_token else math.inf
    return int(min(model.max_position_embeddings, tokens))


def explain_memory(
    model: ModelSpec, plan: MemoryPlan, engine: EngineMemory, scheme: SchemeSpec | None
) -> tuple[Term, ...]:
    """The arithmetic of a plan, line by line."""
    reserve = f", less {engine.reserve_bytes / 2**30:g} GiB left to others" if engine.reserve_bytes else ""
    usable = {
        "weights_and_kv": f"{engine.share:.2f} of total{reserve}, activations and graphs beside it",
        "free_after_weights": f"all{reserve}",
    }.get(engine.share_of, f"{engine.share:.2f} of total{reserve}")
    left = {
        "weights_and_kv": "usable − weights − runtime",
        "free_after_weights": f"{engine.share:.2f} of (usable − weights − activations − graphs − runtime)",
    }.get(engine.share_of, "usable − weights − activations − graphs − runtime")
    rows = (
        *((f"weights: {name}", value, _stored_as(name, scheme), "headers") for name, value in plan.weights.items()),
        ("activations", plan.activation_bytes, f"{engine.max_batched_tokens} tokens a step, and logits", engine.origin),
        ("CUDA graphs", plan.graph_bytes, "estimate", engine.origin),
        ("runtime", plan.runtime_bytes, "context, allocator, communication", engine.origin),
        ("usable", plan.usable_bytes, usable, engine.origin),
        ("KV cache", plan.kv_bytes, left, "arithmetic"),
        ("KV per token", plan.kv_bytes_per_token, model.attention, "config.json"),
    )
    return tuple(Term(name=n, value=v, unit="B", formula=f, origin=o) for n, v, f, o in rows)


def _stored_as(name: str, scheme: SchemeSpec | None) -> str:
    if scheme is None:
        return "as stored"
    kept = name in KEPT_IN_16_BITS and scheme.checkpoint != "gguf"
    return f"16 bits: {scheme.id} leaves them as they are" if kept else f"{scheme.weight_bits:g} bits"


def _room(total: float, weights: float, activations: float, engine: EngineMemory) -> tuple[float, float]:
    """What the engine may use, and what of it is left for the KV cache (negative: that much is missing)."""
    beside = activations + engine.graph_bytes
    if engine.share_of == "free_after_weights":
        free = total - weights - beside - engine.runtime_bytes
        return total, free * (engine.share if free > 0 else 1.0)
    usable = total * engine.share
    if engine.share_of == "weights_and_kv":
        usable = min(usable, total - beside)
        return usable, usable - weights - engine.runtime_bytes
    return usable, usable - weights - beside - engine.runtime_bytes


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
