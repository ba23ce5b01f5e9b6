"""All ways to serve a model on one kind of GPU: each kept with its numbers, or refused with a reason."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from model_optimizer.kb import query
from model_optimizer.kb.ladder import last_resort
from model_optimizer.planning import devices
from model_optimizer.planning.devices import Rate
from model_optimizer.planning.promises import Floor, below_the_floor, capacity
from model_optimizer.planning.question import Found, Limits, Question
from model_optimizer.planning.stored import is_stored
from model_optimizer.records.candidate import Refusal
from model_optimizer.records.hardware import GpuSpec
from model_optimizer.records.knowledge import EngineFacts, SchemeSpec, State
from model_optimizer.records.sizing import MemoryPlan, Parallelism
from model_optimizer.sizing.memory import plan_memory
from model_optimizer.sizing.speed import Replica
from model_optimizer.units import format_bytes

# Offered only when asked for: they repeat another scheme's bytes and speed.
_REPEATED = frozenset({"fp32", "gguf-bf16"})
_ONLY_WHEN_ASKED = frozenset({"transformers"})
_LONG_CONTEXT = (
    "{scheme}: needs a long-context check before use (accuracy on long prompts; prefix-cache hits with and without)"
)


class Answer(NamedTuple):
    """What was found on one kind of GPU. ``vetoed`` fits, and the roofline refuses it (it is among ``refused``)."""

    found: list[Found]
    refused: list[Refusal]
    vetoed: list[Found]


class _Case(NamedTuple):
    """One scheme in one engine on one kind of GPU."""

    ask: Question
    gpu: GpuSpec
    engine: EngineFacts
    scheme: SchemeSpec
    state: State
    rate: Rate
    limits: Limits


def options_on(ask: Question, gpu: GpuSpec, limits: Limits) -> Answer:
    """Options and refusals of this GPU.

    An engine that cannot run there at all is refused once, not for each scheme. Schemes of last resort are only looked
    at where nothing else fits.
    """
    answer = Answer([], [], [])
    open_engines = list(_engines_for(ask, gpu, answer))
    for last in (False, True):
        if last and (answer.found or answer.vetoed or ask.schemes):
            break
        for engine in open_engines:
            if not last:
                answer.refused.extend(_unreadable(ask, engine, gpu))
            for scheme in _schemes_for(ask, engine, gpu, last):
                _with_scheme(ask, gpu, engine, scheme, limits, answer)
    return answer


def _engines_for(ask: Question, gpu: GpuSpec, answer: Answer) -> Iterator[EngineFacts]:
    for engine in query.engines():
        if not engine.server or (ask.engines and engine.id not in ask.engines):
            continue
        if not ask.engines and (engine.id in _ONLY_WHEN_ASKED or engine.platforms == ("cpu",)):
            continue
        shut = next((g for g in query.gates(engine.id, gpu.id, os=ask.os, driver=ask.driver) if not g.may_try), None)
        if shut is not None:
            answer.refused.append(_refusal(f"{engine.id} · {gpu.id}", shut))
        elif ask.model.format == "gguf" and "gguf" not in engine.checkpoints:
            answer.refused.append(
                Refusal(
                    route=f"{engine.id} · {gpu.id}",
                    code="FORMAT_UNKNOWN",
                    reason=f"{engine.title} reads {', '.join(engine.checkpoints)} checkpoints; this is a GGUF file",
                    fix="start from the original Hugging Face checkpoint",
                    source=engine.sources[0].title if engine.sources else None,
                    date=engine.sources[0].read if engine.sources else None,
                )
            )
        else:
            yield engine


def _schemes_for(ask: Question, engine: EngineFacts, gpu: GpuSpec, last: bool) -> Iterator[SchemeSpec]:
    for scheme in query.schemes():
        if scheme.kind != "weights" or (ask.stored is not None and scheme.id not in ask.stored):
            continue
        if ask.schemes:
            wanted = scheme.id in ask.schemes
        elif ask.stored is not None:
            wanted = True
        else:
            wanted = (scheme.id in last_resort()) == last and _readable(engine, scheme)
            wanted = wanted and not _repeats(ask, scheme, gpu)
        if wanted:
            yield scheme


def _readable(engine: EngineFacts, scheme: SchemeSpec) -> bool:
    return scheme.checkpoint in (*engine.checkpoints, "any")


def _unreadable(ask: Question, engine: EngineFacts, gpu: GpuSpec) -> Iterator[Refusal]:
    """One line for each kind of file that the engine does not read, where nobody asked for a scheme by name."""
    if ask.schemes or ask.stored is not None:
        return
    for kind in ("hf", "gguf"):
        unread = [s for s in query.schemes() if s.kind == "weights" and s.checkpoint == kind]
        if kind not in engine.checkpoints and unread:
            state = query.state(unread[-1].id, engine.id, gpu.id, os=ask.os, driver=ask.driver)
            if not state.may_try:
                yield _refusal(f"{len(unread)} {kind} schemes · {engine.id} · {gpu.id}", state)


def _repeats(ask: Question, scheme: SchemeSpec, gpu: GpuSpec) -> bool:
    """True for 16-bit schemes that would only say another one again: of bf16 and fp16 the stored one is enough."""
    stored = ask.model.weight_dtype
    if scheme.id == "fp16":
        return stored == "BF16" and gpu.features.get("bf16", gpu.peak_flops("bf16") is not None)
    return scheme.id in _REPEATED or (scheme.id == "bf16" and stored == "F16")


def _with_scheme(
    ask: Question,
    gpu: GpuSpec,
    engine: EngineFacts,
    scheme: SchemeSpec,
    limits: Limits,
    answer: Answer,
) -> None:
    """The smallest replica that keeps the promises (more GPUs only cost messages), else the smallest that fits."""
    route = f"{scheme.id} · {engine.id} · {gpu.id}"
    installed = ask.installed.get(engine.id)
    state = query.state(scheme.id, engine.id, gpu.id, os=ask.os, driver=ask.driver, installed=installed)
    if not state.may_try:
        answer.refused.append(_refusal(route, state))
        return
    rate = devices.compute_rate(gpu, scheme, state)
    if rate is None:
        reason = f"no source gives any arithmetic rate of {gpu.title}"
        answer.refused.append(Refusal(route=route, code="NOT_ESTABLISHED", reason=reason))
        return
    case = _Case(ask, gpu, engine, scheme, state, rate, limits)
    first: Found | None = None
    refusal: Refusal | None = None
    for split in devices.splits(engine.id, limits.replica):
        found, why = _with_split(case, split, None)
        refusal = why or refusal
        if found is not None and why is not None:
            answer.vetoed.append(found)
        elif found is not None and (found.keeps(ask.slo, ask.at) or first is None):
            first = found
            if found.keeps(ask.slo, ask.at):
                break
    if first is not None:
        answer.found.append(first)
    elif refusal is not None:
        answer.refused.append(refusal)
    answer.found.extend(_smaller_kv(case, first, refusal))


def _smaller_kv(case: _Case, first: Found | None, refusal: Refusal | None) -> Iterator[Found]:
    """The same with a KV cache of 8 bits, where the KV cache is what stops it, or where it was asked for by name.

    In a comparison of many GPUs only where the default keeps no promise: it would come first anyway.
    """
    ask = case.ask
    short = refusal is not None and refusal.code == "KV_CACHE_DOES_NOT_FIT" and first is None
    binds = first is not None and not (case.limits.brief and first.keeps(ask.slo, ask.at)) and _kv_binds(first)
    if not (short or binds or ask.kv_schemes):
        return
    for kv in query.schemes():
        if kv.kind != "kv_cache" or (kv.id not in ask.kv_schemes if ask.kv_schemes else kv.weight_bits < 8):
            continue
        state = query.state(kv.id, case.engine.id, case.gpu.id, os=ask.os, driver=ask.driver)
        if state.state not in ("native", "emulated") or query.shape_refusals(ask.model, kv.id, case.engine.id):
            continue
        for split in devices.splits(case.engine.id, case.limits.replica):
            found, why = _with_split(case, split, kv)
            if found is not None and why is None:
                yield found
                break


def _kv_binds(found: Found) -> bool:
    users = max(1, found.users)
    return found.binding == "KV cache" or found.steady.replica.binds(users, found.steady.context) == "KV cache"


def _with_split(case: _Case, split: Parallelism, kv: SchemeSpec | None) -> tuple[Found | None, Refusal | None]:
    """The option, or why not; both where it fits and lies below the roofline's floor."""
    ask, gpu, engine, scheme = case.ask, case.gpu, case.engine, case.scheme
    for shape in query.shape_refusals(ask.model, scheme.id, engine.id, split.tensor):
        if not shape.may_try:
            return None, _refusal(_label(case, split, kv), shape)
    memory = _memory(case, split, kv)
    refusal = _memory_refusal(case, memory, _label(case, split, kv))
    if refusal is not None:
        return None, refusal
    how = devices.efficiency(engine, case.state)
    if ask.doubtful or case.rate.assumed:
        how = how._replace(spread=devices.DOUBTFUL_SPREAD, ttft_spread=devices.DOUBTFUL_SPREAD)
    replica = Replica(
        ask.model,
        memory.weights,
        devices.device(gpu, case.rate.flops)._replace(peak_flops=devices.floor_flops(gpu, scheme, case.state)),
        how,
        kv_bytes_per_token=memory.kv_bytes_per_token,
        split=split,
        micro_batches=devices.micro_batches(engine, split),
        active=ask.active,
    )
    steady = replica.steady(ask.mix)
    floor = below_the_floor(replica, ask.mix, ask.slo)
    slots = max(1, min(memory.max_sequences, devices.most_users(engine)))
    users, binding = (0, floor.limit.name) if floor else capacity(steady, ask.slo, slots)
    if users == slots:
        binding = "KV cache" if slots == memory.max_sequences else "slots"
    found = Found(
        gpu, engine, scheme, case.state, split, kv, memory, steady, slots, users, binding, case.limits.given,
        notes=tuple(_notes(case, kv, memory, floor)),
    )  # fmt: skip
    if floor is not None and _may_refuse(floor, gpu) and not ask.doubtful:
        return found, _veto(found.label, floor)
    return found, None


