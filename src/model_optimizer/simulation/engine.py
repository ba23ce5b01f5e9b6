"""The simulated engine: requests go in at their times, tokens come out, as a client would have seen them.

In front of the scheduler is the serving process (HTTP, tokenizer, detokenizer). Requests that are being taken in share
its thread evenly, for it is an event loop that turns from one to the other: of a burst all are late, not only the last.
Tokens are handed out in the order of the steps, while the engine goes on. That both share one thread is left out.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from model_optimizer.records.measurement import RequestTrace
from model_optimizer.records.simulation import SchedulerConfig, StepModel
from model_optimizer.simulation.scheduler import Scheduler, Sequence, Step
from model_optimizer.simulation.steps import step_s


class Asked(NamedTuple):
    """One request: when it leaves (seconds), its lengths, and how many first prompt tokens a prefix cache may hold."""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    shared_tokens: int = 0


class Clients(Protocol):
    """Who asks. ``start``: the first requests; ``left`` and ``ended``: the one that follows a request that left or
    ended (its number, seconds), ``None`` for none. ``is_over``: nothing more is of interest.
    """

    is_over: bool

    def start(self) -> Iterable[Asked]: ...  # noqa: D102
    def left(self, number: int, at_s: float) -> Asked | None: ...  # noqa: D102
    def ended(self, number: int, at_s: float) -> Asked | None: ...  # noqa: D102


_NEVER = float("inf")

Watch = Callable[[Scheduler, Step], None]


class Engine:
    """Runs until its clients have had enough. ``watch`` sees every step that is formed on its own, for tests."""

    def __init__(
        self, config: SchedulerConfig, steps: StepModel, clients: Clients, *, watch: Watch | None = None
    ) -> None:
        self.scheduler = Scheduler(config)
        self.num_steps = 0
        self.now_s = 0.0
        self._config = config
        self._steps = steps
        self._clients = clients
        self._watch = watch
        self._asked: list[Asked] = []
        self._arrivals: list[tuple[float, int]] = []  # heap of (seconds, number)
        self._on_the_way: deque[tuple[float, int]] = deque()  # taken in, not yet at the scheduler
        self._thread_s = 0.0  # when all tokens so far will have been handed out
        self._intake: list[tuple[float, int]] = []  # heap of (service at which it is taken in, number)
        self._intake_s = 0.0  # the intake's clock
        self._served = 0.0  # service that each request of the intake has had since the beginning, seconds
        self._ticks: list[float] = []  # when the tokens of a decode step were handed out
        self._given_way = 0  # preemptions at the last step in which nothing could be computed
        self._ended: dict[int, Sequence] = {}
        self._refused: dict[int, tuple[float, str]] = {}

    def run(self) -> None:
        """Everything to its end, or until the clients have had enough."""
        for request in self._clients.start():
            self._ask(request)
        scheduler, clients = self.scheduler, self._clients
        while not clients.is_over:
            self._let_in()
            if scheduler.is_idle:
                following = self._next_event()
                if following is None:
                    break
                self.now_s = max(self.now_s, following)
                continue
            plain = scheduler.plain_steps()
            if plain > 1:
                self._run_through(plain - 1)
            else:
                self._one()

    def trace(self, number: int) -> RequestTrace | None:
        """What the client saw of a request; ``None`` where it has not ended."""
        if number in self._ended:
            return self._trace(number, self._ended[number])
        return self._refusal(number) if number in self._refused else None

    def ended_between(self, start_s: float, end_s: float) -> list[int]:
        """Requests that got something in this span: they left before its end and ended after its start."""
        return [
            number
            for number, sequence in sorted(self._ended.items())
            if self._asked[number].at_s < end_s and self._last_s(sequence) > start_s
        ]

    def _last_s(self, sequence: Sequence) -> float:
        part = sequence.parts[-1]
        return self._ticks[part[1] - 1] if isinstance(part, tuple) else part

    def _ask(self, request: Asked | None) -> None:
        if request is not None:
            heapq.heappush(self._arrivals, (request.at_s, len(self._asked)))
            self._asked.append(request)

    def _one(self) -> None:
        scheduler, steps = self.scheduler, self._steps
        step = scheduler.form()
        if self._watch is not None:
            self._watch(scheduler, step)
        if not step.tokens:  # everything that ran gave way
            if not scheduler.preemptions > self._given_way:
                raise RuntimeError("the simulated scheduler is stuck: no request fits a step")
            self._given_way = scheduler.preemptions
            return
        self.num_steps += 1
        self.now_s += step_s(steps, self._config, step.prefill, step.pairs, step.decodes, step.context)
        self._let_in()  # they reached the serving process before this step's tokens did
        tokens = step.decodes + len(step.ends)
        if tokens:
            self._thread_s = max(self._thread_s, self.now_s) + tokens * steps.token_s
        if step.decodes:
            self._ticks.append(self._thread_s)
        for sequence in step.ends:
            sequence.parts.append(self._thread_s)
        for sequence in scheduler.done(step):
            self._ended[sequence.key] = sequence
            self._ask(self._clients.ended(sequence.key, self._thread_s))

    def _run_through(self, most: int) -> None:
        """Up to ``most`` plain decode steps, until the next request reaches the engine."""
        scheduler, steps, ticks = self.scheduler, self._steps, self._ticks
        event = self._next_event()
        until = _NEVER if event is None else event
        decodes, context = scheduler.decoding, scheduler.context
        work = step_s(steps, self._config, 0, 0.0, decodes, 0.0)
        per_context, hand_out = steps.per_context_token_s, decodes * steps.token_s
        now, thread, done = self.now_s, self._thread_s, 0
        while done < most and now < until:
            now += work + per_context * context
            context += decodes
            thread = (thread if thread > now else now) + hand_out
            ticks.append(thread)
            done += 1
        self.now_s, self._thread_s = now, thread
        self.num_steps += done
        scheduler.skip(done)

    def _next_event(self) -> float | None:
        times = [self._arrivals[0][0]] if self._arrivals else []
        if self._intake:
            times.append(self._intake_done_s())
        if self._on_the_way:
            times.append(self._on_the_way[0][0])
        return min(times, default=None)

    def _let_in(self) -> None:
        """Requests that have arrived are taken in; those that have come all the way join the scheduler's queue."""
        now, arrivals, on_the_way = self.now_s, self._arrivals, self._on_the_way
        while True:
            arrives = arrivals[0][0] if arrivals else _NEVER
            done = self._intake_done_s() if self._intake else _NEVER
            at_s = min(arrives, done)
            if at_s > now:
                break
            if self._intake:
                self._served += (at_s - self._intake_s) / len(self._intake)
            self._intake_s = at_s
            if done <= arrives:
                on_the_way.append((at_s + self._steps.overhead_s, heapq.heappop(self._intake)[1]))
            else:
                _, number = heapq.heappop(arrivals)
                heapq.heappush(self._intake, (self._served + self._steps.request_s, number))
                self._ask(self._clients.left(number, at_s))
        while on_the_way and on_the_way[0][0] <= now:
            self._join(*on_the_way.popleft())

    def _intake_done_s(self) -> float:
        """When the next request will have been taken in, if none arrives before: they share one thread evenly."""
        return self._intake_s + (self._intake[0][0] - self._served) * len(self._intake)

    def _join(self, at_s: float, number: int) -> None:
        _, prompt, output, shared = self._asked[number]
        refused = self.scheduler.refuses(prompt, output)
        if refused is not None:
            self._refused[number] = (at_s, refused)
            self._ask(self._clients.ended(number, at_s))
            return
        block = self._config.block_tokens
        cached = min(shared, prompt - 1) // block * block if self._config.prefix_caching else 0
        self.scheduler.add(Sequence(number, prompt, output, cached))

    def _trace(self, number: int, sequence: Sequence) -> RequestTrace:
        at_s, prompt, output, _ = self._asked[number]
        chunks: list[float] = []
        for part in sequence.parts:
            if isinstance(part, tuple):
                chunks += self._ticks[part[0] : part[1]]
            else:
                chunks.append(part)
        return RequestTrace.model_construct(
            scheduled_s=at_s,
            sent_s=at_s,
            chunk_s=tuple(chunks),
            end_s=chunks[-1],
            prompt_tokens=prompt,
            output_tokens=output,
            cached_tokens=sequence.cached,
            target_prompt_tokens=prompt,
            finish_reason="length",
            error=None,
        )

    def _refusal(self, number: int) -> RequestTrace:
        request, (end_s, error) = self._asked[number], self._refused[number]
        return RequestTrace(
            scheduled_s=request.at_s,
            sent_s=request.at_s,
            end_s=end_s,
            target_prompt_tokens=request.prompt_tokens,
            error=error,
        )
