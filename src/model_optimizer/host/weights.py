"""From tensor names to classes of weights: how many parameters and bytes each part of the model has.

The rules know the names of Hugging Face checkpoints and of GGUF files. Shared experts count as ``mlp``: every token
uses them. Layers beyond the model's own (multi-token prediction) and vision or audio parts count as ``other``: plain
decoding never reads them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from model_optimizer.host.safetensors import TensorInfo
from model_optimizer.records.model import WeightClass

CLASSES = ("embeddings", "head", "attention", "mlp", "experts", "router", "norms", "other")

# The layer a tensor belongs to.
_LAYER = re.compile(r"(?:^|\.)(?:layers?|h|blk|blocks?)\.(\d+)(?:\.|$)")

# First match wins. Matched against the name without its numbers, a dot at both ends: ".model.layers.mlp.gate.weight."
_RULES: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "other",
        (
            r"\.(vision|visual|vit|audio|image|speech)[._]",
            r"^\.(v|a|mm)\.",
            r"_tower\.",
            "projector",
            r"embed_(vision|audio)",
        ),
    ),
    ("other", (r"\.(mtp|nextn|eh_proj|enorm|hnorm)\.", "mtp_block", "rotary_emb", "rope_freqs", "rope_factors")),
    ("router", (r"\.(router|gate_inp|ffn_gate_inp|ffn_gate_inp_shexp|exp_probs_b|wg)\.", r"shared_expert_gate\.")),
    ("router", (r"\.e_score_correction_bias", r"\.(mlp|block_sparse_moe|ffn|feed_forward|moe|mixer)\.gate\.")),
    ("mlp", (r"shared_experts?\.", r"shared_mlp\.", r"_shexp\.")),
    ("experts", (r"\.experts?[._]", r"_exps\.", r"_chexps\.", r"block_sparse_moe\.(input|output)_linear")),
    ("norms", ("norm", r"\.ln_\w+\.", r"\.ln[0-9]?\.")),
    ("embeddings", ("embed_tokens", "tok_embeddings", "token_embd", "word_embeddings", "embed_in", "embedding")),
    ("embeddings", ("position_embd", "token_types", "embed_positions", r"\.wte\.", r"\.wpe\.")),
    ("head", (r"\.(lm_head|embed_out|output_layer|score)\.", r"^\.(language_model\.|model\.)?output\.")),
    ("attention", (r"\.linear_attn\.",)),
    ("other", ("mamba", "ssm", r"\.conv", "time_mix", "shortconv")),
    ("attention", ("attn", "attention", r"\.[qkvo]_proj\.", r"\.w?qkv", r"\.w[qkvo]\.", "query_key_value", "indexer")),
    ("mlp", ("mlp", "ffn", "feed_forward", r"\.fc[12]\.", "dense_h_to", "dense_4h_to", r"\.w[123]\.", "channel_mix")),
    ("mlp", ("gate_proj", "up_proj", "down_proj")),
)
_COMPILED = tuple((label, re.compile("|".join(patterns))) for label, patterns in _RULES)

# Stored beside quantized weights, and buffers that are no weights: bytes, but no parameters of the model.
_AUXILIARY = re.compile(
    r"\.(qzeros|scales|g_idx|biases|absmax|quant_map|nested_absmax|nested_quant_map|SCB|weight_format)$"
    r"|\.quant_state\.|_scales?(_inv|_2)?$|_zero_point$|_global_scale$|_shape$|_g_idx$|_amax$|(inv_freq|masked_bias)$"
)
_PACKED = re.compile(r"\.qweight$|_packed$|_blocks$")


class Packing(NamedTuple):
    """How a quantization method stores weights: ``bits`` a weight, several of them in one stored number."""

    method: str
    bits: float | None


class Weights(NamedTuple):
    """The sum over all tensors."""

    classes: tuple[WeightClass, ...]
    num_parameters: int
    num_bytes: int
    dtype: str
    layers: frozenset[int]

    def has(self, name: str) -> bool:
        """True where the checkpoint holds tensors of this class."""
        return any(c.name == name for c in self.classes)


def classify(name: str) -> str:
    """The class of a tensor, by its name; ``other`` where no rule knows it."""
    plain = "." + ".".join(part for part in name.split(".") if not part.isdigit()) + "."
    return next((label for label, rule in _COMPILED if rule.search(plain)), "other")


def packed_factor(name: str, dtype: str, num_dimensions: int, packing: Packing | None) -> float:
    """Weights of the model for each stored number: 1; more in packed tensors; 0 in scales, zero points and buffers."""
    if name.endswith(".attn.bias") and num_dimensions == 4:
        return 0.0  # GPT-2's causal mask, saved as a buffer
    if packing is None:
        return 0.0 if name.endswith(("inv_freq", "masked_bias")) else 1.0
    if _AUXILIARY.search(name):
        return 0.0
    width = {"I32": 32, "U32": 32, "I64": 64, "I16": 16, "U8": 8, "I8": 8}.get(dtype)
    packed = _PACKED.search(name) or dtype in ("U8", "U32")
    return width / packing.bits if width and packed and packing.bits and packing.bits < width else 1.0


def summarise(tensors: Iterable[TensorInfo], num_layers: int | None = None, packing: Packing | None = None) -> Weights:
    """Add up parameters and bytes by class. ``num_layers``: layers from this number on are extra and count as other."""
    parameters: Counter[str] = Counter()
    sizes: Counter[tuple[str, str]] = Counter()
    layers: set[int] = set()
    # Layers repeat the same names, so what a name means is worked out once for all of them.
    known: dict[tuple[str, str], tuple[str, float]] = {}
    for tensor in tensors:
        name = tensor.name
        match = _LAYER.search(name)
        key = (name[: match.start(1)] + name[match.end(1) :] if match else name, tensor.dtype)
        if key not in known:
            known[key] = (classify(name), packed_factor(name, tensor.dtype, len(tensor.shape), packing))
        label, factor = known[key]
        if match and label != "other":
            layer = int(match[1])
            layers.add(layer)
            if num_layers is not None and layer >= num_layers:
                label = "other"
        parameters[label] += tensor.num_elements if factor == 1.0 else round(tensor.num_elements * factor)
        sizes[label, tensor.dtype] += tensor.num_bytes
    by_dtype: Counter[str] = Counter()
    for (_, dtype), size in sizes.items():
        by_dtype[dtype] += size
    classes = tuple(_weight_class(label, parameters[label], sizes) for label in CLASSES if label in parameters)
    dtype = max(by_dtype, key=lambda name: by_dtype[name], default="unknown")
    return Weights(classes, sum(parameters.values()), sum(sizes.values()), dtype, frozenset(layers))


def _weight_class(label: str, parameters: int, sizes: Counter[tuple[str, str]]) -> WeightClass:
    own = Counter({dtype: size for (name, dtype), size in sizes.items() if name == label})
    dtypes = tuple(dtype for dtype, _ in own.most_common())
    return WeightClass(name=label, parameters=parameters, weight_bytes=sum(own.values()), dtypes=dtypes)
