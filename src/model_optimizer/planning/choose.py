"""From what was found to a ranked list of records: order, prices, and why each has its place."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from model_optimizer.kb import query
from model_optimizer.kb.ladder import engine_rank, rung
from model_optimizer.planning.promises import checks, heaviest
from model_optimizer.planning.question import Found, Question
from model_optimizer.planning.start import start_args
from model_optimizer.records.fleet import Deployment, Option, Price
from model_optimizer.records.knowledge import Electricity, Sourced
from model_optimizer.records.verdict import Check
from model_optimizer.records.workload import Load
from model_optimizer.sizing.cost import power_usd_per_month, usd_per_million_tokens

ABOUT_EQUAL = 0.20
"""Predictions order configurations of one GPU to about this share; what is nearer is ordered by the ladder."""

_NOT_ON_THE_LADDER = 99


class Rates(NamedTuple):
    """What an hour of one GPU costs (``None``: unknown), and energy."""

    usd_per_hour: Sourced[float] | None
    energy: Electricity


class Ranked(NamedTuple):
    """A find with its score: higher is better within its class, and the class comes first.

    ``standing``: keeps the SLO; KV cache as it is by default; a source says that it runs; a price is known (for cost).
    """

    found: Found
    standing: tuple[bool, ...]
    score: float


def ranked(ask: Question, found: Iterable[Found], rates: Rates) -> list[Ranked]:
    """Best first. What is about equal by prediction follows the ladder of the GPU's generation, then the engine."""
    scored = [_scored(ask, one, rates) for one in found]
    scored.sort(key=lambda one: (one.standing, one.score), reverse=True)
    order: list[Ranked] = []
    while scored:
        best = scored[0]
        equal = best.score - abs(best.score) * ABOUT_EQUAL
        group = [one for one in scored if one.standing == best.standing and one.score >= equal]
        scored = scored[len(group) :]
        order += sorted(group, key=lambda one: (_rung_number(one.found), engine_rank(one.found.engine.id), -one.score))
    return order


def _rung_number(found: Found) -> int:
    step = rung(found.gpu, found.engine.id, found.scheme.id)
    return step.number if step is not None else _NOT_ON_THE_LADDER


def _scored(ask: Question, found: Found, rates: Rates) -> Ranked:
    keeps = found.keeps(ask.slo, ask.at)
    priced = ask.objective != "cost" or rates.usd_per_hour is not None
    standing = (keeps, found.kv is None, found.state.state != "unknown", priced)
    return Ranked(found, standing, _score(ask, found, rates) if keeps else worst_margin(ask, found))


def _score(ask: Question, found: Found, rates: Rates) -> float:
    """Higher is better, by the objective; requests a second of a GPU where nothing else is asked for."""
    speed = found.steady.at(found.users)
    goodput = speed.request_rate_per_s / found.split.num_gpus
    if ask.objective == "latency":
        one = found.steady.at(1)
        return 1 / (one.ttft_s + found.steady.answers * one.tpot_s)
    if ask.objective == "memory":
        return 1 / (found.memory.weight_bytes * found.split.num_gpus)
    if ask.objective == "quality":
        return found.scheme.weight_bits + found.scheme.activation_bits / 100
    if ask.objective == "cost" and rates.usd_per_hour is not None:
        return 1 / (_usd_per_million(ask, found, rates.usd_per_hour.value) or 1e9)
    return goodput


def worst_margin(ask: Question, found: Found) -> float:
    """Room to the tightest limit as a share of it; negative where it is missed."""
    margins = [check.margin for check in verdicts(ask, found) if check.margin is not None]
    return min(margins, default=0.0)


class Judged(NamedTuple):
    """Where the SLO is judged: users of each replica, replicas, and users of a replica at which rates are."""

    users: float
    replicas: int
    busy: float


