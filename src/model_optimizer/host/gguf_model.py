"""A GGUF file, or the parts of a split one, as a ModelSpec."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from model_optimizer.errors import CheckpointInvalid
from model_optimizer.host.gguf import ArrayOf, GgufHeader, Value, read_gguf_header
from model_optimizer.host.health import FETCH_AGAIN, error, fine, note, warning
from model_optimizer.host.known_models import GGUF_ARCHITECTURES
from model_optimizer.host.safetensors import TensorInfo
from model_optimizer.host.spec_checks import (
    MAX_LAYERS,
    attention_kind,
    check_eos,
    check_heads,
    check_layers,
    check_template,
    listed,
)
from model_optimizer.host.weights import summarise
from model_optimizer.records.model import HealthCheck, ModelSpec, MoeSpec

SPLIT_NAME = re.compile(r"^(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf$")

# general.file_type (llama.h, enum llama_ftype): the recipe, not every tensor's type.
FILE_TYPES = {
    0: "f32", 1: "f16", 2: "q4_0", 3: "q4_1", 7: "q8_0", 8: "q5_0", 9: "q5_1", 10: "q2_k", 11: "q3_k_s", 12: "q3_k_m",
    13: "q3_k_l", 14: "q4_k_s", 15: "q4_k_m", 16: "q5_k_s", 17: "q5_k_m", 18: "q6_k", 19: "iq2_xxs", 20: "iq2_xs",
    21: "q2_k_s", 22: "iq3_xs", 23: "iq3_xxs", 24: "iq1_s", 25: "iq4_nl", 26: "iq3_s", 27: "iq3_m", 28: "iq2_s",
    29: "iq2_m", 30: "iq4_xs", 31: "iq1_m", 32: "bf16", 36: "tq1_0", 37: "tq2_0", 38: "mxfp4", 39: "nvfp4",
    40: "q1_0", 41: "q2_0",
}  # fmt: skip
_FULL_PRECISION = frozenset({"F32", "F16", "BF16", "F64"})

# Architectures whose sliding layers llama.cpp knows by heart: every n-th layer sees everything, the others a window.
_SLIDING_EVERY = {
    "gemma2": 2, "gemma3": 6, "gemma3n": 5, "cohere2": 4, "gpt-oss": 2, "llama4": 4, "olmo2": 4, "exaone4": 4,
    "afmoe": 4,
}  # fmt: skip
_DEFAULT_WINDOW = {"llama4": 8192}


class _Keys:
    """The metadata of one architecture, with its types checked."""

    def __init__(self, metadata: dict[str, Value], architecture: str) -> None:
        self._metadata = metadata
        self._prefix = architecture

    def values(self, key: str) -> tuple[int, ...]:
        """A number, or one a layer."""
        value = self._metadata.get(f"{self._prefix}.{key}")
        if isinstance(value, ArrayOf):
            return tuple(int(v) for v in value.values or () if isinstance(v, int))
        return (value,) if isinstance(value, int) and not isinstance(value, bool) else ()

    def number(self, key: str) -> int | None:
        """The number, or the greatest of the layers' numbers."""
        return max(self.values(key), default=None)

    def real(self, key: str) -> float | None:
        value = self._metadata.get(f"{self._prefix}.{key}")
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

    def text(self, key: str) -> str | None:
        value = self._metadata.get(f"{self._prefix}.{key}")
        return value if isinstance(value, str) else None

    def needed(self, key: str, limit: int = 1 << 40) -> int:
        number = self.number(key)
        if number is None or not 0 < number <= limit:
            raise CheckpointInvalid(
                "the GGUF file does not describe its model",
                cause=f"{self._prefix}.{key} is {'missing' if number is None else f'{number}, which cannot be'}",
                fix="Convert the original checkpoint anew, or download the file again.",
            )
        return number


