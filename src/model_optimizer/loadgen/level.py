"""One load level: warm up, measure a steady window, and keep the load up until all that was counted has ended.

The window opens at the end of a request: when the warm-up has settled (warmup.py), or has lasted ``seconds_per_load``.
It closes at the end of a request too, once ``seconds_per_load`` have passed and ``min_requests_per_load`` have ended,
or when ``max_requests_per_load`` were sent. Counted are the requests *scheduled* inside it: the start-up burst lies
before it, and the drain behind it. While the last counted requests finish, others keep the load up and are not
counted; measured against an emptying server, the slowest requests would look fast.

Warm-up, window and drain each last 3 · ``seconds_per_load`` at most. A counted request that is still running then has
the error ``unfinished``: its latency is unknown, and leaving it out would flatter the rest.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import NamedTuple

from model_optimizer.errors import ServerFailed
from model_optimizer.loadgen.arrivals import poisson, staggered
from model_optimizer.loadgen.client import Client, Shot
from model_optimizer.loadgen.health import HealthWatch
from model_optimizer.loadgen.http import clock
from model_optimizer.loadgen.probe import ServerFacts
from model_optimizer.loadgen.prompts import PromptSource
from model_optimizer.loadgen.warmup import WarmUp
from model_optimizer.metrics.loads import Window, error_kind
from model_optimizer.records.base import Emit
from model_optimizer.records.measurement import ClientHealth, RequestTrace
from model_optimizer.records.workload import Load, TrafficProfile
from model_optimizer.units import format_seconds

TICK_S = 0.25
CAP = 3.0
PAUSE_AFTER_ERROR_S = 0.1
"""A user whose request failed waits this long, so that a dead server is not asked thousands of times a second."""

HOPELESS = 20
"""This many failures with no success at all end the warm-up; the window then ends as soon as it has its least number.
"""

REFUSED_IN_A_ROW = 10
OPEN_LOOP_BURST = 5


class LevelRun(NamedTuple):
    """What one level gave: the window, the requests counted in it, all requests, the client's health, and remarks."""

    window: Window
    counted: tuple[RequestTrace, ...]
    everything: tuple[RequestTrace, ...]
    client: ClientHealth
    notes: tuple[str, ...]


