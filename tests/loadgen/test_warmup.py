"""Settled, or not yet."""

from __future__ import annotations

import random

import pytest

from model_optimizer.loadgen.client import Shot
from model_optimizer.loadgen.warmup import WarmUp


def shot(ttft: float, tpot: float = 0.01, length: int = 128, error: str | None = None) -> Shot:
    return Shot(
        scheduled_s=0.0,
        target_prompt_tokens=length,
        chunk_s=[ttft, ttft + tpot, ttft + 2 * tpot],
        end_s=9.0,
        error=error,
    )


def requests_until_settled(shots, burst: int = 1) -> int | None:
    warmup = WarmUp(burst)
    return next((number for number, shot_ in enumerate(shots, 1) if warmup.add(shot_)), None)


def test_a_steady_server_needs_the_burst_and_three_windows() -> None:
    assert requests_until_settled(shot(0.1) for _ in range(100)) == 1 + 3 * 3
    assert requests_until_settled((shot(0.1) for _ in range(100)), burst=8) == 8 + 3 * 8
    assert requests_until_settled((shot(0.1) for _ in range(300)), burst=50) == 50 + 3 * 20


def test_slow_first_requests_are_waited_out() -> None:
    cold = [shot(1.5), shot(1.2), shot(0.9), shot(0.6), shot(0.3)]
    assert requests_until_settled([*cold, *(shot(0.05) for _ in range(40))]) == 4 + 9


def test_a_growing_queue_never_settles() -> None:
    assert requests_until_settled(shot(0.1 * number) for number in range(1, 20)) is None


def test_a_drift_of_tpot_is_seen_too() -> None:
    assert requests_until_settled(shot(0.1, tpot=0.01 * 1.1**number) for number in range(30)) is None


def test_noise_alone_does_not_keep_it_waiting() -> None:
    rng = random.Random(1)
    found = [requests_until_settled((shot(0.1 * rng.uniform(0.8, 1.2)) for _ in range(60)), burst=5) for _ in range(20)]
    assert None not in found
    assert sorted(number for number in found if number is not None)[10] <= 25


def test_a_long_prompt_does_not_look_like_a_slower_server() -> None:
    mixed = [shot(2.0, length=2048) if number % 5 == 0 else shot(0.1) for number in range(40)]
    assert requests_until_settled(mixed, burst=5) == 20


@pytest.mark.parametrize("burst", [1, 4])
def test_failures_say_nothing(burst) -> None:
    warmup = WarmUp(burst)
    assert not any(warmup.add(shot(0.1, error="http_500: x")) for _ in range(50))
    assert not warmup.settled()
    assert warmup.num_requests == 50
