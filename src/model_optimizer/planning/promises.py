"""The SLO against predictions: the heaviest load that should keep it, and what no implementation could keep."""

from __future__ import annotations

import itertools
from typing import NamedTuple

from model_optimizer.errors import SpecInvalid
from model_optimizer.records.verdict import Check
from model_optimizer.records.workload import SLO, Limit, Load, Metric, TrafficProfile
from model_optimizer.sizing.speed import Mix, Replica, Speed, Steady, tpot_tail
from model_optimizer.units import format_bytes, format_count, format_seconds

_SHARES = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99, "max": 1.0}
_SECONDS: frozenset[Metric] = frozenset({"ttft", "tpot", "itl", "e2e"})


class Floor(NamedTuple):
    """A latency limit that lies below what the hardware can do: the sentence with its arithmetic.

    ``by_memory``: it takes the memory's bandwidth to show it; else the arithmetic peak alone does.
    """

    limit: Limit
    seconds: float
    sentence: str
    by_memory: bool


def mix_of(traffic: TrafficProfile) -> Mix:
    """The traffic's classes as the arithmetic takes them."""
    total = sum(c.weight for c in traffic.lengths)
    return Mix(
        tuple(
            (float(c.prompt_tokens), float(c.output_tokens or traffic.output_tokens), c.weight / total)
            for c in traffic.lengths
        )
    )


def lightest(traffic: TrafficProfile) -> Load:
    """The traffic's first and lightest load: rates after users, as they are measured."""
    return min(traffic.loads, key=lambda load: (load.concurrency is None, load.concurrency or load.rate_per_s or 0))


def heaviest(traffic: TrafficProfile) -> Load:
    """The heaviest load: the highest rate where there is one, else the most users."""
    return max(traffic.loads, key=lambda load: (load.rate_per_s is not None, load.rate_per_s or load.concurrency or 0))


def check_slo(slo: SLO) -> None:
    """Raise ``SpecInvalid`` where limits contradict each other: a stricter one for a slower request, or an end-to-end
    time that is over before its first token (or between two of its tokens).
    """
    for one, other in itertools.permutations(slo.latency_limits, 2):
        why = _contradiction(one, other)
        if why:
            raise SpecInvalid(
                f"{one.name} and {other.name} contradict each other",
                cause=f"{one.name} ≤ {format_seconds(one.limit)}, {other.name} ≤ {format_seconds(other.limit)}: {why}",
                fix=f"raise {one.name} above {format_seconds(other.limit)}, or leave one of the two out",
            )


def _contradiction(one: Limit, other: Limit) -> str:
    share, than = (_SHARES.get(limit.statistic, -1.0) for limit in (one, other))
    if one.metric == other.metric and share > than >= 0 and one.limit < other.limit:
        return f"the {one.statistic} is never below the {other.statistic} of the same requests"
    if one.metric == "e2e" and one.statistic == other.statistic and one.limit <= other.limit:
        part = "the time to the first token" if other.metric == "ttft" else "the time between tokens"
        return f"the end-to-end time includes {part}"
    return ""


def predicted(limit: Limit, steady: Steady, speed: Speed, users: float) -> float | None:
    """The predicted value a latency limit is held against, one replica at this load. ``None``: not a latency."""
    share = _SHARES.get(limit.statistic)
    if limit.metric == "ttft":
        return speed.ttft_s if share is None else steady.ttft_at(speed, share)
    if limit.metric == "tpot":
        return speed.tpot_s if share is None else speed.tpot_s * tpot_tail(share, users)
    if limit.metric == "itl":
        return speed.tpot_s if share is None else steady.itl_at(speed, users, share)
    if limit.metric == "e2e":
        return speed.ttft_s + steady.answers * speed.tpot_s if share is None else steady.e2e_at(speed, users, share)
    return None


def capacity(steady: Steady, slo: SLO, most_users: int) -> tuple[int, str]:
    """The most users (0: none) at which every latency limit is predicted to hold, and the limit that stops the next
    one (empty: none does).

    Latency grows with users, so the boundary is found by bisection.
    """

    limits = slo.latency_limits

    def broken(users: int) -> str:
        speed = steady.at(users)
        for limit in limits:
            value = predicted(limit, steady, speed, users)
            if value is not None and value > limit.limit:
                return limit.name
        return ""

    first = broken(1)
    if first:
        return 0, first
    last = broken(most_users)
    if not last:
        return most_users, ""
    low, high = 1, most_users
    while high - low > 1:
        middle = (low + high) // 2
        name = broken(middle)
        low, high, last = (low, middle, name) if name else (middle, high, last)
    return low, last


