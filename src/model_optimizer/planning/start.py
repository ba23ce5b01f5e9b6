"""Starting parameters of an option, in the engine's own flag names: context, slots, ranks, KV type, prefill budget."""

from __future__ import annotations

from typing import NamedTuple

from model_optimizer.planning.devices import engine_memory
from model_optimizer.planning.question import Found
from model_optimizer.records.workload import SLO

Args = dict[str, str | int | float | bool]


class _Names(NamedTuple):
    context: str
    slots: str
    tensor: str
    kv: tuple[str, ...]
    budget: str


_NAMES = {
    "vllm": _Names(
        "max_model_len", "max_num_seqs", "tensor_parallel_size", ("kv_cache_dtype",), "max_num_batched_tokens"
    ),
    "sglang": _Names("context_length", "max_running_requests", "tp_size", ("kv_cache_dtype",), "chunked_prefill_size"),
    "tensorrt-llm": _Names(
        "max_seq_len", "max_batch_size", "tensor_parallel_size", ("kv_cache_config.dtype",), "max_num_tokens"
    ),
    "llama.cpp": _Names("ctx_size", "parallel", "", ("cache_type_k", "cache_type_v"), "batch_size"),
}
_KV_NAMES = {("tensorrt-llm", "kv-fp8"): "fp8"}
_SMALLEST_BUDGET = 512


def start_args(found: Found, context: int, slo: SLO) -> Args:
    """What to start with. Slots are the capacity predicted for the SLO (else what fits): more would only queue inside.

    llama.cpp shares one context among its slots. The prefill budget is named only where an ITL limit asks for less than
    the engine's default.
    """
    names = _NAMES.get(found.engine.id)
    if names is None:
        return {}
    slots = found.users or found.slots
    args: Args = {names.context: context * (slots if found.engine.id == "llama.cpp" else 1), names.slots: slots}
    if found.split.tensor > 1:
        args[names.tensor] = found.split.tensor
    if found.kv is not None:
        value = found.kv.methods.get(found.engine.id) or _KV_NAMES.get((found.engine.id, found.kv.id), "fp8")
        args.update(dict.fromkeys(names.kv, value))
    budget = prefill_budget(found, slo)
    if budget is not None:
        args[names.budget] = budget
    return args


def prefill_budget(found: Found, slo: SLO) -> int | None:
    """The most prompt tokens a step may take so that it stays within the ITL limit; ``None``: the default does.

    A step of decode and that much prefill lasts about step + 2 · active parameters · tokens ÷ rate.
    """
    limits = [limit.limit for limit in slo.latency_limits if limit.metric == "itl"]
    if not limits:
        return None
    default = engine_memory(found.engine, found.gpu, found.split).max_batched_tokens
    replica = found.steady.replica
    room = min(limits) - found.steady.at(found.users or 1).step_s
    tokens = room * replica.rate / (2 * replica.active)
    budget = default
    while budget > max(tokens, _SMALLEST_BUDGET):
        budget //= 2
    return budget if budget < default else None