def promised(ask: Question, found: Found) -> Judged:
    """As many replicas as needed, within the GPUs given. Rates are judged at capacity where the SLO names no load: they
    are demands on the whole service.
    """
    replicas = found.replicas_kept(ask.slo, ask.at)
    if found.gpus_given is not None:
        replicas = min(replicas, max(1, found.gpus_given // found.split.num_gpus))
    if not found.users:
        return Judged(1.0, replicas, 1.0)
    if ask.at.concurrency is not None:
        users = ask.at.concurrency / replicas
    else:
        users = found.users_at(Load(rate_per_s=(ask.at.rate_per_s or 0.0) / replicas * found.replicas(ask.at)))
    return Judged(users, replicas, users if ask.slo.at is not None else float(found.users))


def verdicts(ask: Question, found: Found) -> tuple[Check, ...]:
    """Every limit of the SLO where it is judged."""
    judged = promised(ask, found)
    return checks(found.steady, ask.slo, judged.users, judged.replicas, judged.busy)


def _usd_per_million(ask: Question, found: Found, usd_per_hour: float) -> float | None:
    """At the heaviest load of the traffic: what all GPUs cost, over the tokens that are asked for."""
    load = heaviest(ask.traffic)
    replicas = found.replicas(load)
    if load.rate_per_s is not None:
        tokens = load.rate_per_s * found.steady.answers
    else:
        tokens = replicas * found.steady.at(found.users_at(load)).request_rate_per_s * found.steady.answers
    return usd_per_million_tokens(usd_per_hour * replicas * found.split.num_gpus, tokens) if tokens else None


def option_of(ask: Question, one: Ranked, rates: Rates) -> Option:
    """The record of a find, with its price at the heaviest load."""
    found = one.found
    load = heaviest(ask.traffic)
    gpus = max(found.replicas(load), found.replicas_kept(ask.slo, ask.at)) * found.split.num_gpus
    steady = found.steady
    return Option(
        deployment=_deployment(ask, found),
        state=found.state,
        memory=found.memory,
        light=steady.estimate(1),
        capacity=steady.estimate(found.users) if found.users else None,
        loaded=steady.estimate(found.users_at(load)) if found.users else None,
        checks=verdicts(ask, found),
        num_gpus=gpus,
        price=_price(ask, found, gpus, rates),
        score=one.score,
        binding=_binding(ask, found),
        why=why(found),
        notes=found.notes,
    )


def why(found: Found) -> str:
    """Its place on the ladder, or that it has none."""
    step = rung(found.gpu, found.engine.id, found.scheme.id)
    if step is None:
        return "not on the ladder of this generation: its place is by prediction alone"
    return f"rung {step.number} of the ladder for {step.generation}: {step.why}"


def _deployment(ask: Question, found: Found) -> Deployment:
    context = min(ask.max_model_len, max(found.memory.longest_context, ask.traffic.longest_sequence))
    return Deployment(
        gpu=found.gpu.id,
        engine=found.engine.id,
        version=found.state.version,
        scheme=found.scheme.id,
        parallelism=found.split,
        kv_dtype=found.kv.id if found.kv else "auto",
        max_model_len=context,
        engine_args=start_args(found, context, ask.slo),
    )


def _price(ask: Question, found: Found, gpus: int, rates: Rates) -> Price:
    hour, energy, tdp = rates.usd_per_hour, rates.energy, found.gpu.tdp_w
    power = None if tdp is None else power_usd_per_month(tdp.value * gpus, energy.usd_per_kwh, energy.pue)
    where = f"{energy.region}, {energy.date}".strip(", ")
    return Price(
        usd_per_hour=None if hour is None else hour.value * gpus,
        usd_per_million_tokens=_usd_per_million(ask, found, hour.value) if hour is not None and found.users else None,
        power_usd_per_month=power,
        basis="nobody's price is known" if hour is None else hour.note,
        power_basis=f"{energy.usd_per_kwh:g} $/kWh ({where}), all GPUs at their power limit, PUE {energy.pue:g}",
    )


def _binding(ask: Question, found: Found) -> str:
    """What stops the next user, in words."""
    if found.binding == "KV cache":
        return f"KV cache: room for {found.memory.max_sequences} sequences"
    if found.binding == "slots":
        return f"{found.slots} slots of the engine"
    beyond = next((c for c in checks(found.steady, ask.slo, found.users + 1, 1) if c.name == found.binding), None)
    value = f" ({beyond.found.removesuffix(' predicted')} with {found.users + 1})" if beyond is not None else ""
    return f"{found.binding}{value}"


def rates_of(ask: Question, gpu_id: str, energy: Electricity) -> Rates:
    """The user's price, else the median of what is asked for it."""
    return Rates(query.usd_per_hour(gpu_id, ask.prices), energy)
