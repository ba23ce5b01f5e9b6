"""An engine's scheduler, step by step: which requests share the next step, and which must wait or give way.

``token-budget`` follows vLLM V1: every step has ``max_num_batched_tokens``. Running requests are served first, in the
order in which they were admitted (a decode is one token, a prompt that was begun takes its next chunk), then waiting
ones are admitted first come, first served, while the budget, ``max_num_seqs`` and the KV cache's blocks last. Admission
needs room for the whole prompt. Where a running request finds no block, the latest admitted one gives up its blocks and
waits at the head of the queue; its prompt and what it had written are computed again.

``slots`` follows llama.cpp's server: a request takes a free slot; each update holds one token of every slot that
decodes and then prompt tokens, slot by slot, up to ``n_batch``. A slot owns its share of the context, so nothing is
preempted.

The sequences that decode all advance by one token a step, so a step costs the same work for one of them as for a
thousand: a sequence that starts to decode at tick t with n tokens to go ends at tick t + n, and whether it needs a new
block at a tick depends on its length modulo the block only.
"""

from __future__ import annotations

import heapq
from collections import deque

from model_optimizer.records.simulation import SchedulerConfig


class Sequence:
    """One request inside the engine. ``produced`` counts output tokens, ``cached`` prompt tokens that the prefix cache
    holds. ``parts`` tells when its tokens came: the moment of a prompt's step (seconds), or the ticks at which it
    decoded, as (first, last + 1). Without preemption there is one of each.
    """

    __slots__ = (
        "blocks", "cached", "computed", "key", "order", "output_tokens", "parts", "preempted", "produced",
        "prompt_tokens", "slot", "start_tick", "target",
    )  # fmt: skip

    def __init__(self, key: int, prompt_tokens: int, output_tokens: int, cached: int = 0) -> None:
        self.key = key
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.cached = self.computed = cached
        self.target = prompt_tokens  # tokens to compute before it decodes
        self.produced = 0
        self.blocks = 0
        self.order = 0
        self.slot = 0
        self.start_tick = -1  # -1: not decoding
        self.preempted = 0
        self.parts: list[float | tuple[int, int]] = []


class Step:
    """What one step computes. ``pairs``: query-key pairs of its prompt tokens. ``ends`` finish their prompt in it."""

    __slots__ = ("context", "decodes", "ends", "pairs", "prefill")

    def __init__(self, decodes: int, context: int) -> None:
        self.decodes = decodes
        self.context = context
        self.prefill = 0
        self.pairs = 0.0
        self.ends: list[Sequence] = []

    @property
    def tokens(self) -> int:
        """All tokens of the step."""
        return self.decodes + self.prefill


