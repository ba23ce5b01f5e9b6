"""What each layer attends to, and how far: read from the many spellings in which config.json says it.

A layer is ``full`` (its KV cache grows with the context), ``sliding`` (it stops at a window) or ``linear`` (linear
attention, state space, convolution: a state of constant size).
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from model_optimizer.host.families import EVERY_LAYER, INTERVAL, PATTERN, QWEN_STYLE, WINDOW
from model_optimizer.host.health import error, warning
from model_optimizer.host.json_files import Fields
from model_optimizer.records.model import HealthCheck

_SLIDING = frozenset({"sliding_attention", "chunked_attention", "local_attention", "sliding"})
_LINEAR = frozenset(
    {"linear_attention", "mamba", "mamba2", "conv", "recurrent", "moe", "mlp", "linear", "gated_deltanet"}
)


class LayerKinds(NamedTuple):
    """How many layers of each kind, and the window of the sliding ones."""

    num_sliding: int
    num_linear: int
    window: int | None
    problems: tuple[HealthCheck, ...] = ()


class Rope(NamedTuple):
    """Rotary position embedding as configured; ``max_positions`` includes its scaling where engines apply it."""

    theta: float | None
    scaling: str | None
    max_positions: int
    problems: tuple[HealthCheck, ...] = ()


def layer_kinds(fields: Fields, model_type: str, num_layers: int, max_positions: int) -> LayerKinds:
    """Count the kinds of layers. A window as long as the context is no window."""
    window = fields.number("sliding_window", "attention_chunk_size", "sliding_window_size")
    if window is not None and window < 0:
        raise fields.wrong("sliding_window", window, "a number of tokens")
    if window is None and "sliding_window" not in fields.table:
        window = WINDOW.get(model_type)
    kinds = _listed_kinds(fields, num_layers) or _mixed_with_linear(fields, model_type, num_layers)
    problems: list[HealthCheck] = []
    if kinds and len(kinds) != num_layers:
        problems.append(
            error(
                "config.layer_types",
                f"config.json lists the kind of {len(kinds)} layers, the model has {num_layers}",
                "Take config.json from the model's source again; this one was edited.",
            )
        )
        kinds = kinds[:num_layers]
    if not kinds:
        kinds = _windowed(fields, model_type, num_layers) if window else []
    if not window or window >= max_positions:
        kinds = ["full" if kind == "sliding" else kind for kind in kinds]
    counted = Counter(kinds)
    return LayerKinds(counted["sliding"], counted["linear"], window if counted["sliding"] else None, tuple(problems))


def _kind(value: object) -> str:
    if value in _SLIDING:
        return "sliding"
    return "linear" if value in _LINEAR else "full"


def _listed_kinds(fields: Fields, num_layers: int) -> list[str]:
    """One entry a layer, under the names in use."""
    for name in ("layer_types", "layers_block_type", "block_types"):
        value = fields.table.get(name)
        if isinstance(value, list) and value and all(isinstance(kind, str) for kind in value):
            if name == "block_types":  # RecurrentGemma repeats a short pattern
                value = [value[layer % len(value)] for layer in range(num_layers)]
            return [_kind(kind) for kind in value]
    pattern = fields.text("hybrid_override_pattern")  # Nemotron-H: * attention, M Mamba, - MLP, E experts
    if pattern:
        return ["full" if mark == "*" else "linear" for mark in pattern]
    marks = fields.numbers("hybrid_layer_pattern")  # MiMo-V2: 1 is a window
    if marks:
        return ["sliding" if mark else "full" for mark in marks]
    marks = fields.numbers("attn_type_list")  # MiniMax-01: 0 is linear attention
    return ["full" if mark else "linear" for mark in marks]


def _mixed_with_linear(fields: Fields, model_type: str, num_layers: int) -> list[str]:
    """Models that name the few layers with full attention."""
    full: set[int] | None = None
    layers = range(num_layers)
    if "attn_layer_indices" in fields:
        full = set(fields.numbers("attn_layer_indices"))
    elif "full_attn_idxs" in fields:
        full = set(fields.numbers("full_attn_idxs"))
    elif "linear_attn_config" in fields:  # Kimi Linear counts layers from one
        full = {layer - 1 for layer in fields.inner("linear_attn_config").numbers("full_attn_layers")}
    elif "attn_layer_period" in fields:
        period, offset = fields.size("attn_layer_period") or 1, fields.number("attn_layer_offset") or 0
        full = {layer for layer in layers if layer % period == offset}
    elif "full_attention_interval" in fields or model_type in INTERVAL:
        interval = fields.size("full_attention_interval") or INTERVAL[model_type]
        full = {layer for layer in layers if (layer + 1) % interval == 0}
    return [] if full is None else ["full" if layer in full else "linear" for layer in layers]


def _windowed(fields: Fields, model_type: str, num_layers: int) -> list[str]:
    """Models with a window, on the layers that their family gives it to."""
    layers = range(num_layers)
    if fields.flag("use_sliding_window") is False or (
        model_type in QWEN_STYLE and not fields.flag("use_sliding_window")
    ):
        return []
    if model_type in QWEN_STYLE:
        first = fields.number("max_window_layers")
        return ["sliding" if layer >= (28 if first is None else first) else "full" for layer in layers]
    if "no_rope_layers" in fields or model_type == "llama4_text":  # Llama 4: chunked where RoPE is used
        marks = fields.numbers("no_rope_layers") or tuple(int((layer + 1) % 4 != 0) for layer in layers)
        return ["sliding" if mark else "full" for mark in marks][:num_layers]
    letters = fields.text("sliding_window_pattern")
    if letters:  # "LLLG"
        return ["sliding" if letters[layer % len(letters)] == "L" else "full" for layer in layers]
    every = fields.number("sliding_window_pattern") or PATTERN.get(model_type)
    if every:
        return ["sliding" if (layer + 1) % every else "full" for layer in layers]
    return ["sliding"] * num_layers if model_type in EVERY_LAYER else []


def rope(fields: Fields, model_type: str, default_positions: int | None) -> Rope:
    """Base, scaling and the longest context.

    As vLLM does: linear, dynamic and NTK scaling multiply ``max_position_embeddings``, Gemma 3's and Llama 3's are
    already in it. For YaRN the greater of the written length and original · factor counts, since both ways of writing
    it are in use.
    """
    problems: list[HealthCheck] = []
    written = fields.size(
        "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length", "n_ctx"
    )
    positions = written or default_positions
    if positions is None:
        positions = 2048
        problems.append(
            warning(
                "config.max_positions",
                "config.json does not say how long a context may be; 2048 tokens are assumed",
                "Add max_position_embeddings to config.json.",
            )
        )
    old, new = fields.inner("rope_scaling"), fields.inner("rope_parameters")
    if isinstance(new.table.get("full_attention"), dict):
        new = new.inner("full_attention")
    scaling = old if old.table else new
    kind = scaling.text("rope_type", "type")
    factor = scaling.real("factor")
    if kind in (None, "default", "mrope", "proportional"):
        kind, factor = None, None
    if kind and factor and factor > 1 and "gemma3" not in model_type:
        if kind in ("yarn", "deepseek_yarn"):
            original = scaling.real("original_max_position_embeddings") or positions
            positions = max(positions, int(original * factor))
        elif kind in ("linear", "dynamic", "ntk"):
            positions = int(positions * factor)
    problems += _rope_for_both_versions(fields, old, new)
    theta = fields.real("rope_theta", "rotary_emb_base") or new.real("rope_theta")
    return Rope(theta, f"{kind} x{factor:g}" if kind and factor else kind, positions, tuple(problems))


def _rope_for_both_versions(fields: Fields, old: Fields, new: Fields) -> list[HealthCheck]:
    """transformers 5 writes rope_parameters, transformers 4 reads rope_theta and rope_scaling: both are needed."""
    theta, kind = new.real("rope_theta"), new.text("rope_type")
    old_theta = fields.real("rope_theta")
    lost = []
    if theta is not None and old_theta is None and theta != 10_000:
        lost.append(f'"rope_theta": {theta:.10g}')
    if kind not in (None, "default") and not old.table:
        lost.append('"rope_scaling": ' + "{…as in rope_parameters…}")
    if lost:
        return [
            warning(
                "config.rope",
                "config.json was saved by transformers 5: its RoPE settings are only in rope_parameters; a reader "
                "built on transformers 4 silently takes rope_theta 10000 and computes wrong text",
                f"Add {' and '.join(lost)} at the top level of config.json; newer readers ignore it.",
            )
        ]
    if theta is not None and old_theta is not None and theta != old_theta:
        return [
            warning(
                "config.rope",
                f"config.json contradicts itself: rope_theta is {old_theta:g}, rope_parameters says {theta:g}",
                "Take config.json from the model's source again; set both to the same value.",
            )
        ]
    return []
