"""The arithmetic behind an option, line by line, with where each number is from."""

from __future__ import annotations

from collections.abc import Mapping

from model_optimizer.kb import query
from model_optimizer.planning import devices
from model_optimizer.planning.choose import Rates, promised, verdicts
from model_optimizer.planning.promises import heaviest, mix_of
from model_optimizer.planning.question import HEADROOM, Found, Question
from model_optimizer.planning.stored import is_stored
from model_optimizer.records.fleet import Section
from model_optimizer.records.hardware import GpuSpec
from model_optimizer.records.knowledge import Sourced
from model_optimizer.records.run import RunSpec
from model_optimizer.records.sizing import Term
from model_optimizer.sizing.cost import HOURS_A_MONTH, power_usd_per_month
from model_optimizer.sizing.memory import explain_memory


def explain(ask: Question, found: Found, rates: Rates) -> tuple[Section, ...]:
    """Facts, memory, speed for one user and at capacity, promises, cost: what the option's numbers are made of."""
    stored = None if is_stored(found.scheme, ask.stored) else found.scheme
    engine = devices.engine_memory(found.engine, found.gpu, found.split)
    live = f"KV cache ÷ (KV per token · {ask.mix.live_tokens:.0f} tokens, a request in the middle of its answer)"
    if devices.reserves_whole_slots(found.engine):
        live = f"KV cache ÷ (KV per token · {ask.max_model_len} tokens): each slot reserves its whole context"
    fits = (
        _line("longest context", found.memory.longest_context, "tokens", "KV cache ÷ KV per token"),
        _line("sequences", found.memory.max_sequences, "", live),
    )
    parts = [
        Section(title=f"Facts about {found.gpu.title}", terms=_facts(found)),
        Section(
            title=f"Memory of one GPU, {found.label}",
            terms=(*explain_memory(ask.model, found.memory, engine, stored), *fits),
        ),
        Section(title="Speed for one user", terms=found.steady.explain(1)),
    ]
    if found.users > 1:
        parts.append(Section(title=f"Speed at capacity, {found.users} users", terms=found.steady.explain(found.users)))
    parts.append(Section(title="Promises", terms=_promises(ask, found)))
    parts.append(Section(title="Cost", terms=_cost(ask, found, rates)))
    return tuple(parts)


def request_values(spec: RunSpec) -> dict[str, tuple[str, str]]:
    """Name → (value, origin) of what the plan reads from a request. A part's origin is that of the whole it is in."""
    traffic, mix = spec.traffic, mix_of(spec.traffic)
    lengths = ", ".join(f"{share:.0%} {prompt:.0f}→{answer:.0f}" for prompt, answer, share in mix.classes)
    values = {
        "model": spec.model,
        "gpu": spec.gpu,
        "objective": spec.objective,
        "traffic": traffic.id,
        "traffic.lengths": f"{lengths} (share, prompt → answer tokens)",
        "traffic.loads": ", ".join(map(str, traffic.loads)),
        "slo": ", ".join(f"{limit.name} {'≥' if limit.at_least else '≤'} {limit.limit:g}" for limit in spec.slo.limits),
        "slo.at": str(spec.slo.at) if spec.slo.at is not None else "the lightest load",
        "engines": ", ".join(spec.engines) or "all that serve",
        "schemes": ", ".join(spec.schemes) or "all",
        "max_model_len": str(spec.max_model_len or "the longest request and 15 %"),
    }
    origins: dict[str, str] = dict(spec.origin)
    return {
        name: (text or "none", origins.get(name) or origins.get(name.split(".")[0], "default"))
        for name, text in values.items()
    }


def request_section(values: Mapping[str, tuple[str, str]]) -> Section:
    """The request: name → (value, origin: default, file or flag)."""
    terms = (Term(name=name, formula=text, origin=origin) for name, (text, origin) in values.items())
    return Section(title="The request", terms=tuple(terms))


def source_text(gpu: GpuSpec, fact: Sourced[int] | Sourced[float]) -> str:
    """``title of the best source (status, date read)``."""
    known = [gpu.source(source_id) for source_id in fact.sources]
    best = next((source for source in known if source.status == fact.status), None)
    return f"{best.title} ({fact.status}, {best.read})" if best is not None else fact.status


def _line(name: str, value: float, unit: str, formula: str, origin: str = "arithmetic") -> Term:
    return Term(name=name, value=value, unit=unit, formula=formula, origin=origin)


def _facts(found: Found) -> tuple[Term, ...]:
    gpu, state = found.gpu, found.state
    rate = devices.compute_rate(gpu, found.scheme, state)
    rows: list[tuple[str, Sourced[int] | Sourced[float] | None, str]] = [
        ("memory, as a driver shows it", gpu.reported_memory_bytes or gpu.memory_bytes, "B"),
        ("memory bandwidth", gpu.memory_bandwidth_bytes_s, "B/s"),
        (f"dense {rate.dtype} rate" if rate else "", gpu.peak_flops(rate.dtype) if rate else None, "FLOP/s"),
        ("NVLink, both directions", gpu.nvlink_bytes_s if found.split.num_gpus > 1 else None, "B/s"),
        ("power limit", gpu.tdp_w, "W"),
    ]
    terms = [
        _line(name, float(fact.value), unit, "; ".join(filter(None, (fact.basis, fact.note))), source_text(gpu, fact))
        for name, fact, unit in rows
        if fact is not None
    ]
    if rate is not None and rate.assumed:
        terms.append(_line(f"{rate.dtype} rate", rate.flops, "FLOP/s", "2 · FP32 rate", "assumed: no source gives it"))
    titles = "; ".join(source.title for source in state.sources) or "no source"
    return (
        *terms,
        Term(
            name=f"{state.scheme} in {state.engine} {state.version}",
            formula=f"{state.state}: {state.sentence}",
            origin=f"{titles} ({state.status}{', ' + state.date if state.date else ''})",
        ),
    )


def _promises(ask: Question, found: Found) -> tuple[Term, ...]:
    users, replicas, _ = promised(ask, found)
    at = f"{users:.3g} user{'s' if users != 1 else ''} on each of {replicas} replica{'s' if replicas > 1 else ''}"
    return tuple(
        Term(name=check.name, formula=f"{check.limit}; {check.found}", origin=at) for check in verdicts(ask, found)
    )


def _cost(ask: Question, found: Found, rates: Rates) -> tuple[Term, ...]:
    load = heaviest(ask.traffic)
    replicas = found.replicas(load)
    gpus = replicas * found.split.num_gpus
    spare = f", {HEADROOM:.0%} of each left free" if load.rate_per_s is not None else ""
    terms = [
        _line("replicas", replicas, "", f"for {load}, up to {found.users} users each{spare}"),
        _line("GPUs", gpus, "", f"{replicas} · {found.split.num_gpus}"),
    ]
    hour, energy, tdp = rates.usd_per_hour, rates.energy, found.gpu.tdp_w
    if hour is not None:
        terms.append(_line("price of a GPU", hour.value, "$/h", hour.note, hour.status))
    if tdp is not None:
        month = power_usd_per_month(tdp.value * gpus, energy.usd_per_kwh, energy.pue)
        formula = f"{tdp.value:g} W · {gpus} · PUE {energy.pue:g} · {HOURS_A_MONTH:g} h · {energy.usd_per_kwh:g} $/kWh"
        origin = query.electricity(ask.prices)
        terms.append(_line("power a month", month, "$", formula, f"{origin.region}, {origin.date} ({origin.status})"))
    return tuple(terms)