def read_gguf(path: Path) -> ModelSpec:
    """Read a GGUF file; of a split one, any part will do. Raises CheckpointInvalid where nothing can be described."""
    path = _first_part(path)
    header = read_gguf_header(path)
    architecture = header.metadata.get("general.architecture")
    if not isinstance(architecture, str) or not architecture:
        raise CheckpointInvalid(
            f"{path.name} does not say what model it is",
            cause="the metadata key general.architecture is missing",
            fix="Convert the original checkpoint anew, or download the file again.",
        )
    _refuse_parts_of_models(path, header, architecture)
    tensors, checks = _all_parts(path, header)
    return _spec(path, header, architecture, tensors, checks)


def _refuse_parts_of_models(path: Path, header: GgufHeader, architecture: str) -> None:
    kind = header.metadata.get("general.type", "model")
    if kind in ("adapter", "imatrix", "mmproj", "vocab") or architecture == "clip":
        names = {
            "adapter": "a LoRA adapter",
            "imatrix": "an importance matrix",
            "vocab": "a vocabulary without weights",
        }
        what = names.get(str(kind), "the image or audio part of a model")
        raise CheckpointInvalid(
            f"{path.name} is not a language model",
            cause=f"it holds {what} (general.type {kind}, architecture {architecture})",
            fix="Give the GGUF file of the language model itself.",
        )


def _first_part(path: Path) -> Path:
    match = SPLIT_NAME.match(path.name)
    if match is None or int(match["number"]) == 1:
        return path
    first = path.with_name(f"{match['stem']}-00001-of-{match['count']}.gguf")
    if not first.exists():
        raise CheckpointInvalid(
            f"{path.name} is part {int(match['number'])} of a split GGUF file, and its first part is missing",
            cause=f"{first.name} is not in {path.parent}",
            fix="Download all parts into one folder.",
        )
    return first


def _all_parts(path: Path, header: GgufHeader) -> tuple[list[TensorInfo], list[HealthCheck]]:
    """The tensors of all parts, and what is wrong with them."""
    checks = list(header.problems)
    tensors = list(header.tensors)
    match = SPLIT_NAME.match(path.name)
    said = header.metadata.get("split.count")
    count = said if isinstance(said, int) and said > 1 else int(match["count"]) if match else 1
    if count > 1 and match is None:
        checks.append(
            error(
                "gguf.parts",
                f"{path.name} is one of {count} parts of a split GGUF file and was renamed: the others cannot be found",
                f"Name the parts NAME-00001-of-{count:05d}.gguf and so on, as gguf-split does.",
            )
        )
    elif match is not None and count != int(match["count"]):
        cause = f"{path.name} says {count} parts inside, {int(match['count'])} in its name"
        checks.append(error("gguf.parts", cause, "Download all parts again, from one place."))
    elif match is not None and count > 1:
        tensors, checks = _other_parts(path, match["stem"], count, tensors, checks)
        checks += _check_split_total(header, len(tensors), checks)
    if not any(check.severity == "error" for check in checks):
        parts = f"{count} parts, " if count > 1 else ""
        checks.append(
            fine(
                "gguf.size", f"GGUF version {header.version}: {parts}{len(tensors)} tensors, all of their data present"
            )
        )
    return tensors, checks


def _other_parts(
    path: Path, stem: str, count: int, tensors: list[TensorInfo], checks: list[HealthCheck]
) -> tuple[list[TensorInfo], list[HealthCheck]]:
    missing = []
    for number in range(2, count + 1):
        part = path.with_name(f"{stem}-{number:05d}-of-{count:05d}.gguf")
        if not part.exists():
            missing.append(part.name)
            continue
        try:
            other = read_gguf_header(part)
        except CheckpointInvalid as broken:
            checks.append(error("gguf.parts", f"{part.name}: {broken.cause}", broken.fix))
            continue
        tensors = [*tensors, *other.tensors]
        checks += other.problems
    if missing:
        checks.append(
            error(
                "gguf.parts",
                f"{len(missing)} of {count} parts are missing: {listed(missing, 3)}",
                "Download all parts into one folder.",
            )
        )
    return tensors, checks


def _check_split_total(header: GgufHeader, found: int, checks: Sequence[HealthCheck]) -> list[HealthCheck]:
    total = header.metadata.get("split.tensors.count")
    if not isinstance(total, int) or total == found or any(check.severity == "error" for check in checks):
        return []
    return [
        error(
            "gguf.parts",
            f"the parts hold {found} tensors, {total} were split: they do not belong together",
            FETCH_AGAIN,
        )
    ]


