"""Choose: the best of those that keep every promise, or the one that comes nearest."""

from __future__ import annotations

from collections.abc import Sequence

from model_optimizer.records.verdict import Verdict
from model_optimizer.records.workload import Objective


def choose(verdicts: Sequence[Verdict], objective: Objective) -> Verdict | None:
    """The winner among those that meet the SLO, by the objective; ``None`` where none does.

    ``goodput``: most good requests a second at the heaviest load that keeps the SLO. ``latency``: lowest median TPOT at
    the lightest load. ``memory``: lowest measured peak. ``quality``: lowest KL to the reference.
    """
    meeting = [verdict for verdict in verdicts if verdict.outcome == "meets_slo"]
    return max(meeting, key=lambda verdict: _value(verdict, objective), default=None)


def nearest(verdicts: Sequence[Verdict]) -> Verdict | None:
    """Where nothing meets the SLO: the measured candidate whose worst miss is the smallest."""
    measured = [verdict for verdict in verdicts if verdict.measurement is not None]
    return max(measured, key=_worst_margin, default=None)


def by_merit(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Those that were built and passed the gate, best first: most goodput, then the smallest miss.

    What was not put under load keeps its place in the plan's order.
    """
    passed = [v for v in verdicts if v.artifact is not None and v.outcome not in ("failed", "loses_accuracy")]

    def merit(verdict: Verdict) -> tuple[float, float]:
        return verdict.goodput_per_s or 0.0, _worst_margin(verdict) if verdict.measurement is not None else 0.0

    return sorted(passed, key=merit, reverse=True)


def _value(verdict: Verdict, objective: Objective) -> float:
    if objective == "quality" and verdict.accuracy is not None:
        return -verdict.accuracy.kl_mean
    measurement = verdict.measurement
    if measurement is None:
        return float("-inf")
    if objective == "memory" and measurement.server is not None:
        return -measurement.server.peak_memory_bytes
    if objective == "latency" and measurement.loads[0].tpot_s is not None:
        return -measurement.loads[0].tpot_s.p50
    return verdict.goodput_per_s or 0.0


def _worst_margin(verdict: Verdict) -> float:
    return min((check.margin for check in verdict.checks if check.margin is not None), default=float("-inf"))
