"""The mock engine, as a process of its own (timing, signals) or inside the test's event loop (single requests)."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.mock_engine import MockEngine, parse

SCRIPT = Path(__file__).parents[1] / "mock_engine.py"


class MockProcess(NamedTuple):
    """A running mock engine."""

    url: str
    process: subprocess.Popen[str]


@pytest.fixture
def mock_engine() -> Iterator[Callable[..., MockProcess]]:
    """``mock_engine("--ttft-ms", 50)`` starts one; all are killed at the end of the test."""
    started: list[subprocess.Popen[str]] = []

    def start(*flags: object) -> MockProcess:
        process = subprocess.Popen(
            [sys.executable, str(SCRIPT), "--port", "0", *map(str, flags)], stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout is not None
        words = process.stdout.readline().split()
        return MockProcess(f"http://{words[-1]}", process)

    yield start
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@contextlib.asynccontextmanager
async def serving(server: asyncio.Server) -> AsyncIterator[int]:
    """The server's port; at the end its open connections are cancelled and their sockets closed."""
    before = asyncio.all_tasks()
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        left = asyncio.all_tasks() - before
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def mock_in_loop(*flags: object) -> AsyncIterator[MockEngine]:
    """The mock engine inside this event loop."""
    engine = MockEngine(parse([str(flag) for flag in flags]))
    async with serving(await engine.start()):
        yield engine
