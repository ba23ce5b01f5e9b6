"""llama.cpp: the embedded engine. Its own server, prebuilt, in the Python package xllamacpp; serves GGUF on a CPU."""

from __future__ import annotations

import re
import shlex

from model_optimizer.records.model import Format
from model_optimizer.records.tooling import Fit, Gauges, Job, Launch, Serve, WhyNot
from model_optimizer.units import format_bytes

NAME = "llama.cpp"
TOOL = "llama.cpp"
FORMATS: frozenset[Format] = frozenset({"gguf"})

_ALIAS = "model"
_KV_BYTES = {"f32": 4.0, "f16": 2.0, "bf16": 2.0, "q8_0": 34 / 32, "q5_1": 24 / 32, "q5_0": 22 / 32, "q4_0": 18 / 32}
_N_UBATCH = 512
_DEFAULT_SLOTS = 4
_FLASH = {"enabled": "on", "disabled": "off"}
_SWITCHES = {
    "cache_prompt": ("--cache-prompt", "--no-cache-prompt"),
    "cont_batching": ("--cont-batching", "--no-cont-batching"),
}
_OPTIONS = {
    "n_parallel": "-np",
    "n_ctx": "-c",
    "n_threads": "-t",
    "n_batch": "-b",
    "n_ubatch": "-ub",
    "flash_attn_type": "-fa",
    "cache_type_k": "-ctk",
    "cache_type_v": "-ctv",
    "cache_ram_mib": "-cram",
    "n_gpu_layers": "-ngl",
}
# Interpreter, library and buffers that do not grow with the model. Measured 2026-12 on 2 cores of an EPYC 9004 (VM),
# xllamacpp 2026.10.11549, SmolLM2-135M Q8_0 (138 MiB), after prompts of 900 tokens: peak PSS 223, 381, 564 and 930 MiB
# with KV caches of 22, 180, 360 and 720 MiB. The formula gives 224, 382, 562 and 922.
_RUNTIME_BYTES = 50 * 2**20


def why_not(fit: Fit) -> WhyNot | None:
    """Refuses CPUs without AVX2 (the package dies on its first instruction), bf16 weights, and what does not fit."""
    host = fit.host
    if fit.scheme == "as-is" and fit.model.format not in FORMATS:
        return WhyNot(
            code="FORMAT_UNKNOWN", reason="llama.cpp reads GGUF files only", fix="convert the model to GGUF first"
        )
    if host.machine == "x86_64" and host.cpu_features and "avx2" not in host.cpu_features:
        return WhyNot(
            code="PLATFORM_UNSUPPORTED",
            reason="the prebuilt llama.cpp needs a CPU with AVX2",
            fix="a newer CPU, or a llama.cpp built on this machine (tools: {llama.cpp: {python: PATH}})",
        )
    dtype = fit.model.weight_dtype.upper()
    if fit.scheme == "bf16" or (fit.scheme == "as-is" and not fit.model.quantized_as and dtype == "BF16"):
        return WhyNot(
            code="NO_KERNEL_IN_ENGINE_VERSION",
            reason="the prebuilt llama.cpp multiplies bfloat16 one element at a time: tens of times slower than f16",
            fix="f16, which has the same size, or q8_0",
        )
    return _memory_short(fit)


def memory_bytes(fit: Fit) -> int:
    """Weights (mapped, all read) + KV cache of all slots + runtime + activations of one micro-batch.

    Activations: n_ubatch x 4 bytes x (4 hidden + 3 FFN widths); the KV cache is allocated at start, whole.
    """
    model = fit.model
    width = model.intermediate_size or 4 * model.hidden_size
    if model.moe is not None:
        width *= model.moe.experts_per_token
    activations = _N_UBATCH * 4 * (4 * model.hidden_size + 3 * width)
    return fit.weight_bytes + _kv_bytes(fit) + activations + _RUNTIME_BYTES


def engine_args(fit: Fit) -> dict[str, str | int | float | bool]:
    """llama.cpp's defaults, except for the caches of earlier prompts.

    Those are off: they would hold up to 8 GiB beside the model, and a measurement must not be answered from one.
    """
    return {
        "n_batch": 2048,
        "n_ubatch": _N_UBATCH,
        "cache_type_k": "f16",
        "cache_type_v": "f16",
        "cache_prompt": False,
        "cache_ram_mib": 0,
        "n_ctx_checkpoints": 0,
    }


def default_args(fit: Fit) -> dict[str, str | int | float | bool]:
    """llama-server's own: four slots (its automatic choice), prompts cached in their slots, batches of 2048 and 512.

    Only its store of old prompts beside the model (8 GiB) is off: it would answer what was asked before.
    """
    return {"n_parallel": _DEFAULT_SLOTS, "cache_ram_mib": 0}


