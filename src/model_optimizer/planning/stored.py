"""What the checkpoint is already: the schemes its weights may be served in without quantizing anything again."""

from __future__ import annotations

from model_optimizer.records.knowledge import SchemeSpec
from model_optimizer.records.model import ModelSpec

# The checkpoint's own precision comes first in each engine; a scheme of the same class would only repeat it.
UNQUANTIZED = frozenset({"bf16", "fp16", "fp32", "gguf-f16", "gguf-bf16", "onnx-fp16", "ov-fp16"})

# quant_method of config.json → schemes by what the matrices are stored in. Two schemes where the stored type does not
# tell them apart (block sizes are in quantization_config, which is not part of the description).
_METHODS: dict[str, dict[str, tuple[str, ...]]] = {
    "fp8": {"": ("fp8", "fp8-block")},
    "fbgemm_fp8": {"": ("fp8",)},
    "mxfp8": {"": ("mxfp8",)},
    "mxfp4": {"": ("mxfp4",)},
    "nvfp4": {"": ("nvfp4",)},
    "gptq": {"4": ("w4a16-gptq",), "8": ("w8a16",)},
    "awq": {"4": ("w4a16-awq",)},
    "bitsandbytes": {"4": ("bnb-4bit",)},
    "compressed-tensors": {
        "F8_E4M3": ("fp8", "fp8-block"), "I8": ("w8a8-int8",), "U8": ("nvfp4",), "4": ("w4a16",), "8": ("w8a16",),
    },
    "modelopt": {"F8_E4M3": ("fp8",), "U8": ("nvfp4",)},
}  # fmt: skip
_MATRICES = ("mlp", "experts", "attention")


def stored_schemes(model: ModelSpec) -> tuple[str, ...] | None:
    """Ids of the schemes that the stored weights are; ``None`` for full precision, empty where none is known.

    A GGUF file is one scheme by its type; a Hugging Face checkpoint by its method and the type or bits of its matrices.
    """
    if model.format == "gguf":
        name = (model.quantized_as or model.weight_dtype).lower()
        return {"f16": ("gguf-f16",), "f32": ("gguf-f16",), "bf16": ("gguf-bf16",)}.get(name, (name,))
    if model.quantized_as is None:
        return None
    table = _METHODS.get(model.quantized_as.split(":")[0].lower(), {})
    for key in ("", *_types(model), _bits(model)):
        if key in table:
            return table[key]
    return ()


def is_stored(scheme: SchemeSpec, stored: tuple[str, ...] | None) -> bool:
    """True where serving in that scheme takes the weights as they are."""
    return scheme.id in (UNQUANTIZED if stored is None else stored)


def _types(model: ModelSpec) -> tuple[str, ...]:
    """The commonest type of each class of matrices, largest class first."""
    classes = sorted((c for c in model.weight_classes if c.name in _MATRICES), key=lambda c: -c.weight_bytes)
    return tuple(c.dtypes[0] for c in classes if c.dtypes)


def _bits(model: ModelSpec) -> str:
    """Bits a stored weight costs, scales left out: ``4`` or ``8``, whichever is nearer."""
    classes = [c for c in model.weight_classes if c.name in _MATRICES]
    parameters = sum(c.parameters for c in classes)
    bits = 8 * sum(c.weight_bytes for c in classes) / parameters if parameters else 16.0
    return "4" if bits < 6.5 else "8"
