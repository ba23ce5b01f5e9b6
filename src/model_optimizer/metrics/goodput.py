"""Which requests were good, whether a load kept the SLO and by how much, and the heaviest load that did."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from model_optimizer.metrics.requests import e2e_s, itl_s, tpot_s, ttft_s
from model_optimizer.records.measurement import Distribution, LoadResult, RequestTrace
from model_optimizer.records.verdict import Check
from model_optimizer.records.workload import LATENCY_METRICS, SLO, LatencyMetric, Limit
from model_optimizer.units import format_bytes, format_count, format_seconds, format_share


def _worst_gap_s(trace: RequestTrace) -> float | None:
    return max(itl_s(trace), default=None)


_OF_ONE_REQUEST: dict[LatencyMetric, Callable[[RequestTrace], float | None]] = {
    "ttft": ttft_s,
    "tpot": tpot_s,
    "itl": _worst_gap_s,
    "e2e": e2e_s,
}


def request_limits(slo: SLO) -> dict[LatencyMetric, float]:
    """The limits one request is held to, seconds: per latency metric the loosest of the SLO's limits.

    ``ttft_p50: 100 ms`` beside ``ttft_p99: 300 ms`` lets a single request take 300 ms.
    """
    loosest: dict[LatencyMetric, float] = {}
    for metric in LATENCY_METRICS:
        limits = [limit.limit for limit in slo.latency_limits if limit.metric == metric]
        if limits:
            loosest[metric] = max(limits)
    return loosest


def is_good(trace: RequestTrace, slo: SLO) -> bool:
    """Did this request succeed and keep every latency limit?

    An ITL limit is held against the *longest* gap of the answer: one visible stall makes a request bad. A latency
    that a request does not have (the TPOT of one token) breaks nothing.
    """
    if trace.error is not None:
        return False
    values = ((_OF_ONE_REQUEST[metric](trace), limit) for metric, limit in request_limits(slo).items())
    return all(value is None or value <= limit for value, limit in values)


def with_goodput(result: LoadResult, traces: Sequence[RequestTrace], slo: SLO) -> LoadResult:
    """The same measurement under another SLO, from its kept traces.

    ``good_share`` = good requests / all requests, failed ones included. ``goodput_per_s`` = request rate · good /
    successful: the served rate, less the answers that came too late.
    """
    good = sum(is_good(trace, slo) for trace in traces)
    succeeded = sum(trace.error is None for trace in traces)
    return result.model_copy(
        update={
            "good_share": good / len(traces) if traces else 0.0,
            "goodput_per_s": result.request_rate_per_s * good / succeeded if succeeded else 0.0,
        }
    )


def judge(result: LoadResult, slo: SLO, *, peak_memory_bytes: int | None = None) -> tuple[Check, ...]:
    """Each limit of the SLO against what was measured at this load.

    ``margin`` is the room left as a share of the limit (negative: broken): (limit − found) / limit, or (found −
    limit) / limit where more is better; ``None`` where the limit is zero. ``ok`` is ``None`` where nothing was
    measured.
    """
    return tuple(_check(limit, result, peak_memory_bytes) for limit in slo.limits)


def keeps(result: LoadResult, slo: SLO, *, peak_memory_bytes: int | None = None) -> bool:
    """True where at least one request succeeded and every limit was measured and kept."""
    checks = judge(result, slo, peak_memory_bytes=peak_memory_bytes)
    return result.num_requests > result.num_errors and all(check.ok is True for check in checks)


def best_load(results: Sequence[LoadResult], slo: SLO, *, peak_memory_bytes: int | None = None) -> LoadResult | None:
    """The heaviest load at which every limit was kept; ``None`` where there is none.

    Heaviest means: most users, or highest arrival rate; where both kinds were measured, most requests served a
    second. Only loads that were measured and kept count: nothing is inferred from a neighbour.
    """
    kept = [result for result in results if keeps(result, slo, peak_memory_bytes=peak_memory_bytes)]
    one_kind = len({result.load.concurrency is None for result in kept}) == 1

    def weight(result: LoadResult) -> float:
        if not one_kind:
            return result.request_rate_per_s
        return result.load.concurrency or result.load.rate_per_s or 0.0

    return max(kept, key=weight, default=None)


def _check(limit: Limit, result: LoadResult, peak_memory_bytes: int | None) -> Check:
    show = _shown_as(limit)
    bound = f"{'≥' if limit.at_least else '≤'} {show(limit.limit)}"
    if limit.metric in LATENCY_METRICS:
        samples: Distribution | None = getattr(result, f"{limit.metric}_s")
        if samples is None:
            failed = result.num_requests > 0 and result.num_errors == result.num_requests
            found = "no request succeeded" if failed else "not measured"
            return Check(name=limit.name, limit=bound, found=found, ok=False if failed else None)
        value: float | None = float(getattr(samples, limit.statistic))
        count = f" (n={samples.n})"
    else:
        value, count = _of_the_service(limit, result, peak_memory_bytes), ""
    if value is None:
        return Check(name=limit.name, limit=bound, found="not measured", ok=None)
    room = value - limit.limit if limit.at_least else limit.limit - value
    return Check(
        name=limit.name,
        limit=bound,
        found=show(value) + count,
        ok=room >= 0,
        margin=room / limit.limit if limit.limit else None,
    )


def _of_the_service(limit: Limit, result: LoadResult, peak_memory_bytes: int | None) -> float | None:
    if limit.metric == "peak_memory":
        return peak_memory_bytes
    if not result.num_requests:
        return None
    values = {
        "error_rate": result.error_rate,
        "request_rate": result.request_rate_per_s,
        "output_tokens_per_s": result.output_tokens_per_s,
    }
    return values[limit.metric]


def _shown_as(limit: Limit) -> Callable[[float], str]:
    if limit.metric in LATENCY_METRICS:
        return format_seconds
    if limit.metric == "error_rate":
        return format_share
    if limit.metric == "peak_memory":
        return format_bytes
    return lambda value: f"{format_count(value)}/s"
