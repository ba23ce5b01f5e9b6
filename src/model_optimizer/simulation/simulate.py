"""A load against a simulated engine, measured as a real one would be, and the heaviest load that keeps an SLO.

Requests are drawn as the real client draws them, and what comes out are request traces: all metrics are computed by the
same functions as for a real server.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import NamedTuple

from model_optimizer.loadgen.arrivals import poisson, staggered
from model_optimizer.loadgen.prompts import mixed
from model_optimizer.metrics.loads import Window, summarize
from model_optimizer.records.measurement import ClientHealth, LoadResult, RequestTrace
from model_optimizer.records.simulation import SchedulerConfig, StepModel
from model_optimizer.records.workload import SLO, Load, TrafficProfile
from model_optimizer.simulation.engine import Asked, Engine
from model_optimizer.simulation.steps import step_s

CLIENT = ClientHealth(loop_lag_p99_s=0.0, cpu_share=0.0)
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
        return None if self._users is not None else self._request(next(self._times))

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
        if self.start_s is not None and at_s >= self.start_s and (self.end_s is None or at_s < self.end_s):
            self.counted.add(self._num_asked)
            self._pending += 1
        self._num_asked += 1
        return Asked(at_s, length.prompt_tokens, length.output_tokens or self._output)


class Simulated(NamedTuple):
    """One load's run: the window, the requests counted in it, and all that ended."""

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
    traces = engine.run()
    start_s = clients.start_s or 0.0
    window = Window(start_s, clients.end_s or engine.now_s, shape.warmup)
    counted = tuple(traces[number] for number in sorted(clients.counted) if number in traces)
    return Simulated(window, counted, tuple(traces.values()), engine.num_steps, engine.scheduler.preemptions)


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


def _alone_s(config: SchedulerConfig, steps: StepModel, traffic: TrafficProfile) -> float:
    """About how long one request alone takes, seconds: users start spread over this."""
    prompt, output = traffic.mean_prompt_tokens, traffic.output_tokens
    prefill = step_s(steps, config, prompt, prompt**2 / 2, 0, 0.0)
    return steps.overhead_s + prefill + output * step_s(steps, config, 0, 0.0, 1, prompt)
