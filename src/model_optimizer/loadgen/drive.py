"""Drive a server through the loads of a traffic profile, one after another, and say what it gave."""

from __future__ import annotations

import asyncio
import gc
import re
import resource
import secrets
import statistics
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from model_optimizer.loadgen.client import Api, Client
from model_optimizer.loadgen.http import Address
from model_optimizer.loadgen.level import Level, LevelRun
from model_optimizer.loadgen.probe import ServerFacts, probe
from model_optimizer.metrics.loads import summarize
from model_optimizer.records.base import Emit, Record
from model_optimizer.records.measurement import LoadResult, RequestTrace
from model_optimizer.records.workload import SLO, Load, TrafficProfile
from model_optimizer.units import format_seconds

SLOW_CONNECT_S = 0.002
OVERLOADED = 0.9
"""Served / arrived below this: the queue was growing."""

_CACHE_COUNTERS = (
    ("vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"),
    ("sglang:cached_tokens_total", "sglang:prompt_tokens_total"),
)
"""Tokens taken from the prefix cache and tokens asked of it, as engines name them."""


class Target(Record):
    """The server to ask. ``model`` ``None``: the first that it lists; ``api`` ``None``: the first that works."""

    base_url: str
    model: str | None = None
    api: Api | None = None
    timeout_s: float = 600.0


class LoadRun(Record):
    """One result a load, in the order of the profile, and the traces of the requests counted in each."""

    results: tuple[LoadResult, ...]
    traces: tuple[tuple[RequestTrace, ...], ...]
    facts: ServerFacts | None = None


class LoadInterrupted(KeyboardInterrupt):
    """Ctrl-C during a load test. ``partial`` holds the loads that were finished."""

    def __init__(self, partial: LoadRun) -> None:
        super().__init__()
        self.partial = partial


def run_loads(
    target: Target,
    traffic: TrafficProfile,
    slo: SLO,
    *,
    emit: Emit,
    api_key: str | None = None,
    headers: Mapping[str, str] | None = None,
    salt: str | None = None,
) -> LoadRun:
    """Probe the server, then run each load of ``traffic``: see level.py for what is counted.

    ``salt`` goes into the first words of every prompt. ``None`` draws a new one, so that a server that has met this
    profile before cannot answer from its prefix cache; the rest of the prompts depends on ``traffic.seed`` alone.
    ``api_key`` and ``headers`` are sent and never stored or shown.

    Raises ``ServerUnusable`` where the probe fails, ``ServerFailed`` where the server dies under load,
    ``SpecInvalid`` for an address that is none, and ``LoadInterrupted`` on Ctrl-C. A server that is slow or answers
    with errors is a result.
    """
    driven = _Drive(target, traffic, slo, emit, secrets.token_hex(8) if salt is None else salt)
    _allow_sockets(traffic)
    try:
        with _collector_paused():
            asyncio.run(driven.run(api_key, headers or {}))
    except KeyboardInterrupt:
        raise LoadInterrupted(driven.so_far()) from None
    return driven.so_far()


class _Drive:
    def __init__(self, target: Target, traffic: TrafficProfile, slo: SLO, emit: Emit, salt: str) -> None:
        self._target = target
        self._traffic = traffic
        self._slo = slo
        self._emit = emit
        self._salt = salt
        self._facts: ServerFacts | None = None
        self._results: list[LoadResult] = []
        self._traces: list[tuple[RequestTrace, ...]] = []

    def so_far(self) -> LoadRun:
        return LoadRun(results=tuple(self._results), traces=tuple(self._traces), facts=self._facts)

    async def run(self, api_key: str | None, headers: Mapping[str, str]) -> None:
        address = Address.parse(self._target.base_url)
        timeout_s = self._target.timeout_s
        async with Client(address, headers=headers, api_key=api_key, timeout_s=timeout_s) as client:
            self._emit("progress", what="probing the server", done=0, total=1)
            facts = await probe(client, self._traffic, model=self._target.model, api=self._target.api, emit=self._emit)
            self._facts = facts
            for number, load in enumerate(self._traffic.loads):
                await self._one(client, facts, number, load)

    async def _one(self, client: Client, facts: ServerFacts, number: int, load: Load) -> None:
        before = await _cache_counters(client)
        gc.collect()
        level = await Level(client, facts, self._traffic, load, number=number, salt=self._salt, emit=self._emit).run()
        cached = _share_between(before, await _cache_counters(client))
        result = summarize(
            load,
            level.window,
            level.counted,
            level.everything,
            slo=self._slo,
            client=level.client,
            cached_prompt_share=cached,
        )
        notes = (*result.notes, *level.notes, *_remarks(facts, self._traffic, load, result, level))
        self._results.append(result.model_copy(update={"notes": notes}))
        self._traces.append(level.counted)


def _remarks(
    facts: ServerFacts, traffic: TrafficProfile, load: Load, result: LoadResult, level: LevelRun
) -> Iterator[str]:
    if "ignore_eos" not in facts.dialect.extras:
        found = result.mean_output_tokens
        mean = "" if found is None else f" ({found:.0f} tokens on average, up to {traffic.output_tokens} asked)"
        yield f"the server does not accept ignore_eos: answers end where the model ends them{mean}"
    if level.counted and result.ttft_s is not None:
        connect_s = statistics.median(trace.sent_s - trace.scheduled_s for trace in level.counted)
        if connect_s > max(SLOW_CONNECT_S, 0.05 * result.ttft_s.p50):
            yield f"{format_seconds(connect_s)} of TTFT (median) are the connection's set-up"
    if load.rate_per_s is not None and level.window.length_s > 0:
        arrived_per_s = len(level.counted) / level.window.length_s
        if result.request_rate_per_s < OVERLOADED * arrived_per_s:
            yield (
                f"{result.request_rate_per_s:.3g} of {arrived_per_s:.3g} requests/s were served: the queue grew, so "
                "latencies depend on how long it could grow"
            )


async def _cache_counters(client: Client) -> tuple[float, float] | None:
    """Prefix-cache counters of the engine's metrics page, where it has one that we can read."""
    reply = await client.get("/metrics", timeout_s=5.0)
    if reply.status != 200:
        return None
    page = reply.body.decode("utf-8", "replace")
    for hits, queries in _CACHE_COUNTERS:
        sums = [
            [float(value) for value in re.findall(rf"^{name}(?:{{.*}})? ([0-9.eE+]+)$", page, re.MULTILINE)]
            for name in (hits, queries)
        ]
        if all(sums):
            return sum(sums[0]), sum(sums[1])
    return None


def _share_between(before: tuple[float, float] | None, after: tuple[float, float] | None) -> float | None:
    if before is None or after is None or after[1] <= before[1]:
        return None
    return (after[0] - before[0]) / (after[1] - before[1])


@contextmanager
def _collector_paused() -> Iterator[None]:
    """No garbage collection while measuring: a full pass over many traces stops the loop for milliseconds.

    It runs between the loads instead.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _allow_sockets(traffic: TrafficProfile) -> None:
    """Raise the soft limit of open files towards the hard one where many requests may be open at once."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    is_open_loop = any(load.rate_per_s is not None for load in traffic.loads)
    needed = 65536 if is_open_loop else traffic.max_concurrency + 256
    if soft != resource.RLIM_INFINITY and soft < needed:
        allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, allowed), hard))