def checks(steady: Steady, slo: SLO, users: float, replicas: int, busy: float | None = None) -> tuple[Check, ...]:
    """Each limit against its prediction: latencies of one replica with that many users, rates of all replicas.

    ``busy``: users of a replica at which rates are judged, where that is another load.
    """
    speed = steady.at(users)
    rate = steady.at(busy or users).request_rate_per_s * min(1.0, busy or users) * replicas
    rates = {"output_tokens_per_s": rate * steady.answers, "request_rate": rate}
    found = []
    for limit in slo.limits:
        value = rates.get(limit.metric, predicted(limit, steady, speed, users))
        sign = "≥" if limit.at_least else "≤"
        if value is None:
            found.append(
                Check(name=limit.name, limit=f"{sign} {_show(limit, limit.limit)}", found="measured only", ok=None)
            )
            continue
        room = value - limit.limit if limit.at_least else limit.limit - value
        found.append(
            Check(
                name=limit.name,
                limit=f"{sign} {_show(limit, limit.limit)}",
                found=f"{_show(limit, value)} predicted",
                ok=room >= 0,
                margin=room / limit.limit if limit.limit else None,
            )
        )
    return tuple(found)


def below_the_floor(replica: Replica, mix: Mix, slo: SLO) -> Floor | None:
    """The first latency limit that no tuning can reach: weights over bandwidth, FLOP over peak, nothing else."""
    for limit in slo.latency_limits:
        floor = _floor(limit, replica, mix)
        if floor > limit.limit:
            by_memory = _floor(limit, replica, mix, memory=False) <= limit.limit
            return Floor(limit, floor, _sentence(limit, floor, replica, mix), by_memory)
    return None


def _floor(limit: Limit, replica: Replica, mix: Mix, *, memory: bool = True) -> float:
    share = _SHARES.get(limit.statistic)
    tpot = replica.tpot_floor_s() if memory else 0.0

    def first_token(prompt: float) -> float:
        return replica.ttft_floor_s(prompt) if memory else replica.prefill_floor_s(prompt)

    if limit.metric in ("tpot", "itl"):
        return tpot
    if share is None:
        first = sum(first_token(prompt) * part for prompt, _, part in mix.classes)
        return first if limit.metric == "ttft" else first + (max(1.0, mix.output_tokens) - 1) * tpot
    if limit.metric == "ttft":
        return first_token(mix.prompt_at(share))
    spans = sorted((first_token(p) + (max(1.0, a) - 1) * tpot, part) for p, a, part in mix.classes)
    seen = 0.0
    for span, part in spans:
        seen += part
        if seen >= share - 1e-9:
            return span
    return spans[-1][0]


def _sentence(limit: Limit, floor: float, replica: Replica, mix: Mix) -> str:
    device, read = replica.device, replica.weights_read(1)
    bandwidth = device.bandwidth_bytes_s
    kept = f", {format_bytes(device.cache_bytes)} of it kept in cache" if device.cache_bytes else ""
    gpus = f" on each of {replica.split.num_gpus} GPUs" if replica.split.num_gpus > 1 else ""
    arithmetic = f"{read / 1e9:.2f} GB of weights read a token{gpus}{kept} at {bandwidth / 1e9:.0f} GB/s"
    if limit.metric in ("tpot", "itl"):
        arithmetic += f", at most {1 / floor:.0f} tokens/s a user"
    elif limit.metric == "ttft" and device.peak_flops and floor > replica.tpot_floor_s():
        prompt = mix.prompt_at(_SHARES.get(limit.statistic, 0.5))
        flop = floor * device.peak_flops * replica.split.num_gpus
        arithmetic = (
            f"{flop / 1e12:.1f} TFLOP for {prompt:.0f} prompt tokens at {device.peak_flops / 1e12:.0f} TFLOP/s{gpus}"
        )
    return f"{limit.name} ≤ {format_seconds(limit.limit)} is below the floor of {format_seconds(floor)}: {arithmetic}"


def _show(limit: Limit, value: float) -> str:
    if limit.metric in _SECONDS:
        return format_seconds(value)
    if limit.metric == "peak_memory":
        return format_bytes(value)
    if limit.metric == "error_rate":
        return f"{value * 100:g} %"
    return f"{format_count(value)}/s"
