"""The buyer's question and the owner's: over one GPU or all of them, what serves this traffic best."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from model_optimizer.errors import NothingFits
from model_optimizer.kb import query
from model_optimizer.planning.options import Question, options_on
from model_optimizer.records.candidate import Refusal
from model_optimizer.records.fleet import Fleet, Option, Price
from model_optimizer.records.hardware import GpuSpec
from model_optimizer.records.knowledge import Electricity, OsName, Sourced
from model_optimizer.records.model import ModelSpec
from model_optimizer.records.workload import SLO, Objective, TrafficProfile
from model_optimizer.sizing.cost import power_usd_per_month, replicas_for, usd_per_million_tokens
from model_optimizer.units import format_seconds

Rates = tuple[Sourced[float] | None, Electricity]

# What people lose on average with calibrated weights of this many bits (field notes: FP8 lossless, INT8 1-3 %, 4 bit
# competitive but not free). It only orders what to try first; the accuracy gate decides.
_QUALITY = ((15.9, 1.0), (7.9, 0.98), (4.4, 0.88), (3.9, 0.80), (0.0, 0.50))


def plan_fleet(
    model: ModelSpec,
    gpu: str,
    traffic: TrafficProfile,
    slo: SLO,
    *,
    objective: Objective,
    max_model_len: int,
    os: OsName = "linux",
    driver: str | None = None,
    engines: tuple[str, ...] = (),
    schemes: tuple[str, ...] = (),
    prices: Path | None = None,
) -> Fleet:
    """Options on ``gpu``: a name, ``4x NAME``, or ``all`` (then up to eight of each, best option of each first).

    Raises ``UnknownName`` for names, ``NothingFits`` where every route on every GPU is refused.
    """
    specs, max_gpus = _targets(gpu)
    for name in schemes:
        query.scheme(name)
    options: list[Option] = []
    refused: list[Refusal] = []
    energy = query.electricity(prices)
    for spec in specs:
        ask = Question(
            model, spec, traffic, slo, max_model_len, max_gpus, os, driver,
            tuple(query.engine(name).id for name in engines), tuple(query.scheme(name).id for name in schemes),
        )  # fmt: skip
        found, left_out = options_on(ask)
        rates = (query.usd_per_hour(spec.id, prices), energy)
        options += [_priced(option, spec, traffic, objective, rates) for option in found]
        refused += left_out
    if not options:
        raise NothingFits(
            f"nothing can serve {model.source} on {gpu}",
            cause="every route was refused",
            fix="a smaller scheme or model, more GPUs (4x NAME), or a GPU with more memory; --gpu all shows which",
            evidence=[f"{r.route}: {r.code}: {r.reason}" for r in _telling(refused)],
        )
    ranked = sorted(options, key=lambda option: (option.meets, option.score), reverse=True)
    meeting = [option for option in ranked if option.meets]
    return Fleet(
        model=model.source,
        traffic=traffic,
        slo=slo,
        objective=objective,
        options=tuple(ranked),
        refused=tuple(refused),
        nearest=None if meeting else _nearest(ranked),
        levers=() if meeting else _levers(ranked, model, specs, traffic, slo, max_model_len),
    )


def best_of_each_gpu(fleet: Fleet) -> tuple[Option, ...]:
    """The best option of each kind of GPU, in the fleet's order: what a buyer compares."""
    best: dict[str, Option] = {}
    for option in fleet.options:
        best.setdefault(option.deployment.gpu, option)
    return tuple(best.values())


def _targets(gpu: str) -> tuple[tuple[GpuSpec, ...], int]:
    if gpu.strip().lower() == "all":
        return query.gpus(), 8
    counted = re.match(r"^\s*(\d+)\s*[x×]\s*(.+)$", gpu, re.IGNORECASE)
    count = int(counted[1]) if counted else 1
    return (query.gpu(counted[2] if counted else gpu),), count