def _may_refuse(floor: Floor, gpu: GpuSpec) -> bool:
    """Peaks reach the arithmetic only where they may refuse (``devices.floor_flops``); the bandwidth always does."""
    return not floor.by_memory or gpu.memory_bandwidth_bytes_s.may_refuse


def _label(case: _Case, split: Parallelism, kv: SchemeSpec | None) -> str:
    count = f"{split.num_gpus}x " if split.num_gpus > 1 else ""
    return " · ".join([case.scheme.id, case.engine.id, *([kv.id] if kv else []), f"{count}{case.gpu.id}"])


def _memory(case: _Case, split: Parallelism, kv: SchemeSpec | None) -> MemoryPlan:
    ask, scheme = case.ask, case.scheme
    stored = None if is_stored(scheme, ask.stored) else scheme
    if case.state.code == "DEQUANTIZED_ON_LOAD":
        stored = query.scheme("bf16")
    whole = devices.reserves_whole_slots(case.engine)
    return plan_memory(
        ask.model,
        total_bytes=case.gpu.usable_memory_bytes,
        engine=devices.engine_memory(case.engine, case.gpu, split),
        split=split,
        kv_bytes_per_element=kv.weight_bits / 8 if kv else 2.0,
        live_tokens=ask.max_model_len if whole else ask.mix.live_tokens,
        weights=ask.weights(stored, split),
    )


