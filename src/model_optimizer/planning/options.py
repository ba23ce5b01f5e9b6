"""All ways to serve a model on one kind of GPU: each kept with its numbers, or refused with a reason."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from model_optimizer.kb import query
from model_optimizer.planning.devices import compute_flops, device, efficiency, engine_memory, most_users
from model_optimizer.planning.promises import capacity, checks_at, load_of, roofline_refusal
from model_optimizer.records.candidate import Refusal
from model_optimizer.records.fleet import Deployment, Option
from model_optimizer.records.hardware import GpuSpec
from model_optimizer.records.knowledge import EngineFacts, OsName, SchemeSpec, State
from model_optimizer.records.model import ModelSpec
from model_optimizer.records.sizing import MemoryPlan, Parallelism
from model_optimizer.records.workload import SLO, TrafficProfile
from model_optimizer.sizing.memory import plan_memory
from model_optimizer.sizing.speed import Replica
from model_optimizer.units import format_bytes

TENSOR_SIZES = (1, 2, 4, 8)

# The checkpoint's own precision comes first in each engine; a scheme of the same class would only repeat it.
UNQUANTIZED = frozenset({"bf16", "fp16", "fp32", "gguf-f16", "gguf-bf16", "onnx-fp16", "ov-fp16"})


class Question(NamedTuple):
    """What is asked about one kind of GPU."""

    model: ModelSpec
    gpu: GpuSpec
    traffic: TrafficProfile
    slo: SLO
    max_model_len: int
    max_gpus: int
    os: OsName = "linux"
    driver: str | None = None
    engines: tuple[str, ...] = ()
    schemes: tuple[str, ...] = ()


def options_on(ask: Question) -> tuple[list[Option], list[Refusal]]:
    """Options and refusals of this GPU. An engine that cannot run there at all is refused once, not for each scheme."""
    options: list[Option] = []
    refused: list[Refusal] = []
    for engine in query.engines():
        if not engine.server or (ask.engines and engine.id not in ask.engines):
            continue
        shut = query.gates(engine.id, ask.gpu.id, os=ask.os, driver=ask.driver)
        if any(gate.state == "impossible" for gate in shut):
            refused.append(_refusal(f"{engine.id} · {ask.gpu.id}", next(g for g in shut if g.state == "impossible")))
            continue
        for scheme in _schemes_for(ask, engine):
            for found in _with_scheme(ask, engine, scheme):
                (options if isinstance(found, Option) else refused).append(found)  # type: ignore[arg-type]
    return options, refused


def _schemes_for(ask: Question, engine: EngineFacts) -> Iterator[SchemeSpec]:
    for scheme in query.schemes():
        if scheme.kind != "weights" or (ask.schemes and scheme.id not in ask.schemes):
            continue
        if scheme.checkpoint not in (*engine.checkpoints, "any") or scheme.id == "fp32":
            continue
        if scheme.id == "fp16" and ask.model.weight_dtype == "BF16" and _bf16(ask.gpu):
            continue  # the same bytes and speed, less range
        yield scheme


def _bf16(gpu: GpuSpec) -> bool:
    return gpu.peak_flops("bf16") is not None


def _with_scheme(ask: Question, engine: EngineFacts, scheme: SchemeSpec) -> Iterator[Option | Refusal]:
    route = f"{scheme.id} · {engine.id} · {ask.gpu.id}"
    state = query.state(scheme.id, engine.id, ask.gpu.id, os=ask.os, driver=ask.driver)
    if not state.may_try:
        yield _refusal(route, state)
        return
    if ask.model.quantized_as is not None and scheme.id not in UNQUANTIZED and not _same_scheme(ask.model, scheme):
        yield Refusal(
            route=route,
            code="SOURCE_ALREADY_QUANTIZED",
            reason=f"the checkpoint's weights are {ask.model.quantized_as} already",
            fix="start from the unquantized checkpoint",
        )
        return
    flops = compute_flops(ask.gpu, scheme, state)
    if flops is None:
        yield Refusal(route=route, code="NOT_ESTABLISHED", reason=f"no peak rate of {ask.gpu.title} has a source")
        return
    first: Option | Refusal | None = None
    for size in (n for n in TENSOR_SIZES if n <= ask.max_gpus):
        found = _with_split(ask, engine, scheme, state, Parallelism(tensor=size), flops)
        if isinstance(found, Option) and found.meets:
            first = found  # more ranks of a replica that meets the limits only cost messages
            break
        if first is None or isinstance(first, Refusal):
            first = found
    if first is not None:
        yield first


def _same_scheme(model: ModelSpec, scheme: SchemeSpec) -> bool:
    return (model.quantized_as or "").replace("_", "-").startswith(scheme.id.split("-")[0])


def _with_split(
    ask: Question, engine: EngineFacts, scheme: SchemeSpec, state: State, split: Parallelism, flops: float
) -> Option | Refusal:
    deployment = Deployment(
        gpu=ask.gpu.id,
        engine=engine.id,
        version=state.version,
        scheme=scheme.id,
        parallelism=split,
        max_model_len=ask.max_model_len,
    )
    for shape in query.shape_refusals(ask.model, scheme.id, engine.id, split.tensor):
        if shape.state == "impossible":
            return _refusal(deployment.label, shape)
    memory = _memory(ask, engine, scheme, split)
    refusal = _memory_refusal(ask, deployment, memory)
    if refusal is not None:
        return refusal
    weights = memory.weights
    hardware = device(ask.gpu, flops)
    replica = Replica(
        ask.model,
        weights,
        hardware,
        efficiency(engine, state),
        kv_bytes_per_token=memory.kv_bytes_per_token,
        split=split,
    )
    light = replica.estimate(load_of(ask.traffic, 1))
    veto = roofline_refusal(deployment.label, light, ask.slo, hardware, weights)
    if veto is not None:
        return veto
    slots = max(1, min(memory.max_sequences, most_users(engine)))
    users, binding = capacity(replica, ask.slo, ask.traffic, slots)
    if binding == "room":
        binding = "KV cache" if slots == memory.max_sequences else "slots"
    best = replica.estimate(load_of(ask.traffic, users)) if users else None
    checks = checks_at(best or light, ask.slo, ask.traffic)
    if any(check.ok is False for check in checks):
        best = None
    return Option(
        deployment=deployment.model_copy(update={"engine_args": _start_args(engine, deployment, slots)}),
        state=state,
        memory=memory,
        light=light,
        capacity=best,
        checks=checks,
        num_gpus=split.num_gpus,
        binding=binding,
    )


def _memory(ask: Question, engine: EngineFacts, scheme: SchemeSpec, split: Parallelism) -> MemoryPlan:
    stored = scheme if scheme.id not in UNQUANTIZED else None
    if ask.model.quantized_as is not None:
        stored = None
    live = ask.traffic.mean_prompt_tokens + ask.traffic.output_tokens / 2
    return plan_memory(
        ask.model,
        total_bytes=ask.gpu.usable_memory_bytes,
        engine=engine_memory(engine, ask.gpu, split),
        scheme=stored,
        split=split,
        live_tokens=live,
    )


def _memory_refusal(ask: Question, deployment: Deployment, memory: MemoryPlan) -> Refusal | None:
    if not memory.weights_fit:
        return Refusal(
            route=deployment.label,
            code="WEIGHTS_DO_NOT_FIT",
            reason=f"weights {format_bytes(memory.weight_bytes)} and what the engine needs exceed the usable "
            f"{format_bytes(memory.usable_bytes)} of each GPU by {format_bytes(-memory.kv_bytes)}",
            fix=query.reason("WEIGHTS_DO_NOT_FIT").fix,
            source="arithmetic on the checkpoint's headers",
        )
    if memory.longest_context < ask.traffic.longest_sequence:
        return Refusal(
            route=deployment.label,
            code="KV_CACHE_DOES_NOT_FIT",
            reason=f"{format_bytes(memory.kv_bytes)} left for the KV cache hold {memory.longest_context} tokens, the "
            f"longest request needs {ask.traffic.longest_sequence}",
            fix=query.reason("KV_CACHE_DOES_NOT_FIT").fix,
            source="arithmetic on config.json",
        )
    return None


def _refusal(route: str, state: State) -> Refusal:
    return Refusal(
        route=route,
        code=state.code,
        reason=state.sentence,
        fix=query.reason(state.code).fix or None,
        source="; ".join(source.title for source in state.sources) or state.status,
        date=state.date or None,
    )


def _start_args(engine: EngineFacts, deployment: Deployment, slots: int) -> dict[str, str | int | float | bool]:
    """Starting parameters in the engine's own flag names: context, slots, ranks."""
    names = {
        "vllm": ("max_model_len", "max_num_seqs", "tensor_parallel_size"),
        "sglang": ("context_length", "max_running_requests", "tp_size"),
        "tensorrt-llm": ("max_seq_len", "max_batch_size", "tp_size"),
        "llama.cpp": ("ctx_size", "parallel", "tensor_split"),
    }.get(engine.id)
    if names is None:
        return {}
    context = deployment.max_model_len * (slots if engine.id == "llama.cpp" else 1)  # llama.cpp shares one context
    ranks = deployment.parallelism.tensor
    args: dict[str, str | int | float | bool] = {names[0]: context, names[1]: slots}
    return {**args, names[2]: ranks} if ranks > 1 else args