def _priced(option: Option, spec: GpuSpec, traffic: TrafficProfile, objective: Objective, rates: Rates) -> Option:
    replica = option.deployment.parallelism.num_gpus
    rate = max((load.rate_per_s or 0.0 for load in traffic.loads), default=0.0)
    best = option.capacity
    gpus = replica * (replicas_for(rate, best.request_rate_per_s.value) if best is not None and rate else 1)
    hour, energy = rates
    power = None if spec.tdp_w is None else power_usd_per_month(spec.tdp_w.value * gpus, energy.usd_per_kwh, energy.pue)
    usd = hour.value * gpus if hour is not None else None
    served = best.output_tokens_per_s.value if best is not None else 0.0
    if rate and best is not None:
        served = rate * served / best.request_rate_per_s.value
    elif best is not None:
        served = served * gpus / replica
    price = Price(
        usd_per_hour=usd,
        usd_per_million_tokens=usd_per_million_tokens(usd, served) if usd is not None and served else None,
        power_usd_per_month=power,
        basis=hour.note if hour is not None else "no price known",
    )
    priced = option.model_copy(update={"price": price, "num_gpus": gpus})
    return priced.model_copy(update={"score": _score(priced, objective)})


def _score(option: Option, objective: Objective) -> float:
    """Higher is better: goodput a GPU, or a dollar, times what the scheme usually keeps of the quality."""
    bits = query.scheme(option.deployment.scheme).weight_bits
    kept = next(value for floor, value in _QUALITY if bits > floor)
    certain = 1.0 if option.state.state in ("native", "emulated") else 0.8
    best = option.capacity
    if best is None:
        return kept * certain / option.light.tpot_s.value * 1e-6
    if objective == "latency":
        return kept * certain / option.light.tpot_s.value
    if objective == "memory":
        return kept * certain / option.memory.weight_bytes
    if objective == "quality":
        return kept + 1e-6 * best.request_rate_per_s.value
    if objective == "cost":
        cost = option.price.usd_per_million_tokens
        return kept * certain / cost if cost else 0.0
    return kept * certain * best.request_rate_per_s.value / option.deployment.parallelism.num_gpus


def _nearest(options: Sequence[Option]) -> Option | None:
    def worst(option: Option) -> float:
        return min((c.margin for c in option.checks if c.margin is not None), default=float("-inf"))

    return max(options, key=worst, default=None)


def _levers(
    options: Sequence[Option],
    model: ModelSpec,
    here: Sequence[GpuSpec],
    traffic: TrafficProfile,
    slo: SLO,
    max_model_len: int,
) -> tuple[str, ...]:
    """What would make it feasible: the limit that holds today, and the cheapest GPU that is predicted to meet the SLO."""
    levers = []
    near = _nearest(options)
    if near is not None:
        broken = [check for check in near.checks if check.ok is False]
        for check in broken:
            levers.append(
                f"loosen {check.name} to {check.found.removesuffix(' predicted')} with {near.deployment.label}"
            )
    others = [spec for spec in query.gpus() if spec.id not in {s.id for s in here}]
    feasible: list[Option] = []
    for spec in others:
        ask = Question(model, spec, traffic, slo, max_model_len, 1)
        feasible += [option for option in options_on(ask)[0] if option.meets]
    for option in sorted(feasible, key=_hourly)[:1]:
        price = query.usd_per_hour(option.deployment.gpu)
        paid = f" at about ${price.value:.2f} an hour" if price is not None else ""
        levers.append(
            f"a {query.gpu(option.deployment.gpu).title}{paid}: {option.deployment.label} is predicted to meet it "
            f"(TPOT {format_seconds(option.light.tpot_s.value)} for one user)"
        )
    return tuple(levers)


def _hourly(option: Option) -> float:
    price = query.usd_per_hour(option.deployment.gpu)
    return price.value if price is not None else float("inf")


def _telling(refused: Sequence[Refusal], limit: int = 12) -> list[Refusal]:
    """The refusals that are about this model first: memory and roofline before formats."""
    order = ("WEIGHTS_DO_NOT_FIT", "KV_CACHE_DOES_NOT_FIT", "ROOFLINE_ABOVE_SLO")
    return sorted(refused, key=lambda r: order.index(r.code) if r.code in order else len(order))[:limit]
