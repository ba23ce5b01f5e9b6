"""llama.cpp through xllamacpp: prebuilt, with llama.cpp's own OpenAI-compatible server. The embedded default."""

from __future__ import annotations

import re

from model_optimizer.records.model import Format
from model_optimizer.records.tooling import Fit, Gauges, Job, Launch, Serve, WhyNot
from model_optimizer.units import format_bytes

NAME = "llama.cpp"
TOOL = "llama.cpp"
FORMATS: frozenset[Format] = frozenset({"gguf"})

SERVED_MODEL = "model"

# Peak PSS beyond weights and KV cache: Python and libraries, compute buffers of one 512-token batch, logits.
_RUNTIME_BYTES = 120 * 2**20
_BUFFER_BYTES_PER_WIDTH = 512 * 4 * 4


def why_not(fit: Fit) -> WhyNot | None:
    """Refuses what does not fit into memory; formats are settled by the route."""
    needed = memory_bytes(fit)
    if needed > fit.host.memory_bytes:
        return WhyNot(
            code="WEIGHTS_DO_NOT_FIT",
            reason=f"it needs about {format_bytes(needed)}, this machine has {format_bytes(fit.host.memory_bytes)}",
            fix="a scheme with fewer bits, a shorter context, or fewer users at once",
        )
    return None


def memory_bytes(fit: Fit) -> int:
    """Weights, a 16-bit KV cache for every slot's whole context, compute buffers and runtime."""
    kv = fit.concurrency * fit.model.kv_bytes(fit.max_model_len)
    buffers = _BUFFER_BYTES_PER_WIDTH * (fit.model.hidden_size + (fit.model.intermediate_size or 0))
    return int(fit.weight_bytes + kv + buffers + 4 * 512 * fit.model.vocab_size + _RUNTIME_BYTES)


def engine_args(fit: Fit) -> dict[str, str | int | float | bool]:
    """llama.cpp's defaults, but for the host-side prompt cache: prompts are unique, it would only take memory."""
    return {"cache_ram_mib": 0}


def launch(serve: Serve) -> Launch:
    """Slots share one context, so it is slots times the context of one. llama.cpp wants OpenMP to wait actively."""
    args = [
        f"--model={serve.model_path}",
        f"--alias={SERVED_MODEL}",
        f"--port={serve.port}",
        f"--n-parallel={serve.concurrency}",
        f"--n-ctx={serve.max_model_len * serve.concurrency}",
        f"--n-threads={serve.cpu_cores}",
        *(f"--set={name}={value}" for name, value in sorted(serve.engine_args.items())),
    ]
    return Launch(
        tool=TOOL, worker="llama_cpp_server", args=tuple(args), served_model=SERVED_MODEL, ready_timeout_s=600.0
    )


def logits_job(model_path: str, reference_path: str, engine_args: dict[str, str | int | float | bool]) -> Job:
    """Runs workers/llama_cpp_logits.py."""
    return Job(
        tool=TOOL,
        worker="llama_cpp_logits",
        payload={"model": model_path, "reference": reference_path, "engine_args": engine_args},
        timeout_s=4 * 3600.0,
    )


def gauges(metrics_text: str) -> Gauges:
    """From ``llamacpp:*``; it reports no preemptions, since its slots are never taken back."""
    return Gauges(
        running=_value(metrics_text, "llamacpp:requests_processing"),
        waiting=_value(metrics_text, "llamacpp:requests_deferred"),
        kv_cache_usage=_value(metrics_text, "llamacpp:kv_cache_usage_ratio"),
    )


def _value(text: str, name: str) -> float | None:
    found = re.search(rf"^{re.escape(name)}(?:\{{[^}}]*\}})? ([0-9.eE+-]+)$", text, re.MULTILINE)
    return float(found[1]) if found else None
