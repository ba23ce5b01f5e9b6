"""The server's own latencies against an SLO. Buckets are coarse: where one holds the limit, that is said."""

from __future__ import annotations

from collections.abc import Callable

from model_optimizer.diagnosis.regimes import error_share
from model_optimizer.records.live import Between, Window, WindowLatency
from model_optimizer.records.verdict import Check
from model_optimizer.records.workload import LATENCY_METRICS, SLO, Limit
from model_optimizer.units import format_seconds, format_share


def check_window(w: Window, slo: SLO) -> tuple[Check, ...]:
    """Each limit that a metrics page can speak about, as ``ok``, broken, or undecided (``None``)."""
    return tuple(_check(limit, w) for limit in slo.limits)


def broken(checks: tuple[Check, ...]) -> frozenset[str]:
    """The metrics (``ttft``, ``itl`` …) of which a limit is broken."""
    return frozenset(check.name.split("_")[0] for check in checks if check.ok is False)


def _check(limit: Limit, w: Window) -> Check:
    if limit.metric in LATENCY_METRICS:
        return _of_latency(limit, getattr(w, limit.metric))
    if limit.metric == "error_rate":
        bad = error_share(w)
        found = None if bad is None else bad[1]
        return _plain(limit, found, format_share)
    value = {"output_tokens_per_s": w.generation_tokens_per_s, "request_rate": w.requests_per_s}.get(limit.metric)
    return _plain(limit, value, lambda number: f"{number:.3g}/s")


def _of_latency(limit: Limit, seen: WindowLatency | None) -> Check:
    shown = f"≤ {format_seconds(limit.limit)}"
    if seen is None or limit.statistic == "max":
        why = "the page has no maximum" if seen is not None else "not on the page, or nothing observed"
        return Check(name=limit.name, limit=shown, found=why, ok=None)
    if limit.statistic == "mean":
        return Check(name=limit.name, limit=shown, found=format_seconds(seen.mean), ok=seen.mean <= limit.limit)
    quantile: Between = getattr(seen, limit.statistic)
    upper = "∞" if quantile.high is None else format_seconds(quantile.high)
    found = f"{format_seconds(quantile.low)} to {upper}"
    if quantile.high is not None and quantile.high <= limit.limit:
        return Check(name=limit.name, limit=shown, found=found, ok=True)
    return Check(name=limit.name, limit=shown, found=found, ok=False if quantile.low >= limit.limit else None)


def _plain(limit: Limit, value: float | None, shown: Callable[[float], str]) -> Check:
    sign = "≥" if limit.at_least else "≤"
    if value is None:
        return Check(name=limit.name, limit=f"{sign} {shown(limit.limit)}", found="not on the page", ok=None)
    ok = value >= limit.limit if limit.at_least else value <= limit.limit
    return Check(name=limit.name, limit=f"{sign} {shown(limit.limit)}", found=shown(value), ok=ok)
