"""When requests leave: users who wait for their answer (closed loop), or arrivals that wait for nobody (open loop)."""

from __future__ import annotations

import random
from collections.abc import Iterator


def poisson(rate_per_s: float, seed: object) -> Iterator[float]:
    """Endless arrival times of a Poisson process, seconds after its start: gaps are exponential with mean 1 / rate.

    They do not depend on the answers: where the server stalls, requests pile up as they would in reality.
    """
    rng = random.Random(f"poisson/{seed}")  # noqa: S311 (arrivals, not secrets)
    at = 0.0
    while True:
        at += rng.expovariate(rate_per_s)
        yield at


def staggered(concurrency: int, spread_s: float, seed: object) -> tuple[float, ...]:
    """Start times of ``concurrency`` users, seconds: one in each of as many equal parts of ``spread_s``.

    Started together, users of equal requests stay in step, and every first token waits for all the others' prompts.
    """
    rng = random.Random(f"staggered/{seed}")  # noqa: S311
    return tuple((user + rng.random()) / concurrency * spread_s for user in range(concurrency))
