"""The SLO against predictions: the heaviest load that should keep it, and what no implementation could keep."""

from __future__ import annotations

from collections.abc import Mapping

from model_optimizer.kb import query
from model_optimizer.records.candidate import Refusal
from model_optimizer.records.sizing import Span, SpeedEstimate
from model_optimizer.records.verdict import Check
from model_optimizer.records.workload import SLO, Limit, TrafficProfile
from model_optimizer.sizing.speed import Device, Load, Replica
from model_optimizer.units import format_bytes, format_count, format_seconds

_TAIL = frozenset({"p90", "p95", "p99", "max"})


def load_of(traffic: TrafficProfile, users: float) -> Load:
    """The traffic's mean request at that many users."""
    total = sum(c.weight for c in traffic.lengths)
    answers = sum((c.output_tokens or traffic.output_tokens) * c.weight for c in traffic.lengths) / total
    return Load(users, traffic.mean_prompt_tokens, answers)


def predicted(limit: Limit, speed: SpeedEstimate, answers: float) -> float | None:
    """The predicted value a limit is held against: the middle for means and medians, the slow end for tails.

    ``None`` where nothing is predicted (errors).
    """

    def of(span: Span) -> float:
        return span.high if limit.statistic in _TAIL else span.value

    if limit.metric == "ttft":
        return of(speed.ttft_s)
    if limit.metric in ("tpot", "itl"):
        return of(speed.tpot_s)
    if limit.metric == "e2e":
        return of(speed.ttft_s) + answers * of(speed.tpot_s)
    if limit.metric == "output_tokens_per_s":
        return speed.output_tokens_per_s.value
    if limit.metric == "request_rate":
        return speed.request_rate_per_s.value
    return None


def checks_at(speed: SpeedEstimate, slo: SLO, traffic: TrafficProfile) -> tuple[Check, ...]:
    """Each limit against its prediction at this load."""
    found = []
    answers = load_of(traffic, 1).output_tokens
    for limit in slo.limits:
        value = predicted(limit, speed, answers)
        show = format_seconds if limit.metric in ("ttft", "tpot", "itl", "e2e") else format_count
        sign = "≥" if limit.at_least else "≤"
        if value is None:
            found.append(Check(name=limit.name, limit=f"{sign} {limit.limit:g}", found="not predicted", ok=None))
            continue
        room = value - limit.limit if limit.at_least else limit.limit - value
        found.append(
            Check(
                name=limit.name,
                limit=f"{sign} {show(limit.limit)}",
                found=f"{show(value)} predicted",
                ok=room >= 0,
                margin=room / limit.limit if limit.limit else None,
            )
        )
    return tuple(found)


def capacity(replica: Replica, slo: SLO, traffic: TrafficProfile, most_users: int) -> tuple[int, str]:
    """The most users (0: none) at which every latency limit is predicted to hold, and what stops the next one.

    Latency grows with users, so the boundary is found by bisection.
    """
    tail = 1 + replica.how.spread
    one = load_of(traffic, 1)
    limits = [(limit.metric, limit.limit / (tail if limit.statistic in _TAIL else 1.0)) for limit in slo.latency_limits]

    def holds(users: int) -> bool:
        speed = replica.at(one._replace(concurrency=users))
        e2e = speed.ttft_s + one.output_tokens * speed.tpot_s
        values = {"ttft": speed.ttft_s, "tpot": speed.tpot_s, "itl": speed.tpot_s, "e2e": e2e}
        return all(values[metric] <= limit for metric, limit in limits)

    if not holds(1):
        return 0, "latency already at one user"
    if holds(most_users):
        return most_users, "room"
    low, high = 1, most_users
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low, "latency"


def roofline_refusal(
    route: str, speed: SpeedEstimate, slo: SLO, device: Device, weights: Mapping[str, float]
) -> Refusal | None:
    """A latency limit below the floor: weights over bandwidth, FLOP over peak, nothing else. No tuning changes that."""
    floors = {"ttft": speed.ttft_floor_s, "tpot": speed.tpot_floor_s, "itl": speed.tpot_floor_s}
    for limit in slo.latency_limits:
        floor = floors.get(limit.metric)
        if floor is None or floor <= limit.limit:
            continue
        per_user = f", at most {1 / floor:.0f} tokens/s a user" if limit.metric != "ttft" else ""
        read = sum(weights.values())
        return Refusal(
            route=route,
            code="ROOFLINE_ABOVE_SLO",
            reason=f"{limit.name} ≤ {format_seconds(limit.limit)} is below the floor of {format_seconds(floor)}"
            f"{per_user}: {format_bytes(read)} of weights at {device.bandwidth_bytes_s / 1e9:.0f} GB/s, "
            f"{device.flops / 1e12:.0f} TFLOP/s",
            fix=query.reason("ROOFLINE_ABOVE_SLO").fix,
            source="arithmetic on sourced peaks",
        )
    return None
