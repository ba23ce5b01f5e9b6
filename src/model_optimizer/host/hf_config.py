"""config.json of a Hugging Face checkpoint: the shape of the model, whatever its family calls its parts."""

from __future__ import annotations

from collections import ChainMap
from typing import NamedTuple

from model_optimizer.errors import CheckpointInvalid
from model_optimizer.host.families import TIED, default
from model_optimizer.host.health import error, fine, note, warning
from model_optimizer.host.hf_attention import LayerKinds, Rope, layer_kinds, rope
from model_optimizer.host.json_files import Fields
from model_optimizer.host.known_models import HF_ARCHITECTURES
from model_optimizer.host.spec_checks import MAX_LAYERS, check_heads
from model_optimizer.records.model import HealthCheck, MoeSpec

_NESTED = ("text_config", "llm_config", "language_config", "thinker_config")


class Shape(NamedTuple):
    """The model as config.json describes it. ``tied`` is ``None`` where neither the file nor the family says."""

    architecture: str
    model_type: str | None
    num_layers: int
    hidden_size: int
    intermediate_size: int | None
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    layers: LayerKinds
    rope: Rope
    kv_lora_rank: int | None
    qk_rope_head_dim: int | None
    moe: MoeSpec | None
    tied: bool | None
    bos: tuple[int, ...]
    eos: tuple[int, ...]
    checks: tuple[HealthCheck, ...]


def read_shape(config: dict[str, object]) -> Shape:
    """Work out the shape. Raises CheckpointInvalid where a number that everything depends on is missing or absurd."""
    fields, model_type = _text_part(config)
    num_layers = _needed(fields, model_type, "num_hidden_layers", "n_layer", "num_layers", "n_layers")
    if num_layers > MAX_LAYERS:
        raise fields.wrong("num_hidden_layers", num_layers, f"at most {MAX_LAYERS}")
    hidden = _needed(fields, model_type, "hidden_size", "n_embd", "d_model", "model_dim")
    heads = _needed(fields, model_type, "num_attention_heads", "n_head", "num_heads", "n_heads")
    kv_heads = _kv_heads(fields, model_type, heads)
    attention = rope(fields, model_type, default(model_type, "max_position_embeddings"))
    kinds = layer_kinds(fields, model_type, num_layers, attention.max_positions)
    if kinds.num_linear == num_layers:
        raise CheckpointInvalid(
            "this model has no attention layers",
            cause=f"all {num_layers} layers of {model_type or 'the model'} are state-space, linear or convolutional",
            fix="Use a model with attention; pure state-space models are not supported.",
        )
    mla_rank = fields.size("kv_lora_rank")
    architecture, checks = _architecture(config, model_type)
    checks += [check_heads(heads, kv_heads), *attention.problems, *kinds.problems, *_oddities(config, fields)]
    return Shape(
        architecture=architecture,
        model_type=model_type or None,
        num_layers=num_layers,
        hidden_size=hidden,
        intermediate_size=_intermediate(fields, model_type),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=_head_dim(fields, model_type, hidden, heads, mla=bool(mla_rank)),
        vocab_size=_needed(fields, model_type, "vocab_size", "padded_vocab_size"),
        layers=kinds,
        rope=attention,
        kv_lora_rank=mla_rank,
        qk_rope_head_dim=fields.size("qk_rope_head_dim") if mla_rank else None,
        moe=_moe(fields),
        tied=_tied(config, fields, model_type),
        bos=fields.numbers("bos_token_id"),
        eos=fields.numbers("eos_token_id"),
        checks=tuple(checks),
    )


def _text_part(config: dict[str, object]) -> tuple[Fields, str]:
    """The language model's part of a multimodal configuration, backed by the top level."""
    top = Fields(config, "config.json")
    part = top
    for name in _NESTED:
        if part.inner(name).table:
            part = part.inner(name)
    if part is top:
        return top, top.text("model_type") or ""
    if part.inner("text_config").table:  # thinker_config.text_config
        part = part.inner("text_config")
    model_type = part.text("model_type") or top.text("model_type") or ""
    merged = ChainMap(dict(part.table), dict(config))
    return Fields(merged, part.where), model_type