class Level:
    """Runs once. Cancelling ``run`` drops all its requests."""

    def __init__(
        self,
        client: Client,
        facts: ServerFacts,
        traffic: TrafficProfile,
        load: Load,
        *,
        number: int,
        salt: str,
        emit: Emit,
    ) -> None:
        self._client = client
        self._dialect = facts.dialect
        self._expected_s = facts.expected_s
        self._traffic = traffic
        self._load = load
        self._seed = f"{traffic.seed}/{number}"
        self._emit = emit
        source = PromptSource(traffic, facts.word_fit, salt=salt)
        self._prompts = {phase: source.stream(f"{number}/{phase}") for phase in ("warm-up", "window", "drain")}
        self._warmup = WarmUp(load.concurrency or OPEN_LOOP_BURST)
        self._watch = HealthWatch()
        self._tasks: set[asyncio.Task[object]] = set()
        self._sent: list[Shot] = []
        self._finished: list[Shot] = []
        self._counted: list[Shot] = []
        self._num_pending = 0  # counted requests still running
        self._successes = 0
        self._refused = 0  # connections refused in a row
        self._began_s = self._start_s = self._end_s = 0.0  # of the warm-up, the window; 0 means not yet
        self._settled = False
        self._health: ClientHealth | None = None
        self._over = asyncio.Event()
        self._notes: list[str] = []

    async def run(self) -> LevelRun:
        """The whole level. Raises ``ServerFailed`` where the server stops accepting connections."""
        self._began_s, alive = clock(), True
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(self._watch.run())
            self._start(group, self._open_loop(group) if self._load.rate_per_s else self._closed_loop(group))
            try:
                while not self._over.is_set():
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._over.wait(), TICK_S)
                    self._tick(clock())
                    alive = await self._is_alive()
                    if not alive:
                        break
            finally:
                for task in (*self._tasks, watching):
                    task.cancel()
        if not alive:
            raise self._died()
        return self._outcome()

    def _start(self, group: asyncio.TaskGroup, work: Coroutine[None, None, object]) -> None:
        task = group.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _closed_loop(self, group: asyncio.TaskGroup) -> None:
        """Users who send, wait for the end of the answer, and send again. They start spread over one request's time."""
        spread_s = min(self._expected_s, self._traffic.seconds_per_load / 4)
        for at_s in staggered(self._load.concurrency or 1, spread_s, self._seed):
            self._start(group, self._user(self._began_s + at_s))

    async def _user(self, from_s: float) -> None:
        await asyncio.sleep(max(0.0, from_s - clock()))
        while True:
            if not await self._request(None):
                await asyncio.sleep(PAUSE_AFTER_ERROR_S)

    async def _open_loop(self, group: asyncio.TaskGroup) -> None:
        """Requests leave at their times, whatever became of the earlier ones.

        A timer of the event loop is up to a millisecond late; timed from when they were due, that is part of TTFT.
        """
        for at_s in poisson(self._load.rate_per_s or 1.0, self._seed):
            due_s = self._began_s + at_s
            await asyncio.sleep(max(0.0, due_s - clock()))
            self._start(group, self._request(due_s))

    async def _request(self, due_s: float | None) -> bool:
        """Send one request, now or due at ``due_s``. True where it succeeded."""
        if self._start_s and not self._end_s and len(self._counted) == self._traffic.max_requests_per_load:
            self._close_window(clock())
        phase = "warm-up" if not self._start_s else "window" if not self._end_s else "drain"
        prompt = next(self._prompts[phase])
        shot = Shot(scheduled_s=due_s or clock(), target_prompt_tokens=prompt.target_prompt_tokens)
        self._sent.append(shot)
        if phase == "window":
            self._count(shot)
        await self._client.stream(self._dialect.path, self._dialect.body(prompt.text, prompt.max_tokens), shot)
        self._ended(shot)
        return shot.error is None

    def _count(self, shot: Shot) -> None:
        shot.is_counted = True
        self._counted.append(shot)
        self._num_pending += 1

    def _ended(self, shot: Shot) -> None:
        """Every step of the level happens here, at the end of a request, before its user sends the next one."""
        self._finished.append(shot)
        self._num_pending -= shot.is_counted
        self._successes += shot.error is None
        self._refused = self._refused + 1 if error_kind(shot.error or "") == "connect" else 0
        if not self._start_s:
            self._settled = self._warmup.add(shot)
            long_enough = shot.end_s - self._began_s >= self._traffic.seconds_per_load
            if long_enough and self._warmup.num_requests > self._warmup.burst:
                self._settled = self._warmup.settled(2)
                self._open_window(shot.end_s)
            elif self._settled or self._is_hopeless():
                self._open_window(shot.end_s)
        elif not self._end_s:
            enough = len(self._counted) - self._num_pending >= self._traffic.min_requests_per_load
            long_enough = shot.end_s - self._start_s >= self._traffic.seconds_per_load
            if enough and (long_enough or not self._successes):
                self._close_window(shot.end_s)
        if self._end_s and not self._num_pending:
            self._over.set()

    def _is_hopeless(self) -> bool:
        return not self._successes and len(self._finished) >= max(HOPELESS, 2 * (self._load.concurrency or 1))

    def _open_window(self, now_s: float) -> None:
        self._start_s = now_s
        if not self._finished:  # so slow that waiting longer would measure nothing at all
            self._start_s = self._began_s
            self._notes.append("no request ended during the warm-up: the window begins with the first request")
            for shot in self._sent:
                self._count(shot)
        self._watch.restart()

    def _close_window(self, now_s: float) -> None:
        self._end_s = now_s
        self._health = self._watch.verdict()
        if not self._num_pending:
            self._over.set()

    def _tick(self, now_s: float) -> None:
        """The bounds in time, for when no request ends; and progress."""
        limit_s = self._traffic.seconds_per_load
        if not self._start_s:
            waited_s = now_s - self._began_s
            if waited_s >= CAP * limit_s:
                self._open_window(now_s)
            self._emit(
                "progress", what=f"load {self._load}: warming up", done=min(waited_s, limit_s), total=limit_s, unit="s"
            )
        elif not self._end_s:
            waited_s = now_s - self._start_s
            ended = len(self._counted) - self._num_pending
            if waited_s >= CAP * limit_s:
                self._close_window(now_s)
                self._notes.append(f"stopped after {format_seconds(waited_s)}: only {ended} requests had ended")
            share = min(1.0, waited_s / limit_s, ended / self._traffic.min_requests_per_load)
            self._emit("progress", what=f"load {self._load}", done=share * limit_s, total=limit_s, unit="s")
        elif now_s - self._end_s >= CAP * limit_s:
            self._over.set()

    async def _is_alive(self) -> bool:
        """False where connections are refused again and again, and once more when asked outside the load."""
        if self._refused < REFUSED_IN_A_ROW:
            return True
        reply = await self._client.get("/v1/models", timeout_s=10.0)
        return not (reply.error or "").startswith("connect")

    def _died(self) -> ServerFailed:
        ok = self._successes
        return ServerFailed(
            "the server stopped accepting connections under load",
            cause=f"load {self._load}: {ok} requests succeeded, then {self._refused} connections in a row were refused",
            fix="look for the cause in the server's log (out of memory, a crash); lower the load or its limits",
            evidence=[shot.error or "" for shot in self._finished[-3:]],
        )

    def _outcome(self) -> LevelRun:
        end_s = self._end_s or clock()
        for shot in self._counted:
            if not shot.end_s:
                shot.sent_s = shot.sent_s or shot.scheduled_s
                shot.end_s = clock()
                shot.error = (
                    f"unfinished: still running {format_seconds(shot.end_s - shot.scheduled_s)} after it was due"
                )
        if not self._successes:
            self._notes.append(f"no request succeeded ({len(self._finished)} tried)")
        counted = tuple(shot.trace() for shot in self._counted)
        others = tuple(shot.trace() for shot in self._finished if not shot.is_counted)
        window = Window(self._start_s, end_s, self._warmup.num_requests, self._settled)
        return LevelRun(window, counted, counted + others, self._health or self._watch.verdict(), tuple(self._notes))