def _memory_refusal(case: _Case, memory: MemoryPlan, label: str) -> Refusal | None:
    if not memory.weights_fit:
        return Refusal(
            route=label,
            code="WEIGHTS_DO_NOT_FIT",
            reason=f"weights {format_bytes(memory.weight_bytes)} and what the engine needs beside them exceed the "
            f"usable {format_bytes(memory.usable_bytes)} of each GPU by {format_bytes(-memory.kv_bytes)}",
            fix=query.reason("WEIGHTS_DO_NOT_FIT").fix,
            source="arithmetic on the checkpoint's headers",
        )
    needed = case.ask.traffic.longest_sequence
    if memory.longest_context < needed and not case.ask.doubtful:
        return Refusal(
            route=label,
            code="KV_CACHE_DOES_NOT_FIT",
            reason=f"{format_bytes(memory.kv_bytes)} left for the KV cache hold {memory.longest_context} tokens, the "
            f"longest request needs {needed}",
            fix=query.reason("KV_CACHE_DOES_NOT_FIT").fix,
            source="arithmetic on config.json",
        )
    return None


def _notes(case: _Case, kv: SchemeSpec | None, memory: MemoryPlan, floor: Floor | None) -> Iterator[str]:
    if kv is not None:
        yield _LONG_CONTEXT.format(scheme=kv.title)
    if case.state.state == "unknown":
        yield f"no source decides whether it works: {case.state.sentence}"
    if case.rate.assumed:
        yield f"no source gives the {case.rate.dtype} rate of {case.gpu.title}: twice its FP32 rate is assumed"
    if floor is not None and not _may_refuse(floor, case.gpu):
        yield f"{floor.sentence}. Only the community says how fast this memory is: a hint, no refusal"
    if memory.longest_context < case.ask.traffic.longest_sequence:
        yield f"by the shapes in config.json the KV cache holds only {memory.longest_context} tokens"


def _veto(label: str, floor: Floor) -> Refusal:
    return Refusal(
        route=label,
        code="ROOFLINE_ABOVE_SLO",
        reason=floor.sentence,
        fix=f"{query.reason('ROOFLINE_ABOVE_SLO').fix}; speculative decoding makes several tokens a step",
        source="arithmetic on sourced peaks",
    )


def _refusal(route: str, state: State) -> Refusal:
    return Refusal(
        route=route,
        code=state.code,
        reason=state.sentence,
        fix=query.reason(state.code).fix or None,
        source="; ".join(source.title for source in state.sources) or state.status,
        date=state.date or None,
    )
