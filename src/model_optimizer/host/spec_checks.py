"""Checks that hold for every checkpoint, whatever its format: do its parts agree with each other?"""

from __future__ import annotations

from collections.abc import Iterable

from model_optimizer.host.health import FETCH_AGAIN, error, fine, note, warning
from model_optimizer.records.model import AttentionKind, HealthCheck

MAX_LAYERS = 10_000  # no model comes near; a damaged number would cost memory
CONFIG_FIX = "Take config.json from the model's source again; it does not belong to these weights or was edited."


def attention_kind(
    *, num_heads: int, num_kv_heads: int, num_layers: int, num_sliding: int, num_linear: int, kv_lora_rank: int | None
) -> AttentionKind:
    """Name the attention: one latent vector (mla), all layers windowed (sliding), mixed layers (hybrid), by heads."""
    if kv_lora_rank:
        return "mla"
    if num_sliding and num_sliding == num_layers:
        return "sliding"
    if num_sliding or num_linear:
        return "hybrid"
    if num_kv_heads == num_heads:
        return "mha"
    return "mqa" if num_kv_heads == 1 else "gqa"


def check_heads(num_heads: int, num_kv_heads: int) -> HealthCheck:
    """Every KV head serves the same number of query heads."""
    if num_heads % num_kv_heads:
        return error(
            "config.values",
            f"{num_heads} attention heads cannot be shared by {num_kv_heads} KV heads: not a multiple",
            CONFIG_FIX,
        )
    return fine("config.values", f"{num_heads} attention heads, {num_kv_heads} KV heads")


def check_layers(found: frozenset[int], num_layers: int) -> HealthCheck:
    """Every layer that the configuration counts has tensors."""
    missing = sorted(set(range(num_layers)) - found)
    if missing:
        return error(
            "weights.layers",
            f"the configuration says {num_layers} layers; these have no tensors: {listed(missing)}",
            FETCH_AGAIN,
        )
    extra = len([layer for layer in found if layer >= num_layers])
    if extra:
        return note(
            "weights.layers",
            f"all {num_layers} layers have tensors; {extra} more (multi-token prediction) are counted as other",
        )
    return fine("weights.layers", f"all {num_layers} layers have tensors")


def check_eos(eos: tuple[int, ...], vocab_size: int) -> HealthCheck:
    """There is a token that ends an answer, and the model can produce it."""
    if not eos:
        return warning(
            "tokenizer.special_tokens",
            "no end-of-text token is named anywhere: answers will run to the length limit",
            "Add eos_token_id to generation_config.json.",
        )
    outside = [token for token in eos if not 0 <= token < vocab_size]
    if outside:
        return error(
            "tokenizer.special_tokens",
            f"end-of-text token {listed(outside)} is outside the vocabulary of {vocab_size}",
            "Take config.json and generation_config.json from the model's source again.",
        )
    return fine("tokenizer.special_tokens", f"answers end at token {listed(eos)}")


def check_template(digest: str | None) -> HealthCheck:
    """There is a chat template."""
    if digest is None:
        return warning(
            "chat_template",
            "no chat template: a base model, or the template was lost; engines refuse chat requests without one",
            "Use the instruction-tuned model, or copy chat_template.jinja from the model's source into the folder.",
        )
    return fine("chat_template", f"chat template present ({digest[:12]})")


def counted(number: int, noun: str) -> str:
    """``1 shard``, ``3 shards``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def listed(values: Iterable[object], limit: int = 5) -> str:
    """``3, 7, 9 and 12 more``."""
    items = [str(value) for value in values]
    rest = len(items) - limit
    return ", ".join(items[:limit]) + (f" and {rest} more" if rest > 0 else "")
