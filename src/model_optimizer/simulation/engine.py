"""The simulated engine: requests go in at their times, tokens come out, as a client would have seen them.

The serving process (HTTP, tokenizer, detokenizer) is one thread in front of the scheduler: it takes each request in and
hands each step's tokens out, in the order in which they come, while the engine goes on.
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
        self._thread_s = 0.0  # when the serving process is free again
        self._ticks: list[float] = []  # when the tokens of a decode step were handed out
        self._ended: dict[int, Sequence] = {}
        self._refused: dict[int, tuple[float, str]] = {}

    def run(self) -> dict[int, RequestTrace]:
        """Everything to its end; the traces of the requests that ended, by number, in the order in which they left."""
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
        traces = {number: self._trace(number, sequence) for number, sequence in self._ended.items()}
        traces |= {number: self._refusal(number) for number in self._refused}
        return dict(sorted(traces.items()))

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
        until = float("inf") if event is None else event
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
        times = [queue[0][0] for queue in (self._arrivals, self._on_the_way) if queue]
        return min(times, default=None)

    def _let_in(self) -> None:
        """Requests that have arrived are taken in; those that have come all the way join the scheduler's queue."""
        now, arrivals, on_the_way = self.now_s, self._arrivals, self._on_the_way
        while arrivals and arrivals[0][0] <= now:
            at_s, number = heapq.heappop(arrivals)
            self._thread_s = max(self._thread_s, at_s) + self._steps.request_s
            on_the_way.append((self._thread_s + self._steps.overhead_s, number))
            self._ask(self._clients.left(number, at_s))
        while on_the_way and on_the_way[0][0] <= now:
            self._join(*on_the_way.popleft())

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
