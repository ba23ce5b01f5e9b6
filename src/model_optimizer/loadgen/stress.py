"""The worst that a server's settings allow, on purpose: does it survive, and does it still answer afterwards?

Four phases: the longest prompts in all slots at once; idleness, then a burst of the same; clients that hang up in the
middle of their answers, as many as there are slots, twice; and at the end one ordinary request. An engine that was only
ever measured at its operating point fails in these, weeks later.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Iterable, Sequence

from model_optimizer.errors import ServerFailed
from model_optimizer.loadgen.client import Client, Shot
from model_optimizer.loadgen.drive import Target
from model_optimizer.loadgen.http import Address, clock
from model_optimizer.loadgen.probe import ServerFacts, probe
from model_optimizer.loadgen.prompts import Prompt, PromptSource
from model_optimizer.metrics.loads import error_kind
from model_optimizer.records.base import Emit, Record
from model_optimizer.records.workload import LengthClass, TrafficProfile

IDLE_S = 3.0
MOST_SLOTS = 512
WAVES = 2
AFTERWARDS_S = 60.0


class StressRun(Record):
    """What each phase gave, in words for people; ``passed`` where nothing failed but what was hung up on purpose."""

    passed: bool
    phases: dict[str, str]
    num_requests: int
    num_errors: int


def run_stress(
    target: Target,
    *,
    prompt_tokens: int,
    output_tokens: int,
    slots: int,
    emit: Emit,
    seed: int = 0,
    idle_s: float = IDLE_S,
    phase_s: float = 120.0,
) -> StressRun:
    """All phases, ``phase_s`` seconds each at most; requests still running then are dropped and counted as unfinished.

    ``prompt_tokens`` and ``output_tokens`` are those of every request; ``slots`` how many run at once (no more than
    512 are opened). Raises ``ServerFailed`` where the server stops answering, ``ServerUnusable`` as the probe does.
    """
    traffic = TrafficProfile(
        id="stress", lengths=(LengthClass(prompt_tokens=prompt_tokens, weight=1.0),), output_tokens=output_tokens
    )
    stress = _Stress(target, traffic, min(slots, MOST_SLOTS), emit, seed, phase_s)
    return asyncio.run(stress.run(idle_s))


class _Stress:
    def __init__(
        self, target: Target, traffic: TrafficProfile, slots: int, emit: Emit, seed: int, phase_s: float
    ) -> None:
        self._target = target
        self._traffic = traffic
        self._slots = slots
        self._emit = emit
        self._rng = random.Random(f"stress/{seed}")  # noqa: S311 (when to hang up, not secrets)
        self._phase_s = phase_s
        self._phases: dict[str, str] = {}
        self._shots: list[Shot] = []
        self._hung_up = self._unfinished = 0

    async def run(self, idle_s: float) -> StressRun:
        async with Client(Address.parse(self._target.base_url), timeout_s=self._target.timeout_s) as client:
            facts = await probe(client, self._traffic, model=self._target.model, api=self._target.api, emit=self._emit)
            prompts = PromptSource(self._traffic, facts.word_fit, salt="stress").stream("stress")

            def take(number: int) -> list[Prompt]:
                return [next(prompts) for _ in range(number)]

            await self._phase("longest prompts, all slots", client, facts, take(WAVES * self._slots))
            await asyncio.sleep(idle_s)
            await self._phase("burst after idleness", client, facts, take(self._slots))
            for number in range(WAVES):
                await self._hang_up(f"clients hang up, wave {number + 1}", client, facts, take(self._slots))
            await self._afterwards(client, facts, take(1)[0])
        failed = sum(shot.error is not None for shot in self._shots) + self._unfinished
        asked = len(self._shots) + self._unfinished + self._hung_up
        return StressRun(passed=not failed, phases=self._phases, num_requests=asked, num_errors=failed)

    async def _phase(self, name: str, client: Client, facts: ServerFacts, prompts: Sequence[Prompt]) -> None:
        """All prompts, never more than ``slots`` at once."""
        self._emit("progress", what=f"stress: {name}", done=len(self._phases), total=WAVES + 3)
        room = asyncio.Semaphore(self._slots)
        shots: list[Shot] = []

        async def one(prompt: Prompt) -> None:
            async with room:
                shots.append(await _send(client, facts, prompt))

        began_s = clock()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._phase_s):
                await asyncio.gather(*(one(prompt) for prompt in prompts))
        unfinished = len(prompts) - len(shots)
        self._shots += shots
        self._unfinished += unfinished
        self._phases[name] = (
            f"{len(prompts)} requests of {self._traffic.lengths[0].prompt_tokens} + {self._traffic.output_tokens} "
            f"tokens, {self._slots} at once, in {clock() - began_s:.1f} s: {_told(shots)}"
            + (f", {unfinished} not finished in {self._phase_s:.0f} s" if unfinished else "")
        )

    async def _hang_up(self, name: str, client: Client, facts: ServerFacts, prompts: Sequence[Prompt]) -> None:
        self._emit("progress", what=f"stress: {name}", done=len(self._phases), total=WAVES + 3)
        tasks = [asyncio.create_task(_send(client, facts, prompt)) for prompt in prompts]
        for task in tasks:
            await asyncio.sleep(self._rng.uniform(0.0, 2.0 / len(tasks)))
            if self._rng.random() < 0.5:
                task.cancel()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._hung_up += len(tasks)
        self._phases[name] = f"{len(tasks)} requests dropped before their end"

    async def _afterwards(self, client: Client, facts: ServerFacts, prompt: Prompt) -> None:
        """The server may first have to notice that nobody listens to the others any more."""
        began_s = clock()
        shot = await _send(client, facts, prompt)
        while shot.error is not None and clock() - began_s < AFTERWARDS_S:
            await asyncio.sleep(1.0)
            shot = await _send(client, facts, prompt)
        if error_kind(shot.error or "") == "connect":
            raise ServerFailed(
                "the server did not survive the stress test",
                cause=shot.error or "",
                fix="lower the number of sequences or the memory share; its log names the cause",
                evidence=[f"{name}: {told}" for name, told in self._phases.items()],
            )
        self._shots.append(shot)
        self._phases["one request afterwards"] = shot.error or f"answered in {clock() - began_s:.1f} s"


async def _send(client: Client, facts: ServerFacts, prompt: Prompt) -> Shot:
    shot = Shot(scheduled_s=clock(), target_prompt_tokens=prompt.target_prompt_tokens)
    await client.stream(facts.dialect.path, facts.dialect.body(prompt.text, prompt.max_tokens), shot)
    return shot


def _told(shots: Iterable[Shot]) -> str:
    errors = Counter(error_kind(shot.error) for shot in shots if shot.error is not None)
    return ", ".join(f"{count} {kind}" for kind, count in errors.items()) or "all answered"
