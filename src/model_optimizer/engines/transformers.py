"""Hugging Face transformers, plainly: the baseline everything is compared with."""

from __future__ import annotations

from model_optimizer.records.model import Format
from model_optimizer.records.tooling import Fit, Gauges, Job, Launch, Serve, WhyNot
from model_optimizer.units import format_bytes

NAME = "transformers"
TOOL = "transformers"
FORMATS: frozenset[Format] = frozenset({"hf"})

SERVED_MODEL = "model"

# torch, transformers and their libraries, as PSS of an idle server.
_RUNTIME_BYTES = 450 * 2**20
_BF16_UNITS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
# OpenMP's threads wait for each other by sleeping: where other programs run too, torch is about twice as fast so.
_ENV = {"OMP_WAIT_POLICY": "PASSIVE", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}


def why_not(fit: Fit) -> WhyNot | None:
    """Refuses what does not fit into memory."""
    needed = memory_bytes(fit)
    if needed > fit.host.memory_bytes:
        return WhyNot(
            code="WEIGHTS_DO_NOT_FIT",
            reason=f"it needs about {format_bytes(needed)}, this machine has {format_bytes(fit.host.memory_bytes)}",
            fix="a machine with more memory, or a GGUF of the model",
        )
    return None


def memory_bytes(fit: Fit) -> int:
    """Parameters in the type it computes in, one sequence's KV cache in the same type, activations and runtime."""
    width = 4 if _dtype(fit) == "float32" else 2
    kv = fit.model.kv_bytes(fit.max_model_len, float(width))
    logits = fit.model.vocab_size * 4 * 64
    return int(fit.model.num_parameters * width + kv + logits + _RUNTIME_BYTES)


def engine_args(fit: Fit) -> dict[str, str | int | float | bool]:
    """float32 on a CPU without bfloat16 units: emulated bfloat16 is several times slower in prefill."""
    return {"dtype": _dtype(fit)}


def launch(serve: Serve) -> Launch:
    """One request after another, as a script around transformers would."""
    args = [
        f"--model={serve.model_path}",
        f"--served-model-name={SERVED_MODEL}",
        f"--port={serve.port}",
        f"--max-model-len={serve.max_model_len}",
        f"--dtype={serve.engine_args.get('dtype', 'float32')}",
        f"--device={serve.device}",
        f"--threads={serve.cpu_cores}",
    ]
    return Launch(
        tool=TOOL,
        worker="transformers_server",
        args=tuple(args),
        env=_ENV,
        metrics_path=None,
        served_model=SERVED_MODEL,
        ready_timeout_s=900.0,
    )


def logits_job(model_path: str, reference_path: str, engine_args: dict[str, str | int | float | bool]) -> Job:
    """Runs workers/transformers_logits.py as a candidate."""
    return Job(
        tool=TOOL,
        worker="transformers_logits",
        payload={"model": model_path, "reference": reference_path, "engine_args": engine_args},
        env=_ENV,
        timeout_s=4 * 3600.0,
    )


def gauges(metrics_text: str) -> Gauges:
    """It has no metrics page."""
    return Gauges()


def _dtype(fit: Fit) -> str:
    if fit.host.accelerator == "cuda" or _BF16_UNITS & set(fit.host.cpu_features):
        return "bfloat16"
    return "float32"