def _spec(
    path: Path, header: GgufHeader, architecture: str, tensors: list[TensorInfo], checks: list[HealthCheck]
) -> ModelSpec:
    keys = _Keys(header.metadata, architecture)
    num_layers = _num_layers(keys)
    hidden, heads = keys.needed("embedding_length"), keys.needed("attention.head_count")
    kv_by_layer = keys.values("attention.head_count_kv")
    kv_heads = max(kv_by_layer, default=heads) or heads
    kv_lora_rank = keys.number("attention.kv_lora_rank")
    head_dim = keys.number("attention.key_length_mla") or keys.number("attention.key_length") or hidden // heads
    if (
        kv_lora_rank
    ):  # converted for latent attention, the file counts one KV head; the model has as many as query heads
        kv_heads = heads
    vocab, vocab_check = _vocabulary(header, keys, tensors)
    linear = _linear_layers(keys, num_layers, kv_by_layer)
    window, sliding = _sliding_layers(keys, architecture, num_layers)
    weights = summarise(tensors, num_layers)
    template = header.metadata.get("tokenizer.chat_template")
    digest = hashlib.sha256(template.encode()).hexdigest() if isinstance(template, str) and template else None
    tokens = [header.metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos", "eot", "eom")]
    bos, *ends = [t if isinstance(t, int) and not isinstance(t, bool) else None for t in tokens]
    eos = tuple(dict.fromkeys(t for t in ends if t is not None))
    quantized_as, recipe = _quantized_as(header, tensors)
    checks += [_known(architecture), check_heads(heads, kv_heads), check_layers(weights.layers, num_layers)]
    checks += [vocab_check, check_eos(eos, vocab), check_template(digest), *recipe]
    experts, used = keys.number("expert_count") or 0, keys.number("expert_used_count") or 0
    return ModelSpec(
        source=str(path), format="gguf", architecture=architecture, model_type=architecture, num_layers=num_layers,
        hidden_size=hidden, intermediate_size=keys.number("feed_forward_length"), num_attention_heads=heads,
        num_kv_heads=kv_heads, head_dim=head_dim, vocab_size=vocab,
        max_position_embeddings=keys.needed("context_length"),
        attention=attention_kind(num_heads=heads, num_kv_heads=kv_heads, num_layers=num_layers, num_sliding=sliding,
                                 num_linear=linear, kv_lora_rank=kv_lora_rank),
        sliding_window=window if sliding else None, num_sliding_layers=sliding, num_linear_layers=linear,
        kv_lora_rank=kv_lora_rank or None,
        qk_rope_head_dim=keys.number("rope.dimension_count") if kv_lora_rank else None,
        moe=MoeSpec(num_experts=experts, experts_per_token=max(used, 1)) if experts > 1 else None,
        tie_word_embeddings=not weights.has("head"), weight_dtype=weights.dtype, weight_bytes=weights.num_bytes,
        num_parameters=weights.num_parameters, weight_classes=weights.classes, quantized_as=quantized_as,
        rope_theta=keys.real("rope.freq_base"), rope_scaling=_rope_scaling(keys),
        chat_template_digest=digest, bos_token_id=bos, eos_token_ids=eos, health=tuple(checks),
    )  # fmt: skip


def _num_layers(keys: _Keys) -> int:
    """Layers of plain decoding: multi-token prediction layers are counted in the file, and left out here."""
    blocks = keys.needed("block_count", limit=MAX_LAYERS)
    extra = keys.number("nextn_predict_layers") or 0
    return blocks - extra if 0 < extra < blocks else blocks


def _known(architecture: str) -> HealthCheck:
    if architecture in GGUF_ARCHITECTURES:
        return fine("config.architecture", f"architecture {architecture}")
    return warning(
        "config.architecture",
        f"the GGUF architecture {architecture!r} is not known to this version; llama.cpp decides whether it loads",
        "If it fails to load, update the llama.cpp tool environment, or check the spelling.",
    )


def _vocabulary(header: GgufHeader, keys: _Keys, tensors: list[TensorInfo]) -> tuple[int, HealthCheck]:
    """The number of tokens, and whether list and embedding agree: llama.cpp loads nothing else."""
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    count = tokens.length if isinstance(tokens, ArrayOf) else None
    rows = next((t.shape[0] for t in tensors if t.name == "token_embd.weight" and len(t.shape) == 2), None)
    size = rows or count or keys.number("vocab_size") or 0
    if size <= 0:
        raise CheckpointInvalid(
            "the GGUF file has no vocabulary",
            cause="neither tokens nor a token embedding are in the file",
            fix="Convert the original checkpoint anew, or download the file again.",
        )
    if count is None or "tokenizer.ggml.model" not in header.metadata:
        return size, error(
            "tokenizer.files",
            "the GGUF file holds no tokenizer",
            "Convert the original checkpoint with its tokenizer files.",
        )
    if rows is not None and rows != count:
        return size, error(
            "tokenizer.vocabulary",
            f"the tokenizer has {count} tokens, the embedding {rows} rows",
            "Convert the original checkpoint anew.",
        )
    return size, fine("tokenizer.vocabulary", f"{count} tokens, as many as embedding rows")


def _linear_layers(keys: _Keys, num_layers: int, kv_by_layer: tuple[int, ...]) -> int:
    """Layers without a growing KV cache: the file writes zero KV heads for them, or one full layer in every n."""
    if len(kv_by_layer) > 1:
        return sum(kv == 0 for kv in kv_by_layer[:num_layers])
    every = keys.number("full_attention_interval")
    return num_layers - num_layers // every if every else 0


def _sliding_layers(keys: _Keys, architecture: str, num_layers: int) -> tuple[int | None, int]:
    """Window, and the number of layers that keep no more than it.

    Only where llama.cpp itself keeps a windowed cache: elsewhere (Phi-3) the key is written and all of it is kept.
    """
    window = keys.number("attention.sliding_window") or _DEFAULT_WINDOW.get(architecture)
    if not window:
        return None, 0
    pattern = keys.values("attention.sliding_window_pattern")
    if len(pattern) > 1:
        return window, sum(bool(layer) for layer in pattern[:num_layers])
    every = pattern[0] if pattern and pattern[0] > 1 else _SLIDING_EVERY.get(architecture)
    return window, sum((layer + 1) % every != 0 for layer in range(num_layers)) if every else 0


def _rope_scaling(keys: _Keys) -> str | None:
    kind = keys.text("rope.scaling.type")
    if kind is None or kind == "none":
        return None
    factor = keys.real("rope.scaling.factor")
    return f"{kind} x{factor:g}" if factor else kind


def _quantized_as(header: GgufHeader, tensors: list[TensorInfo]) -> tuple[str | None, list[HealthCheck]]:
    """The recipe's name, believed only where the tensors bear it out."""
    sizes: Counter[str] = Counter()
    for tensor in tensors:
        if len(tensor.shape) > 1:
            sizes[tensor.dtype] += tensor.num_bytes
    present = ", ".join(dtype for dtype, _ in sizes.most_common())
    packed = [dtype for dtype, _ in sizes.most_common() if dtype not in _FULL_PRECISION]
    number = header.metadata.get("general.file_type")
    named = FILE_TYPES.get(number & 1023) if isinstance(number, int) and not isinstance(number, bool) else None
    if not packed:
        return None, [note("weights.quantized", f"not quantized: {present or 'no matrices'}")]
    family = packed[0].lower()
    if named is None:
        return family, [note("weights.quantized", f"file type not named; by its tensors {family} ({present})")]
    stem = re.sub(r"_(s|m|l|xs)$", "", named)
    if any(dtype.lower().startswith(stem) for dtype in packed):
        return named, [note("weights.quantized", f"quantized as {named} ({present})")]
    return family, [
        warning(
            "weights.quantized",
            f"the file calls itself {named}, but its tensors are {present}; it is treated as {family}",
            "Trust the tensors; if you expected the other, download the file again.",
        )
    ]