def _needed(fields: Fields, model_type: str, *names: str) -> int:
    value = fields.size(*names)
    if value is None:
        value = default(model_type, names[0])
    if value is None:
        raise CheckpointInvalid(
            f"{fields.where} does not describe a language model",
            cause=f"{names[0]} is missing",
            fix="Take config.json from the model's source again, or check that this folder holds a language model.",
        )
    return value


def _kv_heads(fields: Fields, model_type: str, heads: int) -> int:
    if model_type == "falcon" and not fields.flag("new_decoder_architecture"):
        return 1 if fields.flag("multi_query") is not False else heads
    if model_type == "gpt_bigcode":
        return 1 if fields.flag("multi_query") is not False else heads
    value = fields.size("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num")
    value = value or fields.inner("attn_config").size("kv_n_heads")
    return value or default(model_type, "num_key_value_heads") or heads


def _head_dim(fields: Fields, model_type: str, hidden: int, heads: int, *, mla: bool) -> int:
    if mla:  # queries and keys have a part without and a part with rotary embedding
        nope, rotary = fields.size("qk_nope_head_dim"), fields.size("qk_rope_head_dim")
        if nope and rotary:
            return nope + rotary
    explicit = fields.size("head_dim", "kv_channels", "attention_head_size")
    return explicit or default(model_type, "head_dim") or max(hidden // heads, 1)


def _intermediate(fields: Fields, model_type: str) -> int | None:
    value = fields.size("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "d_ff")
    return value or fields.inner("ffn_config").size("ffn_hidden_size") or default(model_type, "intermediate_size")


def _moe(fields: Fields) -> MoeSpec | None:
    nested = fields.inner("ffn_config")
    experts = fields.number(
        "num_local_experts", "n_routed_experts", "num_experts", "moe_num_experts", "num_routed_experts"
    )
    experts = experts or nested.number("moe_num_experts")
    if not experts or experts < 2:
        return None
    used = fields.number(
        "num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_topk", "moe_top_k", "top_k_experts",
        "experts_per_token", "num_selected_experts",
    ) or nested.number("moe_top_k")  # fmt: skip
    if used is None or not 1 <= used <= experts:
        raise fields.wrong("num_experts_per_tok", used, f"a number from 1 to {experts} (the number of experts)")
    return MoeSpec(num_experts=experts, experts_per_token=used)


def _tied(config: dict[str, object], fields: Fields, model_type: str) -> bool | None:
    said = fields.flag("tie_word_embeddings", "tie_embedding")
    if said is None and (model_type in TIED or Fields(config, "config.json").text("model_type") in TIED):
        return True
    return said


def _architecture(config: dict[str, object], model_type: str) -> tuple[str, list[HealthCheck]]:
    value = config.get("architectures")
    names = [name for name in value if isinstance(name, str) and name] if isinstance(value, list) else []
    if not names:
        kind = f" (model_type is {model_type!r})" if model_type else ""
        return "unknown", [
            error(
                "config.architecture",
                f"config.json names no architecture{kind}: engines cannot tell how to load the model",
                'Take config.json from the source again, or add for example "architectures": ["LlamaForCausalLM"].',
            )
        ]
    if names[0] in HF_ARCHITECTURES:
        return names[0], [fine("config.architecture", f"architecture {names[0]}")]
    return names[0], [
        warning(
            "config.architecture",
            f"the architecture {names[0]!r} is not known to this version; each engine decides whether it can load it",
            "If engines refuse it, check the spelling in config.json, or update the engine's tool environment.",
        )
    ]


def _oddities(config: dict[str, object], fields: Fields) -> list[HealthCheck]:
    checks = []
    if isinstance(config.get("auto_map"), dict) and config["auto_map"]:
        checks.append(
            note(
                "config.custom_code",
                "the checkpoint brings Python code of its own (auto_map); it runs only if trust_remote_code is set",
            )
        )
    if fields.flag("is_encoder_decoder"):
        checks.append(
            warning(
                "config.architecture",
                "this is an encoder-decoder model; the engines here serve decoder-only models",
                "Choose a decoder-only model.",
            )
        )
    if fields.inner("per_layer_config").table or "global_head_dim" in fields:
        checks.append(
            note(
                "config.layer_types",
                "layers differ in their heads; KV cache sizes are estimates from the sliding layers",
            )
        )
    return checks
