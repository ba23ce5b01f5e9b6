"""A load against a simulated engine, measured as a real one would be, and the heaviest load that keeps an SLO.

Requests are drawn as the real client draws them, and what comes out are request traces: all metrics are computed by the
same functions as for a real server.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from model_optimizer.loadgen.arrivals import poisson, staggered
from model_optimizer.loadgen.prompts import mixed
from model_optimizer.metrics.goodput import request_limits
from model_optimizer.metrics.loads import Window, summarize
from model_optimizer.metrics.requests import output_tokens, prompt_tokens, tpot_s
from model_optimizer.metrics.samples import distribution
from model_optimizer.records.measurement import ClientHealth, LoadResult, RequestTrace
from model_optimizer.records.simulation import SchedulerConfig, StepModel
from model_optimizer.records.workload import SLO, LatencyMetric, Load, TrafficProfile
from model_optimizer.simulation.engine import Asked, Engine
from model_optimizer.simulation.steps import step_s

CLIENT = ClientHealth(loop_lag_p99_s=0.0, cpu_share=0.0)
_NONE = float("inf")
PATIENCE = 10
"""With this many times the warm-up's requests waiting, the load is an overload."""

TURNAROUND_S = 0.0005
"""A user's pause between the end of an answer and the next request, as measured with our client."""


class Shape(NamedTuple):
    """How much of a load to simulate: requests before the window, and requests in it. ``seconds``: the window lasts at
    least this long.
    """

    warmup: int
    counted: int
    seconds: float = 0.0


class _Clients:
    """Warm-up, window, drain, as loadgen/level.py has them. Counted are the requests that leave inside the window."""

    def __init__(self, traffic: TrafficProfile, load: Load, shape: Shape, seed: object, spread_s: float) -> None:
        self._shape = shape
        self._most = max(2 * shape.counted, traffic.max_requests_per_load if shape.seconds else 0)
        rng = random.Random(f"{seed}/window")  # noqa: S311 (lengths, not secrets)
        self._lengths = mixed(traffic.lengths, rng)
        self._output = traffic.output_tokens
        self._users = load.concurrency
        self._times = (
            iter(staggered(load.concurrency, spread_s, seed))
            if load.concurrency is not None
            else poisson(load.rate_per_s or 1.0, seed)
        )
        self._num_asked = 0
        self._num_ended = 0
        self._pending = 0
        self.start_s: float | None = None
        self.end_s: float | None = None
        self.counted: set[int] = set()
        self.is_over = False

    def start(self) -> Iterable[Asked]:
        if self._users is None:
            return [self._request(next(self._times))]
        return [self._request(at_s) for at_s in self._times]

    def left(self, number: int, at_s: float) -> Asked | None:
        if self._users is not None:
            return None
        waiting = self._num_asked - self._num_ended
        if self.start_s is None and waiting > PATIENCE * self._shape.warmup:
            self.start_s = at_s  # waiting for the warm-up would only make the queue longer
        if self.end_s is not None and waiting > self._most:
            return None
        return self._request(next(self._times))

    def ended(self, number: int, at_s: float) -> Asked | None:
        self._num_ended += 1
        self._pending -= number in self.counted
        if self.start_s is None:
            if self._num_ended >= self._shape.warmup:
                self.start_s = at_s
        elif self.end_s is None:
            enough = len(self.counted) - self._pending >= self._shape.counted
            if enough and at_s - self.start_s >= self._shape.seconds:
                self.end_s = at_s
        if self.end_s is not None and self._pending <= 0:
            self.is_over = True
        return None if self._users is None else self._request(at_s + TURNAROUND_S)

    def _request(self, at_s: float) -> Asked:
        length = next(self._lengths)
        if self.end_s is None and len(self.counted) >= self._most:  # an overload: its queue only grows
            self.end_s = at_s
        if self.start_s is not None and at_s >= self.start_s and (self.end_s is None or at_s < self.end_s):
            self.counted.add(self._num_asked)
            self._pending += 1
        self._num_asked += 1
        return Asked(at_s, length.prompt_tokens, length.output_tokens or self._output)


class Simulated(NamedTuple):
    """One load's run: the window, the requests counted in it, and all that got something in it."""

    window: Window
    counted: tuple[RequestTrace, ...]
    everything: tuple[RequestTrace, ...]
    num_steps: int
    preemptions: int


