"""GGUF (f16, bf16 or f32) → quantized GGUF, with llama.cpp's row formats and its choice of a type for each tensor.

The choice is data (``MIXES``); the worker applies it and this module predicts sizes from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from model_optimizer.errors import UnknownName
from model_optimizer.records.candidate import TransformStep
from model_optimizer.records.model import Format, ModelSpec
from model_optimizer.records.tooling import Fit, Job, WhyNot

NAME = "gguf_quantize"
TOOL = "gguf"
VERSION = 1
KIND: Literal["quantize", "convert"] = "quantize"
ACCEPTS: frozenset[Format] = frozenset({"gguf"})
PRODUCES: Format = "gguf"

_OUTFILE = "model.gguf"


class Mix(NamedTuple):
    """Which tensor gets which type. ``file_type`` is llama.cpp's number for the scheme.

    ``rules``: (part of the model, which layers, type), the first that holds wins, else ``default``. Layers: ``always``;
    ``more_bits``: the first and last eighth and every third between; ``first:N``; ``share:N``: the first 1/N;
    ``gqa:N``: all, where at least N query heads share a KV head. ``experts_output_q5``: with 8 experts, attn_output
    gets Q5_K. The output head, and embeddings that serve as it, get Q6_K or Q8_0; that is the worker's own rule.
    """

    file_type: int
    default: str
    rules: tuple[tuple[str, str, str], ...] = ()
    experts_output_q5: bool = False


_MORE_Q6 = (("attn_v", "more_bits", "Q6_K"), ("ffn_down", "more_bits", "Q6_K"))
# Source: llama.cpp, src/llama-quant.cpp (llama_tensor_get_type), read 2026-12.
MIXES: dict[str, Mix] = {
    "q8_0": Mix(7, "Q8_0"),
    "q6_k": Mix(18, "Q6_K"),
    "q5_k_m": Mix(17, "Q5_K", _MORE_Q6),
    "q5_k_s": Mix(16, "Q5_K"),
    "q5_1": Mix(9, "Q5_1"),
    "q5_0": Mix(8, "Q5_0"),
    "q4_k_m": Mix(15, "Q4_K", _MORE_Q6, experts_output_q5=True),
    "q4_k_s": Mix(14, "Q4_K", (("attn_v", "first:4", "Q5_K"), ("ffn_down", "share:8", "Q5_K")), experts_output_q5=True),
    "q4_1": Mix(3, "Q4_1"),
    "q4_0": Mix(2, "Q4_0"),
    "iq4_nl": Mix(25, "IQ4_NL", (("attn_v", "gqa:4", "Q5_K"), ("ffn_down", "share:8", "Q5_K")), experts_output_q5=True),
    "iq4_xs": Mix(30, "IQ4_XS", (("attn_v", "gqa:4", "Q5_K"), ("ffn_down", "share:8", "Q5_K")), experts_output_q5=True),
    "q3_k_l": Mix(
        13, "Q3_K", (("attn_v", "always", "Q5_K"), ("ffn_down", "always", "Q5_K"), ("attn_output", "always", "Q5_K"))
    ),
    "q3_k_m": Mix(
        12,
        "Q3_K",
        (
            ("attn_v", "first:2", "Q5_K"), ("attn_v", "always", "Q4_K"),
            ("ffn_down", "share:16", "Q5_K"), ("ffn_down", "always", "Q4_K"),
            ("attn_output", "always", "Q4_K"),
        ),
        experts_output_q5=True,
    ),
    "q3_k_s": Mix(11, "Q3_K", experts_output_q5=True),
    "q2_k": Mix(
        10,
        "Q2_K",
        (
            ("attn_v", "gqa:4", "Q4_K"), ("attn_v", "always", "Q3_K"),
            ("ffn_down", "always", "Q3_K"), ("attn_output", "always", "Q3_K"),
        ),
        experts_output_q5=True,
    ),
}  # fmt: skip

FALLBACK = {"Q2_K": "Q4_0", "Q3_K": "Q4_0", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0", "IQ4_XS": "IQ4_NL"}
"""Types of 256-weight blocks, and what replaces them where a row's length does not divide by 256."""

_BITS = {
    "F32": 32.0, "F16": 16.0, "Q8_0": 8.5, "Q6_K": 6.5625, "Q5_K": 5.5, "Q5_1": 6.0, "Q5_0": 5.5, "Q4_K": 4.5,
    "Q4_1": 5.0, "Q4_0": 4.5, "IQ4_NL": 4.5, "IQ4_XS": 4.25, "Q3_K": 3.4375, "Q2_K": 2.625,
}  # fmt: skip