def launch(serve: Serve) -> Launch:
    """One slot a user unless ``n_parallel`` says otherwise, each with room for ``max_model_len`` tokens.

    llama.cpp shares one context (``n_ctx``) out evenly among the slots. ``engine_args`` are its own parameter names;
    ``n_threads`` is by default one a core; ``omp_wait_policy`` (``auto``, ``active``, ``passive``) says how threads
    wait for each other (workers/llama_cpp_server.py).
    """
    settings = dict(serve.engine_args)
    slots = int(settings.pop("n_parallel", serve.concurrency))
    context = int(settings.pop("n_ctx", slots * serve.max_model_len))
    threads = settings.pop("n_threads", serve.cpu_cores)
    policy = settings.pop("omp_wait_policy", "auto")
    args = ["--model", serve.model_path, "--alias", _ALIAS, "--port", str(serve.port)]
    args += ["--n-parallel", str(slots), "--n-ctx", str(context)]
    args += ["--n-threads", str(threads), "--omp-wait-policy", str(policy)]
    for name in sorted(settings):
        args += ["--set", f"{name}={_text(settings[name])}"]
    return Launch(
        tool=TOOL,
        worker="llama_cpp_server",
        args=tuple(args),
        served_model=_ALIAS,
        ready_timeout_s=600.0,
    )


def command(serve: Serve) -> str | None:
    """``llama-server`` with the same options, in its own spelling; settings that it has no option for are left out."""
    settings = {"n_parallel": serve.concurrency, "n_threads": serve.cpu_cores, **serve.engine_args}
    settings.setdefault("n_ctx", int(settings["n_parallel"]) * serve.max_model_len)
    words = ["llama-server", "-m", serve.model_path, "--host", "127.0.0.1", "--port", str(serve.port), "--metrics"]
    for name in sorted(settings):
        value = settings[name]
        if name in _SWITCHES:
            words.append(_SWITCHES[name][0 if value else 1])
        elif name in _OPTIONS:
            words += [_OPTIONS[name], _FLASH.get(str(value), str(value)) if name == "flash_attn_type" else str(value)]
    return shlex.join(words)


def kv_tokens(log_text: str, metrics_text: str) -> int | None:
    """The context that it says it has made, all slots together."""
    said = re.findall(r"n_ctx\s*=\s*(\d+)", log_text)
    return int(said[-1]) if said else None


def logits_job(model_path: str, reference_path: str, engine_args: dict[str, str | int | float | bool]) -> Job:
    """Runs workers/llama_cpp_logits.py."""
    settings = {name: value for name, value in engine_args.items() if name != "omp_wait_policy"}
    payload = {"model": model_path, "reference": reference_path, "engine_args": settings}
    return Job(tool=TOOL, worker="llama_cpp_logits", payload=payload, timeout_s=2 * 3600.0)


def gauges(metrics_text: str) -> Gauges:
    """Its page tells running and deferred requests; cache usage is not on it any more."""
    return Gauges(
        running=_gauge(metrics_text, "llamacpp:requests_processing"),
        waiting=_gauge(metrics_text, "llamacpp:requests_deferred"),
    )


def _kv_bytes(fit: Fit) -> int:
    args = engine_args(fit)
    element = (_KV_BYTES[str(args["cache_type_k"])] + _KV_BYTES[str(args["cache_type_v"])]) / 2
    return round(fit.concurrency * fit.model.kv_bytes(fit.max_model_len, element))


def _memory_short(fit: Fit) -> WhyNot | None:
    available = fit.host.available_memory_bytes
    needed = memory_bytes(fit)
    if needed <= available:
        return None
    if fit.weight_bytes + _RUNTIME_BYTES > available:
        return WhyNot(
            code="WEIGHTS_DO_NOT_FIT",
            reason=f"the weights take {format_bytes(fit.weight_bytes)}, {format_bytes(available)} are available",
            fix="a scheme with fewer bits, or a machine with more memory",
        )
    return WhyNot(
        code="KV_CACHE_DOES_NOT_FIT",
        reason=f"{fit.concurrency} sequences of {fit.max_model_len} tokens take {format_bytes(_kv_bytes(fit))} beside "
        f"{format_bytes(fit.weight_bytes)} of weights; {format_bytes(available)} are available",
        fix="a shorter max_model_len, fewer users at once, or a scheme with fewer bits",
    )


def _text(value: str | int | float | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _gauge(page: str, name: str) -> float | None:
    match = re.search(rf"^{re.escape(name)} (\S+)$", page, re.MULTILINE)
    return float(match[1]) if match else None
