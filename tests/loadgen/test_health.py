"""A client that cannot keep up says so."""

from __future__ import annotations

import asyncio
import contextlib
import time

import pytest

from model_optimizer.loadgen.health import HealthWatch
from model_optimizer.records.measurement import ClientHealth


def watched(work) -> ClientHealth:
    async def main() -> ClientHealth:
        watch = HealthWatch()
        task = asyncio.create_task(watch.run())
        await asyncio.sleep(0)
        watch.restart()
        await work()
        verdict = watch.verdict()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        return verdict

    return asyncio.run(main())


def test_an_idle_client_is_healthy() -> None:
    found = watched(lambda: asyncio.sleep(0.5))
    assert found.cpu_share < 0.5
    assert found.loop_lag_p99_s < 0.1


def test_a_blocked_loop_is_seen() -> None:
    async def block() -> None:
        for _ in range(10):
            time.sleep(0.03)
            await asyncio.sleep(0.001)

    found = watched(block)
    assert not found.ok
    assert found.loop_lag_p99_s > 0.015
    assert "its event loop ran" in found.verdict and "others use" in found.verdict


def test_the_cpu_share_is_cpu_time_over_wall_time() -> None:
    walls = []

    async def burn() -> None:
        began, until = time.perf_counter(), time.process_time() + 0.3
        while time.process_time() < until:
            await asyncio.sleep(0)
        walls.append(time.perf_counter() - began)

    found = watched(burn)
    assert found.cpu_share == pytest.approx(0.3 / walls[0], rel=0.1)
    assert found.ok == (found.cpu_share <= 0.7 and found.loop_lag_p99_s <= 0.005)