def why_not(fit: Fit) -> WhyNot | None:
    """Refuses to quantize a second time."""
    if fit.model.format == "gguf" and fit.model.quantized_as:
        return WhyNot(
            code="SOURCE_ALREADY_QUANTIZED",
            reason=f"its weights are {fit.model.quantized_as} already: another round adds loss to loss",
            fix="start from the original Hugging Face checkpoint, or an f16 or bf16 GGUF file",
        )
    return None


def output_bytes(step: TransformStep, model: ModelSpec) -> int:
    """Bits of each class's types x parameters, and about 40 bytes a vocabulary entry. Within a few percent.

    Classes by the model's own headers; inside attention and MLP the parts' shares follow from the shapes.
    """
    mix = _mix(step)
    hidden = model.hidden_size
    heads, kv_heads = model.num_attention_heads, model.num_kv_heads
    attention = {
        "attn_q": (heads, hidden),
        "attn_k": (kv_heads, hidden),
        "attn_v": (kv_heads, hidden),
        "attn_output": (heads, heads * model.head_dim),
    }
    mlp = {"ffn_up": (2, hidden), "ffn_down": (1, model.intermediate_size or 4 * hidden)}
    bits = 0.0
    for part in model.weight_classes:
        if part.name in ("norms", "router"):
            bits += 32 * part.parameters
        elif part.name == "head" or (part.name == "embeddings" and model.tie_word_embeddings):
            best = "Q8_0" if mix.default == "Q8_0" or hidden % _block(mix.default) else "Q6_K"
            bits += part.parameters * _row_bits(best, hidden)
        elif part.name == "attention":
            bits += part.parameters * _mean_bits(mix, attention, model)
        elif part.name in ("mlp", "experts"):
            bits += part.parameters * _mean_bits(mix, mlp, model)
        else:
            bits += part.parameters * _row_bits(mix.default, hidden)
    if not model.weight_classes:
        bits = model.num_parameters * _mean_bits(mix, attention | mlp, model)
    return round(bits / 8) + 40 * model.vocab_size


def output_main(step: TransformStep) -> str:
    """``model.gguf``."""
    return _OUTFILE


def job(step: TransformStep, source: str, target: str) -> Job:
    """Runs workers/gguf_quantize.py. Raises ``UnknownName`` for a scheme that is not in ``MIXES``."""
    mix = _mix(step)
    return Job(
        tool=TOOL,
        worker=NAME,
        payload={
            "model": source,
            "mix": {**mix._asdict(), "rules": [list(rule) for rule in mix.rules], "fallback": FALLBACK},
            "outfile": _OUTFILE,
            "threads": int(step.options.get("threads", 0)),
        },
        timeout_s=12 * 3600.0,
    )


def _mix(step: TransformStep) -> Mix:
    scheme = str(step.options.get("scheme", ""))
    if scheme not in MIXES:
        raise UnknownName(
            f"{NAME} knows no scheme {scheme!r}",
            cause="the scheme is not one of those whose mix of types is known",
            fix=f"use one of: {', '.join(MIXES)}",
        )
    return MIXES[scheme]


def _block(kind: str) -> int:
    return 256 if kind in FALLBACK else 32


def _row_bits(kind: str, columns: int) -> float:
    """Bits a weight of a row of ``columns`` weights, the fallback included."""
    return _BITS[FALLBACK[kind] if columns % _block(kind) and kind in FALLBACK else kind]


def _mean_bits(mix: Mix, parts: Mapping[str, tuple[float, int]], model: ModelSpec) -> float:
    """Bits a weight over parts with (weight, columns), each rule counted for its share of the layers."""
    total = sum(weight for weight, _ in parts.values())
    bits = 0.0
    for part, (weight, columns) in parts.items():
        left = 1.0
        for which, when, kind in mix.rules:
            if which == part and left > 0:
                share = min(left, _layer_share(when, model))
                bits += weight * share * _row_bits(kind, columns)
                left -= share
        bits += weight * left * _row_bits(mix.default, columns)
    return bits / total


def _layer_share(when: str, model: ModelSpec) -> float:
    """Share of the layers for which a rule holds, on average over models."""
    kind, _, number = when.partition(":")
    if kind == "more_bits":
        return 1 / 8 + 1 / 8 + (3 / 4) / 3
    if kind == "first":
        return min(1.0, int(number) / model.num_layers)
    if kind == "share":
        return 1 / int(number)
    if kind == "gqa":
        return float(model.num_attention_heads // model.num_kv_heads >= int(number))
    return 1.0