class Scheduler:
    """Holds waiting and running sequences and forms steps. ``tick`` counts the steps in which something decoded."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config
        self.is_slots = config.policy == "slots"
        self.max_seqs = min(config.max_num_seqs, config.max_num_batched_tokens)
        self.budget = config.max_num_batched_tokens
        self.block = 1 if self.is_slots else config.block_tokens
        self.num_blocks = config.num_kv_tokens // self.block
        self.slot_tokens = config.num_kv_tokens // config.max_num_seqs if self.is_slots else 0
        self.free_blocks = self.num_blocks
        self.waiting: deque[Sequence] = deque()
        self.prefilling: list[Sequence] = []  # admitted, prompt not done, in the order of admission or of slots
        self.decoding = 0
        self.context = 0
        self.tick = 0
        self.preemptions = 0
        self._admitted = 0
        self._ends: list[tuple[int, int, Sequence, int]] = []  # (tick after the last token, order, sequence, start)
        self._phase = [0] * self.block  # decoding sequences by the tick (modulo block) at which they need a block
        self._decoders: dict[int, Sequence] = {}
        self._slots = list(range(config.max_num_seqs)) if self.is_slots else []

    def refuses(self, prompt_tokens: int, output_tokens: int) -> str | None:
        """Why a request of this size can never be served; ``None``: it can."""
        most = min(self.config.max_model_len, self.slot_tokens or self.num_blocks * self.block)
        if not self.is_slots and not self.config.chunked_prefill:
            most = min(most, self.budget)  # one that gave way computes prompt and answer again, in one step
        longest = prompt_tokens + output_tokens
        if longest > most:
            return f"http_400: {longest} tokens exceed the {most} that one request may have"
        return None

    def add(self, sequence: Sequence) -> None:
        """A request that arrived."""
        self.waiting.append(sequence)

    @property
    def is_idle(self) -> bool:
        """Nothing to compute."""
        return not (self.waiting or self.prefilling or self.decoding)

    @property
    def num_running(self) -> int:
        """Admitted sequences."""
        return self.decoding + len(self.prefilling)

    def plain_steps(self) -> int:
        """How many steps from now on only decode, with nothing ending or joining: their course can be run through.

        0 where prompts are open or waiting ones may be admitted, or where blocks could run out.
        """
        if self.prefilling or not self.decoding or (self.waiting and self.num_running < self.max_seqs):
            return 0
        steps = self._ends[0][0] - self.tick
        if not self.is_slots:
            rounds = -(-steps // self.block)
            if rounds * self.decoding > self.free_blocks:
                return 0
        return steps

    def skip(self, steps: int) -> None:
        """Account for this many plain steps that were run."""
        if not self.is_slots:
            full, rest = divmod(steps, self.block)
            used = full * self.decoding + sum(self._phase[(self.tick + i) % self.block] for i in range(rest))
            self.free_blocks -= used
        self.tick += steps
        self.context += steps * self.decoding

    def form(self) -> Step:
        """The next step. Blocks are taken; ``done`` must follow."""
        may_admit = True
        if not self.is_slots and self.decoding:
            may_admit = self._take_decode_blocks() or not self.num_running
        step = Step(self.decoding, self.context)
        room = self.budget - step.decodes
        for sequence in self.prefilling:
            if room <= 0:
                break
            room -= self._chunk(sequence, room, step)
        while may_admit and room > 0 and self.waiting and self.num_running < self.max_seqs:
            sequence = self.waiting[0]
            if not self.config.chunked_prefill and not self.is_slots and sequence.target - sequence.computed > room:
                break
            if not self._admit(sequence):
                break
            self.waiting.popleft()
            room -= self._chunk(sequence, room, step)
        return step

    def done(self, step: Step) -> list[Sequence]:
        """After the step: those that ended, now out of the engine. Prompts that finished have their first token."""
        if step.decodes:
            self.tick += 1
            self.context += step.decodes
        ended = [sequence for sequence in step.ends if self._first_token(sequence)]
        ends = self._ends
        while ends and ends[0][0] <= self.tick:
            _, _, sequence, start = heapq.heappop(ends)
            if sequence.start_tick == start:  # else it was preempted in between
                self._stop_decoding(sequence)
                self._leave(sequence)
                ended.append(sequence)
        return ended

    def _chunk(self, sequence: Sequence, room: int, step: Step) -> int:
        tokens = min(sequence.target - sequence.computed, room)
        limit = self.config.long_prefill_threshold
        if limit and not self.is_slots:
            tokens = min(tokens, limit)
        step.pairs += tokens * (sequence.computed + 0.5 * (tokens + 1))
        step.prefill += tokens
        sequence.computed += tokens
        if sequence.computed == sequence.target:
            step.ends.append(sequence)
        return tokens

    def _admit(self, sequence: Sequence) -> bool:
        if self.is_slots:
            sequence.slot = heapq.heappop(self._slots)
            at = sum(other.slot < sequence.slot for other in self.prefilling)
            self.prefilling.insert(at, sequence)
        else:
            needed = -(-sequence.target // self.block)
            if needed > self.free_blocks:
                return False
            self.free_blocks -= needed
            sequence.blocks = needed
            self.prefilling.append(sequence)
        self._admitted += 1
        sequence.order = self._admitted
        return True

    def _first_token(self, sequence: Sequence) -> bool:
        """The prompt is done: one more token exists. True where it was the last."""
        self.prefilling.remove(sequence)
        sequence.produced += 1
        if sequence.produced >= sequence.output_tokens:
            self._leave(sequence)
            return True
        sequence.start_tick = self.tick
        heapq.heappush(
            self._ends,
            (self.tick + sequence.output_tokens - sequence.produced, sequence.order, sequence, self.tick),
        )
        self._decoders[sequence.order] = sequence
        self.decoding += 1
        self.context += sequence.target
        self._phase[(self.tick - sequence.target) % self.block] += 1
        return False

    def _stop_decoding(self, sequence: Sequence) -> None:
        ran = self.tick - sequence.start_tick
        sequence.parts.append((sequence.start_tick, self.tick))
        sequence.produced += ran
        self.decoding -= 1
        self.context -= sequence.target + ran
        self._phase[(sequence.start_tick - sequence.target) % self.block] -= 1
        length = sequence.target + ran
        sequence.blocks = -(-length // self.block)
        sequence.start_tick = -1
        del self._decoders[sequence.order]

    def _leave(self, sequence: Sequence) -> None:
        if self.is_slots:
            heapq.heappush(self._slots, sequence.slot)
        else:
            self.free_blocks += sequence.blocks
        sequence.blocks = 0

    def _take_decode_blocks(self) -> bool:
        """One block for every sequence that begins one at this tick. False where somebody had to give way."""
        needed = self._phase[self.tick % self.block]
        if needed <= self.free_blocks:
            self.free_blocks -= needed
            return True
        while self.decoding and self._phase[self.tick % self.block] > self.free_blocks:
            self._preempt()
        self.free_blocks -= self._phase[self.tick % self.block]
        return False

    def _preempt(self) -> None:
        """The latest admitted sequence gives up its blocks; what it wrote becomes part of what it must compute."""
        latest = max(self._decoders, default=0)
        if self.prefilling and self.prefilling[-1].order > latest:
            victim = self.prefilling.pop()
        else:
            victim = self._decoders[latest]
            self._stop_decoding(victim)
        self._leave(victim)
        victim.preempted += 1
        self.preemptions += 1
        victim.computed = victim.cached
        victim.target = victim.prompt_tokens + victim.produced
        self.waiting.appendleft(victim)
