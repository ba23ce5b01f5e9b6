"""Cost: what a million tokens cost at a load, and how many GPUs a request rate needs."""

from __future__ import annotations

import math

HOURS_A_MONTH = 730.0


def usd_per_million_tokens(usd_per_hour: float, tokens_per_s: float) -> float:
    """Price of the machine's time for a million output tokens, at that throughput."""
    return usd_per_hour / 3600.0 / tokens_per_s * 1e6


def replicas_for(rate_per_s: float, capacity_per_s: float, *, headroom: float = 0.0) -> int:
    """Replicas that serve ``rate_per_s`` when each sustains ``capacity_per_s``, with a share of headroom left free."""
    return max(1, math.ceil(rate_per_s / (capacity_per_s * (1.0 - headroom))))


def power_usd_per_month(watts: float, usd_per_kwh: float, pue: float = 1.0) -> float:
    """Electricity of a machine that draws ``watts`` all month; ``pue`` is what the building adds."""
    return watts * pue / 1000.0 * HOURS_A_MONTH * usd_per_kwh
