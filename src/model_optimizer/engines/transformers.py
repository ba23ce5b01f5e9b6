"""Hugging Face transformers: the baseline, the model as its authors run it, one request after another."""

from __future__ import annotations

from model_optimizer.records.model import Format
from model_optimizer.records.tooling import Fit, Gauges, Job, Launch, Serve, WhyNot
from model_optimizer.units import format_bytes

NAME = "transformers"
TOOL = "transformers"
FORMATS: frozenset[Format] = frozenset({"hf"})

_SERVED_MODEL = "model"
_DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
# Interpreter, torch and transformers. Measured 2026-12 on 2 cores of an EPYC 9004 (VM), transformers 5.17, torch 2.13,
# SmolLM2-135M: peak PSS 925 MiB in float32 (weights 513) after prompts of 120 tokens, resident peak while loading 1166
# MiB with the 257 MiB bfloat16 file mapped beside the float32 weights. The formula gives 1195.
_RUNTIME_BYTES = 425 * 2**20
_BF16_UNITS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
# Packed formats whose weights transformers reads only with a package that is not in its environment.
_NEEDS_PACKAGE = frozenset(
    {"awq", "gptq", "bitsandbytes", "compressed-tensors", "aqlm", "hqq", "quanto", "torchao", "modelopt"}
)


def why_not(fit: Fit) -> WhyNot | None:
    """Refuses GGUF files, packed formats without their package, and models that do not fit even in bfloat16."""
    if fit.model.format not in FORMATS:
        return WhyNot(
            code="FORMAT_UNKNOWN",
            reason="the baseline runs Hugging Face folders, not GGUF files",
            fix="dequantize the GGUF file first",
        )
    if fit.model.quantized_as and fit.model.quantized_as.split(":")[0] in _NEEDS_PACKAGE:
        return WhyNot(
            code="FORMAT_UNKNOWN",
            reason=f"transformers reads {fit.model.quantized_as} weights only with a package of their own",
            fix="start from the original, unquantized checkpoint",
        )
    available, needed = fit.host.available_memory_bytes, memory_bytes(fit)
    if needed > available:
        return WhyNot(
            code="WEIGHTS_DO_NOT_FIT",
            reason=f"transformers needs {format_bytes(needed)} of memory, {format_bytes(available)} are available",
            fix="a machine with more memory, or a smaller model",
        )
    return None


def memory_bytes(fit: Fit) -> int:
    """The peak, at load time or with the longest sequence: weights + the mapped file or the KV cache + runtime.

    The file's pages are counted where its dtype is converted while it is read.
    """
    dtype = _dtype(fit)
    converted = _DTYPE_BYTES[dtype] * fit.model.num_parameters != fit.weight_bytes
    kv_bytes = round(fit.model.kv_bytes(fit.max_model_len, _DTYPE_BYTES[dtype]))
    return _weight_bytes(fit, dtype) + max(fit.weight_bytes if converted else 0, kv_bytes) + _RUNTIME_BYTES


def engine_args(fit: Fit) -> dict[str, str | int | float | bool]:
    """bfloat16 where the CPU multiplies it, float32 elsewhere, unless the machine is too small for float32.

    Measured with AVX512_BF16 on SmolLM2-135M, 100-token prompts, medians of 50: TTFT 256 ms and TPOT 59.7 ms in
    float32, 170 and 52.4 in bfloat16. Without such units bfloat16 is emulated and several times slower in prefill.
    On a GPU machine bfloat16 on the GPU, if the environment's torch sees it.
    """
    if fit.host.gpus:
        return {"dtype": "bfloat16", "device": "auto"}
    return {"dtype": _dtype(fit), "device": "cpu"}


def default_args(fit: Fit) -> dict[str, str | int | float | bool]:
    """What the baseline runs with: there is nothing else to choose."""
    return engine_args(fit)


def command(serve: Serve) -> str | None:
    """Its server is our worker, for baselines: nothing to deploy."""
    return None


def kv_tokens(log_text: str, metrics_text: str) -> int | None:
    """One request at a time, its cache as long as it needs."""
    return None


def launch(serve: Serve) -> Launch:
    """workers/transformers_server.py; requests wait for each other whatever ``concurrency`` says."""
    settings = serve.engine_args
    args = ["--model", serve.model_path, "--served-model-name", _SERVED_MODEL, "--port", str(serve.port)]
    args += ["--max-model-len", str(serve.max_model_len), "--dtype", str(settings.get("dtype", "float32"))]
    args += [
        "--device",
        str(settings.get("device", "cpu")),
        "--threads",
        str(settings.get("n_threads", serve.cpu_cores)),
    ]
    if settings.get("trust_remote_code", False):
        args.append("--trust-remote-code")
    return Launch(
        tool=TOOL,
        worker="transformers_server",
        args=tuple(args),
        env=_ENV,
        metrics_path=None,
        served_model=_SERVED_MODEL,
        ready_timeout_s=900.0,
    )


def logits_job(model_path: str, reference_path: str, engine_args: dict[str, str | int | float | bool]) -> Job:
    """Runs workers/transformers_logits.py."""
    payload = {"model": model_path, "reference": reference_path, "engine_args": engine_args}
    return Job(tool=TOOL, worker="transformers_logits", payload=payload, env=_ENV, timeout_s=4 * 3600.0)


def gauges(metrics_text: str) -> Gauges:
    """It has no metrics page."""
    return Gauges()


# PASSIVE: torch's threads otherwise spin while they wait. Measured: as fast on quiet cores (124 against 134 ms a
# token), nearly twice as fast with one busy process beside it (135 against 242).
_ENV = {"HF_HUB_OFFLINE": "1", "OMP_WAIT_POLICY": "PASSIVE", "TOKENIZERS_PARALLELISM": "false"}


def _weight_bytes(fit: Fit, dtype: str) -> int:
    return fit.model.num_parameters * _DTYPE_BYTES[dtype]


def _dtype(fit: Fit) -> str:
    if _BF16_UNITS & set(fit.host.cpu_features):
        return "bfloat16"
    kv_bytes = round(fit.model.kv_bytes(fit.max_model_len, 4))
    fits = _weight_bytes(fit, "float32") + max(fit.weight_bytes, kv_bytes) + _RUNTIME_BYTES
    return "float32" if fits <= fit.host.memory_bytes else "bfloat16"
