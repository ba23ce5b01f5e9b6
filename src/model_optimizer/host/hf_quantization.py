"""How a Hugging Face checkpoint is quantized: the method by the name engines use, and how its weights are packed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from model_optimizer.errors import CheckpointInvalid
from model_optimizer.host.health import error, note, warning
from model_optimizer.host.json_files import Fields, read_json
from model_optimizer.host.safetensors import TensorInfo
from model_optimizer.host.weights import Packing
from model_optimizer.records.model import HealthCheck

_BITS_IN_NAME = re.compile(r"(?:INT|FP|NVFP|MXFP|W)(\d{1,2})", re.IGNORECASE)
_FIXED_BITS = {"fp8": 8, "fbgemm_fp8": 8, "mxfp8": 8, "mxfp4": 4, "nvfp4": 4, "eetq": 8, "bitnet": 2}
_ALIASES = {
    "compressed_tensors": "compressed-tensors", "sparseml": "compressed-tensors", "auto_gptq": "gptq", "autoawq": "awq",
    "intel/auto-round": "auto-round", "modelopt_fp4": "modelopt", "modelopt_fp8": "modelopt",
}  # fmt: skip


class Quantization(NamedTuple):
    """``method`` as in ``quantization_config.quant_method``; ``None`` for full precision."""

    method: str | None
    packing: Packing | None
    checks: tuple[HealthCheck, ...]


def read_quantization(config: dict[str, object], folder: Path, tensors: Sequence[TensorInfo]) -> Quantization:
    """Find the quantization in config.json or in files that some tools write beside it; compare with the tensors."""
    fields = _find(config, folder)
    if fields is None:
        return Quantization(None, None, _looks_quantized(tensors))
    method = _method(fields)
    said = _bits(fields, method)
    bits = said if said and 1 <= said <= 16 else None
    algorithm = fields.inner("quantization").text("quant_algo") or fields.text("quant_algo", "format")
    group = fields.number("group_size", "q_group_size") if not isinstance(fields.table.get("group_size"), str) else None
    details = [f"{bits:g} bit" if bits else "", algorithm or "", f"group {group}" if group and group > 0 else ""]
    text = ", ".join(part for part in (method, *details) if part)
    return Quantization(method, Packing(method, bits), (note("weights.quantized", f"quantized: {text}"),))


def _find(config: dict[str, object], folder: Path) -> Fields | None:
    candidates = [(config, "config.json")]
    candidates += [
        (part, "config.json") for name in ("text_config", "llm_config") if isinstance(part := config.get(name), dict)
    ]
    for table, where in candidates:
        for name in ("quantization_config", "compression_config", "quantization"):
            value = table.get(name)
            if isinstance(value, dict) and value:
                tagged = {"quant_method": "mlx", **value} if name == "quantization" else value
                return Fields(tagged, f"{where}: {name}")
    for file, method in (
        ("hf_quant_config.json", "modelopt"),
        ("quantize_config.json", "gptq"),
        ("quant_config.json", "awq"),
    ):
        if (folder / file).is_file():
            try:
                return Fields({"quant_method": method, **read_json(folder / file)}, file)
            except CheckpointInvalid:
                continue
    return None


def _method(fields: Fields) -> str:
    named = (fields.text("quant_method", "quant_library") or "").lower()
    if named:
        return _ALIASES.get(named, named)
    if "load_in_4bit" in fields or "load_in_8bit" in fields:
        return "bitsandbytes"
    if "config_groups" in fields or "format" in fields:
        return "compressed-tensors"
    producer = fields.inner("producer").text("name")
    return producer or ("modelopt" if "quant_algo" in fields else "unknown")


def _bits(fields: Fields, method: str) -> float | None:
    """Bits of one quantized weight; with mixed precision, those of the first group."""
    if fields.flag("load_in_4bit"):
        return 4
    if fields.flag("load_in_8bit"):
        return 8
    bits = fields.real("bits", "w_bit", "weight_bits", "nbits")
    if bits:
        return bits
    for group in fields.inner("config_groups").table.values():
        weights = Fields(group, "config_groups").inner("weights") if isinstance(group, dict) else None
        if weights and weights.real("num_bits"):
            return weights.real("num_bits")
    algorithm = fields.inner("quantization").text("quant_algo") or fields.text("quant_algo", "weight_dtype") or ""
    match = _BITS_IN_NAME.search(algorithm)
    if match:
        return float(match[1])
    return _FIXED_BITS.get(method)


def _looks_quantized(tensors: Sequence[TensorInfo]) -> tuple[HealthCheck, ...]:
    """Packed or 8-bit weights without a word in config.json: an engine would read them as something else."""
    packed = next((t for t in tensors if t.name.endswith((".qweight", ".weight_packed"))), None)
    if packed:
        return (
            error(
                "weights.quantized",
                f"{packed.name} is packed, but nothing says how the checkpoint is quantized: engines would read noise",
                "Take config.json with its quantization_config from the model's source again.",
            ),
        )
    narrow = next((t for t in tensors if t.dtype.startswith(("F8", "F4", "F6")) and len(t.shape) > 1), None)
    if narrow:
        return (
            warning(
                "weights.quantized",
                f"{narrow.name} is stored as {narrow.dtype}, but config.json has no quantization_config",
                "Take config.json from the model's source again, and compare the model's answers with the original's.",
            ),
        )
    return ()
