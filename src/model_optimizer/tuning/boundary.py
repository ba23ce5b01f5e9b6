"""The highest load that keeps an SLO: which load to measure next, and where the boundary lies given what was measured.

Latency grows with load, so the margin to the tightest limit falls. The search widens until it has a load that keeps
the SLO and one that breaks it, then narrows between them, each time where the margin would be zero if its course over
the logarithm of the load were a straight line, but never in the outer fifths (regula falsi alone creeps).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from model_optimizer.metrics.goodput import judge, keeps, request_limits
from model_optimizer.metrics.requests import e2e_s, itl_s, tpot_s, ttft_s
from model_optimizer.records.measurement import LoadResult, RequestTrace
from model_optimizer.records.tuning import Boundary, LoadKind, LoadPoint
from model_optimizer.records.workload import SLO, LatencyMetric, Limit, Load

GROWTH = 2.0
CAREFUL_GROWTH = 1.3
NEAR = 0.25
"""With less room than this to the tightest limit, the next load is only a little heavier."""

INNER = (0.2, 0.8)
LIGHTEST_RATE = 0.02
"""Requests a second below which a service is idle: the search gives up."""

Floats = NDArray[np.float64]


def load_of(value: float, kind: LoadKind) -> Load:
    """A load of this kind. Rates are rounded to three digits, users to whole ones (at least 1)."""
    if kind == "concurrency":
        return Load(concurrency=max(1, round(value)))
    return Load(rate_per_s=float(f"{value:.3g}"))


def value_of(load: Load) -> float:
    """Users, or requests a second."""
    return float(load.concurrency or load.rate_per_s or 0.0)


def point(result: LoadResult, traces: Sequence[RequestTrace], slo: SLO, share: float) -> LoadPoint:
    """Was the SLO kept at this load, and with how much room?

    Kept: every limit of the SLO is kept, and at least ``share`` of all requests, failed ones included, kept all
    latency limits. The margin is the smallest of the limits' margins and of 1 − the ``share`` quantile of each
    request's largest latency ÷ limit; never below −1, which also stands for a load at which nothing succeeded.
    """
    margins = [check.margin for check in judge(result, slo) if check.margin is not None]
    enough = True
    if slo.latency_limits:
        margins.append(_room_for_share(_values(traces, slo), _bounds(slo), share))
        enough = result.good_share >= share
    answered = result.num_requests > result.num_errors
    margin = max(-1.0, min(margins, default=1.0)) if answered else -1.0
    kept = keeps(result, slo) and enough
    return LoadPoint(load=result.load, kept=kept, margin=margin if kept else min(margin, -1e-9), result=result)


def bracket(points: Sequence[LoadPoint]) -> tuple[LoadPoint | None, LoadPoint | None]:
    """The lightest load that broke the SLO, and the heaviest below it that kept it.

    A heavier load that seems to keep it all the same is luck: it does not count.
    """
    broken = min((p for p in points if not p.kept), key=lambda p: value_of(p.load), default=None)
    below = [p for p in points if p.kept and (broken is None or value_of(p.load) < value_of(broken.load))]
    return max(below, key=lambda p: value_of(p.load), default=None), broken


def next_load(
    points: Sequence[LoadPoint], *, start: float, kind: LoadKind, precision: float, most: float = math.inf
) -> Load | None:
    """The load to measure next; ``None`` where the boundary is known to ``precision`` (a share) or cannot be.

    ``most`` is the heaviest load worth asking about (a client's or a user's bound).
    """
    if not points:
        return load_of(min(start, most), kind)
    kept, broken = bracket(points)
    if broken is None:
        assert kept is not None  # noqa: S101 (points is not empty)
        if value_of(kept.load) >= most:
            return None
        growth = GROWTH if kept.margin > NEAR else CAREFUL_GROWTH
        return _new(min(most, value_of(kept.load) * growth), points, kind, up=True)
    if kept is None:
        lightest = 1.0 if kind == "concurrency" else LIGHTEST_RATE
        if value_of(broken.load) <= lightest:
            return None
        shrink = GROWTH if broken.margin < -NEAR else CAREFUL_GROWTH
        return _new(max(lightest, value_of(broken.load) / shrink), points, kind, up=False)
    low, high = value_of(kept.load), value_of(broken.load)
    if high / low <= 1.0 + precision or (kind == "concurrency" and high - low <= 1):
        return None
    share = kept.margin / (kept.margin - broken.margin)
    share = min(max(share, INNER[0]), INNER[1])
    return _new(low * (high / low) ** share, points, kind, up=True)


def _new(value: float, points: Sequence[LoadPoint], kind: LoadKind, *, up: bool) -> Load | None:
    """This load if it was not measured; a neighbour among whole users; else nothing is left to ask."""
    load = load_of(value, kind)
    asked = {value_of(p.load) for p in points}
    if value_of(load) not in asked:
        return load
    if kind == "concurrency":
        load = load_of(value_of(load) + (1 if up else -1), kind)
        if value_of(load) not in asked:
            return load
    return None


def boundary(points: Sequence[LoadPoint]) -> Boundary:
    """What the points say, without intervals: see ``with_interval``."""
    ordered = tuple(sorted(points, key=lambda p: value_of(p.load)))
    kept, broken = bracket(ordered)
    return Boundary(
        kept=kept and kept.load,
        broken=broken and broken.load,
        goodput_per_s=kept.result.goodput_per_s if kept else 0.0,
        crossing=crossing([value_of(p.load) for p in ordered], [p.margin for p in ordered]),
        points=ordered,
    )


def crossing(loads: Sequence[float], margins: Sequence[float]) -> float | None:
    """The load at which a falling margin is zero: isotonic fit, then a straight line in the logarithm of the load.

    ``None`` where all margins have one sign: the boundary lies outside of what was measured.
    """
    fitted = falling(margins)
    for at in range(len(fitted) - 1):
        high, low = fitted[at], fitted[at + 1]
        if high >= 0 > low:
            share = high / (high - low)
            return float(loads[at] * (loads[at + 1] / loads[at]) ** share)
    return None


def falling(values: Sequence[float]) -> list[float]:
    """The closest sequence (least squares) that never rises: pool adjacent violators (Ayer et al., 1955)."""
    pools: list[tuple[float, int]] = []
    for value in values:
        pools.append((value, 1))
        while len(pools) > 1 and pools[-2][0] < pools[-1][0]:
            (a, n), (b, m) = pools[-2], pools[-1]
            pools[-2:] = [((a * n + b * m) / (n + m), n + m)]
    return [mean for mean, n in pools for _ in range(n)]


class Leg:
    """The requests of one trial, load by load, ready to be redrawn.

    An ITL limit is held against each request's longest gap, as goodput does.
    """

    def __init__(self, loads: Sequence[tuple[Load, Sequence[RequestTrace]]], slo: SLO, share: float) -> None:
        self._slo = slo
        self._share = share
        ordered = sorted(loads, key=lambda item: value_of(item[0]))
        self.loads = [value_of(load) for load, _ in ordered]
        self._values = [_values(traces, slo) for _, traces in ordered]

    def draw(self, rng: np.random.Generator) -> float | None:
        """The crossing after drawing each load's requests again, with replacement."""
        return crossing(self.loads, [self._margin(v[rng.integers(0, len(v), len(v))]) for v in self._values])

    def _margin(self, values: Floats) -> float:
        """The tightest limit's room, as in ``point``; requests that failed are infinitely late."""
        limits = self._slo.latency_limits
        room = [(limit.limit - _statistic(values[:, at], limit)) / limit.limit for at, limit in enumerate(limits)]
        return max(-1.0, min(*room, _room_for_share(values, _bounds(self._slo), self._share)))


