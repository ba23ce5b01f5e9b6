"""Raw samples → percentiles, and the difference of two sample sets with its noise."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence
from typing import Literal

from model_optimizer.records.base import Record
from model_optimizer.records.measurement import Distribution

Compared = Literal["mean", "p50", "p90", "p95", "p99"]


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value below which ``share`` (0…1) of the ascending samples lie.

    Linear interpolation between the neighbours of rank ``share · (n − 1)``, numpy's default (type 7 of Hyndman and
    Fan, 1996). So the P99 of fewer than 100 samples lies between the two largest ones.
    """
    if not ordered:
        raise ValueError("no samples")
    rank = share * (len(ordered) - 1)
    low = math.floor(rank)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (rank - low)


def distribution(samples: Sequence[float]) -> Distribution | None:
    """Summary of raw samples, in their unit; ``None`` where there are none. ``stdev`` divides by n − 1."""
    if not samples:
        return None
    ordered = sorted(samples)
    return Distribution(
        n=len(ordered),
        mean=statistics.fmean(ordered),
        stdev=statistics.stdev(ordered) if len(ordered) > 1 else 0.0,
        p50=percentile(ordered, 0.50),
        p90=percentile(ordered, 0.90),
        p95=percentile(ordered, 0.95),
        p99=percentile(ordered, 0.99),
        max=ordered[-1],
    )


class Comparison(Record):
    """One statistic of two sample sets, B against A, with 95 % intervals.

    ``difference`` = B − A in the unit of the samples, ``ratio`` = B / A. The intervals speak for the noise between
    requests of these runs, not for drift between runs: repeat in the order A B B A and pool the samples to cover that
    too.
    """

    statistic: Compared
    a: float
    b: float
    num_a: int
    num_b: int
    difference: float
    difference_ci95: tuple[float, float]
    ratio: float | None
    ratio_ci95: tuple[float, float] | None
    verdict: Literal["lower", "higher", "no difference"]


def compare(
    a: Sequence[float], b: Sequence[float], statistic: Compared = "p50", *, resamples: int = 2000, seed: int = 0
) -> Comparison:
    """Is B's statistic different from A's? Bootstrap over both sets: percentile intervals of ``resamples`` redraws.

    "No difference" where the interval of the difference covers zero. Meant for one value a request (TTFT, TPOT, E2E):
    gaps inside one answer depend on each other and would make the interval too narrow.
    """
    if not a or not b:
        raise ValueError("both sets need samples")
    rng = random.Random(f"compare/{seed}")  # noqa: S311 (statistics, not secrets)
    draw_a, draw_b = _redraw(a, statistic, rng), _redraw(b, statistic, rng)
    pairs = [(draw_a(), draw_b()) for _ in range(resamples)]
    at_a, at_b = _statistic(a, statistic), _statistic(b, statistic)
    low, high = _interval([y - x for x, y in pairs])
    has_ratio = at_a > 0 and all(x > 0 for x, _ in pairs)
    return Comparison(
        statistic=statistic,
        a=at_a,
        b=at_b,
        num_a=len(a),
        num_b=len(b),
        difference=at_b - at_a,
        difference_ci95=(low, high),
        ratio=at_b / at_a if has_ratio else None,
        ratio_ci95=_interval([y / x for x, y in pairs]) if has_ratio else None,
        verdict="no difference" if low <= 0 <= high else ("lower" if high < 0 else "higher"),
    )


def _statistic(samples: Sequence[float], statistic: Compared) -> float:
    if statistic == "mean":
        return statistics.fmean(samples)
    return percentile(sorted(samples), int(statistic[1:]) / 100)


def _redraw(samples: Sequence[float], statistic: Compared, rng: random.Random) -> Callable[[], float]:
    """A function that redraws the samples with replacement and takes the statistic.

    A percentile needs no redrawing of all n: the k-th smallest of n uniform draws is Beta(k, n − k + 1) distributed,
    and that position picks the sample. The same distribution as the plain way, in constant time.
    """
    n = len(samples)
    if statistic == "mean":
        return lambda: statistics.fmean(rng.choices(samples, k=n))
    ordered = sorted(samples)
    k = 1 + round(int(statistic[1:]) / 100 * (n - 1))
    return lambda: ordered[min(int(rng.betavariate(k, n - k + 1) * n), n - 1)]


def _interval(draws: list[float]) -> tuple[float, float]:
    ordered = sorted(draws)
    return percentile(ordered, 0.025), percentile(ordered, 0.975)
