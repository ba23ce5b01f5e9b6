"""What must hold whatever the settings, the requests and their times are."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model_optimizer.records.measurement import RequestTrace
from model_optimizer.records.simulation import SchedulerConfig, StepModel
from model_optimizer.simulation.engine import Asked, Engine
from model_optimizer.simulation.scheduler import Scheduler, Sequence, Step

STEPS = StepModel(
    fixed_s=0.005,
    per_prefill_token_s=2e-5,
    per_decode_seq_s=2.6e-5,
    per_context_token_s=1e-8,
    prompt_floor_s=0.007,
    overhead_s=0.01,
    request_s=0.001,
    token_s=6e-5,
)


class Script:
    """Clients who send what they were told to, at their times."""

    is_over = False

    def __init__(self, requests: Iterable[Asked]) -> None:
        self.requests = list(requests)

    def start(self) -> list[Asked]:
        return self.requests

    def left(self, number: int, at_s: float) -> None:
        return None

    def ended(self, number: int, at_s: float) -> None:
        return None


class Steps:
    """Every step that was formed one by one, checked as it comes."""

    def __init__(self) -> None:
        self.prefill = self.most = 0

    def __call__(self, scheduler: Scheduler, step: Step) -> None:
        config = scheduler.config
        assert step.tokens <= config.max_num_batched_tokens
        assert scheduler.num_running <= config.max_num_seqs
        assert 0 <= scheduler.free_blocks <= scheduler.num_blocks
        self.prefill += step.prefill
        self.most = max(self.most, step.tokens)


def run(config: SchedulerConfig, requests: Iterable[Asked]) -> tuple[Engine, list[RequestTrace], Steps]:
    script, steps = Script(requests), Steps()
    engine = Engine(config, STEPS, script, watch=steps)
    engine.run()
    traces = [engine.trace(number) for number in range(len(script.requests))]
    assert None not in traces, "a request was lost"
    return engine, [trace for trace in traces if trace is not None], steps


def config(**changes: object) -> SchedulerConfig:
    usual = {"max_num_seqs": 8, "max_num_batched_tokens": 256, "num_kv_tokens": 4096, "max_model_len": 1024}
    return SchedulerConfig.model_validate(usual | changes)


CONFIGS = st.builds(
    lambda policy, seqs, budget, room, block, chunked, limit, model_len: SchedulerConfig(
        policy=policy,
        max_num_seqs=seqs,
        max_num_batched_tokens=budget,
        num_kv_tokens=room,
        block_tokens=block,
        chunked_prefill=chunked,
        long_prefill_threshold=limit,
        max_model_len=model_len,
    ),
    st.sampled_from(["token-budget", "slots"]),
    st.integers(1, 12),
    st.integers(16, 512),
    st.integers(64, 2048),
    st.sampled_from([1, 4, 16]),
    st.booleans(),
    st.sampled_from([0, 0, 32]),
    st.integers(64, 1024),
)
REQUESTS = st.lists(
    st.builds(Asked, st.floats(0, 2), st.integers(1, 300), st.integers(1, 60), st.integers(0, 200)),
    min_size=1,
    max_size=30,
)


@settings(max_examples=150, deadline=None)
@given(CONFIGS, REQUESTS)
def test_every_request_ends_once_and_nothing_is_left_behind(config: SchedulerConfig, requests: list[Asked]):
    engine, traces, _ = run(config, requests)
    scheduler = engine.scheduler
    for request, trace in zip(requests, traces, strict=True):
        if trace.error is not None:
            assert trace.error.startswith("http_400")
            continue
        assert len(trace.chunk_s) == request.output_tokens  # tokens are conserved, preempted or not
        assert list(trace.chunk_s) == sorted(trace.chunk_s)
        assert trace.chunk_s[0] > request.at_s
    assert scheduler.is_idle
    assert scheduler.free_blocks == scheduler.num_blocks
    assert scheduler.context == 0


@settings(max_examples=60, deadline=None)
@given(CONFIGS, REQUESTS)
def test_equal_questions_have_equal_answers(config: SchedulerConfig, requests: list[Asked]):
    assert run(config, requests)[1] == run(config, requests)[1]


@settings(max_examples=60, deadline=None)
@given(REQUESTS)
def test_prompt_tokens_are_computed_once_where_nobody_gives_way(requests: list[Asked]):
    roomy = config(num_kv_tokens=10**6, prefix_caching=False)
    engine, _, steps = run(roomy, requests)
    assert engine.scheduler.preemptions == 0
    assert steps.prefill == sum(request.prompt_tokens for request in requests)


def test_a_long_prompt_is_cut_at_the_budget():
    _, _, steps = run(config(max_num_batched_tokens=100), [Asked(0.0, 250, 2)])
    assert steps.most == 100


def test_without_chunks_a_prompt_over_the_budget_is_refused():
    _, traces, _ = run(config(max_num_batched_tokens=100, chunked_prefill=False), [Asked(0.0, 250, 2)])
    assert traces[0].error is not None


def test_without_chunks_an_answer_may_not_outgrow_the_budget():
    """Who gave way could never come back: prompt and answer so far would be more than a step holds."""
    _, traces, _ = run(config(max_num_batched_tokens=100, chunked_prefill=False), [Asked(0.0, 60, 50)])
    assert traces[0].error is not None


def test_the_latest_gives_way_and_still_gets_all_its_tokens():
    """Two sequences of 40 + 60 tokens do not fit 128: the second is computed again when the first is done."""
    tight = config(num_kv_tokens=128, max_model_len=128)
    engine, (first, second), _ = run(tight, [Asked(0.0, 40, 60), Asked(0.001, 40, 60)])
    assert engine.scheduler.preemptions >= 1
    assert first.end_s < second.end_s
    assert len(second.chunk_s) == 60


def test_a_long_prompt_leaves_room_for_others_under_a_threshold():
    """Eight short prompts behind a long one: with 32 tokens a step for the long one they pass it."""
    requests = [Asked(0.0, 900, 2), *(Asked(0.0001, 16, 2) for _ in range(7))]
    _, plain, _ = run(config(), requests)
    _, limited, _ = run(config(long_prefill_threshold=32), requests)
    assert limited[1].chunk_s[0] < plain[1].chunk_s[0]
    assert limited[0].chunk_s[0] > plain[0].chunk_s[0]


def test_a_cached_prefix_is_not_computed_again():
    _, (cold,), steps = run(config(), [Asked(0.0, 200, 2, 0)])
    _, (warm,), cached = run(config(), [Asked(0.0, 200, 2, 165)])
    assert cached.prefill == steps.prefill - 160  # whole blocks of 16
    assert warm.cached_tokens == 160
    assert cold.cached_tokens == 0


def test_slots_wait_for_a_free_one():
    """Three requests at once on two slots: the third begins when one of the others has ended."""
    slots = config(policy="slots", max_num_seqs=2)
    _, traces, _ = run(slots, [Asked(0.0, 30, 20) for _ in range(3)])
    ends = sorted(trace.end_s for trace in traces[:2])
    assert traces[2].chunk_s[0] > ends[0]


def test_a_slot_holds_its_share_of_the_context_only():
    slots = config(policy="slots", max_num_seqs=8, num_kv_tokens=1024)
    _, traces, _ = run(slots, [Asked(0.0, 100, 20), Asked(0.0, 120, 20)])
    assert traces[0].error is None
    assert traces[1].error is not None


@pytest.mark.parametrize("target", [1, 15, 16, 17, 40])
def test_blocks_are_taken_when_a_sequence_reaches_them(target: int):
    """Skipped and single steps take the same blocks: ⌈(prompt + decoded) / 16⌉."""
    scheduler = Scheduler(config(num_kv_tokens=1024))
    scheduler.add(Sequence(0, target, 50))
    scheduler.done(scheduler.form())
    for steps in (1, 7, 16, 3):
        if steps == 1:
            scheduler.done(scheduler.form())
        else:
            scheduler.skip(steps)
        length = target + scheduler.tick
        assert scheduler.num_blocks - scheduler.free_blocks == -(-length // 16)