def run_load(
    config: SchedulerConfig, steps: StepModel, traffic: TrafficProfile, load: Load, shape: Shape, *, seed: object = 0
) -> Simulated:
    """Simulate one load: warm up, count the window's requests, keep the load up until all of them have ended."""
    clients = _Clients(traffic, load, shape, seed, _alone_s(config, steps, traffic))
    engine = Engine(config, steps, clients)
    engine.run()
    window = Window(clients.start_s or 0.0, clients.end_s or engine.now_s, shape.warmup)
    found = {number: engine.trace(number) for number in sorted(clients.counted)}
    others = [number for number in engine.ended_between(window.start_s, window.end_s) if number not in found]
    counted = tuple(trace for trace in found.values() if trace is not None)
    around = tuple(trace for trace in map(engine.trace, others) if trace is not None)
    return Simulated(window, counted, counted + around, engine.num_steps, engine.scheduler.preemptions)


def shape_for(load: Load, *, num_requests: int, seconds: float = 0.0) -> Shape:
    """Warm-up long enough for users who started apart to fall into step, or for a queue to build up."""
    users = load.concurrency or 16
    return Shape(warmup=max(24, 4 * users), counted=max(num_requests, 2 * users), seconds=seconds)


def simulate(
    config: SchedulerConfig,
    steps: StepModel,
    traffic: TrafficProfile,
    load: Load,
    *,
    slo: SLO,
    num_requests: int | None = None,
    seconds: float | None = None,
    seed: object = 0,
) -> LoadResult:
    """The load's result as the real client would report it. By default as many requests, and as long a window, as
    ``traffic`` asks for.
    """
    shape = shape_for(
        load,
        num_requests=traffic.min_requests_per_load if num_requests is None else num_requests,
        seconds=traffic.seconds_per_load if seconds is None and num_requests is None else seconds or 0.0,
    )
    run = run_load(config, steps, traffic, load, shape, seed=seed)
    return summarize(load, run.window, run.counted, run.everything, slo=slo, client=CLIENT)


def quick_result(load: Load, run: Simulated, slo: SLO) -> LoadResult:
    """``summarize`` for thousands of simulations: nothing that goes through every token unless the SLO asks for it.

    TTFT, TPOT and E2E are the same. Rates count a request whole where its last token comes inside the window. No ITL
    without an ITL limit.
    """
    window, counted = run.window, run.counted
    if any(limit.metric == "itl" for limit in slo.limits):
        return summarize(load, window, counted, run.everything, slo=slo, client=CLIENT)
    good = [trace for trace in counted if trace.error is None]
    inside = [trace for trace in run.everything if trace.error is None and window.start_s < trace.end_s <= window.end_s]
    length_s, limits = window.length_s or 1.0, request_limits(slo)
    result = LoadResult(
        load=load,
        window_s=window.length_s,
        num_requests=len(counted),
        num_errors=len(counted) - len(good),
        ttft_s=distribution([trace.chunk_s[0] - trace.scheduled_s for trace in good]),
        tpot_s=distribution([value for value in map(tpot_s, good) if value is not None]),
        e2e_s=distribution([trace.end_s - trace.scheduled_s for trace in good]),
        output_tokens_per_s=sum(map(output_tokens, inside)) / length_s,
        input_tokens_per_s=sum(map(prompt_tokens, inside)) / length_s,
        request_rate_per_s=len(inside) / length_s,
        goodput_per_s=0.0,
        good_share=0.0,
        warmup_requests=window.warmup_requests,
        client=CLIENT,
    )
    share = sum(_is_good(trace, limits) for trace in good) / len(counted) if counted else 0.0
    rate = result.request_rate_per_s * share * len(counted) / len(good) if good else 0.0
    return result.model_copy(update={"good_share": share, "goodput_per_s": rate})


def _is_good(trace: RequestTrace, limits: Mapping[LatencyMetric, float]) -> bool:
    """metrics.goodput.is_good with the limits worked out once."""
    start_s, chunks = trace.scheduled_s, trace.chunk_s
    if chunks[0] - start_s > limits.get("ttft", _NONE) or chunks[-1] - start_s > limits.get("e2e", _NONE):
        return False
    return len(chunks) < 2 or (chunks[-1] - chunks[0]) / (len(chunks) - 1) <= limits.get("tpot", _NONE)


def _alone_s(config: SchedulerConfig, steps: StepModel, traffic: TrafficProfile) -> float:
    """About how long one request alone takes, seconds: users start spread over this."""
    prompt, output = traffic.mean_prompt_tokens, traffic.output_tokens
    prefill = step_s(steps, config, prompt, prompt**2 / 2, 0, 0.0)
    return steps.overhead_s + prefill + output * step_s(steps, config, 0, 0.0, 1, prompt)
