"""GGUF → Hugging Face folder: what the baseline and every other engine need where a model exists as GGUF only."""

from __future__ import annotations

from typing import Literal

from model_optimizer.records.candidate import TransformStep
from model_optimizer.records.model import Format, ModelSpec
from model_optimizer.records.tooling import Fit, Job, WhyNot
from model_optimizer.units import format_bytes

NAME = "gguf_dequantize"
TOOL = "transformers"
VERSION = 1
KIND: Literal["quantize", "convert"] = "convert"
ACCEPTS: frozenset[Format] = frozenset({"gguf"})
PRODUCES: Format = "hf"

_DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
# GGUF architectures that transformers 5.17 reads (GGUF_SUPPORTED_ARCHITECTURES and GGUF_CONFIG_ARCHS).
_ARCHITECTURES = frozenset(
    ["llama", "mistral", "qwen2", "qwen2moe", "qwen3", "qwen3moe", "qwen35", "qwen35moe", "gpt-oss", "lfm2", "falcon",
     "phi3", "bloom", "t5", "stablelm", "gpt2", "starcoder2", "mamba", "nemotron", "gemma2", "gemma3", "gemma4", "umt5",
     "deci", "minimax-m2"]
)  # fmt: skip
_RUNTIME_BYTES = 2**30


def why_not(fit: Fit) -> WhyNot | None:
    """Refuses architectures that transformers cannot read from GGUF, and models of which two copies exceed the memory.

    The reader holds all tensors at full size while it fills the model with them.
    """
    if fit.model.format != "gguf":
        return WhyNot(code="FORMAT_UNKNOWN", reason=f"{NAME} reads GGUF files, not {fit.model.format}")
    if fit.model.architecture not in _ARCHITECTURES:
        return WhyNot(
            code="MODEL_UNKNOWN_TO_ENGINE",
            reason=f"transformers cannot read a GGUF file of the architecture {fit.model.architecture!r}",
            fix="start from the model's Hugging Face folder",
        )
    needed = 2 * 2 * fit.model.num_parameters + _RUNTIME_BYTES
    if needed > fit.host.available_memory_bytes:
        return WhyNot(
            code="WEIGHTS_DO_NOT_FIT",
            reason=f"dequantizing needs {format_bytes(needed)} of memory, "
            f"{format_bytes(fit.host.available_memory_bytes)} are available",
            fix="start from the model's Hugging Face folder, or use a machine with more memory",
        )
    return None


def output_bytes(step: TransformStep, model: ModelSpec) -> int:
    """Parameters x bytes of the dtype, and about 80 bytes a vocabulary entry for tokenizer.json."""
    return model.num_parameters * _DTYPE_BYTES[_dtype(step)] + 80 * model.vocab_size


def output_main(step: TransformStep) -> str:
    """The folder itself."""
    return ""


def job(step: TransformStep, source: str, target: str) -> Job:
    """Runs workers/gguf_dequantize.py."""
    return Job(
        tool=TOOL,
        worker=NAME,
        payload={"model": source, "dtype": _dtype(step)},
        # PASSIVE: torch's threads otherwise spin while they wait, which halves the speed on shared cores.
        env={"HF_HUB_OFFLINE": "1", "OMP_WAIT_POLICY": "PASSIVE"},
        timeout_s=4 * 3600.0,
    )


def _dtype(step: TransformStep) -> str:
    return str(step.options.get("dtype", "bfloat16"))
