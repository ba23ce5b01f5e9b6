"""An engine's settings, in its own names, as the simulated scheduler's; its defaults where they are not set."""

from __future__ import annotations

from collections.abc import Mapping

from model_optimizer.records.simulation import SchedulerConfig

Scalar = str | int | float | bool

SIMULATED: dict[str, tuple[str, ...]] = {
    "vllm": (
        "max_num_seqs",
        "max_num_batched_tokens",
        "long_prefill_token_threshold",
        "enable_chunked_prefill",
    ),
    "vllm-cpu": ("max_num_seqs", "max_num_batched_tokens", "enable_chunked_prefill"),
    "llama.cpp": ("n_parallel", "n_batch", "n_ubatch"),
}
"""The parameters whose effect the simulation knows, by the knowledge base's name of the engine."""

_GIB = 2**30
_GRAPH_TOKENS = 512


def simulated_engine(engine: str, *, has_gpu: bool) -> str:
    """The knowledge base's name of the build that runs here."""
    return "vllm-cpu" if engine == "vllm" and not has_gpu else engine


def scheduler_config(
    engine: str,
    settings: Mapping[str, Scalar],
    *,
    kv_tokens: int | None,
    max_model_len: int,
    gpu_memory_bytes: int = 0,
) -> SchedulerConfig | None:
    """``None`` for an engine that is not simulated. ``kv_tokens``: the cache's room as a running server said it.

    vLLM's defaults by memory are those of its ``get_batch_defaults`` (an API server on an A100 gets the smaller ones,
    which only the log tells).
    """
    if engine == "llama.cpp":
        slots = int(settings.get("n_parallel", 4))
        batch = int(settings.get("n_batch", 2048))
        return SchedulerConfig(
            policy="slots",
            max_num_seqs=slots,
            max_num_batched_tokens=batch,
            num_kv_tokens=int(settings.get("n_ctx", slots * max_model_len)),
            prefix_caching=False,
            max_model_len=max_model_len,
            micro_batch_tokens=min(batch, int(settings.get("n_ubatch", 512))),
        )
    if engine not in ("vllm", "vllm-cpu"):
        return None
    seqs, budget = _vllm_limits(engine, gpu_memory_bytes)
    seqs = int(settings.get("max_num_seqs", seqs))
    return SchedulerConfig(
        max_num_seqs=seqs,
        max_num_batched_tokens=int(settings.get("max_num_batched_tokens", budget)),
        num_kv_tokens=kv_tokens or seqs * max_model_len,
        block_tokens=int(settings.get("block_size", 128 if engine == "vllm-cpu" else 16)),
        chunked_prefill=bool(settings.get("enable_chunked_prefill", True)),
        prefix_caching=bool(settings.get("enable_prefix_caching", True)),
        long_prefill_threshold=int(settings.get("long_prefill_token_threshold", 0)),
        max_model_len=max_model_len,
        graph_tokens=int(settings.get("max_cudagraph_capture_size", _GRAPH_TOKENS)) if engine == "vllm" else None,
    )


def _vllm_limits(engine: str, gpu_memory_bytes: int) -> tuple[int, int]:
    """Default ``max_num_seqs`` and ``max_num_batched_tokens`` of the API server."""
    if engine == "vllm-cpu":
        return 128, 2048
    if gpu_memory_bytes >= 160 * _GIB:
        return 1024, 16384
    return (1024, 8192) if gpu_memory_bytes >= 70 * _GIB else (256, 2048)