def interval(legs: Sequence[Leg], *, draws: int = 400, seed: int = 0) -> tuple[float, float] | None:
    """95 % interval of the crossing: legs are drawn first, then requests inside each. ``None`` where there is none."""
    found = [value for value in crossings(legs, draws=draws, seed=seed) if value is not None]
    if len(found) < 0.5 * draws:
        return None
    low, high = np.percentile(found, [2.5, 97.5])
    return float(low), float(high)


def crossings(legs: Sequence[Leg], *, draws: int, seed: int) -> list[float | None]:
    """Redrawn crossings, the mean (geometric) over as many legs as there are; ``None`` where one has none."""
    rng = np.random.default_rng(seed)
    out: list[float | None] = []
    for _ in range(draws):
        drawn = [legs[at].draw(rng) for at in rng.integers(0, len(legs), len(legs))]
        known = [value for value in drawn if value is not None]
        out.append(math.exp(sum(map(math.log, known)) / len(known)) if len(known) == len(drawn) else None)
    return out


_LATE = 1e9
_OF_ONE_REQUEST: dict[LatencyMetric, Callable[[RequestTrace], float | None]] = {
    "ttft": ttft_s,
    "tpot": tpot_s,
    "e2e": e2e_s,
    "itl": lambda trace: max(itl_s(trace), default=None),
}


def _bounds(slo: SLO) -> Floats:
    """One request's limit for each of the SLO's latency limits, seconds: see ``request_limits``."""
    loosest = request_limits(slo)
    return np.array([loosest[_latency(limit)] for limit in slo.latency_limits], dtype=np.float64)


def _latency(limit: Limit) -> LatencyMetric:
    return limit.metric  # type: ignore[return-value]  # the SLO's latency limits are of latency metrics


def _room_for_share(values: Floats, bounds: Floats, share: float) -> float:
    """1 − the ``share`` quantile of each request's largest latency ÷ limit: zero where exactly that share is good."""
    return 1.0 - float(np.quantile((values / bounds).max(axis=1), share))


def _values(traces: Sequence[RequestTrace], slo: SLO) -> Floats:
    """One row a request, one column a latency limit, seconds."""
    rows = [[_of(trace, _latency(limit)) for limit in slo.latency_limits] for trace in traces]
    return np.array(rows or [[_LATE] * len(slo.latency_limits)], dtype=np.float64)


def _of(trace: RequestTrace, metric: LatencyMetric) -> float:
    if trace.error is not None:
        return _LATE
    value = _OF_ONE_REQUEST[metric](trace)
    return 0.0 if value is None else value


def _statistic(column: Floats, limit: Limit) -> float:
    if limit.statistic == "mean":
        return float(column.mean())
    if limit.statistic == "max":
        return float(column.max())
    return float(np.percentile(column, float(limit.statistic[1:])))
